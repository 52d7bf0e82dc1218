"""Lock files are held by one at a time, and lead root into no other file."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler import lock_file


def test_one_holds_a_lock_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    umask = os.umask(0)
    try:
        first, second = lock_file.open_file(path), lock_file.open_file(path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lock_file.lock(first)
    with pytest.raises(lock_file.LockHeldError, match=f"^process {os.getpid()}$"):
        lock_file.lock(second)
    waits: list[float] = []

    def ended(pause_s: float) -> None:
        waits.append(pause_s)
        os.close(first)

    lock_file.lock(second, 60, ended)
    assert len(waits) == 1
    os.close(second)


def test_only_a_number_is_believed_of_a_holder(tmp_path: Path) -> None:
    first, second = (lock_file.open_file(tmp_path / "a.lock") for _ in range(2))
    lock_file.lock(first)
    os.pwrite(first, b"\x1b[31m root, call 555", 0)
    with pytest.raises(lock_file.LockHeldError, match=r"^another process$"):
        lock_file.lock(second)
    os.close(first)
    os.close(second)


@pytest.mark.parametrize(
    "plant",
    [Path.symlink_to, Path.hardlink_to, lambda path, _: os.mkfifo(path)],
    ids=["link", "second name", "pipe"],
)
def test_what_is_no_file_of_its_own_is_refused(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    plant(tmp_path / "a.lock", other)
    with pytest.raises(OSError, match=r"To fix: remove it|symbolic links"):
        lock_file.open_file(tmp_path / "a.lock")
    assert other.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_only_a_new_file_is_given_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    for owner in ((65534, 65533), (1, 1)):
        os.close(lock_file.open_file(path, owner))
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65533)
