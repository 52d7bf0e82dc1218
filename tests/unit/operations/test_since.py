"""What a change does not bring warns, and blocks no commit and no pipeline."""

from pathlib import Path

import pytest

from reconciler.operations import scratch_repository
from reconciler.operations.validate import folder_check
from tests.unit.desired.repositories import documents, git, job, queue
from tests.unit.operations.test_admitted_plans import POLICY

OLD = documents(job("a", queue="default"), job("b", queue="default"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose jobs a policy objects to that came later."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "user.email", "a@example.org")
    git(tmp_path, "config", "user.name", "a")
    below = tmp_path / "below"
    (below / "jobs").mkdir(parents=True)
    (below / "jobs/old.yaml").write_text(OLD)
    commit(tmp_path, "jobs")
    (below / "p.yaml").write_text(POLICY)
    commit(tmp_path, "policy")
    return tmp_path


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def severities(folder: Path, since: str | None, *, staged: bool) -> list[tuple[str, str]]:
    found, _ = folder_check.check_folder(folder / "below", staged=staged, since=since)
    return sorted((one.object, one.severity) for one in found.status.problems)


WARNED = [("Job/a", "warning"), ("Job/b", "warning")]


@pytest.mark.parametrize("staged", [True, False])
def test_errors_of_before_in_what_is_left_as_it_is_are_warnings(
    clone: Path, *, staged: bool
) -> None:
    since = None if staged else "HEAD"
    (clone / "below/q.yaml").write_text(queue("q"))
    git(clone, "add", "--all")
    assert severities(clone, since, staged=staged) == WARNED
    found, _ = folder_check.check_folder(clone / "below", staged=staged, since=since)
    assert all(one.message.endswith("; as before") for one in found.status.problems)
    # a document beside them in their file, and their place in it, change nothing of them
    (clone / "below/jobs/old.yaml").write_text(documents(job("n", timeLimit="1h"), OLD))
    git(clone, "add", "--all")
    assert severities(clone, since, staged=staged) == WARNED
    # one that is written anew is judged, and so is one that is new
    changed = documents(job("a", queue="default", priority=3), job("b", queue="default"))
    (clone / "below/jobs/old.yaml").write_text(changed)
    (clone / "below/jobs/new.yaml").write_text(job("c", queue="default"))
    git(clone, "add", "--all")
    errors = [("Job/a", "error"), ("Job/b", "warning"), ("Job/c", "error")]
    assert severities(clone, since, staged=staged) == errors
    # alone it knows of nothing before
    assert {one for _, one in severities(clone, None, staged=False)} == {"error"}


def test_a_new_policy_warns_of_jobs_that_it_does_not_write(clone: Path) -> None:
    assert severities(clone, "HEAD~1", staged=False) == WARNED
    found, _ = folder_check.check_folder(clone / "below", since="HEAD~1")
    assert "would be refused if it were written now" in found.status.problems[0].message


def test_what_a_change_takes_away_from_others_is_its_own_error(clone: Path) -> None:
    (clone / "below/jobs/old.yaml").write_text(job("a", queue="q", timeLimit="1h"))
    (clone / "below/q.yaml").write_text(queue("q"))
    commit(clone, "queue")
    (clone / "below/q.yaml").unlink()
    git(clone, "add", "--all")
    assert severities(clone, None, staged=True) == [("Job/a", "error")]


def test_a_branch_is_compared_with_where_it_has_parted(clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "proposal", "HEAD~1")
    (clone / "below/jobs/new.yaml").write_text(job("c", queue="nowhere"))
    commit(clone, "proposal")
    assert severities(clone, "main", staged=False) == [("Job/c", "error")]
    with pytest.raises(scratch_repository.RevisionError, match="no revision nowhere"):
        severities(clone, "nowhere", staged=False)


def test_the_first_commit_brings_all_of_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/a.yaml").write_text(documents(POLICY, job("a", queue="default")))
    git(tmp_path, "add", "--all")
    assert severities(tmp_path, None, staged=True) == [("Job/a", "error")]
