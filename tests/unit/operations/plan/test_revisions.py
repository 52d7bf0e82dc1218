"""What two revisions ask for, side by side: every kind is compared."""

from pathlib import Path

import msgspec
import pytest

from reconciler.desired.git import commit_log
from reconciler.model import desired
from reconciler.model.documents import kinds
from reconciler.operations import scratch_repository
from reconciler.operations.plan import diff, plan_text, planner, pull_request_comment, revisions
from reconciler.operations.validate import folder_check
from tests.unit.desired import signing
from tests.unit.desired.repositories import ENVIRONMENT, Repository, documents, git, job, queue

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: "n[1-2]", nodes: {cpu: 4, memory: 8Gi}}
"""
ADDED = {
    "Queue": "{limit: {gpu: 4}}",
    "PriorityClass": "{value: 7}",
    "Quota": "{subject: {user: ada@example.org}, resources: {gpu: 1}}",
    "Reservation": '{pools: [p], start: "2027-01-01T00:00:00Z", end: "2027-01-02T00:00:00Z"}',
    "Volume": "{mountPath: /data}",
    "Job": "{command: [echo, hello]}",
}


def document(kind: str, spec: str) -> str:
    return f"apiVersion: muster/v1\nkind: {kind}\nmetadata: {{name: new}}\nspec: {spec}\n"


@pytest.mark.parametrize("kind", ADDED)
def test_what_is_added_is_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "state.git")
    before = repository.commit({"pool.yaml": POOL})
    after = repository.commit({"new.yaml": document(kind, ADDED[kind])})
    found = revisions.compare(repository.path, "", before, after)
    assert not found.head.status.problems
    assert [(c.operation, c.kind, c.name) for c in found.changes] == [("add", kind, "new")]
    assert not found.merged


def test_every_part_of_the_structure_is_compared() -> None:
    """A new kind can't be forgotten: its field makes this fail until it is compared."""
    compared = {"settings", "access", *diff.KINDS}
    assert {field.name for field in msgspec.structs.fields(desired.Structure)} == compared
    assert set(diff.KINDS.values()) - {"Removal"} <= set(kinds.KINDS)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return Repository(tmp_path / "state.git")


def test_what_can_only_be_forced_says_so(repository: Repository) -> None:
    first = repository.commit({"pool.yaml": POOL})
    second = repository.commit({"q.yaml": document("Queue", "{}")})
    files = {"pool.yaml": POOL, "other.yaml": document("Volume", ADDED["Volume"])}
    other = repository.commit(files, branch="other", root=True)
    told = {}
    for base, head in ((first, second), (second, second), (second, first), (second, other)):
        found = revisions.compare(repository.path, "", base, head)
        assert not found.merged
        plan = planner.plan(found, None, 0.0)
        shown = " ".join(" ".join(line.text for line in plan_text.lines(plan)).split())
        told[base, head] = found.apart
        assert ("as a force push it would be held" in shown) is bool(found.apart)
        comment = pull_request_comment.render(plan)
        assert ("as a force push it would be held" in comment) is bool(found.apart)
    assert list(told.values()) == ["", "", "behind", "unrelated"]


def test_branches_that_have_parted_are_compared_as_merged(repository: Repository) -> None:
    start = repository.commit({"pool.yaml": POOL})
    ours = repository.commit({"ours.yaml": document("Queue", "{}").replace("new", "ours")})
    theirs = repository.commit({"theirs.yaml": document("Volume", ADDED["Volume"])},
                               branch="theirs", parent=start)  # fmt: skip
    found = revisions.compare(repository.path, "", ours, theirs)
    assert found.merged
    assert [(c.operation, c.label) for c in found.changes] == [("add", "Volume/new")]
    assert (found.base_commit, found.head_commit) == (ours, theirs)

    clash = repository.commit({"ours.yaml": document("Queue", "{weight: 3}")},
                              branch="clash", parent=start)  # fmt: skip
    with pytest.raises(
        scratch_repository.RevisionError, match="can't be merged without a dec"
    ) as refused:
        revisions.compare(repository.path, "", ours, clash)
    told = str(refused.value)
    assert f"since {start[:12]} both change ours.yaml." in told
    assert f"`--base {start[:12]}` shows" in told
    assert "merge-tree" not in told, "these are words of git"
    assert "CONFLICT" not in told


def test_who_signed_a_branch_that_has_parted_answers_for_its_merge(
    repository: Repository, tmp_path: Path
) -> None:
    ada = signing.Key(tmp_path / "keys", "ada")
    people = f"{{identities: [{{email: ada@x.org, keys: [{ada.listed()}]}}]}}"
    start = repository.commit(
        {
            "access.yaml": document("Access", people),
            "cluster.yaml": document("Cluster", "{verification: {mode: required}}"),
        }
    )
    repository.commit({"q.yaml": document("Queue", "{}").replace("new", "ours")})
    ours = signing.sign(repository, ada)
    repository.commit({"a.yaml": document("Queue", "{}")}, branch="side", parent=start)
    signed = signing.sign(repository, ada, branch="side")
    found = revisions.compare(repository.path, "", ours, signed)
    assert found.merged
    assert found.head.status.problems == ()
    assert [(c.operation, c.label) for c in found.changes] == [("add", "Queue/new")]

    unsigned = repository.commit({"b.yaml": document("Job", ADDED["Job"])}, branch="side")
    found = revisions.compare(repository.path, "", ours, unsigned)
    (problem,) = found.head.status.problems
    assert (problem.rule, problem.object) == ("unsigned-commit", "Job/new")
    assert unsigned[:12] in problem.message


def test_what_the_controller_would_hold_is_told(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 2)
    monkeypatch.setattr(commit_log, "LISTED_MAX", 3)
    ada = signing.Key(tmp_path / "keys", "ada")
    mode = document("Cluster", "{verification: {mode: required}}")
    known = document("Access", f"{{identities: [{{email: ada@x.org, keys: [{ada.listed()}]}}]}}")
    start = repository.commit({"cluster.yaml": mode, "access.yaml": known})
    for count in range(3):
        long = repository.commit({"q.yaml": document("Queue", f"{{weight: {count + 1}}}")})
    found = revisions.compare(repository.path, "", start, long)
    assert [problem.rule for problem in found.head.status.problems] == ["unsigned-commit"]
    other = repository.commit({"r": "r"}, root=True, branch="other")
    head = repository.commit(
        {
            "cluster.yaml": mode,
            "access.yaml": known,
            "q.yaml": document("Queue", "{weight: 3}"),
        },
        branch="other",
        parent=other,
        merge=long,
    )
    found = revisions.compare(repository.path, "", start, head)
    assert [problem.rule for problem in found.head.status.problems] == ["too-many-commits"]
    back = revisions.compare(repository.path, "", head, start)
    assert [(c.operation, c.label) for c in back.changes] == [("remove", "Queue/new")]


def test_what_is_in_force_from_before_is_what_is_compared_with(repository: Repository) -> None:
    good = repository.commit({"q.yaml": document("Queue", "{limit: {gpu: 4}}")})
    broken = repository.commit({"q.yaml": document("Queue", "{limit: {gpu: four}}")})
    mended = repository.commit({"q.yaml": document("Queue", "{limit: {gpu: 5}}")})
    found = revisions.compare(repository.path, "", broken, mended, before=[good])
    assert [c.fields for c in found.changes] == [{"limit.gpu": ("4", "5")}]
    without = revisions.compare(repository.path, "", broken, mended)
    assert [c.operation for c in without.changes] == ["add"]


def test_the_base_is_the_branch_it_goes_into_else_the_parent(repository: Repository) -> None:
    first = repository.commit({"pool.yaml": POOL})
    with pytest.raises(scratch_repository.RevisionError, match="first commit"):
        revisions.default_base(repository.path, "main")
    repository.commit({"a.yaml": document("Queue", "{}")})
    assert revisions.default_base(repository.path, "main") == "main~1"
    branch = repository.commit({"b.yaml": document("Volume", ADDED["Volume"])},
                               branch="proposal", parent=first)  # fmt: skip
    base = revisions.default_base(repository.path, branch)
    assert git(repository.path, "rev-parse", base) == git(repository.path, "rev-parse", "main")


def test_a_hook_looks_at_the_repository_that_it_is_asked_for(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"pool.yaml": POOL})
    tip = repository.commit({"a.yaml": document("Queue", "{}")})
    git(tmp_path, "init", "--quiet", "--bare", "hooked.git")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "hooked.git"))
    assert revisions.has_commit(repository.path, tip)
    assert revisions.default_base(repository.path, tip) == f"{tip}~1"
    (tmp_path / "exported").mkdir()  # what it has been given, outside every repository
    assert not revisions.has_commit(tmp_path / "exported", tip)


def test_what_is_written_is_counted_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    pool = (
        "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec:\n"
        "  hosts: a[1-4]\n  nodes: {cpu: 8, memory: 8Gi}\n"
    )
    broken = queue("r", limit={"gpu": "four"})
    (tmp_path / "c.yaml").write_text(documents(pool, queue("q"), broken, job("j", queue="q")))
    found, counts = folder_check.check_folder(tmp_path)
    assert not found.structure.pools, "its structure is refused"
    assert counts == {"NodePool": 1, "Queue": 2, "Job": 1}


def test_a_folder_without_yaml_is_no_clean_folder(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("none yet")
    found, counts = folder_check.check_folder(tmp_path)
    assert not counts
    (told,) = found.status.problems
    assert (told.severity, told.rule) == ("warning", "nothing-written")
    assert "so nothing was checked" in told.text()
    (tmp_path / "q.yaml").write_text(queue("q"))
    assert not folder_check.check_folder(tmp_path)[0].status.problems


REFERENCES = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: c}
spec: {leese: 1m}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: team}
---
apiVersion: muster/v1
kind: Job
metadata: {name: fine}
spec: {queue: team, command: ['true']}
---
apiVersion: muster/v1
kind: Job
metadata: {name: wrong}
spec: {queue: taem, comand: ['true'], volumes: [data, more], reservation: june}
"""


def test_all_that_jobs_name_and_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    """Also of a job that is refused for its fields, and beside a structure that is refused."""
    (tmp_path / "c.yaml").write_text(REFERENCES)
    found, _ = folder_check.check_folder(tmp_path)
    assert [(one.object, one.field, one.found) for one in found.status.problems] == [
        ("Cluster/c", "spec.leese", ""),
        ("Job/wrong", "spec.queue", '"taem"'),
        ("Job/wrong", "spec.comand", ""),
        ("Job/wrong", "spec.volumes[0]", '"data"'),
        ("Job/wrong", "spec.volumes[1]", '"more"'),
        ("Job/wrong", "spec.reservation", '"june"'),
    ]
    (tmp_path / "d.yaml").write_text("kind: [")
    found, _ = folder_check.check_folder(tmp_path)
    assert not any(one.found for one in found.status.problems), "it may be written there"


def _blamed(folder: Path, *, staged: bool = False) -> list[tuple[str, str]]:
    found, _ = folder_check.check_folder(folder, staged=staged)
    return [(one.path, one.object) for one in found.status.problems]


def test_of_two_of_one_name_the_new_one_is_blamed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.email", "a@example.org")
    git(tmp_path, "config", "user.name", "a")
    below = tmp_path / "below"
    below.mkdir()
    text = documents(queue("q"), job("j", queue="default"))
    (below / "old.yaml").write_text(text)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "old")
    assert _blamed(below) == []
    (below / "a-new.yaml").write_text(text)
    new = [("a-new.yaml", "Queue/q"), ("a-new.yaml", "Job/j")]
    assert _blamed(below) == new
    git(tmp_path, "add", "--all")
    staged = [(f"below/{path}", label) for path, label in new]
    assert _blamed(below, staged=True) == staged
    git(tmp_path, "commit", "--quiet", "-m", "new")
    assert _blamed(below) == new, "by the commit before, as a pipeline checks it"
    # Where nothing is known of before, one is blamed and the other named.
    alone = tmp_path / "alone"
    alone.mkdir()
    git(alone, "init", "--quiet")
    for name in ("a-new.yaml", "old.yaml"):
        (alone / name).write_text(text)
    assert {path for path, _ in _blamed(alone)} == {"old.yaml"}
    found, _ = folder_check.check_folder(alone)
    assert all("in a-new.yaml:" in one.message for one in found.status.problems)
