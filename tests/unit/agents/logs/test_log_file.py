"""Logs that are turned over while they are read, and what of them can be read later."""

import contextlib
import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.logs import log_file, log_streamer, timestamps
from reconciler.model.protocol import agent_messages


def rest(path: Path, offset: int = 0) -> tuple[bytes, int]:
    """All from an offset on, and where that ends."""
    found = b""
    while (piece := log_file.read(path, offset)).data:
        found += piece.data
        offset = piece.offset + len(piece.data)
    return found, offset


def grow(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as stream:
        stream.write(data)


def test_what_was_cut_off_and_is_kept_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    grow(path, b"0123456789")
    log_file.turn_over(path, 8)
    grow(path, b"x")
    assert rest(path) == (b"23456789x", 11)
    assert log_file.read(path, 0).offset == 2
    assert rest(path, 10) == (b"x", 11)
    grow(path, b"yz")
    log_file.turn_over(path, 8)
    assert rest(path) == (b"xyz", 13)
    assert rest(path, 11) == (b"yz", 13)  # who had read to there goes on there


def test_what_is_not_there_is_told_from_what_says_nothing(tmp_path: Path) -> None:
    assert log_file.read(tmp_path / "a.stdout", 5) == log_file.LogPiece(None, 5)
    grow(tmp_path / "a.stdout", b"")
    assert log_file.read(tmp_path / "a.stdout", 0) == log_file.LogPiece(b"", 0)


def test_a_log_that_an_agent_without_notes_turned_over(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    grow(tmp_path / "a.stdout.1", b"old")
    grow(path, b"new")
    assert rest(path) == (b"oldnew", 6)
    path.unlink()
    assert rest(path) == (b"old", 3)


def test_the_past_of_metrics_has_no_such_parts(tmp_path: Path) -> None:
    grow(tmp_path / "a.metrics", b"new")
    grow(tmp_path / "a.metrics.1", b"half of what is being written anew")
    assert rest(tmp_path / "a.metrics") == (b"new", 3)


def test_a_log_that_somebody_else_cut_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    grow(path, b"0123456789")
    os.truncate(path, 0)
    grow(path, b"x")
    assert rest(path, 10) == (b"x", 1)


def test_while_it_is_turned_over_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    grow(path, b"0123456789")
    log_file._note(path, 0, is_turning=True)
    assert log_file.read(path, 3) == log_file.LogPiece(b"", 3, turning=True)
    # an agent that died over it left a copy that can't be relied on
    grow(tmp_path / "a.stdout.1", b"0123")
    long_ago = path.stat().st_mtime - 2 * log_file.TURNING_S_MAX
    os.utime(tmp_path / "a.stdout.cut", (long_ago, long_ago))
    assert rest(path) == (b"0123456789", 10)


@contextlib.contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """No file can grow beyond a size, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_after_a_copy_that_fails_half_way_nothing_is_told_twice(tmp_path: Path) -> None:
    path, many = tmp_path / "a.stdout", 50_000
    grow(path, b"a" * many)
    log_file.turn_over(path, many)
    grow(path, b"b" * many + b"c" * many)
    assert rest(path) == (b"a" * many + b"b" * many + b"c" * many, 3 * many)
    with room_for(many // 2), pytest.raises(OSError, match="too large"):
        log_file.turn_over(path, 2 * many)
    assert rest(path) == (b"b" * many + b"c" * many, 3 * many)
    assert rest(path, 2 * many) == (b"c" * many, 3 * many)  # who had read to there goes on there
    assert not log_file.copy_of(path).exists()  # which makes room for the next try
    log_file.turn_over(path, many)
    assert rest(path) == (b"c" * many, 3 * many)


def test_a_cut_whose_times_can_not_be_kept_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    looking = timestamps.LogMarks(tmp_path)
    grow(path, b"0123456789")
    looking.look(["a"])
    timestamps.times_of(log_file.copy_of(path)).mkdir()  # in its place
    with pytest.raises(OSError, match=r"\.times"):
        log_file.turn_over(path, 4)
    grow(path, b"x")
    assert rest(path) == (b"6789x", 11)


@pytest.mark.parametrize("seed", range(20))
def test_readers_lose_nothing_that_is_kept(tmp_path: Path, seed: int) -> None:
    """One who looks at least once between two cuts sees all; one who comes late, the newest."""
    chance = random.Random(seed)
    path, limit = tmp_path / "a.stdout", 64
    written, seen, offset = b"", b"", 0
    for _ in range(200):
        data = bytes(chance.choices(b"abcdef\n", k=chance.randrange(12)))
        grow(path, data)
        written += data
        if path.stat().st_size > limit and chance.random() < 0.5:
            more, offset = rest(path, offset)
            seen += more
            log_file.turn_over(path, limit)
        if chance.random() < 0.3:
            more, offset = rest(path, offset)
            seen += more
        kept, end = rest(path)
        assert end == len(written)
        assert written.endswith(kept)
        assert len(kept) >= min(limit, len(written))
    assert seen + rest(path, offset)[0] == written


def test_lines_keep_their_times_across_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    looking = timestamps.LogMarks(tmp_path)
    for at, data in ((100.0, b"aaaa"), (200.0, b"bbbb"), (300.0, b"cccc")):
        grow(path, data)
        os.utime(path, (at, at))
        looking.look(["a"])
    log_file.turn_over(path, 6)
    os.utime(tmp_path / "a.stdout.1", (300.0, 300.0))
    grow(path, b"dd")
    os.utime(path, (400.0, 400.0))
    looking.look(["a"])
    piece = log_file.read(path, 0, times=True)
    assert (piece.data, piece.offset) == (b"bbccccdd", 6)
    assert piece.marks == tuple(
        agent_messages.LogMark(at, offset)
        for at, offset in ((100.0, 6), (200.0, 8), (300.0, 12), (400.0, 14))
    )


def test_what_stands_beside_a_log_goes_with_it(tmp_path: Path) -> None:
    for attempt in ("run", "old"):
        path = tmp_path / f"{attempt}.stdout"
        looking = timestamps.LogMarks(tmp_path)
        grow(path, b"0123456789")
        looking.look([attempt])
        log_streamer.rotate(tmp_path, [attempt], 8)
        grow(path, b"x")
        looking.look([attempt])
    log_streamer.prune(tmp_path, {"run"}, 1000, -1.0)
    beside = ("", ".1", ".1.times", ".cut", ".times")
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"run.stdout{one}" for one in beside]


#: Takes a lease on each file, ignores that others wait for it, and says so.
_LEASES = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
handles = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
for handle in handles:
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def leased(*paths: Path) -> Iterator[None]:
    command = [sys.executable, "-c", _LEASES, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.kill()


def test_nobody_waits_for_the_owner_of_a_log_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    grow(path, b"0123456789")
    log_file.turn_over(path, 8)
    grow(path, b"xyz")
    with leased(path):
        assert log_streamer.rotate(tmp_path, ["a"], 1).total > 0  # it counts all the same
        with pytest.raises(BlockingIOError):
            log_file.turn_over(path, 8)
        assert log_file.read(path, 10).turning
    with leased(log_file.copy_of(path)):
        assert log_file.read(path, 0).turning
        log_file.turn_over(path, 8)
        assert rest(path, 2) == (b"xyz", 13)
    assert rest(path) == (b"xyz", 13)


def test_a_log_of_any_size_keeps_no_other_from_its_limit(tmp_path: Path) -> None:
    """A task can set the size of its own output, which writes nothing, to all that a file may have
    on some file systems: after two of them no number of lost bytes had room in the note.
    """
    huge, other = tmp_path / "a.1.stdout", tmp_path / "b.1.stdout"
    (tmp_path / "a.1.stdout.cut").write_bytes(struct.pack("<Q?", 2**64 - 10, False))
    for _ in range(3):
        grow(huge, b"x")
        os.truncate(huge, 2**40)
        grow(other, b"y" * 100)
        found = log_streamer.rotate(tmp_path, ("a.1", "b.1"), 50)
        assert found.problems == ()
        assert [path.stat().st_size for path in (huge, other)] == [0, 0]
    piece = log_file.read(huge, 0)
    assert (len(piece.data or b""), piece.turning) == (50, False)
    assert piece.offset + 50 == log_file.CUT_BYTES_MAX


def test_what_is_wrong_with_one_log_is_said_and_keeps_no_other_from_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_over = log_file.turn_over

    def fail(path: Path, keep_bytes: int) -> None:
        if path.name.startswith("a"):
            raise ValueError("what nobody has thought of")
        turn_over(path, keep_bytes)

    monkeypatch.setattr(log_file, "turn_over", fail)
    for name in ("a.1.stdout", "b.1.stdout"):
        grow(tmp_path / name, b"y" * 100)
    found = log_streamer.rotate(tmp_path, ("a.1", "b.1"), 50)
    assert (tmp_path / "b.1.stdout").stat().st_size == 0
    assert len(found.problems) == 1
    assert "a.1.stdout can't be rotated: ValueError" in found.problems[0]


def test_a_log_that_is_rotated_late_goes_before_newer_ones(tmp_path: Path) -> None:
    """A size that takes no space becomes a copy that does."""
    old, new = tmp_path / "a.1.stdout", tmp_path / "b.1.stdout"
    old.touch()
    os.truncate(old, 2**40)
    os.utime(old, (1000.0, 1000.0))
    new.write_bytes(b"x" * 4096)
    os.utime(new, (2000.0, 2000.0))
    log_file.turn_over(old, 2**20)
    assert {log_file.copy_of(old).stat().st_mtime, old.stat().st_mtime} == {1000.0}
    log_streamer.prune(tmp_path, set(), 2**16, 1e12)
    assert not log_file.copy_of(old).exists()
    assert new.exists()
