"""Ways around signatures that are closed: faulty documents, duplicates, and changes of the mode."""

import pytest

from reconciler.desired.apply import loader
from tests.unit.desired import signing
from tests.unit.desired.authorize import test_provenance
from tests.unit.desired.authorize.test_provenance import (
    Keys,
    Steps,
    access,
    base,
    cluster,
    play,
    pool,
    rules,
)
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, documents, git, job, queue

make, keys, one = test_provenance.make, test_provenance.keys, test_provenance.one

FAULTY = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: x}\nspec: {queue: ops, nosuch: 1}\n"
BROKEN = "kind: Job\nmetadata: {name: x\n"
ADAS = job("x", queue="ops", owner="ada@x.org")
BOBS = job("x", queue="research", owner="bob@x.org")


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("faulty", [FAULTY, BROKEN])
def test_a_faulty_document_is_still_its_owners(
    repository: Repository,
    one: loader.Loader,
    make: Make,
    keys: Keys,
    *,
    faulty: str,
    apart: bool,
) -> None:
    play(repository, keys, [("ada", {"jobs/x.yaml": ADAS})])
    before = one.load().jobs["x"]
    play(repository, keys, [("ada", {"jobs/x.yaml": faulty})])
    judge = one
    if apart:  # each push by itself, and a restart between
        assert one.load().jobs["x"] == before
        judge = restarted(make, one)
        judge.load()
    play(repository, keys, [("bob", {"jobs/x.yaml": BOBS})])
    value = judge.load()
    assert "not-allowed" in rules(value)
    assert value.jobs["x"] == before
    given = job("x", queue="research", owner="bob@x.org", priority=1)
    play(repository, keys, [("ada", {"jobs/x.yaml": given})])  # who may can give it away
    assert judge.load().jobs["x"].owner == "bob@x.org"


def test_a_name_that_its_owner_gave_up_is_free(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    play(repository, keys, [("ada", {"jobs/x.yaml": ADAS})])
    one.load()
    play(repository, keys, [("ada", {"jobs/x.yaml": None}), ("bob", {"jobs/x.yaml": BOBS})])
    value = one.load()
    assert value.jobs["x"].owner == "bob@x.org"
    assert rules(value) == []


def test_of_two_documents_of_access_the_second_takes_nobody_along(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys
) -> None:
    """Nobody is dropped with the copy, and what the copy says counts for nothing."""
    mallory = f"    - {{email: m@x.org, groups: [research], keys: [{keys['mallory'].listed()}]}}"
    play(repository, keys, [("ada", {"copy.yaml": access(keys, mallory)})])
    assert "duplicate-name" in " ".join(rules(one.load()))
    play(repository, keys, [("mallory", {"jobs/m.yaml": job("m", queue="research")})])
    assert "m" not in one.load().jobs
    play(repository, keys, [("ada", {"copy.yaml": None})])
    for value in (one.load(), restarted(make, one).load()):
        assert set(rules(value)) == {"unknown-key"}
    play(repository, keys, [("ada", {"pool.yaml": pool(9)})])
    assert len(one.load().structure.pools["a"].nodes) == 9
    play(repository, keys, [("ada", {"access.yaml": access(keys, mallory)})])
    again = job("m", queue="research", priority=1)
    play(repository, keys, [("mallory", {"jobs/m.yaml": again})])
    assert "m" in one.load().jobs


def test_of_two_documents_of_the_cluster_the_other_stays(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    second = cluster("off").replace("{name: c}", "{name: d}")
    steps: Steps = [("ada", {"d.yaml": second}), ("ada", {"d.yaml": None})]
    play(repository, keys, [*steps, ("", {"jobs/b.yaml": job("b", queue="research")})])
    value = one.load()
    assert "unsigned-commit" in rules(value)
    assert "b" not in value.jobs


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_a_commit_that_lowers_the_mode_is_judged_by_the_mode_before(
    repository: Repository, make: Make, keys: Keys, mode: str
) -> None:
    """Who may change the Cluster, and no more, brings nothing else along with that."""
    roles = test_provenance.ROLES.replace(
        "{verbs: [drain]", "{verbs: [change], objects: [Cluster]}\n        - {verbs: [drain]"
    )
    repository.commit(base(keys) | {"access.yaml": access(keys, roles=roles)})
    one = make()
    assert one.load().status.sync == "Synced"
    play(repository, keys, [("bob", {"cluster.yaml": cluster(mode), "pool.yaml": pool(2)})])
    value = one.load()
    assert rules(value) == ["not-allowed"]
    assert [p.severity for p in value.status.problems] == ["error"]
    assert len(value.structure.pools["a"].nodes) == 8


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_a_commit_that_raises_the_mode_is_judged_by_the_mode_before(
    repository: Repository, make: Make, keys: Keys, mode: str
) -> None:
    """It may bring what nobody signs; the one behind it, in the same push, may not."""
    repository.commit(base(keys) | {"cluster.yaml": cluster(mode)})
    one = make()
    one.load()
    mine = job("b", queue="research")
    steps: Steps = [
        ("", {"jobs/b.yaml": mine}),
        ("", {"cluster.yaml": cluster(), "jobs/c.yaml": mine.replace("name: b", "name: c")}),
        ("", {"jobs/d.yaml": mine.replace("name: b", "name: d")}),
        ("bob", {"jobs/e.yaml": mine.replace("name: b", "name: e")}),
    ]
    play(repository, keys, steps)
    value = one.load()
    assert set(value.jobs) == {"a", "b", "c", "e"}
    errors = [p.object for p in value.status.problems if p.severity == "error"]
    assert errors == ["Job/d"]


def test_a_mode_that_is_raised_is_not_lowered_again_in_the_same_push(
    repository: Repository, make: Make, keys: Keys
) -> None:
    """Whoever is quicker than the controller's next look is judged as the slower ones are."""
    off = base(keys) | {"cluster.yaml": cluster("off")}
    repository.commit(off)
    one = make()
    one.load()
    steps: Steps = [
        ("ada", {"cluster.yaml": cluster()}),
        ("", {"cluster.yaml": off["cluster.yaml"], "jobs/b.yaml": job("b", queue="research")}),
    ]
    play(repository, keys, steps)
    value = one.load()
    assert set(rules(value)) == {"unsigned-commit"}
    assert "b" not in value.jobs


@pytest.mark.parametrize("together", [False, True])
def test_rights_to_a_queue_are_those_below_what_it_is_in_as_of_that_commit(
    repository: Repository, one: loader.Loader, keys: Keys, *, together: bool
) -> None:
    """However many commits the controller sees at once, it decides alike."""
    queues = base(keys)["q.yaml"]
    moved = queues.replace(
        "metadata: {name: ops}", "metadata: {name: ops}\nspec: {parent: research}"
    )
    added: dict[str, str | None] = {
        "new.yaml": documents(queue("new", parent="vision"), queue("other"))
    }
    steps: Steps = [
        ("ada", {"q.yaml": moved, **added}),
        ("bob", {"jobs/o.yaml": job("o", queue="ops"), "jobs/n.yaml": job("n", queue="new")}),
        ("", {"new.yaml": documents(queue("new"), queue("other", parent="vision"))}),
        ("bob", {"jobs/p.yaml": job("p", queue="other")}),
        ("ada", {"new.yaml": added["new.yaml"], "q.yaml": queues}),
        ("bob", {"jobs/q.yaml": job("q", queue="ops"), "jobs/r.yaml": job("r", queue="new")}),
    ]
    for step in steps:
        play(repository, keys, [step])
        if not together:
            one.load()
    assert set(one.load().jobs) == {"a", "o", "n", "r"}


def test_who_signed_is_known_of_each_commit_whatever_it_says(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    said = {"one": "", "two": "bob", "three": "mallory", "four": "muster", "five": "forge"}
    for name, key in said.items():
        repository.commit(
            {f"jobs/{name}.yaml": job(name, queue="research")},
            message="m\n\nMuster-Submitter: bob@x.org",
        )
        if key:
            signing.sign(repository, keys[key], author="ada@x.org")
    one.load()
    assert [commit.author for commit in one.line][1:] == ["ada@x.org"] * 4
    signers = ["", "bob@x.org", "", "bob@x.org", "ada@x.org"]
    assert [one.signers[commit.id] for commit in one.line] == signers
    assert {"two", "four", "five"} == one.last.jobs.keys() - {"a"}


def test_a_head_that_does_not_follow_is_told_with_its_own_commit(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    first = git(repository.path, "rev-parse", "main")
    play(repository, keys, [("bob", {"jobs/b.yaml": job("b", queue="research")})])
    head = git(repository.path, "rev-parse", "main")
    one.load()
    rewritten = repository.commit({"x": "x"}, message="rewritten", branch="side", parent=first)
    git(repository.path, "update-ref", "refs/heads/main", rewritten)
    assert rules(one.load()) == ["not-a-fast-forward"]
    assert [commit.subject for commit in one.line] == ["rewritten"]
    assert one.signers == {rewritten: ""}
    git(repository.path, "update-ref", "refs/heads/main", head)
    assert rules(one.load()) == []
    assert one.line == ()


@pytest.mark.parametrize("together", [False, True])
def test_what_counted_stays_although_somebody_who_may_not_pushes_on_top_of_it(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys, *, together: bool
) -> None:
    """Neither a job that was added, nor one that was taken out, nor a key that was taken away."""
    before = base(keys)
    without_bob = access(keys).replace("email: bob@x.org", "email: rob@x.org")
    steps: Steps = [
        ("ada", {"jobs/b.yaml": job("b", queue="ops", priority=1), "jobs/a.yaml": None}),
        ("", {"jobs/b.yaml": None, "jobs/a.yaml": before["jobs/a.yaml"]}),
        ("ada", {"pool.yaml": pool(9), "access.yaml": without_bob}),
        ("bob", {"pool.yaml": pool(8), "access.yaml": before["access.yaml"]}),
        ("ada", {"jobs/b.yaml": job("b", queue="ops", priority=2)}),
        ("mallory", {"jobs/b.yaml": job("b", queue="ops", priority=3)}),
    ]
    for step in steps:
        play(repository, keys, [step])
        if not together:
            one.load()
    for value in (one.load(), one.load(), restarted(make, one).load()):
        assert {name: made.priority for name, made in value.jobs.items()} == {"b": 2}
        assert len(value.structure.pools["a"].nodes) == 9
        assert "bob@x.org" not in value.structure.access.identities
        assert set(value.refused) == {"a"}


def test_who_may_not_because_of_whose_job_it_is_reads_that(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    adas = job("b", queue="research", owner="ada@x.org")
    play(repository, keys, [("bob", {"jobs/b.yaml": adas})])
    (problem,) = one.load().status.problems
    assert problem.message.endswith(
        "no role of bob@x.org allows impersonate on ada@x.org (roles of bob@x.org: researchers)"
    )
