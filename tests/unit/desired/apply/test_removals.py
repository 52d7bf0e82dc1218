"""Who took a job out of git is told with what is in force, by the commits that did it."""

from collections.abc import Iterator

import pytest

from reconciler.desired.apply import loader
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
