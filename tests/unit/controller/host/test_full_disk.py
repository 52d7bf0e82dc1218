"""A controller on a full disk ends once there is space, and not before."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from reconciler.controller.host import full_disk
from reconciler.store import database, errors


@pytest.mark.parametrize(
    ("free", "looks"),
    [
        pytest.param([full_disk.ROOM_BYTES], 0, id="room at once"),
        pytest.param([0, full_disk.ROOM_BYTES - 1, full_disk.ROOM_BYTES], 2, id="after a while"),
    ],
)
def test_it_waits_until_there_is_room(tmp_path: Path, free: list[int], looks: int) -> None:
    left, slept = iter(free), list[float]()
    told = full_disk.wait(tmp_path, lambda _folder: next(left), slept.append)
    assert told == f"{tmp_path} has room again"
    assert slept == [full_disk.LOOK_S] * looks


def test_it_waits_for_nothing_that_nobody_can_tell(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    slept: list[float] = []
    told = full_disk.wait(gone, full_disk.free, slept.append)
    assert told == f"whether {gone} has room can't be told: {os.strerror(errno.ENOENT)}"
    assert slept == []
    assert not full_disk.is_full(gone, full_disk.free)


@pytest.mark.parametrize(("free", "full"), [(0, True), (full_disk.ROOM_BYTES, False)])
def test_a_disk_is_full_that_has_less_than_it_takes(
    tmp_path: Path, free: int, *, full: bool
) -> None:
    assert full_disk.is_full(tmp_path, lambda _folder: free) is full


def test_what_is_free_is_what_may_be_written() -> None:
    assert full_disk.free(Path("/proc")) == 0, "nobody writes there"


def test_a_full_database_is_told_apart_from_one_that_is_damaged(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "full.db") as full:
        full.execute("CREATE TABLE t (x BLOB)")
        full.execute("PRAGMA max_page_count = 3")
        with (
            pytest.raises(errors.FullError, match="disk is full; make room on its disk") as told,
            database.told("here"),
        ):
            full.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    full.close()
    assert errors.is_of_store(told.value)
