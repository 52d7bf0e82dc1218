"""Tampering with the audit log is told by the server's page, whoever asks for it or not."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reconciler import metrics
from reconciler.operations.audit import audit_entries, audit_log
from reconciler.server import waits
from reconciler.server.background import audit_watch

NOW = 1_800_000_000.0


class Watched:
    """A log, the counts of a server's page, and the end of the server."""

    def __init__(self, folder: Path) -> None:
        self.log = audit_log.Log(folder / audit_log.FILE)
        self.answers = metrics.Answers()
        self.stopping = waits.Stopping()

    def watch(
        self, now: float = NOW, sleep: Callable[[float], None] | None = None
    ) -> audit_watch.AuditWatch:
        """A watch of a server that has just started."""
        return audit_watch.AuditWatch(
            self.log, self.answers, self.stopping, lambda: now, sleep or pass_by
        )


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def log_of(watched: Watched, lines: int = 450) -> audit_log.Log:
    """A log in several files."""
    log = audit_log.Log(watched.log.path, part_bytes_max=30_000)
    for number in range(lines):
        log.append(
            audit_entries.AuditEntry(at=float(number), revision=f"{number:040}", result="Synced")
        )
    assert len(log.parts()) > 1
    return log


def told(watched: Watched) -> dict[str, float]:
    page = watched.answers.render(open_sessions=0, other_sessions=0).decode()
    lines = [line.split() for line in page.splitlines() if line.startswith("muster_audit_")]
    return {name.removeprefix("muster_audit_"): float(value) for name, value in lines}


def pass_by(_seconds: float) -> None:
    """Wait for nothing."""


def watching(watched: Watched) -> Callable[[], str]:
    watch = watched.watch()
    return lambda: asyncio.run(watch.look())


def test_the_page_says_nothing_before_the_first_look(watched: Watched) -> None:
    assert told(watched) == {}
    assert watching(watched)() == "", "there is no log yet"
    assert told(watched)["intact"] == 1


def change(log: audit_log.Log) -> None:
    part = log.parts()[0]
    part.write_bytes(part.read_bytes().replace(b'"Synced"', b'"Unknown"', 1))


def cut_short(log: audit_log.Log) -> None:
    log.path.write_bytes(b"")


def take_a_part(log: audit_log.Log) -> None:
    log.parts()[1].unlink()


def make_anew(log: audit_log.Log) -> None:
    """Another author in each line, and every hash right."""
    before = audit_log.BEGINNING
    for path in (*log.parts(), log.path):
        made = []
        for text in path.read_bytes().splitlines():
            line = msgspec.json.decode(text, type=audit_log.ChainEntry)
            entry = msgspec.structs.replace(line.entry, message="nothing to see")
            line = msgspec.structs.replace(line, previous=before, entry=entry)
            line = msgspec.structs.replace(line, hash=audit_log.hash_of(line))
            before = line.hash
            made.append(msgspec.json.encode(line, order="deterministic") + b"\n")
        path.write_bytes(b"".join(made))
    assert log.verify().wrong == ""


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (make_anew, "was made anew"),
        (change, "it was changed after it was written"),
        (cut_short, "was there before"),
        (take_a_part, "lines are missing or inserted"),
    ],
)
def test_tampering_is_told_and_so_is_its_end(
    watched: Watched, tamper: Callable[[audit_log.Log], None], said: str
) -> None:
    log = log_of(watched)
    look = watching(watched)
    assert look() == ""
    before = {path: path.read_bytes() for path in (*log.parts(), log.path)}
    tamper(log)
    for _ in range(2):
        assert said in look()
        assert told(watched)["intact"] == 0
    assert told(watched)["verified_timestamp_seconds"] == NOW
    for path, data in before.items():
        path.write_bytes(data)
    assert look() == ""
    assert told(watched)["intact"] == 1


def test_a_look_waits_nineteen_times_as_long_as_it_works_and_ends_with_the_server(
    watched: Watched,
) -> None:
    log_of(watched)
    slept: list[float] = []
    asyncio.run(watched.watch(sleep=slept.append).look())
    assert len(slept) >= 2
    assert min(slept) >= 0
    watched.stopping.begin()
    with pytest.raises(audit_watch.AuditWatchStoppedError):
        asyncio.run(watched.watch(sleep=slept.append).look())


@pytest.mark.parametrize(
    ("tamper", "said"),
    [(change, "it was changed"), (cut_short, "was there before"), (make_anew, "was made anew")],
)
def test_what_is_lost_while_no_server_runs_is_told(
    watched: Watched, tamper: Callable[[audit_log.Log], None], said: str
) -> None:
    log = log_of(watched)
    assert watching(watched)() == ""
    before = {path: path.read_bytes() for path in (*log.parts(), log.path)}
    tamper(log)
    for _ in range(2):
        assert said in watching(watched)(), "a server that has just started"
    for path, data in before.items():
        path.write_bytes(data)
    assert watching(watched)() == ""


def test_a_look_goes_on_from_what_was_kept_before_there_were_hashes(
    watched: Watched,
) -> None:
    log = log_of(watched)
    seen = watched.log.path.with_name(audit_watch.SEEN_FILE)
    seen.write_bytes(b'{"lines":450,"at":1.0}')  # as written before hashes were kept
    assert watching(watched)() == ""
    assert log.tail(1)[0].hash in seen.read_text()
    log.append(audit_entries.AuditEntry(at=1.0, revision="new", result="Synced"))
    assert watching(watched)() == ""


def test_who_moves_the_log_away_with_what_is_known_of_it_begins_anew(
    watched: Watched,
) -> None:
    log_of(watched)
    assert watching(watched)() == ""
    for path in watched.log.path.parent.glob("audit*"):
        path.unlink()
    assert watching(watched)() == ""


def test_what_is_kept_of_a_look_may_be_damaged_or_impossible_to_keep(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    seen = watched.log.path.with_name(audit_watch.SEEN_FILE)
    seen.write_bytes(b"{")
    assert watching(watched)() == ""
    assert "is not known" in caplog.text
    seen.unlink()
    seen.mkdir()
    log_of(watched)
    assert watching(watched)() == ""
    assert "can't be kept" in caplog.text
    assert told(watched)["intact"] == 1


def test_a_log_that_can_not_be_read_from_the_start_on_has_a_time_to_alert_by(
    watched: Watched,
) -> None:
    log = log_of(watched)
    assert watching(watched)() == ""
    watched.answers.audit = None  # of a server that has just started
    data = log.path.read_bytes()
    log.path.unlink()
    log.path.mkdir()

    for _ in range(2):
        asyncio.run(watched.watch(NOW + 5).try_look())
        assert told(watched) == {"verified_timestamp_seconds": NOW}
    log.path.rmdir()
    log.path.write_bytes(data)
    assert watching(watched)() == ""
    assert told(watched)["intact"] == 1
