"""One person's approval of a held change is one commit, for as long as it stands."""

from pathlib import Path

import pytest

from reconciler.changes import requests
from reconciler.changes.clone import working_clone
from reconciler.changes.writer import commit_writer
from reconciler.desired.git import source
from tests.unit.desired import signing
from tests.unit.desired.repositories import Repository, git, job, queue

pytestmark = pytest.mark.usefixtures("identity")

DIGEST = "s" + "2" * 26 + "j1h2"
OTHER = "s" + "3" * 26 + "j1h2"
TEST = requests.Person("Test", "test@example.org")
BOB = requests.Person("Bob", "bob@example.org")
NOW = 1_800_000_000


@pytest.fixture
def work(repository: Repository, tmp_path: Path) -> Path:
    repository.commit({"jobs/a.yaml": job("a"), "queues.yaml": queue("research")})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


def written(repository: Repository, *asked: requests.Approve) -> list[requests.RequestResult]:
    one = commit_writer.CommitWriter(source.GitSource(str(repository.path)))
    try:
        return one.write(asked, now=NOW)
    finally:
        one.close()


def approvals(repository: Repository) -> list[str]:
    """The commits that approve anything, the newest first."""
    said = git(repository.path, "log", "--format=%H", f"--grep={requests.APPROVE_TRAILER}", "main")
    return said.splitlines()


def test_the_controller_commits_each_persons_approval_once(repository: Repository) -> None:
    repository.commit({"jobs/a.yaml": job("a")})
    first, twin = written(repository, *[requests.Approve(DIGEST, TEST)] * 2)
    assert (first.status, twin.status, first.commit) == ("accepted", "accepted", twin.commit)
    again, other, bobs = written(
        repository,
        requests.Approve(DIGEST, TEST, "once more"),
        requests.Approve(OTHER, TEST),
        requests.Approve(DIGEST, BOB),
    )
    assert (again.status, again.commit) == ("unchanged", first.commit)
    assert again.message == f"approved already by {(first.commit or '')[:12]}"
    assert (other.status, bobs.status) == ("accepted", "accepted")
    assert len(approvals(repository)) == 3


@pytest.mark.parametrize(
    ("behind", "stands"),
    [
        ({"jobs/b.yaml": job("b")}, True),
        ({"jobs/a.yaml": job("a", command="other")}, False),
        ({"jobs/a.yaml": None}, False),
        ({"queues.yaml": queue("research", weight=2)}, False),
        ({"queues.yaml": None, "moved.yaml": queue("research")}, False),
    ],
)
def test_behind_a_change_it_may_be_another_matter(
    repository: Repository, work: Path, behind: dict[str, str | None], *, stands: bool
) -> None:
    """What was approved, applied and taken back, and comes again, is approved again."""
    mine = working_clone.Clone(work)
    first = mine.approve("Approve it", DIGEST)
    commit = repository.commit(behind)
    git(work, "pull", "--quiet")
    seen = repository.commit({"jobs/c.yaml": job("c")}, branch="side", parent=commit)
    merged = repository.commit({"jobs/c.yaml": job("c")}, merge=seen)
    git(work, "pull", "--quiet")
    assert git(work, "rev-parse", "HEAD") == merged
    (again,) = written(repository, requests.Approve(DIGEST, TEST))
    assert again.status == ("unchanged" if stands else "accepted")
    assert (again.commit == first.commit) is stands


def test_one_that_did_not_count_is_none(repository: Repository, work: Path) -> None:
    """The controller still holds the change with a revision that has it: it was no approval."""
    first = working_clone.Clone(work).approve("Approve it", DIGEST)
    before = git(repository.path, "rev-parse", "main~1")
    for held_at, status in ((before, "unchanged"), ("0" * 40, "unchanged"), ("main", "accepted")):
        at = first.commit or "" if held_at == "main" else held_at
        (again,) = written(repository, requests.Approve(DIGEST, TEST, held_at=at))
        assert again.status == status, held_at


def test_in_a_clone_too_and_what_was_not_pushed_is(repository: Repository, work: Path) -> None:
    mine = working_clone.Clone(work)
    first = mine.approve("Approve it", DIGEST)
    for dry_run in (True, False):
        again = mine.approve("Approve it once more", DIGEST, dry_run=dry_run)
        assert (again.status, again.commit) == ("unchanged", first.commit)
    assert mine.approve("Approve it", DIGEST, held_at=first.commit or "").status == "pushed"
    assert mine.approve("Approve", OTHER, dry_run=True).status == "rehearsed"
    left = mine.approve("Approve", OTHER)
    git(repository.path, "update-ref", "refs/heads/main", f"{left.commit}~1")
    git(work, "update-ref", "refs/remotes/origin/main", f"{left.commit}~1")
    pushed = mine.approve("Approve", OTHER)
    assert (pushed.status, pushed.commit) == ("pushed", left.commit)
    assert git(repository.path, "rev-parse", "main") == left.commit


@pytest.mark.needs("ssh-keygen")
def test_one_without_a_signature_is_none_for_who_signs(work: Path, tmp_path: Path) -> None:
    mine = working_clone.Clone(work)
    unsigned = mine.approve("Approve it", DIGEST)
    key = signing.Key(tmp_path / "keys", "test")
    for name, value in (
        ("gpg.format", "ssh"),
        ("user.signingkey", str(key.path)),
        ("commit.gpgsign", "true"),
    ):
        git(work, "config", name, value)
    signed = mine.approve("Approve it", DIGEST)
    assert (signed.status, signed.commit != unsigned.commit) == ("pushed", True)
    assert mine.approve("Approve it", DIGEST).commit == signed.commit
