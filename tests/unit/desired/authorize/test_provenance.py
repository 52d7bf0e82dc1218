"""Who may: signed commits of real keys on real repositories, judged by the loader."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.desired.apply import loader
from reconciler.desired.authorize import provenance
from reconciler.desired.git import commit_log, source
from reconciler.model import desired
from tests.unit.desired import signing
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, git, job, queue

NOW = 1_800_000_000.0  # January 2027


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: NOW)) as made:
        yield made.make


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, signing.Key]:
    folder = tmp_path_factory.mktemp("keys")
    names = ("ada", "bob", "muster", "forge", "mallory", "old")
    return {name: signing.Key(folder, name) for name in names}


ROLES = """\
  roles:
    - name: admins
      members: [ada@x.org]
      allow:
        - {verbs: [change, approve], objects: ["*"]}
        - {verbs: [manage], queues: ["*"]}
        - {verbs: [impersonate], owners: ["bob@*", "ada@*"]}
    - name: researchers
      members: ["group:research"]
      allow:
        - {verbs: [submit], queues: [research]}
        - {verbs: [drain], objects: [NodePool/a]}
"""


def access(keys: dict[str, Any], *more: str, roles: str = ROLES) -> str:
    lines = [
        "apiVersion: muster/v1",
        "kind: Access",
        "metadata: {name: people}",
        "spec:",
        "  identities:",
        f"    - {{email: ada@x.org, keys: [{keys['ada'].listed()}]}}",
        f"    - {{email: bob@x.org, groups: [research], keys: [{keys['bob'].listed()}]}}",
        f"    - {{email: muster@x.org, acts: submitter, keys: [{keys['muster'].listed()}]}}",
        f"    - {{email: forge@x.org, acts: author, keys: [{keys['forge'].listed()}]}}",
        "    - email: old@x.org",
        f"      keys: [{keys['old'].listed('2026-01-01T00:00:00Z')}]",
        *more,
    ]
    return "\n".join(lines) + "\n" + roles


def cluster(mode: str = "required") -> str:
    return (
        "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\n"
        f"spec: {{verification: {{mode: {mode}}}}}\n"
    )


def pool(count: int, overrides: str = "[]") -> str:
    return (
        "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec:\n"
        f"  hosts: a[1-{count}]\n  overrides: {overrides}\n"
        "  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 8, model: H200}}\n"
    )


def base(keys: dict[str, signing.Key]) -> dict[str, str]:
    return {
        "access.yaml": access(keys),
        "cluster.yaml": cluster(),
        "pool.yaml": pool(8),
        "q.yaml": documents(queue("research"), queue("vision", parent="research"), queue("ops")),
        "jobs/a.yaml": job("a", queue="research", owner="bob@x.org"),
    }


def rules(value: desired.Desired) -> list[str]:
    return sorted(problem.rule for problem in value.status.problems)


def messages(value: desired.Desired) -> str:
    return " ".join(problem.message for problem in value.status.problems)


Keys = dict[str, signing.Key]
NEW = {"jobs/b.yaml": job("b", queue="research")}


@pytest.fixture
def one(repository: Repository, make: Make, keys: Keys) -> loader.Loader:
    """A loader of a repository whose commits have to be signed."""
    repository.commit(base(keys))
    made = make()
    assert made.load().status.sync == "Synced"
    return made


def test_a_signed_commit_applies(repository: Repository, one: loader.Loader, keys: Keys) -> None:
    repository.commit(NEW)
    signing.sign(repository, keys["bob"])
    value = one.load()
    assert set(value.jobs) == {"a", "b"}
    assert value.status.sync == "Synced"


def test_an_unsigned_commit_is_refused(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys
) -> None:
    head = repository.commit(NEW | {"jobs/a.yaml": None, "pool.yaml": pool(9)})
    for value in (one.load(), one.load(), restarted(make, one).load()):
        assert set(value.jobs) == {"a"}
        assert set(value.refused) == {"b"}
        assert rules(value) == ["unsigned-commit"] * 3
        assert f"commit {head[:12]} changes it, and it has no signature" in messages(value)
        assert len(value.structure.pools["a"].nodes) == 8
    # Others go on meanwhile, and who may can put it right.
    repository.commit({"jobs/c.yaml": job("c", queue="research")})
    signing.sign(repository, keys["bob"])
    assert set(one.load().jobs) == {"a", "c"}
    repository.commit({"jobs/b.yaml": job("b", queue="research", priority=3)})
    signing.sign(repository, keys["bob"])
    assert set(one.load().jobs) == {"a", "b", "c"}
    repository.commit({"pool.yaml": pool(8), "jobs/a.yaml": base(keys)["jobs/a.yaml"]})
    assert one.load().status.sync == "Synced"  # back to what is in force: nothing to answer for


def test_a_wrong_signature_is_refused(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit(NEW)
    commit = signing.sign(repository, keys["bob"])
    raw = subprocess.run(
        ["git", "-C", str(repository.path), "cat-file", "commit", commit],
        check=True,
        capture_output=True,
    ).stdout
    forged = raw.replace(b"\n\ntest", b"\n\nsomething else")
    assert forged != raw
    made = git(repository.path, "hash-object", "-t", "commit", "-w", "--stdin", data=forged)
    git(repository.path, "update-ref", "refs/heads/main", made)
    value = one.load()
    assert set(value.refused) == {"b"}
    assert rules(value) == ["bad-signature"]


def test_a_stranger_is_refused(repository: Repository, one: loader.Loader, keys: Keys) -> None:
    repository.commit(NEW)
    signing.sign(repository, keys["mallory"])
    value = one.load()
    assert rules(value) == ["unknown-key"]
    assert "SHA256:" in messages(value)


def test_no_commit_authorises_itself(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys
) -> None:
    mine = f"    - {{email: m@x.org, groups: [research], keys: [{keys['mallory'].listed()}]}}"
    repository.commit(NEW | {"access.yaml": access(keys, mine)})
    signing.sign(repository, keys["mallory"])
    # Nor does the one after it, whenever it comes.
    repository.commit({"jobs/c.yaml": job("c", queue="research")})
    signing.sign(repository, keys["mallory"])
    for value in (one.load(), restarted(make, one).load()):
        assert set(value.jobs) == {"a"}
        assert rules(value) == ["unknown-key"] * 3
        assert "m@x.org" not in value.structure.access.identities
    one = restarted(make, one)
    repository.commit({"jobs/d.yaml": job("d", queue="research")})
    signing.sign(repository, keys["mallory"])
    assert set(one.load().jobs) == {"a"}
    # It does once somebody who may has said so.
    repository.commit({"access.yaml": access(keys, mine) + "# reviewed\n", "x": "x"})
    signing.sign(repository, keys["ada"])
    assert "unknown-key" in rules(one.load())  # a comment is no change of the object
    repository.commit({"access.yaml": access(keys, mine + "\n    - {email: n@x.org}")})
    signing.sign(repository, keys["ada"])
    repository.commit({"jobs/e.yaml": job("e", queue="research")})
    signing.sign(repository, keys["mallory"])
    assert set(one.load().jobs) == {"a", "e"}


@pytest.mark.parametrize("at", ["", "2025-06-01T00:00:00Z"])
def test_an_expired_key_is_refused_whatever_the_commit_claims(
    repository: Repository, one: loader.Loader, keys: Keys, at: str
) -> None:
    repository.commit(NEW)
    signing.sign(repository, keys["old"], at=at)
    value = one.load()
    assert rules(value) == ["expired-key"]
    assert "valid until 2026-01-01" in messages(value)


def test_turning_verification_off_takes_who_may(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit({"cluster.yaml": cluster("off")})
    repository.commit(NEW)
    assert set(one.load().jobs) == {"a"}
    repository.commit({"cluster.yaml": cluster("warn")})
    signing.sign(repository, keys["ada"])
    repository.commit({"jobs/c.yaml": job("c")})
    value = one.load()
    assert set(value.jobs) == {"a", "c"}
    found = {(p.rule, p.severity, p.object) for p in value.status.problems}
    assert ("unsigned-commit", "warning", "Job/c") in found
    repository.commit({"cluster.yaml": cluster("off")})
    signing.sign(repository, keys["ada"])
    repository.commit({"jobs/d.yaml": job("d")})
    assert set(one.load().jobs) >= {"a", "c", "d"}


# --- what each may ----------------------------------------------------------------------------

OTHERS = job("b", queue="research", owner="ada@x.org")


@pytest.mark.parametrize(
    ("who", "files", "refused"),
    [
        ("bob", {"jobs/b.yaml": job("b", queue="vision")}, []),  # below research
        ("bob", {"jobs/b.yaml": job("b", queue="ops")}, ["Job/b"]),
        ("bob", {"jobs/b.yaml": job("b")}, ["Job/b"]),  # the default queue
        ("bob", {"jobs/b.yaml": OTHERS}, ["Job/b"]),
        ("ada", {"jobs/b.yaml": job("b", queue="ops", owner="bob@x.org")}, []),
        ("ada", {"jobs/b.yaml": job("b", queue="ops", owner="eve@x.org")}, ["Job/b"]),
        ("ada", {"jobs/a.yaml": job("a", queue="research", owner="eve@x.org")}, ["Job/a"]),
        ("bob", {"jobs/b.yaml": job("b", queue="vision", owner="ada@x.org")}, ["Job/b"]),
        ("bob", {"jobs/a.yaml": None}, []),
        ("bob", {"jobs/a.yaml": job("a", queue="ops", owner="bob@x.org")}, ["Job/a"]),
        ("bob", {"pool.yaml": pool(9)}, ["NodePool/a"]),
        ("bob", {"pool.yaml": pool(8, "[{hosts: a1, reason: fan}]")}, []),
        ("bob", {"pool.yaml": pool(9, "[{hosts: a1, reason: fan}]")}, ["NodePool/a"]),
        ("bob", {"pool.yaml": None}, ["NodePool/a"]),
        ("ada", {"pool.yaml": pool(9)}, []),
        ("bob", {"jobs/a.yaml": "a: ["}, []),
        ("bob", {"q.yaml": "a: ["}, ["Queue/ops", "Queue/research", "Queue/vision"]),
    ],
)
def test_what_the_rules_allow(
    repository: Repository,
    one: loader.Loader,
    keys: Keys,
    *,
    who: str,
    files: dict[str, str | None],
    refused: list[str],
) -> None:
    repository.commit(files)
    signing.sign(repository, keys[who])
    value = one.load()
    found = [p for p in value.status.problems if p.rule == "not-allowed"]
    assert sorted(problem.object for problem in found) == refused
    assert all(f"{who}@x.org" in problem.message for problem in found)


URGENT = "apiVersion: muster/v1\nkind: PriorityClass\nmetadata: {name: urgent}\nspec: {value: 90}\n"
CAPPED = """\
    - name: hasty
      members: [bob@x.org]
      allow: [{verbs: [submit], queues: [vision], maxPriority: 80, priorityClasses: [calm]}]
"""


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([job("b", queue="research", priority=50)], []),
        ([job("b", queue="research", priority=51)], ["Job/b"]),
        ([job("b", queue="vision", priority=80)], []),
        ([job("b", queue="vision", priority=81)], ["Job/b"]),
        # what is allowed in one queue is asked for anew in another
        (
            [job("b", queue="vision", priority=80), job("b", queue="research", priority=80)],
            ["Job/b"],
        ),
        # what a job says already is nobody's to answer for
        (
            [job("b", queue="vision", priority=80), job("b", queue="vision", priority=80, count=2)],
            [],
        ),
        # a rule of bob's names no class, and so allows any; the other names one
        ([job("b", queue="research", priorityClass="urgent")], []),
    ],
)
def test_how_high_a_priority_may_be_is_a_right(
    repository: Repository, make: Make, keys: Keys, *, steps: list[str], refused: list[str]
) -> None:
    files = base(keys) | {"access.yaml": access(keys) + CAPPED, "urgent.yaml": URGENT}
    repository.commit(files)
    made = make()
    assert made.load().status.sync == "Synced"
    for text in steps:
        repository.commit({"jobs/b.yaml": text})
        signing.sign(repository, keys["bob"])
        value = made.load()
    found = [problem for problem in value.status.problems if problem.rule == "not-allowed"]
    assert [problem.object for problem in found] == refused
    assert all("maxPriority" in problem.message for problem in found)


def test_classes_are_a_right_too(repository: Repository, make: Make, keys: Keys) -> None:
    roles = ROLES.replace("queues: [research]", "queues: [research], priorityClasses: [calm*]")
    calm = URGENT.replace("urgent", "calmest")
    repository.commit(base(keys) | {"access.yaml": access(keys, roles=roles), "c.yaml": calm})
    repository.commit({"urgent.yaml": URGENT})
    made = make()
    made.load()
    jobs = {
        "jobs/b.yaml": job("b", queue="research", priorityClass="urgent"),
        "jobs/c.yaml": job("c", queue="research", priorityClass="calmest"),
    }
    repository.commit(jobs)
    signing.sign(repository, keys["bob"])
    value = made.load()
    assert set(value.jobs) == {"a", "c"}
    assert "priorityClass: urgent in Queue/research" in value.refused["b"]
    assert "priorityClasses" in value.refused["b"]


def test_a_refused_job_is_refused_alone(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit(NEW | {"jobs/c.yaml": job("c", queue="ops")})
    signing.sign(repository, keys["bob"])
    value = one.load()
    assert set(value.jobs) == {"a", "b"}
    assert "no role of bob@x.org allows submit on Queue/ops" in value.refused["c"]
    assert "(roles of bob@x.org: researchers)" in value.refused["c"]


def test_a_namesake_elsewhere_frees_nothing_that_was_refused(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit({"jobs/x.yaml": job("x", queue="ops")})
    repository.commit({"jobs/y.yaml": job("x", queue="research")})
    signing.sign(repository, keys["bob"])
    assert "x" not in one.load().jobs


# --- changes in several files and several commits ---------------------------------------------

MINE = job("a", queue="research", owner="bob@x.org")
OPS = job("x", queue="ops", owner="ada@x.org")
OTHER = job("a", queue="research", owner="bob@x.org", priority=9)
TAKEN = job("x", queue="research", owner="bob@x.org")
Steps = list[tuple[str, dict[str, str | None]]]


def play(repository: Repository, keys: Keys, steps: Steps) -> None:
    """Commit one after the other; who is empty signs nothing."""
    for who, files in steps:
        repository.commit(files)
        if who:
            signing.sign(repository, keys[who])


def test_a_copy_beside_an_altered_job_does_not_hide_the_change(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    before = one.last.jobs["a"]
    play(repository, keys, [("", {"aa.yaml": MINE, "jobs/a.yaml": OTHER})])
    value = one.load()
    assert "unsigned-commit" in rules(value)
    assert value.jobs["a"] == before
    play(repository, keys, [("", {"jobs/a.yaml": None})])  # the copy alone is not what was
    assert "unsigned-commit" in rules(one.load())


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "each by itself"])
@pytest.mark.parametrize("what", ["pool", "access", "job"])
def test_an_object_swapped_over_several_commits_stays(
    repository: Repository, one: loader.Loader, keys: Keys, *, what: str, whole: bool
) -> None:
    mine = f"    - {{email: m@x.org, keys: [{keys['mallory'].listed()}]}}"
    name, old, new = {
        "pool": ("pool.yaml", pool(8), pool(9)),
        "access": ("access.yaml", access(keys), access(keys, mine)),
        "job": ("jobs/a.yaml", MINE, OTHER),
    }[what]
    first = one.last
    steps: Steps = [
        ("", {name: old + "# more\n", "z.yaml": new}),
        ("", {"z.yaml": None, "a.yaml": new}),
        ("", {"a.yaml": new + "# more\n", name: None}),
        ("", {"a.yaml": new}),
    ]
    for step in steps:
        play(repository, keys, [step])
        if not whole:
            one.load()
    value = one.load()
    assert set(rules(value)) == {"unsigned-commit"}
    assert (value.structure, value.jobs) == (first.structure, first.jobs)


@pytest.mark.parametrize(
    ("steps", "stays"),
    [
        # What bob may not do he may not do in two steps, whatever the second is.
        ([("bob", {"jobs/x.yaml": TAKEN})], True),
        (
            [("bob", {"jobs/x.yaml": TAKEN}), ("bob", {"jobs/x.yaml": TAKEN + "  priority: 2\n"})],
            True,
        ),
        ([("bob", {"jobs/x.yaml": TAKEN}), ("bob", {"jobs/x.yaml": None})], True),
        ([("bob", {"jobs/x.yaml": TAKEN}), ("bob", {"jobs/x.yaml": None, "y.yaml": TAKEN})], True),
        ([("", {"jobs/x.yaml": None}), ("bob", {"jobs/x.yaml": TAKEN})], True),
        # Nor by a namesake that waits for the first to move.
        ([("bob", {"0.yaml": TAKEN}), ("bob", {"jobs/x.yaml": None, "z.yaml": OPS})], True),
        # Who may do all of it may do the last of it.
        ([("bob", {"jobs/x.yaml": TAKEN}), ("ada", {"jobs/x.yaml": None})], False),
        ([("", {"jobs/x.yaml": None}), ("ada", {"jobs/x.yaml": TAKEN})], False),
        # A namesake that somebody signs says nothing of what nobody has signed.
        ([("", {"z.yaml": TAKEN}), ("ada", {"0.yaml": OPS}), ("ada", {"jobs/x.yaml": None})], True),
    ],
)
def test_rights_are_asked_for_all_that_differs_from_what_is_in_force(
    repository: Repository,
    one: loader.Loader,
    make: Make,
    keys: Keys,
    *,
    steps: Steps,
    stays: bool,
) -> None:
    play(repository, keys, [("ada", {"jobs/x.yaml": OPS})])
    first = one.load().jobs["x"]
    for step in steps:
        play(repository, keys, [step])
        value = one.load()
        one = restarted(make, one)
    job = value.jobs.get("x")
    assert (job is not None and (job.queue, job.owner) == (first.queue, first.owner)) == stays


def test_a_denial_follows_its_object_to_another_file(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys
) -> None:
    play(repository, keys, [("", {"pool.yaml": pool(9)})])
    one.load()
    play(repository, keys, [("ada", {"pool.yaml": None, "moved.yaml": pool(9)})])
    for value in (one.load(), restarted(make, one).load()):
        (problem,) = value.status.problems  # who moves it does not answer for what it says
        assert (problem.rule, problem.path) == ("unsigned-commit", "moved.yaml")
        assert len(value.structure.pools["a"].nodes) == 8
    play(repository, keys, [("ada", {"moved.yaml": pool(10)})])
    value = one.load()
    assert value.status.sync == "Synced"
    assert len(value.structure.pools["a"].nodes) == 10


def test_a_denial_ends_where_its_object_says_again_what_is_in_force(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    play(repository, keys, [("", {"pool.yaml": pool(9)})])
    play(repository, keys, [("ada", {"pool.yaml": None, "moved.yaml": pool(9)})])
    assert one.load().status.sync == "OutOfSync"
    play(repository, keys, [("", {"moved.yaml": pool(8)})])
    assert one.load().status.sync == "Synced"


def test_an_object_that_nobody_signs_for_moves_back(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    play(repository, keys, [("", {"pool.yaml": None, "moved.yaml": pool(8)})])
    assert rules(one.load()) == ["unsigned-commit"]
    play(repository, keys, [("", {"pool.yaml": pool(8), "moved.yaml": None})])
    assert one.load().status.sync == "Synced"


def test_with_warnings_access_taken_back_is_taken_back(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    mine = f"    - {{email: m@x.org, groups: [research], keys: [{keys['mallory'].listed()}]}}"
    steps: Steps = [
        ("ada", {"cluster.yaml": cluster("warn")}),
        ("", {"access.yaml": access(keys, mine)}),
        ("", {"access.yaml": access(keys)}),
        ("ada", {"cluster.yaml": cluster()}),
        ("mallory", {**NEW}),
    ]
    play(repository, keys, steps)
    assert rules(one.load()) == ["unknown-key"]


# --- the controller, forges, merges -----------------------------------------------------------


def test_the_controller_commits_for_people(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit(NEW, message="Submit\n\nMuster-Submitter: bob@x.org")
    signing.sign(repository, keys["muster"])
    assert set(one.load().jobs) == {"a", "b"}
    repository.commit(
        {"jobs/c.yaml": job("c", queue="ops")}, message="Submit\n\nMuster-Submitter: bob@x.org"
    )
    signing.sign(repository, keys["muster"])
    value = one.load()
    assert set(value.jobs) == {"a", "b"}
    assert rules(value) == ["not-allowed"]


@pytest.mark.parametrize(
    ("key", "message", "files", "rule"),
    [
        ("muster", "Submit", NEW, "no-submitter"),
        (
            "muster",
            "S\n\nMuster-Submitter: bob@x.org\nMuster-Submitter: ada@x.org",
            NEW,
            "no-submitter",
        ),
        ("muster", "S\n\nMuster-Submitter: eve@x.org", NEW, "unknown-person"),
        ("muster", "S\n\nMuster-Submitter: ada@x.org", {"pool.yaml": pool(9)}, "not-a-submission"),
        (
            "muster",
            "S\n\nMuster-Submitter: ada@x.org",
            {"elsewhere/b.yaml": job("b", queue="research")},
            "not-a-submission",
        ),
        # The line counts under no other key.
        (
            "bob",
            "S\n\nMuster-Submitter: ada@x.org",
            {"jobs/b.yaml": job("b", queue="ops")},
            "not-allowed",
        ),
    ],
)
def test_the_submitters_line_counts_under_the_controllers_key_alone(
    repository: Repository,
    one: loader.Loader,
    keys: Keys,
    *,
    key: str,
    message: str,
    files: dict[str, str],
    rule: str,
) -> None:
    repository.commit(files, message=message)
    signing.sign(repository, keys[key])
    assert rules(one.load()) == [rule]


@pytest.mark.parametrize(
    ("author", "rule"),
    [("ada@x.org", []), ("bob@x.org", ["not-allowed"]), ("eve@x.org", ["unknown-person"])],
)
def test_a_merge_of_the_forge_counts_as_its_authors(
    repository: Repository, one: loader.Loader, keys: Keys, author: str, rule: list[str]
) -> None:
    first = git(repository.path, "rev-parse", "refs/heads/main")
    repository.commit({"pool.yaml": pool(9)}, branch="side", parent=first)  # nobody signed it
    repository.commit({"pool.yaml": pool(9)}, merge="refs/heads/side^0")
    signing.sign(repository, keys["forge"], author=author)
    value = one.load()
    assert rules(value) == rule
    assert len(value.structure.pools["a"].nodes) == (8 if rule else 9)


def test_co_authors_count_for_nothing(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit({"pool.yaml": pool(9)}, message="More\n\nCo-authored-by: Ada <ada@x.org>")
    signing.sign(repository, keys["bob"])
    assert rules(one.load()) == ["not-allowed"]


def test_who_merges_answers_for_the_whole_difference(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    first = git(repository.path, "rev-parse", "refs/heads/main")
    repository.commit({"pool.yaml": pool(9)}, branch="side", parent=first)
    signing.sign(repository, keys["ada"], branch="side")
    repository.commit(NEW)
    signing.sign(repository, keys["bob"])
    repository.commit({"pool.yaml": pool(9)}, merge="refs/heads/side^0")
    signing.sign(repository, keys["bob"])
    assert rules(one.load()) == ["not-allowed"]


def test_approval_takes_who_may(repository: Repository, one: loader.Loader, keys: Keys) -> None:
    repository.commit({"pool.yaml": pool(4)})
    signing.sign(repository, keys["ada"])
    digest = one.load().status.held[0].digest
    for key, nodes in (("mallory", 8), ("bob", 8), ("ada", 4)):
        repository.commit({}, message=f"Yes\n\nMuster-Approve: {digest}")
        signing.sign(repository, keys[key])
        assert len(one.load().structure.pools["a"].nodes) == nodes


# --- more commits than can be judged -----------------------------------------------------------


def test_without_verification_any_number_of_commits_is_taken(
    repository: Repository, make: Make, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 3)
    repository.commit(base(keys) | {"cluster.yaml": cluster("off")})
    one = make()
    one.load()
    for count in range(5):
        repository.commit(NEW | {"pool.yaml": pool(9 + count)}, message=f"commit {count}")
    first = git(repository.path, "rev-parse", "refs/heads/main~5")
    side = repository.commit({"s": "s"}, branch="side", parent=first)
    repository.commit({"s": "s"}, merge=side, message="merge")
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.jobs) == {"a", "b"}
    assert [commit.subject for commit in one.line][-2:] == ["commit 4", "merge"]


def test_too_many_commits_to_judge_are_held_until_accepted(
    repository: Repository, one: loader.Loader, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than can be listed, behind a merge that does not follow its first parent."""
    monkeypatch.setattr(commit_log, "LINE_MAX", 3)
    monkeypatch.setattr(commit_log, "LISTED_MAX", 3)
    for count in range(4):
        long = repository.commit({"jobs/b.yaml": job("b", queue="research", priority=count)})
    other = repository.commit({"r": "r"}, root=True, branch="other")
    whole = base(keys) | {"jobs/b.yaml": job("b", queue="research")}
    head = repository.commit(whole, branch="other", parent=other, merge=long)
    git(repository.path, "update-ref", "refs/heads/main", head)
    value = one.load()
    assert rules(value) == ["too-many-commits"]
    assert f"more than 3 commits lead from {value.status.jobs_revision}" in messages(value)
    assert f"--accept-revision {head}" in messages(value)
    assert set(value.jobs) == {"a"}
    one.accept(head)
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.jobs) == {"a", "b"}
    repository.commit({"jobs/c.yaml": job("c", queue="research")})
    assert rules(one.load()) == ["unsigned-commit"]  # what it says of mode and people holds


# --- GPG --------------------------------------------------------------------------------------


def test_gpg_signatures_by_subkeys(
    repository: Repository, make: Make, keys: Keys, tmp_path: Path
) -> None:
    good = signing.GpgKey(tmp_path / "g", "gina@x.org")
    other = signing.GpgKey(tmp_path / "h", "eve@x.org")
    more = (
        "    - email: gina@x.org\n      groups: [research]\n      keys:\n      - "
        + good.listed().lstrip()
    )
    repository.commit(base(keys) | {"access.yaml": access(keys, more.rstrip("\n"))})
    one = make()
    assert one.load().status.problems == ()
    repository.commit(NEW)
    signing.sign(repository, good)
    assert set(one.load().jobs) == {"a", "b"}
    repository.commit({"jobs/c.yaml": job("c", queue="research")})
    signing.sign(repository, other)
    assert rules(one.load()) == ["unknown-key"]


def test_a_key_of_two_tells_nobody_apart(repository: Repository, make: Make, keys: Keys) -> None:
    twice = f"    - {{email: eve@x.org, keys: [{keys['bob'].listed()}]}}"
    repository.commit({"access.yaml": access(keys, twice)})
    assert rules(make().load()) == ["one-key-of-two"]


#: A key that nobody has.
ONES = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPm0bTgUaYWVSMX0qJ5mjyPyPbDUpiKkQa6ri4YPSxCK"


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("{ssh: 'ssh-ed25519 AAAA', gpg: x}", "exclusive-fields"),
        ("{}", "exclusive-fields"),
        ("{ssh: 'cert-authority ssh-ed25519 AAAA'}", "bad-key"),
        ("{ssh: '* ssh-ed25519 AAAA'}", "bad-key"),
        ("{gpg: AAAA}", "bad-key"),
        (f"{{ssh: '{ONES}', validBefore: tomorrow}}", "bad-time"),
        (f"{{ssh: '{ONES[:-4]}'}}", "bad-key"),
        (f"{{ssh: '{ONES[:40]}'}}", "bad-key"),
        (f"{{ssh: '{ONES.replace('ssh-ed25519', 'ssh-rsa')}'}}", "bad-key"),
    ],
)
def test_keys_that_are_none(
    repository: Repository, make: Make, keys: Keys, key: str, rule: str
) -> None:
    more = f"    - {{email: eve@x.org, keys: [{key}]}}"
    repository.commit({"access.yaml": access(keys, more)})
    assert rules(make().load()) == [rule]


@pytest.mark.parametrize("rounds", [1, 3])
def test_who_uses_up_the_stops_takes_back_nobody_s_change(
    repository: Repository,
    one: loader.Loader,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
) -> None:
    """Where no more stops are left a walk ends, and the next one goes on from there."""
    monkeypatch.setattr(provenance, "STOPS_MAX", 2)
    adas = job("ada", queue="research", owner="ada@x.org")
    repository.commit({"jobs/ada.yaml": adas})
    signing.sign(repository, keys["ada"])
    assert "ada" in one.load().jobs
    for priority in range(rounds):
        bobs = {"queue": "research", "owner": "bob@x.org"}
        repository.commit({"jobs/b.yaml": job("b", priority=priority + 1, **bobs)})
        signing.sign(repository, keys["bob"])
        repository.commit({"jobs/b.yaml": job("b", priority=60, **bobs)})
    repository.commit({"jobs/ada.yaml": None})
    signing.sign(repository, keys["ada"])
    repository.commit({"jobs/ada.yaml": adas.replace("echo", "evil")})
    value = one.load()
    assert set(value.jobs) == {"a", "b"}
    assert "ada" in value.refused


def test_a_parent_counts_only_where_git_looks_for_it(repository: Repository, keys: Keys) -> None:
    first = repository.commit({"x": "x"})
    repository.commit({"x": "y"})
    text = git(repository.path, "cat-file", "commit", "main")
    other = text.replace(f"parent {first}\n", "").replace("\n\n", f"\nparent {first}\n\n", 1)
    made = git(
        repository.path,
        *("hash-object", "-t", "commit", "-w", "--stdin", "--literally"),
        data=other.encode() + b"\n",
    )
    place = source.GitSource(str(repository.path))
    assert place.log.descends(git(repository.path, "rev-parse", "main"), first)
    assert not place.log.descends(made, first)
    place.close()
