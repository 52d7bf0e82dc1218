"""What stands in a file that can't be read is still somebody's: who may not, can't take it away."""

import pytest

from reconciler.desired import loader
from reconciler.model import desired
from tests.unit.desired import signing, test_provenance
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue
from tests.unit.desired.test_provenance import Keys, base, messages, pool, rules

make, keys = test_provenance.make, test_provenance.keys

ADAS = job("ada", queue="research", owner="ada@x.org")
TYPO = " : [\n"


@pytest.fixture
def one(repository: Repository, make: Make, keys: Keys) -> loader.Loader:
    """A loader of a repository in which ada has a job, and alone may change the pool and queues."""
    repository.commit(base(keys) | {"jobs/ada.yaml": ADAS})
    made = make()
    assert made.load().status.sync == "Synced"
    return made


def by(repository: Repository, key: signing.Key | None, files: dict[str, str | None]) -> None:
    """Commit as somebody; None: unsigned."""
    repository.commit(files)
    if key is not None:
        signing.sign(repository, key)


CHANGES: list[dict[str, str | None]] = [
    {"jobs/ada.yaml": None},
    {"jobs/ada.yaml": "# nothing\n"},
    {"jobs/ada.yaml": job("bobs", queue="research", owner="bob@x.org")},
    {"jobs/ada.yaml": None, "jobs/moved.yaml": ADAS + TYPO},
]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("who", ["bob", "nobody"])
@pytest.mark.parametrize("change", CHANGES, ids=["gone", "empty", "another", "moved"])
def test_a_job_stays_that_somebody_else_takes_away(
    repository: Repository,
    one: loader.Loader,
    make: Make,
    keys: Keys,
    *,
    change: dict[str, str | None],
    who: str,
    at_once: bool,
) -> None:
    by(repository, keys["ada"], {"jobs/ada.yaml": ADAS + TYPO})
    if not at_once:
        assert set(one.load().jobs) == {"a", "ada"}
    by(repository, keys.get(who), change)
    for value in (one.load(), restarted(make, one).load()):
        assert "ada" in value.jobs
        assert value.status.sync == "OutOfSync"
        assert "Job/ada" in {problem.object for problem in value.status.problems}
    by(repository, keys["ada"], {"jobs/ada.yaml": ADAS, "jobs/moved.yaml": None})
    value = one.load()
    assert "ada" in value.jobs
    assert "Job/ada" not in {problem.object for problem in value.status.problems}


def test_who_may_takes_it_away_or_puts_it_right(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    by(repository, keys["ada"], {"jobs/ada.yaml": ADAS + TYPO})
    one.load()
    by(repository, keys["ada"], {"jobs/ada.yaml": ADAS})
    assert one.load().status.sync == "Synced"
    by(repository, keys["ada"], {"jobs/ada.yaml": ADAS + TYPO})
    one.load()
    by(repository, keys["ada"], {"jobs/ada.yaml": None})
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.jobs) == {"a"}


def test_a_job_that_never_was_in_force_is_somebodys_too(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    """All at once or one by one makes no difference."""
    new = job("new", queue="research", owner="ada@x.org")
    by(repository, keys["ada"], {"jobs/new.yaml": new})
    by(repository, keys["ada"], {"jobs/new.yaml": new + TYPO})
    by(repository, keys["bob"], {"jobs/new.yaml": None})
    value = one.load()
    assert rules(value) == ["not-allowed"]
    assert "it belongs to ada@x.org" in messages(value)


def held_back(value: desired.Desired) -> set[str]:
    """The objects of which something is told."""
    return {problem.object for problem in value.status.problems if problem.object}


@pytest.mark.parametrize("who", ["bob", "nobody"])
def test_structure_stays_that_somebody_else_takes_away(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys, who: str
) -> None:
    queues = base(keys)["q.yaml"]
    by(repository, keys["ada"], {"pool.yaml": pool(8) + TYPO, "q.yaml": queues + TYPO})
    one.load()
    fewer = documents(queue("research"), queue("ops"))
    by(repository, keys.get(who), {"pool.yaml": None, "q.yaml": fewer})
    for value in (one.load(), restarted(make, one).load()):
        assert len(value.structure.pools["a"].nodes) == 8
        assert "vision" in value.structure.queues
        assert {"NodePool/a", "Queue/vision"} <= held_back(value)
    by(repository, keys["ada"], {"pool.yaml": pool(8) + TYPO, "q.yaml": queues + TYPO})
    assert set(rules(one.load())) == {"yaml-syntax", "structure-unreadable"}
    by(repository, keys["ada"], {"pool.yaml": pool(7), "q.yaml": queues})
    value = one.load()
    assert value.status.problems == ()
    assert len(value.structure.pools["a"].nodes) == 7


def test_a_typo_in_a_file_of_several_is_a_change_of_those_it_hides_alone(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    """Who spoils a file of others' jobs, and puts it right, has changed nothing."""
    both = documents(ADAS, job("b", queue="research", owner="bob@x.org"))
    by(repository, keys["ada"], {"jobs/ada.yaml": both})
    assert one.load().status.sync == "Synced"
    by(repository, keys["bob"], {"jobs/ada.yaml": both + TYPO})
    value = one.load()
    assert set(value.jobs) == {"a", "ada", "b"}
    by(repository, keys["bob"], {"jobs/ada.yaml": both})
    value = one.load()
    assert set(value.jobs) == {"a", "ada", "b"}
    assert value.status.sync == "Synced"
