"""A branch that is too large for one fetch arrives in steps; readers see it when it is whole."""

import os
import subprocess
from pathlib import Path

import pytest

from reconciler.desired.git import git_commands, mirror_fetch

#: Random bytes that each commit adds, so that a pack holds no less.
BLOB = 100_000


def git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A repository of 30 commits of 100 KB each."""
    folder = tmp_path / "remote"
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    for number in range(30):
        commit(folder, f"{number}")
    return folder


def commit(folder: Path, name: str, size: int = BLOB) -> None:
    (folder / "blob").write_bytes(os.urandom(size))
    git(folder, "add", "blob")
    git(folder, "commit", "-q", "-m", name)


def fetches(tmp_path: Path, remote: Path, bytes_max: int) -> mirror_fetch.MirrorFetch:
    folder = tmp_path / "mirror.git"
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)
    git(folder, "config", "fetch.unpackLimit", "1")  # packs, as of large repositories
    return mirror_fetch.MirrorFetch(
        folder,
        f"file://{remote}",
        "refs/heads/main",
        "refs/muster/heads/main",
        timeout_s=60.0,
        bytes_max=bytes_max,
    )


def heads(tmp_path: Path) -> str:
    return git(tmp_path / "mirror.git", "for-each-ref", "refs/muster/heads")


def run_to_end(fetch: mirror_fetch.MirrorFetch, tmp_path: Path) -> int:
    """Return the number of steps; readers see nothing before the last."""
    for step in range(1, 100):
        try:
            fetch.run()
        except mirror_fetch.IncompleteFetchError:
            assert (tmp_path / "mirror.git" / "shallow").exists() or step > 1
            continue
        return step
    raise AssertionError("it never ends")


def test_a_small_branch_arrives_at_once(tmp_path: Path, remote: Path) -> None:
    fetch = fetches(tmp_path, remote, 10 * 30 * BLOB)
    assert run_to_end(fetch, tmp_path) == 1
    assert git(remote, "rev-parse", "main") in heads(tmp_path)


def test_a_large_branch_arrives_in_steps_and_whole(tmp_path: Path, remote: Path) -> None:
    fetch = fetches(tmp_path, remote, 5 * BLOB)
    with pytest.raises(mirror_fetch.IncompleteFetchError, match=r"1\s+commits have arrived"):
        fetch.run()
    assert heads(tmp_path) == ""
    assert run_to_end(fetch, tmp_path) > 3
    mirror = tmp_path / "mirror.git"
    assert git(mirror, "rev-list", "--count", "refs/muster/heads/main") == "30"
    assert not (mirror / "shallow").exists()
    assert git(mirror, "for-each-ref", "refs/muster/incoming") == ""
    assert not list((mirror / "objects" / "pack").glob("tmp_*"))
    git(mirror, "fsck", "--full", "--strict")


def test_steps_go_on_after_a_restart(tmp_path: Path, remote: Path) -> None:
    first = fetches(tmp_path, remote, 5 * BLOB)
    with pytest.raises(mirror_fetch.IncompleteFetchError):
        first.run()
    again = fetches(tmp_path, remote, 5 * BLOB)
    assert run_to_end(again, tmp_path) > 1
    assert git(tmp_path / "mirror.git", "rev-list", "--count", "refs/muster/heads/main") == "30"


def test_a_branch_that_moves_meanwhile_arrives(tmp_path: Path, remote: Path) -> None:
    fetch = fetches(tmp_path, remote, 5 * BLOB)
    with pytest.raises(mirror_fetch.IncompleteFetchError):
        fetch.run()
    commit(remote, "newer")
    run_to_end(fetch, tmp_path)
    assert git(remote, "rev-parse", "main") in heads(tmp_path)
    assert git(tmp_path / "mirror.git", "rev-list", "--count", "refs/muster/heads/main") == "31"


def test_a_later_large_update_arrives_in_steps(tmp_path: Path, remote: Path) -> None:
    fetch = fetches(tmp_path, remote, 40 * BLOB)
    fetch.run()
    before = git(tmp_path / "mirror.git", "rev-parse", "refs/muster/heads/main")
    for number in range(10):
        commit(remote, f"later {number}")
    small = fetches(tmp_path, remote, 5 * BLOB)
    with pytest.raises(mirror_fetch.IncompleteFetchError):
        small.run()
    assert before in heads(tmp_path)  # what is read is still there
    run_to_end(small, tmp_path)
    assert git(tmp_path / "mirror.git", "rev-list", "--count", "refs/muster/heads/main") == "40"


def test_a_commit_beyond_the_limit_is_an_error_that_says_so(tmp_path: Path, remote: Path) -> None:
    commit(remote, "huge", 10 * BLOB)
    fetch = fetches(tmp_path, remote, 5 * BLOB)
    with pytest.raises(
        git_commands.GitError, match="more than 500000 bytes at once, for the newest"
    ):
        fetch.run()
    assert not list((tmp_path / "mirror.git" / "objects" / "pack").glob("tmp_*"))
