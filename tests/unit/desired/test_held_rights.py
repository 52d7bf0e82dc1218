"""A change of who may what that waits for approval: until it is in force nobody can use it."""

import pytest

from reconciler.desired.apply import loader
from reconciler.model import desired
from tests.unit.desired import signing
from tests.unit.desired.authorize import test_provenance
from tests.unit.desired.authorize.test_provenance import ROLES, Keys, access, base, rules
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue

make, keys = test_provenance.make, test_provenance.keys

CLUSTER = (
    "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\nspec:\n"
    "  verification: {mode: %s}\n  sync: {approval: [Access, Cluster]}\n"
)
#: Bob may change who may what, and the cluster, and approve nothing.
KEEPER = """\
    - name: keepers
      members: [bob@x.org]
      allow:
        - {verbs: [change], objects: [Access, Cluster]}
"""
APPROVES = "        - {verbs: [approve]}\n"


@pytest.fixture
def one(repository: Repository, make: Make, keys: Keys) -> loader.Loader:
    people = access(keys, roles=ROLES + KEEPER)
    repository.commit(base(keys) | {"access.yaml": people, "cluster.yaml": CLUSTER % "required"})
    made = make()
    assert made.load().status.sync == "Synced"
    return made


def held(value: desired.Desired) -> str:
    """The digest of what is held, of which there is one."""
    (found,) = value.status.held
    return found.digest


def approve(repository: Repository, digest: str) -> None:
    repository.commit({}, message=f"Approve\n\nMuster-Approve: {digest}\n")


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_nobody_approves_by_a_right_that_waits_for_approval(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys, *, over_a_restart: bool
) -> None:
    repository.commit({"access.yaml": access(keys, roles=ROLES + KEEPER + APPROVES)})
    signing.sign(repository, keys["bob"])
    digest = held(one.load())
    if over_a_restart:
        one = restarted(make, one)
        assert held(one.load()) == digest
    approve(repository, digest)
    signing.sign(repository, keys["bob"])
    assert held(one.load()) == digest
    approve(repository, digest)
    signing.sign(repository, keys["ada"])
    value = one.load()
    assert value.status.sync == "Synced"
    assert value.structure.access.roles[-1].rules[-1].verbs == ("approve",)


def test_one_push_is_no_way_round(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys
) -> None:
    """The digest is known before: a plan tells it."""
    other = make()
    other.load()
    repository.commit({"access.yaml": access(keys, roles=ROLES + KEEPER + APPROVES)})
    signing.sign(repository, keys["bob"])
    digest = held(other.load())
    approve(repository, digest)
    signing.sign(repository, keys["bob"])
    assert held(one.load()) == digest
    approve(repository, digest)
    signing.sign(repository, keys["ada"])
    assert one.load().status.sync == "Synced"


@pytest.mark.parametrize("at_once", [False, True])
def test_verification_counts_until_it_is_off(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys, *, at_once: bool
) -> None:
    repository.commit({"cluster.yaml": CLUSTER % "'off'"})
    signing.sign(repository, keys["bob"])
    digest = "" if at_once else held(one.load())
    repository.commit({"jobs/evil.yaml": job("evil", queue="research", owner="ada@x.org")})
    value = one.load()
    assert (set(value.jobs), set(value.refused)) == ({"a"}, {"evil"})
    assert rules(value).count("unsigned-commit") == 1
    digest = digest or held(value)
    approve(repository, digest)
    assert held(one.load()) == digest
    one = restarted(make, one)
    value = one.load()
    assert held(value) == digest
    assert set(value.refused) == {"evil"}
    approve(repository, digest)
    signing.sign(repository, keys["ada"])
    assert one.load().structure.settings.verification == "off"
    repository.commit({"jobs/more.yaml": job("more", queue="research")})
    assert "more" in one.load().jobs


def test_a_key_that_waits_is_nobodys(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    carol = f"    - {{email: carol@x.org, groups: [research], keys: [{keys['mallory'].listed()}]}}"
    repository.commit({"access.yaml": access(keys, carol, roles=ROLES + KEEPER)})
    signing.sign(repository, keys["bob"])
    repository.commit({"jobs/b.yaml": job("b", queue="research")})
    signing.sign(repository, keys["mallory"])
    value = one.load()
    assert set(value.jobs) == {"a"}
    assert "by the Access in force" in test_provenance.messages(value)
    approve(repository, held(value))
    signing.sign(repository, keys["ada"])
    assert one.load().status.held == ()
    repository.commit({"jobs/b.yaml": job("b", queue="research", priority=2)})
    signing.sign(repository, keys["mallory"])
    assert set(one.load().jobs) == {"a", "b"}


def test_a_key_that_is_in_force_approves_what_replaces_it(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    """Else nobody who is alone could ever have a new one."""
    renewed = keys | {"ada": keys["mallory"]}
    repository.commit({"access.yaml": access(renewed, roles=ROLES + KEEPER)})
    signing.sign(repository, keys["ada"])
    digest = held(one.load())
    approve(repository, digest)
    signing.sign(repository, keys["mallory"])
    assert held(one.load()) == digest
    approve(repository, digest)
    signing.sign(repository, keys["ada"])
    assert one.load().status.sync == "Synced"
    repository.commit({"pool.yaml": test_provenance.pool(9)})
    signing.sign(repository, keys["mallory"])
    assert len(one.load().structure.pools["a"].nodes) == 9


def test_a_queue_that_waits_to_move_is_where_it_is(
    repository: Repository, make: Make, keys: Keys
) -> None:
    """However many commits are fetched at once: bob may submit below ``research`` only."""
    cluster = (CLUSTER % "required").replace("Access, Cluster", "Queue")
    keeper = KEEPER.replace("Access, Cluster", "Queue")
    people = access(keys, roles=ROLES + keeper)
    repository.commit(base(keys) | {"access.yaml": people, "cluster.yaml": cluster})
    loaders = [make(), make()]
    for one in loaders:
        one.load()
    moved = documents(
        queue("research"), queue("vision", parent="research"), queue("ops", parent="research")
    )
    repository.commit({"q.yaml": moved})
    signing.sign(repository, keys["bob"])
    loaders[0].load()
    repository.commit({"jobs/b.yaml": job("b", queue="ops", owner="bob@x.org")})
    signing.sign(repository, keys["bob"])
    for one in loaders:
        value = one.load()
        assert set(value.refused) == {"b"}
        assert "not-allowed" in rules(value)
    approve(repository, held(value))
    signing.sign(repository, keys["ada"])
    repository.commit({"jobs/c.yaml": job("c", queue="ops", owner="bob@x.org")})
    signing.sign(repository, keys["bob"])
    assert all("c" in one.load().jobs for one in loaders)
