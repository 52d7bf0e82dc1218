"""What leaves the audit log for its age: whole files alone, told in the chain, whatever is killed.

A day is the unit of these tests: one file a day, kept for ten.
"""

import contextlib
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.operations.audit import audit_entries, audit_log, retention

DAY_S = 86_400
KEEP_S = 10 * DAY_S


def at(day: float) -> float:
    return 1_800_000_000.0 + day * DAY_S


def write(log: audit_log.Log, day: float, **more: str) -> audit_log.ChainEntry:
    made = audit_entries.AuditEntry(at=at(day), revision=f"r{day}", result="Synced", **more)  # type: ignore[arg-type]
    return log.append(made, part_s=retention.part_s(KEEP_S))


def drop(log: audit_log.Log, day: float) -> audit_entries.Dropped | None:
    line = retention.drop(log, keep_s=KEEP_S, now=at(day), revision="setting")
    if line is None:
        return None
    assert line.entry.dropped is not msgspec.UNSET
    return line.entry.dropped


@pytest.fixture
def log(tmp_path: Path) -> audit_log.Log:
    """Two lines a day for five days: lines 1 and 2 are of day 0, and in a file of their own."""
    made = audit_log.Log(tmp_path / audit_log.FILE)
    for half in range(10):
        write(made, half / 2)
    return made


def names(log: audit_log.Log) -> list[int]:
    return [int(part.stem.rpartition("-")[2]) for part in log.parts()]


def whole(log: audit_log.Log, first: int = 1) -> int:
    """That the log verifies; how many lines it tells were dropped."""
    found = log.verify(first)
    assert found.wrong == ""
    assert found.last == next((line.hash for line in log.newest_first()), audit_log.BEGINNING)
    if found.anchor is None or found.anchor.entry.dropped is msgspec.UNSET:
        return 0
    return found.anchor.entry.dropped.last


def test_a_file_that_is_over_age_leaves_and_the_chain_says_so(log: audit_log.Log) -> None:
    assert names(log) == [2, 4, 6, 8]
    second = log.tail(9)[-1]
    assert second.number == 2
    assert drop(log, 10.4) is None
    assert names(log) == [2, 4, 6, 8]
    told = drop(log, 10.5)
    assert told == audit_entries.Dropped(
        begins=1, first=1, last=2, hash=second.hash, newest_at=at(0.5), keep_s=KEEP_S
    )
    assert names(log) == [4, 6, 8]
    anchor = log.tail(1)[0]
    assert (anchor.number, anchor.entry.result, anchor.entry.revision) == (11, "Dropped", "setting")
    assert "lines 1 to 2 of this log" in anchor.entry.message
    assert "`retention.audit` is 10d" in anchor.entry.message
    assert log.verify() == audit_log.ChainVerdict(11, anchor.hash, "", anchor)
    newest = log.newest_revision()
    assert newest is not None
    assert newest.number == 10
    # by and by
    assert drop(log, 10.5) is None
    assert [drop(log, 99.0) is None for _ in range(4)] == [False, False, False, True]
    assert (names(log), whole(log)) == ([], 8)
    assert write(log, 99.0).number == 15
    assert whole(log) == 8
    assert whole(log, 5) == 8


def test_the_file_that_grows_stays_however_old_it_is(tmp_path: Path) -> None:
    log = audit_log.Log(tmp_path / audit_log.FILE)
    assert drop(log, 99.0) is None
    write(log, 0.0)
    assert drop(log, 99.0) is None
    # killed after it was put aside, and before there was a new one
    log.path.rename(tmp_path / "audit-000000000001.jsonl")
    assert drop(log, 99.0) is None
    log.path.touch()
    assert drop(log, 99.0) is None
    assert write(log, 99.0).number == 2
    assert drop(log, 99.0) is not None
    assert whole(log) == 1


def test_a_line_about_dropped_ones_begins_no_file(log: audit_log.Log) -> None:
    """Else the newest entry about a revision could leave: who starts anew asks what that was."""
    while drop(log, 99.0):
        pass
    assert names(log) == []
    assert [line.number for line in log.newest_first(only_dropped=True)] == [14, 13, 12, 11]
    write(log, 99.0)
    assert names(log) == [14]
    assert drop(log, 120.0) is not None  # with the lines that tell of others
    assert whole(log) == 14


def test_a_file_with_a_line_that_is_newer_stays(tmp_path: Path) -> None:
    """A clock that was ahead, and was set back, has left it in the middle."""
    log = audit_log.Log(tmp_path / audit_log.FILE)
    for day in (0.0, 8.0, 0.1):
        audit_log.Log(log.path).append(
            audit_entries.AuditEntry(at=at(day), revision="r", result="Synced")
        )
    write(log, 8.1)
    assert names(log) == [3]
    assert drop(log, 17.9) is None
    assert names(log) == [3]
    assert drop(log, 18.0) is not None


#: How much of the line that tells of it is there when it is killed, and how many lines are good.
KILLED: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "before the line": (lambda line: b"", 10),
    "with half of the line": (lambda line: line[: len(line) // 2], 10),
    "with all of the line but its end": (lambda line: line[:-1], 10),
    "before the file went": (lambda line: line, 11),
}


@pytest.mark.parametrize("when", KILLED)
def test_killed_at_any_step_the_log_verifies_and_the_next_call_goes_on(
    log: audit_log.Log, when: str
) -> None:
    part, grown = log.parts()[0], log.path.read_bytes()
    gone = part.read_bytes()
    told = drop(log, 11.0)
    line = log.path.read_bytes()[len(grown) :]
    part.write_bytes(gone)
    cut, good = KILLED[when]
    log.path.write_bytes(grown + cut(line))

    found = log.verify()
    assert (found.lines, found.wrong, found.anchor) == (good, "", None)
    assert found.torn == (0 < len(cut(line)) < len(line))
    assert drop(log, 11.0) == told
    assert not part.exists()
    assert whole(log) == 2
    assert len(list(log.newest_first(only_dropped=True))) == 1


def change(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert text.count(old) == 1
    path.write_bytes(text.replace(old, new))


#: What is done to the log, and what is said of it.
TAMPERED: dict[str, tuple[Callable[[audit_log.Log], object], str]] = {
    "a line of it": (
        lambda log: change(log.parts()[0], b'"r0.5"', b'"r0.6"'),
        "line 2: it was changed",
    ),
    "a line taken out": (
        lambda log: log.parts()[0].write_bytes(log.parts()[0].read_bytes().partition(b"\n")[2]),
        "000000000002.jsonl is too old and is kept",
    ),
    "the next file": (lambda log: log.parts()[1].unlink(), "does not follow line 2"),
    "a line that is none": (
        lambda log: log.parts()[0].write_bytes(log.parts()[0].read_bytes()[:-9]),
        "a line can't be read",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_stays_as_evidence(log: audit_log.Log, what: str) -> None:
    tamper, told = TAMPERED[what]
    write(log, 99.0)
    tamper(log)
    before = names(log)
    if what == "a line taken out":  # it may have been taken away by hand: from line 2 on it is fine
        assert drop(log, 99.0) is not None
        assert "line 1: found number 3, expected 1" in log.verify().wrong
        assert whole(log, 2) == 2
        return
    with pytest.raises(ValueError, match=told):
        drop(log, 99.0)
    assert names(log) == before
    assert log.verify().wrong != ""


def forge(log: audit_log.Log, day: float = 11.0, **other: Any) -> None:
    """Add a line with the right hash that says what the one who writes it likes."""
    said = audit_entries.Dropped(
        begins=1, first=1, last=2, hash=log.tail(9)[-1].hash, newest_at=at(0.5), keep_s=KEEP_S
    )
    said = msgspec.structs.replace(said, **other)
    entry = audit_entries.AuditEntry(at=at(day), revision="setting", result="Dropped", dropped=said)
    log.append(entry)


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing says so": ({"last": 1}, "and no entry records that they were dropped"),
    "of another hash": ({"hash": "f" * 64}, "and no entry records that they were dropped"),
    "too young": ({"newest_at": at(1.1)}, "lines as dropped that were not old enough"),
    "in the future": ({"last": 99}, "lines 1 to 99 as dropped, which is impossible"),
    "the wrong way round": ({"first": 3}, "lines 3 to 2 as dropped, which is impossible"),
    "not all of them": ({"begins": 2, "first": 2}, "and no entry records that they were dropped"),
    "what is there": ({"last": 4}, "line 4 as dropped, but that line exists with other content"),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_line_about_dropped_ones_is_found(log: audit_log.Log, how: str) -> None:
    other, told = FORGED[how]
    forge(log, **other)
    log.parts()[0].unlink()
    assert told in log.verify().wrong


def test_lines_about_dropped_ones_follow_one_another(log: audit_log.Log) -> None:
    drop(log, 11.0)
    fourth = log.tail(8)[-1]
    assert fourth.number == 4
    forge(log, 12.0, first=2, last=4, hash=fourth.hash, newest_at=at(1.5))
    log.parts()[0].unlink()
    assert "lines up to 2 were dropped, but it does not continue from there" in log.verify().wrong


def test_a_break_is_told_where_it_is_although_older_lines_were_dropped(log: audit_log.Log) -> None:
    drop(log, 11.0)
    change(log.parts()[0], b'"r1.5"', b'"r1.6"')
    found = log.verify()
    assert (found.lines, found.wrong) == (3, "line 4: it was changed after it was written")


def test_what_was_taken_away_by_hand_is_never_told_as_dropped(log: audit_log.Log) -> None:
    """Not before anything was dropped, nor in between."""
    log.parts()[0].unlink()
    told = drop(log, 99.0)
    assert told is not None
    assert (told.begins, told.first, told.last) == (3, 3, 4)
    assert "line 1: found number 5, expected 1" in log.verify().wrong
    assert whole(log, 3) == 4
    log.parts()[0].unlink()
    told = drop(log, 99.0)
    assert told is not None
    assert (told.begins, told.first, told.last) == (7, 7, 8)
    assert "line 3: found number 9, expected 3" in log.verify(3).wrong
    assert whole(log, 7) == 8


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_it_verifies_and_nothing_newer_is_gone(tmp_path: Path, seed: int) -> None:
    """Days pass, entries come, files go, and now and then it is killed half-way."""
    rng = random.Random(seed)
    log = audit_log.Log(tmp_path / audit_log.FILE, part_bytes_max=3000)
    day, written = 0.0, list[tuple[int, float]]()
    for _ in range(60):
        day += rng.expovariate(1.5)
        if rng.random() < 0.7:
            line = write(log, day, message="x" * rng.randrange(600))
            written.append((line.number, line.entry.at))
        else:
            kept = {path: path.read_bytes() for path in log.parts()[:1]}
            drop(log, day)
            if rng.random() < 0.3:
                for path, text in kept.items():
                    path.write_bytes(text)
            if rng.random() < 0.2 and log.path.exists():
                with log.path.open("ab") as file:
                    file.write(b'{"number":')
                assert log.verify().wrong == ""
                write(log, day)
        whole(log)
        there = {line.number for line in log.newest_first()}
        missing = [moment for number, moment in written if number not in there]
        assert all(moment <= at(day) - KEEP_S for moment in missing)
        assert not written or log.newest_revision() is not None
    assert 1 not in {line.number for line in log.newest_first()}


@contextlib.contextmanager
def room_for(log: audit_log.Log, more: int) -> Iterator[None]:
    """The file takes so many more bytes, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = log.path.stat().st_size + more
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [0, 1, 60, 200])
def test_a_line_that_does_not_fit_is_not_there_and_nothing_is_told_of_it(
    more: int, log: audit_log.Log
) -> None:
    kept = log.path.read_bytes()
    with room_for(log, more), pytest.raises(OSError, match="too large"):
        write(log, 4.75)
    assert log.path.read_bytes() == kept
    assert write(log, 4.75).number == 11
    assert (log.verify().lines, log.verify().wrong) == (11, "")


@pytest.mark.parametrize("more", [0, 60, 200])
def test_nothing_is_dropped_that_no_line_can_account_for(more: int, log: audit_log.Log) -> None:
    before = names(log)
    with room_for(log, more), pytest.raises(OSError, match="too large"):
        drop(log, 11)
    assert names(log) == before
    assert not log.verify().wrong
    assert drop(log, 11) is not None
    assert names(log) == before[1:]
    assert not log.verify().wrong


def test_what_is_half_written_is_cut_off_however_long_it_is(log: audit_log.Log) -> None:
    with log.path.open("ab") as file:
        file.write(b'{"number":' + b"1" * (2 * audit_log.LINE_BYTES_MAX))
    assert write(log, 4.75).number == 11
    assert (log.verify().lines, log.verify().wrong) == (11, "")
