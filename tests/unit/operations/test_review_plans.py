"""What a plan says first, and what it must not say: holds, refusals, limits, waivers, names."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state import records
from reconciler.operations import scratch_repository
from reconciler.operations.plan import (
    change_text,
    cluster_snapshot,
    plan_text,
    plan_types,
    planner,
    pull_request_comment,
    revisions,
)
from reconciler.simulation.engine import simulated_cluster
from tests.unit.desired.repositories import Repository, documents, job, queue
from tests.unit.operations.plan.test_planner import BASE, HEAD, NEW, comparison, live, text


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "state.git")


POOL = (
    "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec:\n"
    "  hosts: a[1-%s]\n  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 8, model: H200}}\n"
)
POLICY = (
    "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: limits}\nspec:\n"
    "  match: {kinds: [Job]}\n  message: say how long\n"
    "  schema: {properties: {spec: {required: [timeLimit]}}}\n  waivers: %s\n"
)
WAIVER = "[{object: Job/a, reason: old, expires: 2030-01-%sT00:00:00Z}]"


def plan_of(
    repository: Repository, one: dict[str, str | None], other: dict[str, str | None]
) -> plan_types.Plan:
    """The plan of a second commit, without a controller."""
    base = repository.commit(one)
    head = repository.commit(other)
    found = revisions.compare(repository.path, "", base, head)
    return planner.plan(found, None, 1_800_000_000.0)


def first_lines(plan: plan_types.Plan) -> str:
    return " ".join(text(plan).split("\n\n")[1].split())


FOUR: dict[str, str | None] = {"c.yaml": documents(POOL % 4, queue("q", limit={"gpu": 16}))}


def test_a_merge_that_will_be_held_says_so_first_with_what_approves_it(
    repository: Repository,
) -> None:
    plan = plan_of(repository, FOUR, {"c.yaml": documents(POOL % 2, queue("q"))})
    assert plan.verdict == "held"
    (held,) = plan.held
    assert (held.part, held.rules, held.command) == (
        "structure", ["over-limit"], f"muster approve {held.digest}"
    )  # fmt: skip
    assert held.digest == plan.impact.approval
    told = first_lines(plan)
    assert told.startswith(
        "HELD after the merge: the structure: 16 of 32 GPUs (50%) leave service, and at most 30%"
    )
    assert f"muster approve {held.digest}" in told
    assert f"Muster-Approve: {held.digest}" in told
    assert max(map(len, text(plan).splitlines())) <= change_text.WIDTH
    shown = pull_request_comment.render(plan)
    assert shown.index("Held after the merge") < shown.index(held.command) < shown.index("**Impact")


def test_a_comment_is_never_too_long_however_much_is_held(repository: Repository) -> None:
    plan = plan_of(repository, FOUR, {"c.yaml": documents(POOL % 2, queue("q"))})
    plan = msgspec.structs.replace(plan, waiting=plan.held * 900)
    shown = pull_request_comment.render(plan)
    assert len(shown) <= pull_request_comment.CHARACTERS_MAX
    assert shown.startswith("<!-- muster-plan:main -->\n")
    assert shown.count("```") % 2 == 0
    assert shown.index("Held after the merge") < shown.index("HELD after the merge: the structure")
    assert "cut here" in shown
    assert "**Impact**" in shown
    assert plan.digest in shown


def test_what_goes_on_behind_a_cut_says_which_object_it_is_about(repository: Repository) -> None:
    plan = plan_of(repository, FOUR, {"c.yaml": POOL % 3})
    fields = {f"environment.V{number}": ("a" * 99, "b" * 99) for number in range(40)}
    change = msgspec.structs.replace(
        plan.changes[0], operation="change", kind="Job", summary="", fields=fields
    )
    changes = [msgspec.structs.replace(change, name=f"j{number}") for number in range(20)]
    plan = msgspec.structs.replace(plan, changes=changes)
    for limit in range(30_000, 30_800, 40):
        shown = pull_request_comment.render(plan, limit=limit)
        assert len(shown) <= limit
        _, _, behind = shown.partition("cut here")
        _, _, diff = behind.partition("```diff\n")
        first, second, *_ = diff.splitlines()
        if first.endswith(" (goes on)"):
            name = first.removeprefix("! Job/").removesuffix(" (goes on)")
            ahead = diff.partition("\n! Job/")[2].partition("\n")[0]
            assert int(ahead.removeprefix("j")) == int(name.removeprefix("j")) + 1
            assert second.startswith(("-   environment.", "+   environment."))
        else:
            assert first.startswith("! Job/"), first


def test_what_is_approved_by_the_commit_is_not_held(repository: Repository) -> None:
    base = repository.commit(FOUR)
    digest = plan_of(repository, FOUR, {"c.yaml": POOL % 2}).held[0].digest
    repository.commit(FOUR)
    base = repository.commit({"x.yaml": None, **FOUR, "jobs/a.yaml": job("a", queue="default")})
    head = repository.commit({"c.yaml": POOL % 2}, message=f"Halve\n\nMuster-Approve: {digest}")
    found = revisions.compare(repository.path, "", base, head)
    assert found.approvals == (digest,)
    assert planner.plan(found, None, 1_800_000_000.0).verdict == "changes"


def test_a_policy_that_applies_is_not_refused_for_what_stands_already(
    repository: Repository,
) -> None:
    both = {"c.yaml": documents(POOL % 4), "jobs/a.yaml": job("a", queue="default")}
    plan = plan_of(repository, {**both}, {"p.yaml": POLICY % "[]"})
    assert plan.verdict == "changes"
    assert [change.name for change in plan.changes] == ["limits"]
    (finding,) = plan.findings
    assert (finding.is_new, finding.touched) == (True, False)
    told = " ".join(text(plan).split())
    assert "Refused" not in told
    assert "Job/a goes on as it is, and would be refused if it were written now." in told


def test_a_job_that_the_change_writes_is_refused_by_name(repository: Repository) -> None:
    one: dict[str, str | None] = {"c.yaml": documents(POOL % 4), "p.yaml": POLICY % "[]"}
    plan = plan_of(repository, one, {"jobs/a.yaml": job("a", queue="default")})
    assert plan.verdict == "refused"
    assert not plan.structure_refused
    assert "Refused: Job/a does not apply (1 error)." in text(plan)


def test_a_refused_structure_says_that_none_of_it_applies(repository: Repository) -> None:
    plan = plan_of(repository, FOUR, {"d.yaml": queue("r", parent="nowhere")})
    assert plan.structure_refused
    told = text(plan).splitlines()
    assert told[2] == (
        "The structure of this revision is refused (1 error): what is in force stays."
    ), "first of all"
    assert " ".join(told[3].split()) == "Jobs still apply: no change."
    assert "Impact" not in told[:4]


def test_of_a_refused_structure_the_jobs_still_apply(repository: Repository) -> None:
    change: dict[str, str | None] = {
        "d.yaml": queue("r", parent="nowhere"),
        "jobs/a.yaml": job("a"),
    }
    told = " ".join(text(plan_of(repository, FOUR, change)).split())
    first = (
        "The structure of this revision is refused (1 error): what is in force stays. Jobs still "
        "apply: 1 to add."
    )
    assert told.count(first) == 1
    assert told.index(first) < told.index("Job/a") < told.index("Impact")


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({"q.yaml": documents(queue("q", weight=3))}, "refused"),
     ({"q.yaml": None}, "refused"),
     ({"q.yaml": "kind: [Queue"}, "refused"),
     ({"d.yaml": queue("r")}, "changes"),
     ({"jobs/a.yaml": job("a", queue="q")}, "changes"),
     ({"README.md": "words"}, "none")],
)  # fmt: skip
def test_a_structure_that_was_broken_before_refuses_what_changes_it(
    repository: Repository, change: dict[str, str | None], verdict: str
) -> None:
    repository.commit({"q.yaml": documents(POOL % 4, queue("q"))})
    base = repository.commit({"d.yaml": queue("r", parent="nowhere")})
    head = repository.commit(change)
    found = revisions.compare(repository.path, "", base, head, before=[f"{base}~1"])
    plan = planner.plan(found, None, 1_800_000_000.0)
    assert (plan.verdict, plan.structure_refused) == (verdict, verdict == "refused")
    if change == {"q.yaml": documents(queue("q", weight=3))}:
        told = " ".join(text(plan).split())
        assert "The structure of this revision is refused (its errors stood before): what" in told


def test_a_waiver_that_ends_later_is_a_change(repository: Repository) -> None:
    both = {"c.yaml": documents(POOL % 4), "jobs/a.yaml": job("a", queue="default")}
    one, other = POLICY % (WAIVER % "01"), POLICY % (WAIVER % "02")
    plan = plan_of(repository, {**both, "p.yaml": one}, {"p.yaml": other})
    assert plan.verdict == "changes"
    (change,) = plan.changes
    assert change.fields == {
        "waivers.Job/a.expires": ("2030-01-01T00:00:00.000Z", "2030-01-02T00:00:00.000Z")
    }


def test_a_revision_that_is_not_there_is_named_with_one_like_it(repository: Repository) -> None:
    repository.commit(FOUR)
    with pytest.raises(
        scratch_repository.RevisionError, match=r"there is no revision maim in .*mean main\?"
    ):
        revisions.compare(repository.path, "", "main", "maim")


@pytest.mark.parametrize("in_pool", [False, True])
def test_running_work_above_a_lowered_limit_is_told(*, in_pool: bool) -> None:
    snapshot = live()
    lower = desired.QuotaAmounts(gpu_milli=1000)
    (pool,) = BASE.structure.pools
    change: dict[str, Any] = {"limit": lower}
    if in_pool:
        change = {"flavors": (desired.QueueFlavor(pool, limit=lower),)}
    queues = {
        name: msgspec.structs.replace(one, **(change if name == "default" else {}))
        for name, one in BASE.structure.queues.items()
    }
    structure = msgspec.structs.replace(BASE.structure, queues=queues)
    head = msgspec.structs.replace(BASE, structure=structure)
    plan = planner.plan(comparison(BASE, head), snapshot, snapshot.live.at, forecast=False)
    (above,) = plan.impact.above
    assert (above.queue, above.resource, above.limit) == ("default", "gpu", "1")
    assert int(above.used) > 1
    told = " ".join(text(plan).split())
    where = f" in pool {pool}" if in_pool else ""
    assert (
        f"hold {above.used} gpu{where}, above the new limit 1: they keep running"
        in told.replace("holds", "hold")
    )


def test_what_a_lowered_limit_has_leave_is_told_by_name() -> None:
    snapshot = live()
    settings = msgspec.structs.replace(
        BASE.structure.settings, drift={"queue-over-limit": "remediate"}
    )
    lower = desired.QuotaAmounts(gpu_milli=0)
    queues = {
        name: msgspec.structs.replace(one, limit=lower if name == "default" else one.limit)
        for name, one in BASE.structure.queues.items()
    }
    structure = msgspec.structs.replace(BASE.structure, queues=queues, settings=settings)
    head = msgspec.structs.replace(BASE, structure=structure)
    plan = planner.plan(comparison(BASE, head), snapshot, snapshot.live.at, forecast=False)
    assert plan.impact.above[0].remedied
    assert {one.how for one in plan.impact.jobs} == {"evicted"}
    assert len(plan.impact.jobs) == plan.impact.above[0].jobs == plan.impact.jobs_ended
    told = " ".join(text(plan).split())
    assert "the new limit 0: preemptible jobs are evicted, the newest first" in told
    assert all(f"{one.job} is evicted and starts elsewhere" in told for one in plan.impact.jobs)


def test_without_a_new_limit_nothing_is_above_it() -> None:
    snapshot: cluster_snapshot.DigestedSnapshot = live()
    plan = planner.plan(comparison(BASE, HEAD, (), (NEW,)), snapshot, snapshot.live.at)
    assert plan.impact.above == []
    assert plan.forecast is not None
    assert "low" in {one.job for one in plan.forecast.evictions}


def test_a_plan_of_a_clone_that_is_none_says_where(tmp_path: Path) -> None:
    with pytest.raises(scratch_repository.RevisionError, match="is no git repository"):
        revisions.compare(tmp_path, "", "main", "main")


def plan_from_in_force(
    repository: Repository, kept: str, newest: str, head: str
) -> plan_types.Plan:
    """The plan against a controller that runs the structure of one revision, jobs of another."""
    now = 1_800_000_000.0
    live_ = cluster_snapshot.Live("0", now, newest, kept, records.Observed())
    return plan_against(repository, live_, newest, head)


def plan_against(
    repository: Repository, live_: cluster_snapshot.Live, base: str, head: str
) -> plan_types.Plan:
    """The plan of a revision beside another, as the command and the server make it."""
    snapshot = cluster_snapshot.unpack(cluster_snapshot.pack(live_), "here")
    found = revisions.compare(
        repository.path,
        "",
        base,
        head,
        live=planner.in_force(snapshot),
    )
    return planner.plan(found, snapshot, live_.at)


def test_a_head_that_is_held_is_compared_with_what_is_in_force(repository: Repository) -> None:
    kept = repository.commit(FOUR)
    held = repository.commit({"c.yaml": POOL % 2, "jobs/a.yaml": job("a", queue="default")})
    plan = plan_from_in_force(repository, kept, held, held)
    assert (plan.verdict, plan.base, plan.head) == ("held", kept, held)
    assert (plan.impact.gpus_before, plan.impact.gpus_after) == (32, 16)
    assert plan.held[0].digest == plan.impact.approval
    assert "Job" not in {change.kind for change in plan.changes}, "its jobs apply already"
    told = " ".join(text(plan).split())
    assert (
        f"where the structure of {kept[:12]} and the jobs of {held[:12]} are in force HELD" in told
    )
    assert f"the structure of {kept[:12]} and the jobs of" in pull_request_comment.render(plan)


@pytest.mark.parametrize("parted", [False, True])
def test_what_stands_on_a_held_head_is_held_with_it(
    repository: Repository, *, parted: bool
) -> None:
    kept = repository.commit(FOUR)
    held = repository.commit({"c.yaml": documents(POOL % 2, queue("q", limit={"gpu": 16}))})
    head = repository.commit(
        {"r.yaml": queue("r")}, branch="proposal", parent=kept if parted else held
    )
    plan = plan_from_in_force(repository, kept, held, head)
    assert (plan.verdict, plan.merged) == ("held", parted)
    assert ("as merged; as a force push it would be held" in text(plan)) is parted
    assert {(one.operation, one.kind, one.name) for one in plan.changes} == {
        ("change", "NodePool", "a"),
        ("add", "Queue", "r"),
    }
    assert plan.impact.gpus_before == 32


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize(
    ("files", "verdict", "changed"),
    [
        ({"jobs/b.yaml": job("b", queue="q")}, "changes", ["b"]),
        ({"jobs/a.yaml": None}, "changes", ["a"]),
        ({"README.md": "words"}, "none", []),
        # what the held structure brings is not there yet
        ({"jobs/b.yaml": job("b", queue="new")}, "refused", []),
    ],
)
def test_what_was_held_before_is_told_and_is_none_of_the_change(
    repository: Repository,
    files: dict[str, str | None],
    verdict: str,
    changed: list[str],
    *,
    parted: bool,
) -> None:
    kept = repository.commit(FOUR | {"jobs/a.yaml": job("a", queue="q")})
    held = repository.commit(
        {"c.yaml": documents(POOL % 2, queue("q", limit={"gpu": 16}), queue("new"))}
    )
    (digest,) = {one.digest for one in plan_from_in_force(repository, kept, held, held).held}
    head = repository.commit(files, branch="proposal", parent=kept if parted else held)
    plan = plan_from_in_force(repository, kept, held, head)
    assert (plan.verdict, [one.name for one in plan.changes]) == (verdict, changed)
    assert (plan.held, [one.digest for one in plan.waiting]) == ([], [digest])
    assert (plan.impact.gpus_before, plan.impact.gpus_after) == (32, 32)
    told = " ".join(text(plan).split())
    assert "Held before, and not by this change: the structure: 16 of 32 GPUs" in told
    assert f"it waits for muster approve {digest}" in told
    assert "HELD" not in told
    assert f"it waits for muster approve {digest}" in pull_request_comment.render(plan)
    rules = {one.rule for one in plan.findings if one.is_new}
    assert rules == ({"unknown-queue"} if verdict == "refused" else set())


def test_an_approval_between_what_is_in_force_and_the_head_counts(repository: Repository) -> None:
    kept = repository.commit(FOUR)
    held = repository.commit({"c.yaml": POOL % 2})
    digest = plan_from_in_force(repository, kept, held, held).held[0].digest
    head = repository.commit({"README.md": "yes"}, message=f"Approve\n\nMuster-Approve: {digest}")
    plan = plan_from_in_force(repository, kept, held, head)
    assert (plan.verdict, plan.waiting) == ("changes", [])
    assert {one.name for one in plan.changes} == {"a", "q"}


def test_a_head_that_is_refused_is_compared_with_what_is_in_force(repository: Repository) -> None:
    kept = repository.commit(FOUR)
    broken = repository.commit({"d.yaml": queue("r", parent="nowhere")})
    plan = plan_from_in_force(repository, kept, broken, broken)
    assert (plan.verdict, plan.structure_refused, plan.base) == ("refused", True, kept)
    assert "error" in {one.severity for one in plan.findings if one.is_new}
    # what only adds a job to it applies, as before
    head = repository.commit({"jobs/a.yaml": job("a", queue="q")})
    plan = plan_from_in_force(repository, kept, broken, head)
    assert (plan.verdict, [one.name for one in plan.changes]) == ("changes", ["a"])
    assert not [one for one in plan.findings if one.is_new]


def test_without_a_hold_what_is_in_force_is_one_revision(repository: Repository) -> None:
    kept = repository.commit(FOUR)
    head = repository.commit({"r.yaml": queue("r")})
    plan = plan_from_in_force(repository, kept, kept, head)
    assert (plan.verdict, plan.base) == ("changes", kept)
    assert f"where {kept[:12]} is in force" in text(plan)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_base_that_somebody_names_and_that_is_held_misses_no_hold(
    repository: Repository, *, ahead: bool
) -> None:
    """As a pipeline does it: the base is the branch, which may be ahead of the controller."""
    kept = repository.commit(FOUR)
    held = repository.commit({"c.yaml": POOL % 2})
    base = repository.commit({"README.md": "words"}) if ahead else held
    head = repository.commit({"r.yaml": queue("r")})
    live_ = cluster_snapshot.Live("0", 1_800_000_000.0, held, kept, records.Observed())
    plan = plan_against(repository, live_, base, head)
    assert (plan.verdict, plan.base) == ("held", kept)
    assert plan.impact.gpus_before == 32
    # what stands before it is compared with as somebody says
    assert plan_against(repository, live_, kept, held).base == kept


RUNS: dict[str, str | None] = {
    "c.yaml": documents(POOL % 4, queue("q")),
    "m.yaml": "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: main}\n"
    "spec: {sync: {limits: {jobs: 0}}}\n",
    **{f"jobs/{name}.yaml": job(name, queue="q") for name in "abc"},
}


def with_held_removal(repository: Repository) -> tuple[cluster_snapshot.Live, str]:
    """A controller that lets a job run on whose document has left, and the newest revision."""
    kept = repository.commit(RUNS)
    state = revisions.compare(repository.path, "", kept, kept).base
    now = 1_800_000_000.0
    cluster = simulated_cluster.SimulatedCluster(state.structure, now=now, jobs=state.jobs)
    cluster.run(now + 60)
    newest = repository.commit({"jobs/a.yaml": None})
    observed = cluster.memory.observed((), {})
    return cluster_snapshot.Live(
        "0", cluster.now, newest, newest, observed, held={"a": "x"}
    ), newest


def test_a_job_whose_removal_is_held_is_in_force(repository: Repository) -> None:
    live_, newest = with_held_removal(repository)
    plan = plan_against(repository, live_, newest, newest)
    assert [(one.operation, one.name) for one in plan.changes] == [("remove", "a")]
    assert (plan.verdict, [one.part for one in plan.held]) == ("held", ["removal"])
    assert [(one.job, one.how) for one in plan.impact.jobs] == [("a", "cancelled")]
    (of_a,) = {one.digest for one in plan.held}
    # what another change removes is judged by itself, and what is held already is none of it
    head = repository.commit({"jobs/b.yaml": None})
    plan = plan_against(repository, live_, newest, head)
    assert [one.name for one in plan.changes] == ["b"]
    assert [(one.jobs, one.digest) for one in plan.waiting] == [(["a"], of_a)]
    ((jobs, of_b),) = [(one.jobs, one.digest) for one in plan.held]
    assert (plan.verdict, jobs) == ("held", ["b"])
    assert [one.job for one in plan.impact.jobs] == ["b"]
    assert of_b != of_a
    # an approval lets one of the two go, and what is written again stays
    head = repository.commit({}, message=f"Yes\n\nMuster-Approve: {of_a}")
    plan = plan_against(repository, live_, newest, head)
    assert [one.name for one in plan.changes] == ["a", "b"]
    assert ([one.digest for one in plan.held], plan.waiting) == ([of_b], [])
    head = repository.commit(
        {"jobs/a.yaml": RUNS["jobs/a.yaml"], "jobs/b.yaml": job("b", queue="q")}
    )
    plan = plan_against(repository, live_, newest, head)
    assert (plan.verdict, plan.changes) == ("none", [])


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [("gpuShare", "0.3", "0.5"), ("gpus", "4", "8"), ("gpuFloor", "2", "3"), ("queues", "1", "2"),
     ("jobs", "1", "2"), ("gpuHours", "1.5", "2.5")],
)  # fmt: skip
def test_limits_of_safety_have_the_names_of_the_document(
    repository: Repository, field: str, before: str, after: str
) -> None:
    cluster = (
        "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: main}\n"
        "spec: {sync: {limits: {%s: %s}}}\n"
    )
    first: dict[str, str | None] = {"m.yaml": cluster % (field, before)}
    plan = plan_of(repository, first, {"m.yaml": cluster % (field, after)})
    (change,) = plan.changes
    assert change.fields == {f"sync.limits.{field}": (before, after)}


@pytest.mark.parametrize(("count", "told"), [(1, "1 GPU"), (2, "2 GPUs"), (0.5, "0.5 GPUs")])
def test_gpus_are_counted_as_people_do(count: float, told: str) -> None:
    assert plan_text.gpus(count) == told


def test_several_reasons_stand_each_on_a_line_of_its_own(repository: Repository) -> None:
    cluster = (
        "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: main}\n"
        'spec: {sync: {windows: [{kind: deny, schedule: "* * * * *", duration: 1h}]}}\n'
    )
    plan = plan_of(repository, FOUR | {"m.yaml": cluster}, {"c.yaml": POOL % 2})
    told = text(plan).splitlines()
    assert "HELD after the merge: the structure, for 2 reasons:" in told
    first = told.index("HELD after the merge: the structure, for 2 reasons:") + 1
    reasons = [line for line in told[first:] if line.startswith("  - ")]
    assert len(reasons) == 2
    assert "leave service" in reasons[0]
    assert "no sync window opens" in " ".join(one.strip() for one in told)
    assert "looked at again" not in text(plan), "there is no time at which that would help"
    assert all(len(line) <= 80 for line in told)


def test_times_of_what_is_held_are_as_their_reader_writes_them(repository: Repository) -> None:
    plan = plan_of(repository, FOUR, {"c.yaml": POOL % 2})
    at = "2026-01-31T06:00:00.000Z"
    held = msgspec.structs.replace(plan.held[0], message=f"the next time is {at}", until=at)
    plan = msgspec.structs.replace(plan, held=[held])
    assert f"looked at again at {at}" in text(plan)
    told = "\n".join(one.text for one in plan_text.lines(plan, lambda t: t.replace(at, "06:00:00")))
    assert "the next time is 06:00:00" in told
    assert "looked at again at 06:00:00" in told
