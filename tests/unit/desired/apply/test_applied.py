"""Whatever happened before: a restart keeps what is in force, and no reference dangles."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconciler.desired.apply import applied, file_index, last_good
from tests.unit.desired.repositories import documents, job, queue

TEXTS = [
    queue("q"),
    queue("r"),
    queue("r", parent="q"),
    queue("q", parent="r"),
    documents(queue("q"), queue("r")),
    queue("q", nonsense=1),
    "a: [",
    "services: {}\n",
    job("a"),
    job("a", priority=2),
    job("a", queue="q"),
    job("a", queue="r"),
    job("a", count=0),
    job("a", dependsOn="[{job: b}]"),
    job("b"),
    job("b", queue="r", dependsOn="[{job: a}]"),
    job("b", array="{count: 2}", dependsOn="[{job: c, perElement: true}]"),
    job("c", array="{count: 2}"),
    job("c", array="{count: 3}"),
    job("c", dependsOn="[{job: b}]"),
    documents(job("a"), job("b", script="x")),
    documents(job("c", queue="q"), job("x").replace("name: x", "nam: x")),
    "apiVersion: muster/v1\nkind: PriorityClass\nmetadata: {name: p}\nspec: {value: 7}\n",
    job("c", priorityClass="p"),
]
PATHS = ["1.yaml", "2.yaml", "3.yaml", "4.yaml"]
COMMITS = st.lists(
    st.dictionaries(st.sampled_from(PATHS), st.none() | st.sampled_from(TEXTS), min_size=1),
    min_size=1,
    max_size=6,
)


def read(text: str) -> bytes:
    """Blobs are named by what is in them."""
    return text.encode()


def changes(files: dict[str, str | None]) -> list[file_index.FileChange]:
    return [
        file_index.FileChange(path, text or "", None if text is None else text.encode())
        for path, text in sorted(files.items())
    ]


#: Why structure that is right by itself stays: of several reasons one is told.
STAYING = ("queue-in-use", "held-back", "unknown-parent", "parent-cycle")


def errors(state: applied.Applied) -> set[tuple[str, str, int, str]]:
    """What is wrong and where; messages may count jobs that were in force on the way."""
    return {
        (problem.rule, problem.path, problem.line, problem.object)
        if problem.rule not in STAYING
        else ("stays", "", 0, problem.object)
        for problem in state.problems()
        if problem.severity == "error"
    }


#: The file of what is in force leaves, two others bring the job, and then a third one does.
LEFT: list[dict[str, str | None]] = [
    {"3.yaml": job("a", dependsOn="[{job: b}]")},
    {"3.yaml": None, "2.yaml": job("a", queue="q"), "4.yaml": job("a")},
    {"1.yaml": job("a")},
]


@settings(max_examples=200, deadline=None)
@given(COMMITS)
@example(LEFT)
def test_restart_changes_nothing(commits: list[dict[str, str | None]]) -> None:
    state = applied.Applied(last_good.LastGood(), read)
    head: dict[str, str | None] = {}
    for number, commit in enumerate(commits):
        if not state.apply(str(number), changes(commit), {}):
            continue
        head = {path: text for path, text in (head | commit).items() if text is not None}
        known = last_good.decode(last_good.encode(state.incumbents()))
        again = applied.Applied(known, read)
        assert again.apply(str(number), changes(head), {})
        assert again.jobs == state.jobs
        assert again.basis == state.basis
        assert again.refused.keys() == state.refused.keys()
        assert again.structure_revision == state.structure_revision
        assert errors(again) == errors(state)
        queues = state.basis.structure.queues
        assert all(one.queue in queues for one in state.jobs.values())
        assert not state.jobs.keys() & state.refused.keys()
        check_order(state)


def test_a_job_that_moved_to_another_queue_that_goes_too_stays_in_its_own() -> None:
    """As whoever starts anew finds it: its queue is kept, and all else applies."""
    queue = "apiVersion: muster/v1\nkind: Queue\nmetadata: {{name: {}}}\n".format
    first: dict[str, str | None] = {
        "q.yaml": queue("q"),
        "r.yaml": queue("r"),
        "a.yaml": job("a", queue="q"),
    }
    state = applied.Applied(last_good.LastGood(), read)
    assert state.apply("1", changes(first), {})
    second: dict[str, str | None] = {
        "q.yaml": queue("s"),
        "r.yaml": None,
        "a.yaml": job("a", queue="r"),
    }
    assert state.apply("2", changes(second), {})
    assert state.jobs["a"].queue == "q"
    assert [one.object for one in state.problems() if one.rule == "queue-in-use"] == ["Queue/q"]
    assert set(state.basis.structure.queues) == {"default", "q", "s"}
    again = applied.Applied(last_good.decode(last_good.encode(state.incumbents())), read)
    assert again.apply("2", changes(second), {})
    assert errors(again) == errors(state)


def check_order(state: applied.Applied) -> None:
    """Dependencies in force have no cycle: they can be taken away from the end."""
    left = {
        name: {d.job for d in one.depends_on if d.job in state.jobs}
        for name, one in state.jobs.items()
    }
    while left:
        free = {name for name, others in left.items() if not others & left.keys()}
        assert free, left
        left = {name: others for name, others in left.items() if name not in free}


@pytest.mark.parametrize(("first", "then"), [(1, 8), (8, 1)])
def test_what_a_queue_s_limit_says_of_its_jobs_changes_with_it(first: int, then: int) -> None:
    files: dict[str, str | None] = {
        "a.yaml": job("j", count=2, resources="{gpu: 1}"),
        "q.yaml": queue("default", limit=f"{{gpu: {first}}}"),
    }
    state = applied.Applied(last_good.LastGood(), read)
    state.apply("1", changes(files), {})
    said = ["never-within-limit" in {one.rule for one in state.problems()}]
    state.apply("2", changes({"q.yaml": queue("default", limit=f"{{gpu: {then}}}")}), {})
    said.append("never-within-limit" in {one.rule for one in state.problems()})
    assert said == [first < 2, then < 2]
