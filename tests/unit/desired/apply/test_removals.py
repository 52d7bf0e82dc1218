"""Who took a job out of git is told with what is in force, by the commits that did it."""

from collections.abc import Iterator

import pytest

from reconciler.desired.apply import loader, revision_in_force
from reconciler.model import desired
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue

BASE = {
    "queues.yaml": queue("research"),
    "jobs/a.yaml": job("a", queue="research"),
    "jobs/b.yaml": job("b", queue="research"),
    "jobs/c.yaml": job("c", queue="research"),
}
ADA, BOB = "ada@example.org", "bob@example.org"


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    made = Loaders(repository, lambda: 5.0)
    yield made.make
    made.close()


@pytest.fixture
def one(repository: Repository, make: Make) -> loader.Loader:
    """A loader that has read the base."""
    repository.commit(BASE)
    made = make()
    made.load()
    return made


def test_a_cancel_says_who_when_and_why(repository: Repository, one: loader.Loader) -> None:
    message = f"Cancel Job/a: wrong data: again\n\nMuster-Submitter: {ADA}"
    commit = repository.commit({"jobs/a.yaml": None}, author=ADA, message=message, at=60)
    value = one.load()
    assert value.removals == {"a": desired.Removal(ADA, commit, 60.0, True, "wrong data: again")}
    assert value.why_removed("a") == (
        f"cancelled by {ADA} at 1970-01-01T00:01:00.000Z in {commit[:7]}: wrong data: again"
    )


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("Cancel Job/a", (True, "")),
        ("Cancel 2 jobs", (True, "")),
        ("Cancel 2 jobs: too slow", (True, "too slow")),
        ("Cancel 1 job, submit 3 jobs: new data", (True, "new data")),
        ("Cancel Job/b: too slow", (False, "")),
        ("Cancel everything: now", (False, "")),
        ("Tidy up", (False, "")),
    ],
)
def test_only_the_subject_of_a_cancel_gives_a_reason(
    repository: Repository, one: loader.Loader, subject: str, expected: tuple[bool, str]
) -> None:
    repository.commit({"jobs/a.yaml": None}, message=subject)
    removal = one.load().removals["a"]
    assert (removal.is_cancel, removal.reason) == expected


def test_a_file_that_was_removed_by_hand_says_its_author(
    repository: Repository, one: loader.Loader
) -> None:
    commit = repository.commit({"jobs/a.yaml": None}, author=ADA, message="Tidy up", at=60)
    assert one.load().why_removed("a") == (
        f"removed from git by {ADA} at 1970-01-01T00:01:00.000Z in {commit[:7]}"
    )


def test_each_of_several_commits_of_one_look_answers_for_what_it_took(
    repository: Repository, one: loader.Loader
) -> None:
    repository.commit({"jobs/a.yaml": None}, author=ADA)
    repository.commit({"jobs/a.yaml": BASE["jobs/a.yaml"]}, author=ADA)
    by_bob = repository.commit({"jobs/a.yaml": None, "jobs/b.yaml": None}, author=BOB)
    by_ada = repository.commit({"jobs/c.yaml": None}, author=ADA)
    repository.commit({"jobs/d.yaml": job("d", queue="research")}, author=BOB)
    found = {name: (each.by, each.commit) for name, each in one.load().removals.items()}
    assert found == {"a": (BOB, by_bob), "b": (BOB, by_bob), "c": (ADA, by_ada)}


def test_one_document_of_a_file_is_told_from_the_others(repository: Repository, make: Make) -> None:
    two = documents(BASE["jobs/a.yaml"], BASE["jobs/b.yaml"])
    repository.commit({"queues.yaml": BASE["queues.yaml"], "jobs/two.yaml": two})
    one = make()
    one.load()
    commit = repository.commit({"jobs/two.yaml": BASE["jobs/b.yaml"]}, author=ADA)
    other = job("b", queue="research", priority=3)
    repository.commit({"jobs/two.yaml": other}, author=BOB)
    assert {name: each.commit for name, each in one.load().removals.items()} == {"a": commit}


def test_earlier_removals_stay_as_the_loop_may_not_have_seen_them(
    repository: Repository, one: loader.Loader
) -> None:
    repository.commit({"jobs/a.yaml": None}, author=ADA)
    one.load()
    repository.commit({"jobs/b.yaml": None}, author=BOB)
    assert {name: each.by for name, each in one.load().removals.items()} == {"a": ADA, "b": BOB}


def test_a_removal_while_nothing_looked_is_found_after_a_restart(
    repository: Repository, make: Make, one: loader.Loader
) -> None:
    again = restarted(make, one)
    commit = repository.commit({"jobs/a.yaml": None}, author=ADA)
    assert again.load().removals["a"].commit == commit


def test_a_held_removal_is_of_its_author_not_of_who_approves_it(
    repository: Repository, make: Make
) -> None:
    cluster = "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: it}\nspec:\n"
    cluster += "  sync: {prune: {Job: confirm}}\n"
    repository.commit({**BASE, "cluster.yaml": cluster})
    one = make()
    one.load()
    commit = repository.commit({"jobs/a.yaml": None}, author=ADA)
    (held,) = one.load().status.held
    assert held.jobs == ("a",)
    repository.commit({}, author=BOB, message=f"Approve\n\nMuster-Approve: {held.digest}")
    removal = one.load().removals["a"]
    assert (removal.by, removal.commit) == (ADA, commit)


def test_what_terminals_obey_is_no_part_of_the_message(
    repository: Repository, one: loader.Loader
) -> None:
    repository.commit({"jobs/a.yaml": None}, message="Cancel Job/a: \x1b[31mred")
    assert "\x1b" not in one.load().why_removed("a")


ARRAY = {"queues.yaml": queue("research"), "jobs/s.yaml": job("s", array="{count: 9}")}


def _cancelled(elements: str, priority: int = 0, run: int = 1) -> dict[str, str | None]:
    array = f"{{count: 9, cancelled: '{elements}'}}"
    return {"jobs/s.yaml": job("s", array=array, priority=priority, run=run)}


@pytest.fixture
def sweep(repository: Repository, make: Make) -> loader.Loader:
    """A loader that has read an array."""
    repository.commit(ARRAY)
    made = make()
    made.load()
    return made


def test_cancelled_elements_say_who_when_and_why(
    repository: Repository, sweep: loader.Loader
) -> None:
    message = f"Cancel Job/s[0-8:2]: wrong data\n\nMuster-Submitter: {ADA}"
    commit = repository.commit(_cancelled("0-8:2"), author=ADA, message=message, at=60)
    value = sweep.load()
    removal = desired.Removal(ADA, commit, 60.0, True, "wrong data")
    assert value.removals == {"s[0-8:2]": removal}
    assert value.why_elements_cancelled("s", [2, 4]) == [
        f"elements 2,4 cancelled by {ADA} at 1970-01-01T00:01:00.000Z in {commit[:7]}: wrong data"
    ]


def test_each_commit_of_one_look_answers_for_the_elements_that_it_cancelled(
    repository: Repository, sweep: loader.Loader
) -> None:
    by_ada = repository.commit(_cancelled("3"), author=ADA, message="Cancel Job/s[3]: mine")
    repository.commit(_cancelled("3", priority=7), author=BOB, message="Cancel Job/b: another")
    by_bob = repository.commit(_cancelled("1,3,7", priority=7), author=BOB, message="Tidy up")
    value = sweep.load()
    found = {name: (each.by, each.commit, each.reason) for name, each in value.removals.items()}
    assert found == {"s[3]": (ADA, by_ada, "mine"), "s[1,7]": (BOB, by_bob, "")}
    told = value.why_elements_cancelled("s", [1, 3, 5])
    assert [one.partition(" at ")[0] for one in told] == [
        "element 5 cancelled by its document",
        f"element 3 cancelled by {ADA}",
        f"element 1 cancelled by {BOB}",
    ]


def test_an_element_that_is_cancelled_again_is_of_the_later_commit(
    repository: Repository, sweep: loader.Loader
) -> None:
    repository.commit(_cancelled("3"), author=ADA)
    sweep.load()
    repository.commit(ARRAY, author=ADA)
    sweep.load()
    repository.commit(_cancelled("2-4"), author=BOB)
    assert {name: each.by for name, each in sweep.load().removals.items()} == {"s[2-4]": BOB}


def test_elements_that_a_new_array_or_a_new_run_leaves_out_are_no_news(
    repository: Repository, sweep: loader.Loader
) -> None:
    other = job("t", array="{count: 3, cancelled: '1'}")
    repository.commit({**_cancelled("3", run=2), "jobs/t.yaml": other}, author=ADA)
    assert sweep.load().removals == {}


def test_many_elements_are_told_by_their_number() -> None:
    told = desired.Desired().why_elements_cancelled("s", [n * n for n in range(300)])
    assert told == ["300 elements cancelled by its document"]


def test_long_sets_of_elements_are_remembered_within_limits() -> None:
    removal = desired.Removal("ada@example.org", "1a2b3c4d" * 5, 60.0, True)
    name = f"sweep-%04d[{','.join(str(n * n) for n in range(300))}]"
    found = {name % number: removal for number in range(revision_in_force.REMOVALS_MAX)}
    kept = list(revision_in_force.latest(found))
    assert sum(map(len, kept)) <= revision_in_force.REMOVALS_CHARACTERS_MAX
    assert kept == list(found)[-len(kept) :]
    assert len(kept) > 100
    few = {f"job-{number}": removal for number in range(revision_in_force.REMOVALS_MAX + 1)}
    assert list(revision_in_force.latest(few)) == list(few)[1:]
