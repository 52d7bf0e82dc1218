"""Marks beside logs: how far they had come, and when."""

import os
from pathlib import Path

from agents.logs import log_streamer, timestamps
from reconciler.model.protocol import agent_messages


def write(path: Path, text: bytes, at: float) -> None:
    with path.open("ab") as stream:
        stream.write(text)
    os.utime(path, (at, at))


def test_a_log_is_marked_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "a.1.stdout"
    looking = timestamps.LogMarks(tmp_path)
    looking.look(["a.1"])  # there is no log yet
    write(log, b"one\n", 100.0)
    looking.look(["a.1"])
    looking.look(["a.1"])  # nothing new
    write(log, b"two\n", 200.0)
    looking = timestamps.LogMarks(tmp_path)  # the agent starts anew
    looking.look(["a.1"])
    write(log, b"six\n", 300.0)
    marks = [
        agent_messages.LogMark(100.0, 4),
        agent_messages.LogMark(200.0, 8),
        agent_messages.LogMark(300.0, 12),
    ]
    assert timestamps.marks(log) == marks
    assert timestamps.within(log, 0, 4) == tuple(marks[:1])
    assert timestamps.within(log, 0, 5) == tuple(marks[:2])
    assert timestamps.within(log, 4, 8) == tuple(marks[:2])
    assert timestamps.within(log, 9, 12) == tuple(marks[1:])


def test_a_log_that_was_cut_is_marked_anew(tmp_path: Path) -> None:
    log = tmp_path / "a.1.stdout"
    looking = timestamps.LogMarks(tmp_path)
    write(log, b"x" * 100, 100.0)
    looking.look(["a.1"])
    assert timestamps.times_of(log).exists()
    log_streamer.rotate(tmp_path, ["a.1"], 50)
    write(log, b"new\n", 200.0)
    looking.look(["a.1"])
    assert timestamps.marks(log) == [agent_messages.LogMark(200.0, 4)]
    with log.open("wb"):
        pass
    write(log, b"2\n", 300.0)
    looking.look(["a.1"])  # its task has cut it itself
    assert timestamps.marks(log) == [agent_messages.LogMark(300.0, 2)]


def test_marks_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "a.1.stderr"
    looking = timestamps.LogMarks(tmp_path)
    for number in range(timestamps.MARKS_MAX + 10):
        write(log, b"x\n", float(number))
        looking.look(["a.1"])
    found = timestamps.marks(log)
    assert len(found) == timestamps.MARKS_MAX // 2 + 10
    assert timestamps.times_of(log).stat().st_size == 16 * len(found)
    assert found[-1] == agent_messages.LogMark(
        timestamps.MARKS_MAX + 9.0, 2 * timestamps.MARKS_MAX + 20
    )
    assert [mark.offset for mark in found] == sorted(mark.offset for mark in found)


def test_a_torn_mark_costs_only_itself(tmp_path: Path) -> None:
    log = tmp_path / "a.1.stdout"
    looking = timestamps.LogMarks(tmp_path)
    write(log, b"one\n", 100.0)
    looking.look(["a.1"])
    with timestamps.times_of(log).open("ab") as stream:
        stream.write(b"torn")
    assert timestamps.marks(log) == [agent_messages.LogMark(100.0, 4)]
    write(log, b"two\n", 200.0)
    looking.look(["a.1"])
    assert timestamps.marks(log) == [
        agent_messages.LogMark(100.0, 4),
        agent_messages.LogMark(200.0, 8),
    ]


def test_marks_leave_with_their_log(tmp_path: Path) -> None:
    log = tmp_path / "a.1.stdout"
    write(log, b"one\n", 100.0)
    timestamps.LogMarks(tmp_path).look(["a.1"])
    log_streamer.prune(tmp_path, {"a.1"}, 0, 1.0)
    assert len(list(tmp_path.iterdir())) == 2
    log_streamer.prune(tmp_path, set(), 0, 1.0)
    assert list(tmp_path.iterdir()) == []
