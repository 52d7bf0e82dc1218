"""Going back, in real clones: what the commit holds, and what it leaves alone."""

from pathlib import Path

import pytest

from reconciler.changes import requests
from reconciler.changes.clone import working_clone
from reconciler.operations.changes import revision_rollback, suspension
from tests.unit.desired import repositories
from tests.unit.desired.repositories import documents, git, job, queue


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in repositories.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "bare.git")
    git(tmp_path, "clone", "--quiet", "bare.git", "clone")
    folder = tmp_path / "clone"
    git(folder, "checkout", "--quiet", "-B", "main")
    commit(folder, {"q.yaml": queue("q", weight=1), "jobs/a.yaml": job("a")})
    git(folder, "push", "--quiet", "--set-upstream", "origin", "main")
    commit(folder, {"q.yaml": queue("q", weight=2), "r.yaml": queue("r"), "jobs/a.yaml": None})
    commit(folder, {"jobs/b.yaml": job("b")})
    git(folder, "push", "--quiet")
    return folder


def commit(folder: Path, files: dict[str, str | None]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")
    return git(folder, "rev-parse", "HEAD")


def files(folder: Path) -> list[str]:
    return git(folder, "ls-tree", "-r", "--name-only", "HEAD").split()


def prepared(
    clone: Path, revision: str = "HEAD~2", *, jobs: bool = False
) -> revision_rollback.Rollback:
    made = revision_rollback.prepare(clone, "", revision, jobs=jobs, reason="it starves")
    assert made is not None
    return made


def test_the_structure_goes_back_and_jobs_stay(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    made = prepared(clone)
    assert git(clone, "rev-parse", "HEAD") == before  # nothing is done yet
    assert [(c.operation, c.kind, c.name) for c in made.changes] == [
        ("remove", "Queue", "r"),
        ("change", "Queue", "q"),
    ]
    assert revision_rollback.publish(clone, made)
    assert files(clone) == ["jobs/b.yaml", "q.yaml"]
    assert (clone / "q.yaml").read_text() == queue("q", weight=1)
    assert git(clone, "rev-parse", "HEAD~1") == before
    assert git(clone.parent / "bare.git", "rev-parse", "main") == made.commit
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "log", "-1", "--format=%s").endswith(": it starves")


def test_jobs_go_back_when_asked(clone: Path) -> None:
    revision_rollback.publish(clone, prepared(clone, jobs=True))
    assert files(clone) == ["jobs/a.yaml", "q.yaml"]


def test_a_branch_for_review(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    made = prepared(clone)
    assert revision_rollback.publish(clone, made, "undo")
    assert git(clone, "rev-parse", "HEAD") == before
    assert git(clone.parent / "bare.git", "rev-parse", "undo") == made.commit


def test_nothing_to_do(clone: Path) -> None:
    assert revision_rollback.prepare(clone, "", "HEAD") is None
    assert revision_rollback.prepare(clone, "", "HEAD~1") is None  # only a job came since


@pytest.mark.parametrize("revision", ["nothing", "--all", ""])
def test_what_is_no_revision(clone: Path, revision: str) -> None:
    with pytest.raises(revision_rollback.RollbackError, match="is no revision"):
        revision_rollback.prepare(clone, "", revision)


def test_changes_that_are_not_committed_are_in_the_way(clone: Path) -> None:
    (clone / "q.yaml").write_text(queue("q", weight=9))
    with pytest.raises(revision_rollback.RollbackError, match="not committed"):
        revision_rollback.prepare(clone, "", "HEAD~2")


def test_a_file_of_both_is_for_a_person(clone: Path) -> None:
    commit(clone, {"both.yaml": documents(queue("s"), job("s"))})
    with pytest.raises(
        revision_rollback.RollbackError, match=r"both\.yaml has jobs and other objects"
    ):
        revision_rollback.prepare(clone, "", "HEAD~3")


def test_what_is_refused_today_is_told(clone: Path) -> None:
    commit(clone, {"jobs/c.yaml": job("c", queue="r")})
    assert any("is removed while" in one for one in prepared(clone, "HEAD~3").problems)


def test_somebody_was_faster(clone: Path, tmp_path: Path) -> None:
    made = prepared(clone)
    git(tmp_path, "clone", "--quiet", "bare.git", "other")
    commit(tmp_path / "other", {"jobs/x.yaml": job("x")})
    git(tmp_path / "other", "push", "--quiet")
    with pytest.raises(revision_rollback.RollbackError, match="not pushed"):
        revision_rollback.publish(clone, made)


def test_another_branch_was_checked_out_meanwhile(clone: Path) -> None:
    git(clone, "branch", "staging", "HEAD~1")
    made = prepared(clone)
    git(clone, "checkout", "--quiet", "staging")
    with pytest.raises(revision_rollback.RollbackError, match="main was checked out"):
        revision_rollback.publish(clone, made)
    assert git(clone, "rev-parse", "staging") == git(clone, "rev-parse", "main~1")
    git(clone, "checkout", "--quiet", "main")
    assert revision_rollback.publish(clone, made)


def test_outside_of_a_clone(tmp_path: Path) -> None:
    with pytest.raises(revision_rollback.RollbackError, match="in no clone"):
        revision_rollback.here(tmp_path)
    assert revision_rollback.here(Path(__file__).parent).is_absolute()


# --- suspending -------------------------------------------------------------------------------


def test_suspend_and_resume(clone: Path) -> None:
    commit(clone, {"c.yaml": "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: main}\n"})
    git(clone, "push", "--quiet")
    here = working_clone.Clone(clone)
    for subject, file in (("queue/q", "q.yaml"), ("cluster", "c.yaml")):
        before = (clone / file).read_text()
        assert suspension.put(here, subject, "why", verb="suspend").status == "pushed"
        assert "suspend: true" in (clone / file).read_text()
        assert suspension.put(here, subject, "", verb="suspend").status == "unchanged"
        assert suspension.put(here, subject, "", verb="resume").status == "pushed"
        assert "suspend" not in (clone / file).read_text()
        assert before.startswith("apiVersion")
    assert "Suspend Queue/q: why" in git(clone, "log", "--format=%s")


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("pool/p", "expected cluster"),
        ("queue", "expected cluster"),
        ("cluster/x", "expected cluster"),
        ("cluster", "no Cluster"),
    ],
)
def test_what_can_not_be_suspended(clone: Path, subject: str, told: str) -> None:
    with pytest.raises(requests.ConflictError, match=told):
        suspension.put(working_clone.Clone(clone), subject, "", verb="suspend")


def test_commits_that_are_not_pushed_are_told_and_part_of_what_changes(clone: Path) -> None:
    assert prepared(clone).along == ()
    commit(clone, {"mine.yaml": queue("mine")})
    second = commit(clone, {"jobs/c.yaml": job("c")})
    made = prepared(clone, "HEAD~4")
    assert [one.partition(" ")[2] for one in made.along] == ["change", "change"]
    assert second.startswith(made.along[0].partition(" ")[0])
    assert ("add", "Job", "c") in [(c.operation, c.kind, c.name) for c in made.changes]
    assert revision_rollback.publish(clone, made)
    assert git(clone.parent / "bare.git", "rev-parse", "main") == made.commit


def test_where_nothing_is_pushed_to_nothing_goes_along(clone: Path) -> None:
    git(clone, "branch", "--unset-upstream")
    commit(clone, {"mine.yaml": queue("mine")})
    assert prepared(clone, "HEAD~3").along == ()


def test_jobs_that_an_older_policy_would_refuse_are_no_hindrance(clone: Path) -> None:
    """They go on as they are; a mistake in what goes back is one all the same."""
    policy = (
        "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: limit}\nspec:\n"
        "  match: {kinds: [Job]}\n  message: a time limit is required\n"
        "  schema: {properties: {spec: {required: [timeLimit]}}}\n"
    )
    strict = commit(clone, {"p.yaml": policy})
    commit(clone, {"p.yaml": None})
    commit(clone, {"jobs/late.yaml": job("late")})
    made = prepared(clone, strict)
    assert [(c.operation, c.kind) for c in made.changes] == [("add", "Policy")]
    assert made.problems == ()


def test_a_file_that_cant_be_read_and_was_not_there_stays(clone: Path) -> None:
    """It may be a colleague's new job with a slip in it; where it was there its kind is known."""
    commit(
        clone, {"jobs/slip.yaml": "kind: Job\nmetadata: {name: x\n", "q.yaml": "kind: Queue\n  x"}
    )
    made = prepared(clone, "HEAD~3")
    assert made.unread == ("jobs/slip.yaml",)
    revision_rollback.publish(clone, made)
    assert files(clone) == ["jobs/b.yaml", "jobs/slip.yaml", "q.yaml"]
    assert (clone / "q.yaml").read_text() == queue("q", weight=1)


def test_drains_that_end_are_named(clone: Path) -> None:
    pool = (
        "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: p}\nspec:\n"
        "  hosts: n[1-4]\n  nodes: {cpu: 8, memory: 8Gi}\n"
    )
    commit(clone, {"pool.yaml": pool})
    smokes = '  overrides:\n    - {hosts: "n[1-2]", drain: true, reason: it smokes}\n'
    commit(clone, {"pool.yaml": pool + smokes, "r.yaml": queue("r", weight=3)})
    assert prepared(clone, "HEAD~1").drains == ("n1 (it smokes)", "n2 (it smokes)")
    assert prepared(clone, "HEAD~2").drains == ()
