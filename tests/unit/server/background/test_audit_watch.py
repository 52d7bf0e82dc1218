"""Tampering with the audit log is told by the server's page, whoever asks for it or not."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reconciler.operations.audit import audit_entries, audit_log
from reconciler.server import services
from reconciler.server.auth import authentication, tokens
from reconciler.server.background import audit_watch

NOW = 1_800_000_000.0


@pytest.fixture
def service(tmp_path: Path) -> services.Services:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    return services.Services(
        store_url=store,
        link_path=tmp_path / "link",
        gate=authentication.Authenticator(tokens.TokenTable(())),
    )


def log_of(service: services.Services, lines: int = 450) -> audit_log.Log:
    """A log in several files."""
    log = audit_log.Log(service.audit_path, part_bytes_max=30_000)
    for number in range(lines):
        log.append(
            audit_entries.AuditEntry(at=float(number), revision=f"{number:040}", result="Synced")
        )
    assert len(log.parts()) > 1
    return log


def told(service: services.Services) -> dict[str, float]:
    page = service.answers.render(open_sessions=0, other_sessions=0).decode()
    lines = [line.split() for line in page.splitlines() if line.startswith("muster_audit_")]
    return {name.removeprefix("muster_audit_"): float(value) for name, value in lines}


def pass_by(_seconds: float) -> None:
    """Wait for nothing."""


def watching(service: services.Services) -> Callable[[], str]:
    watch = audit_watch.AuditWatch(service, lambda: NOW, pass_by)
    return lambda: asyncio.run(watch.look())


def test_the_page_says_nothing_before_the_first_look(service: services.Services) -> None:
    assert told(service) == {}
    assert watching(service)() == "", "there is no log yet"
    assert told(service)["intact"] == 1


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
    service: services.Services, tamper: Callable[[audit_log.Log], None], said: str
) -> None:
    log = log_of(service)
    look = watching(service)
    assert look() == ""
    before = {path: path.read_bytes() for path in (*log.parts(), log.path)}
    tamper(log)
    for _ in range(2):
        assert said in look()
        assert told(service)["intact"] == 0
    assert told(service)["verified_timestamp_seconds"] == NOW
    for path, data in before.items():
        path.write_bytes(data)
    assert look() == ""
    assert told(service)["intact"] == 1


def test_a_look_waits_nineteen_times_as_long_as_it_works_and_ends_with_the_server(
    service: services.Services,
) -> None:
    log_of(service)
    waits: list[float] = []
    asyncio.run(audit_watch.AuditWatch(service, lambda: NOW, waits.append).look())
    assert len(waits) >= 2
    assert min(waits) >= 0
    service.stop()
    with pytest.raises(audit_watch.AuditWatchStoppedError):
        asyncio.run(audit_watch.AuditWatch(service, lambda: NOW, waits.append).look())


@pytest.mark.parametrize(
    ("tamper", "said"),
    [(change, "it was changed"), (cut_short, "was there before"), (make_anew, "was made anew")],
)
def test_what_is_lost_while_no_server_runs_is_told(
    service: services.Services, tamper: Callable[[audit_log.Log], None], said: str
) -> None:
    log = log_of(service)
    assert watching(service)() == ""
    before = {path: path.read_bytes() for path in (*log.parts(), log.path)}
    tamper(log)
    for _ in range(2):
        assert said in watching(service)(), "a server that has just started"
    for path, data in before.items():
        path.write_bytes(data)
    assert watching(service)() == ""


def test_a_look_goes_on_from_what_was_kept_before_there_were_hashes(
    service: services.Services,
) -> None:
    log = log_of(service)
    seen = service.audit_path.with_name(audit_watch.SEEN_FILE)
    seen.write_bytes(b'{"lines":450,"at":1.0}')  # as written before hashes were kept
    assert watching(service)() == ""
    assert log.tail(1)[0].hash in seen.read_text()
    log.append(audit_entries.AuditEntry(at=1.0, revision="new", result="Synced"))
    assert watching(service)() == ""


def test_who_moves_the_log_away_with_what_is_known_of_it_begins_anew(
    service: services.Services,
) -> None:
    log_of(service)
    assert watching(service)() == ""
    for path in service.audit_path.parent.glob("audit*"):
        path.unlink()
    assert watching(service)() == ""


def test_what_is_kept_of_a_look_may_be_damaged_or_impossible_to_keep(
    service: services.Services, caplog: pytest.LogCaptureFixture
) -> None:
    seen = service.audit_path.with_name(audit_watch.SEEN_FILE)
    seen.write_bytes(b"{")
    assert watching(service)() == ""
    assert "is not known" in caplog.text
    seen.unlink()
    seen.mkdir()
    log_of(service)
    assert watching(service)() == ""
    assert "can't be kept" in caplog.text
    assert told(service)["intact"] == 1


def test_a_log_that_can_not_be_read_from_the_start_on_has_a_time_to_alert_by(
    service: services.Services,
) -> None:
    log = log_of(service)
    assert watching(service)() == ""
    service.answers.audit = None  # of a server that has just started
    data = log.path.read_bytes()
    log.path.unlink()
    log.path.mkdir()

    for _ in range(2):
        asyncio.run(audit_watch.AuditWatch(service, lambda: NOW + 5, pass_by).try_look())
        assert told(service) == {"verified_timestamp_seconds": NOW}
    log.path.rmdir()
    log.path.write_bytes(data)
    assert watching(service)() == ""
    assert told(service)["intact"] == 1
