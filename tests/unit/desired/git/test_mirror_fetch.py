"""Fetches within limits: a first load arrives in steps, and nobody ever reads a part of it."""

import os
import subprocess
from pathlib import Path

import pytest

from reconciler.desired.git import git_commands, mirror_fetch

#: Random bytes that each commit adds, so that a pack holds no less.
BLOB = 100_000
LIMIT = 5 * BLOB
REFERENCE = "refs/muster/heads/main"


def git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


def commit(folder: Path, *names: str, size: int = BLOB) -> None:
    for name in names:
        (folder / "blob").write_bytes(os.urandom(size))
        git(folder, "add", "blob")
        git(folder, "commit", "-q", "-m", name)


class Mirror:
    """A remote of commits of 100 KB each, and an empty mirror."""

    def __init__(self, folder: Path, commits: int = 30) -> None:
        self.remote, self.folder = folder / "remote", folder / "mirror.git"
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.remote)], check=True)
        subprocess.run(["git", "init", "-q", "--bare", str(self.folder)], check=True)
        commit(self.remote, *map(str, range(commits)))

    def fetches(
        self, bytes_max: int = LIMIT, timeout_s: float = 60.0, branch: str = "main"
    ) -> mirror_fetch.MirrorFetch:
        return mirror_fetch.MirrorFetch(
            self.folder,
            f"file://{self.remote}",
            f"refs/heads/{branch}",
            f"refs/muster/heads/{branch}",
            timeout_s=timeout_s,
            bytes_max=bytes_max,
        )

    def count(self, branch: str = "main") -> int:
        """Commits that a reader finds; 0: it finds no branch."""
        name = f"refs/muster/heads/{branch}"
        if not git(self.folder, "for-each-ref", name):
            return 0
        return int(git(self.folder, "rev-list", "--count", name))

    def run_to_end(self, fetch: mirror_fetch.MirrorFetch) -> int:
        """Return the number of steps; until the last, readers see what they saw."""
        before = self.count()
        for step in range(1, 60):
            try:
                fetch.run()
            except mirror_fetch.IncompleteFetchError:
                assert self.count() == before
                assert not (self.folder / "shallow").exists()
                continue
            self.check()
            return step
        raise AssertionError("it never ends")

    def run_to_error(self, fetch: mirror_fetch.MirrorFetch) -> git_commands.GitError:
        """Return the error that ends the steps."""
        for _ in range(60):
            try:
                fetch.run()
            except mirror_fetch.IncompleteFetchError:
                continue
            except git_commands.GitError as error:
                return error
        raise AssertionError("there was no error")

    def check(self) -> None:
        """Nothing is left of the steps, and the mirror is whole."""
        assert self.is_head()
        git(self.folder, "fsck", "--full", "--strict", "--connectivity-only")
        assert not (self.folder / "shallow").exists()
        assert not self.leftovers()

    def is_head(self) -> bool:
        there = git(self.remote, "rev-parse", "main")
        return git(self.folder, "rev-parse", REFERENCE) == there

    def leftovers(self) -> list[str]:
        loads = [path.name for path in self.folder.parent.glob("*.load")]
        return loads + [path.name for path in (self.folder / "objects").glob("*/tmp_*")]


def test_a_small_branch_arrives_at_once(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    assert mirror.run_to_end(mirror.fetches(100 * BLOB)) == 1
    assert mirror.count() == 30


def test_a_large_branch_arrives_in_steps_and_whole(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    fetch = mirror.fetches()
    with pytest.raises(mirror_fetch.IncompleteFetchError, match="1 commits have arrived"):
        fetch.run()
    assert mirror.run_to_end(fetch) > 3
    assert mirror.count() == 30


def test_steps_go_on_after_a_restart(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    for _ in range(3):
        with pytest.raises(mirror_fetch.IncompleteFetchError):
            mirror.fetches().run()
    mirror.run_to_end(mirror.fetches())
    assert mirror.count() == 30


def test_a_branch_that_grows_meanwhile_arrives(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    fetch = mirror.fetches()
    with pytest.raises(mirror_fetch.IncompleteFetchError):
        fetch.run()
    commit(mirror.remote, "newer")
    mirror.run_to_end(fetch)
    assert mirror.count() == 31


@pytest.mark.parametrize("commits", [1, 3, 30])
def test_a_branch_that_is_rewritten_meanwhile_arrives(commits: int, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    fetch = mirror.fetches()
    for _ in range(2):
        with pytest.raises(mirror_fetch.IncompleteFetchError):
            fetch.run()
    git(mirror.remote, "checkout", "-q", "--orphan", "other")
    commit(mirror.remote, *map(str, range(commits)))
    git(mirror.remote, "branch", "-q", "-M", "other", "main")
    for _ in range(60):
        try:
            fetch.run()
        except git_commands.GitError:
            continue
        break
    mirror.check()
    assert mirror.count() == commits


def test_a_branch_that_is_made_again_at_an_older_commit_arrives(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    fetch = mirror.fetches()
    with pytest.raises(mirror_fetch.IncompleteFetchError):
        fetch.run()
    git(mirror.remote, "checkout", "-q", "--detach")
    git(mirror.remote, "branch", "-q", "-D", "main")
    with pytest.raises(git_commands.GitError, match="couldn't find remote ref"):
        fetch.run()
    git(mirror.remote, "branch", "-q", "main", "HEAD~28")
    mirror.run_to_end(fetch)
    assert mirror.count() == 2


def test_two_branches_of_one_mirror_do_not_meet(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    git(mirror.remote, "branch", "small", "HEAD~29")
    fetch, other = mirror.fetches(), mirror.fetches(branch="small")
    with pytest.raises(mirror_fetch.IncompleteFetchError):
        fetch.run()
    other.run()
    assert (mirror.count(), mirror.count("small")) == (0, 1)
    mirror.run_to_end(fetch)
    assert (mirror.count(), mirror.count("small")) == (30, 1)


def test_an_update_that_is_too_large_leaves_what_is_there(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, commits=3)
    mirror.fetches().run()
    commit(mirror.remote, "huge", size=10 * BLOB)
    for _ in range(3):
        with pytest.raises(mirror_fetch.SizeError, match="brings more than 500000 bytes at once"):
            mirror.fetches().run()
    assert mirror.count() == 3
    assert not mirror.leftovers()


def test_after_a_time_out_the_next_fetch_may_take_longer(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, commits=3)
    mirror.fetches().run()
    commit(mirror.remote, "newer")
    fetch = mirror.fetches(timeout_s=1e-9)
    for longer in (1, 2, 4, 8, 8):
        with pytest.raises(git_commands.LimitError, match=f"took longer than {longer}e-09 s"):
            fetch.run()
        assert mirror.count() == 3
    assert not mirror.leftovers()


def test_a_remote_that_hangs_at_first_is_told_as_such(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, commits=1)
    with pytest.raises(git_commands.LimitError, match=r"took longer than 1e-09 s$"):
        mirror.fetches(timeout_s=1e-9).run()
    assert not mirror.leftovers()


def test_a_newest_commit_beyond_the_limit_is_told_with_what_to_do(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, commits=2)
    commit(mirror.remote, "huge", size=10 * BLOB)
    for _ in range(2):
        with pytest.raises(mirror_fetch.SizeError, match="for the newest commit alone: remove"):
            mirror.fetches().run()
        assert not mirror.leftovers()


def test_a_commit_in_the_middle_beyond_the_limit_ends_and_begins_again(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, commits=1)
    commit(mirror.remote, "huge", size=10 * BLOB)
    commit(mirror.remote, "last")
    fetch = mirror.fetches()
    for _ in range(2):
        error = mirror.run_to_error(fetch)
        assert "begins with the newest commit" in str(error)
        assert not mirror.leftovers()


def test_a_history_beyond_all_limits_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_fetch, "LOAD_BYTES_MAX", 8 * BLOB)
    mirror = Mirror(tmp_path)
    error = mirror.run_to_error(mirror.fetches())
    assert "more than 800000 bytes of history" in str(error)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.load/objects/pack/*"))
    assert size < 8 * BLOB + 2 * LIMIT
