"""What stands in a file that can't be read is still somebody's: who may not, can't take it away."""

from collections.abc import Callable

import pytest

from reconciler.desired.apply import loader
from reconciler.model import desired
from tests.unit.desired import signing
from tests.unit.desired.authorize import test_provenance
from tests.unit.desired.authorize.test_provenance import Keys, base, messages, pool, rules
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue

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


@pytest.mark.parametrize("path", ["access.yaml", "cluster.yaml"])
def test_a_slip_in_what_commits_are_measured_by_changes_nothing_of_it(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys, path: str
) -> None:
    good = base(keys)[path]
    by(repository, keys["ada"], {path: good + TYPO})
    assert one.load().status.sync == "OutOfSync"
    one = restarted(make, one)
    by(repository, keys["bob"], {"jobs/b.yaml": job("b", queue="research")})
    by(repository, None, {"jobs/c.yaml": job("c", queue="research")})
    value = one.load()
    assert set(value.jobs) == {"a", "ada", "b"}
    assert set(value.refused) == {"c"}
    by(repository, None, {path: None})
    value = one.load()
    assert value.structure.settings.verification == "required"
    assert set(value.structure.access.identities) >= {"ada@x.org", "bob@x.org"}
    assert "unsigned-commit" in rules(value)
    by(repository, keys["ada"], {path: good + TYPO, "jobs/c.yaml": None})
    one.load()
    by(repository, keys["ada"], {path: good})
    assert one.load().status.problems == ()


def test_who_mends_a_slip_in_access_may_change_it_too(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    by(repository, keys["ada"], {"access.yaml": base(keys)["access.yaml"] + TYPO})
    one.load()
    more = test_provenance.access(keys, "    - {email: eve@x.org}")
    by(repository, keys["bob"], {"access.yaml": more})
    assert "not-allowed" in rules(one.load())
    by(repository, keys["ada"], {"access.yaml": more + "# mine\n", "pool.yaml": pool(7)})
    value = one.load()
    assert "not-allowed" in rules(value)  # what bob wrote is not hers by adding a remark
    by(repository, keys["ada"], {"access.yaml": base(keys)["access.yaml"] + TYPO})
    one.load()
    by(repository, keys["ada"], {"access.yaml": more})
    value = one.load()
    assert value.status.problems == ()
    assert "eve@x.org" in value.structure.access.identities


#: Slips in Access by the only one who may change it, after which nobody has a key any more.
SLIPS: dict[str, Callable[[str], dict[str, str | None]]] = {
    "put away": lambda text: {"access.yaml": None, ".access.yaml": text},
    "misspelt": lambda text: {"access.yaml": text.replace("kind: Access", "kind: Acess")},
    "taken out": lambda _: {"access.yaml": None},
}


@pytest.mark.parametrize("slip", SLIPS)
def test_who_took_all_keys_away_by_mistake_can_put_them_back(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys, slip: str
) -> None:
    text = base(keys)["access.yaml"]
    by(repository, keys["ada"], SLIPS[slip](text))
    assert one.load().status.sync == "OutOfSync"
    one = restarted(make, one)
    by(repository, keys["bob"], {"jobs/b.yaml": job("b", queue="research")})
    assert "b" in one.load().jobs
    by(repository, keys["bob"], {"pool.yaml": pool(7)})
    assert "not-allowed" in rules(one.load())
    by(repository, keys["ada"], {"access.yaml": text, ".access.yaml": None, "pool.yaml": pool(8)})
    assert one.load().status.problems == ()


def without_forge(keys: Keys, *, ada: str = "ada") -> str:
    """The Access in which nobody but people sign, and alone ada may change it."""
    text = test_provenance.access(keys).replace(keys["ada"].public, keys[ada].public)
    return "".join(line for line in text.splitlines(keepends=True) if "forge@x.org" not in line)


def test_who_changed_her_key_beside_a_mistake_signs_with_the_new_one(
    repository: Repository, make: Make, keys: Keys
) -> None:
    files = base(keys) | {"access.yaml": without_forge(keys)}
    repository.commit(files)
    one = make()
    assert one.load().status.sync == "Synced"
    new = without_forge(keys, ada="mallory")
    wrong = files["q.yaml"].replace("parent: research", "parent: resaerch")
    by(repository, keys["ada"], {"access.yaml": new, "q.yaml": wrong})
    assert rules(one.load()) == ["unknown-parent"]
    by(repository, keys["ada"], {"jobs/m.yaml": job("m", queue="ops")})
    assert "unknown-key" in rules(one.load())
    by(repository, keys["mallory"], {"q.yaml": files["q.yaml"], "jobs/m.yaml": None})
    assert one.load().status.problems == ()
    by(repository, keys["mallory"], {"pool.yaml": pool(7)})
    assert one.load().status.problems == ()


def test_who_lost_a_right_has_lost_it_though_something_else_is_wrong(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    """As long as somebody else can mend it, what is written takes rights at once."""
    text = test_provenance.access(keys).replace(keys["bob"].public, keys["mallory"].public)
    wrong = base(keys)["q.yaml"].replace("parent: research", "parent: resaerch")
    by(repository, keys["ada"], {"access.yaml": text, "q.yaml": wrong})
    assert rules(one.load()) == ["unknown-parent"]
    by(repository, keys["bob"], {"jobs/b.yaml": job("b", queue="research")})
    value = one.load()
    assert "b" not in value.jobs
    assert "unknown-key" in rules(value)
