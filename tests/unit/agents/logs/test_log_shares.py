"""Whose logs go when there are too many, and what they count with."""

import os
from pathlib import Path

import pytest

from agents.logs import log_shares, log_streamer

ADA, BOB = 1001, 1002


def logs(uid: int, *sizes: int, newest: float = 100.0) -> list[log_shares.KeptLog]:
    return [
        log_shares.KeptLog(newest - age, size, f"{uid}-{age}", uid)
        for age, size in enumerate(sizes)
    ]


def test_the_oldest_of_who_has_most_go_first() -> None:
    ended = [*logs(ADA, 10, 10, newest=50), *logs(BOB, 30, 30, 30)]
    chosen = log_shares.choose(ended, {}, 80, 100, 0.0)
    assert chosen == (["1002-2"], 80)


def test_nobody_within_an_equal_part_loses_any() -> None:
    ended = logs(ADA, 20, 20, newest=50)
    assert log_shares.choose(ended, {BOB: 500}, 100, 100, 0.0) == ([], 40)
    assert log_shares.choose(ended, {BOB: 500, ADA: 30}, 100, 100, 0.0) == (["1001-1"], 20)


def test_running_tasks_take_room_of_their_own_user() -> None:
    ended = [*logs(ADA, 40, newest=50), *logs(BOB, 20, 20)]
    assert log_shares.choose(ended, {BOB: 40}, 100, 100, 0.0).names == ["1002-1"]


def test_many_small_ones_are_taken_from_who_has_most() -> None:
    ended = [*logs(ADA, 1, newest=1), *logs(BOB, 1, 1, 1, 1)]
    assert log_shares.choose(ended, {}, 100, 3, 0.0).names == ["1002-3", "1002-2"]


def test_what_is_too_old_goes_in_any_case() -> None:
    assert log_shares.choose(logs(ADA, 1, 1, 1), {}, 100, 100, 98.5).names == ["1001-2"]


def test_a_file_with_holes_counts_with_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "old.stdout").write_bytes(b"x" * 8192)
    os.utime(tmp_path / "old.stdout", (1e9, 1e9))
    with (tmp_path / "big.stdout").open("wb") as stream:
        stream.truncate(1 << 42)
    assert log_streamer.prune(tmp_path, set(), 2**20, 1e10) < 2**20
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_that_the_agent_keeps_beside_a_log_are_its_users(tmp_path: Path) -> None:
    for name, uid in (("a.1.stdout", ADA), ("b.1.stdout", BOB)):
        (tmp_path / name).write_bytes(b"x" * 8192)
        os.chown(tmp_path / name, uid, uid)
    for name in ("b.1.metrics", "b.1.stdout.cut"):
        (tmp_path / name).write_bytes(b"x" * 40_960)
    os.utime(tmp_path / "a.1.stdout", (1e9, 1e9))
    log_streamer.prune(tmp_path, set(), 90_000, 1e10)
    assert (tmp_path / "a.1.stdout").exists()
    assert not (tmp_path / "b.1.metrics").exists() or not (tmp_path / "b.1.stdout.cut").exists()
