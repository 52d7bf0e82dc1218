"""Who was refused or read other people's output is written down once a minute, in a chain."""

import asyncio
from pathlib import Path

import pytest

from reconciler.operations.audit import access_audit, audit_entries, audit_log, audit_search


class Bed:
    """An audit with a time that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.log = audit_log.Log(folder / access_audit.FILE)
        self.audit = access_audit.AccessAudit(self.log, lambda: self.now, lambda: self.now)

    def forbid(self, who: str = "eve", path: str = "/v1/jobs/train/logs") -> None:
        """Refuse a call."""
        self.audit.note("Forbidden", who, "10.0.0.1", f"GET {path}", "no role allows it")

    def written(self) -> list[audit_entries.AccessEntry]:
        """Return what is written, oldest first."""
        self.audit.write()
        lines = reversed(self.log.tail(10_000))
        return [line.entry.access for line in lines if line.entry.access]


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_an_entry_says_who_what_and_why(bed: Bed) -> None:
    bed.forbid()
    (entry,) = bed.written()
    assert entry == audit_entries.AccessEntry(
        "Forbidden", "eve", "10.0.0.1", "GET /v1/jobs/train/logs", 1
    )
    (line,) = bed.log.tail(10)
    assert (line.entry.message, line.entry.at) == ("no role allows it", 1000.0)
    assert bed.log.verify().wrong == ""


def test_what_repeats_is_one_entry_a_minute_with_its_number(bed: Bed) -> None:
    for _ in range(50):
        bed.forbid()
    bed.forbid("mallory")
    bed.now += access_audit.REPEAT_S
    bed.forbid()
    assert [(one.identity, one.count) for one in bed.written()] == [
        *(("eve", 1), ("mallory", 1), ("eve", 50))
    ]


def test_nobody_fills_the_disk_by_being_refused(bed: Bed) -> None:
    for number in range(5000):
        bed.forbid(f"eve-{number}", "/v1/jobs/train/logs" + "x" * 10_000)
    assert len(bed.written()) == access_audit.LIMITS["Forbidden"].of_all
    assert bed.log.path.stat().st_size < access_audit.LIMITS["Forbidden"].of_all * 1500
    assert len(bed.audit._by_key) == access_audit.KEYS_MAX


def test_one_caller_leaves_room_for_entries_about_others(bed: Bed) -> None:
    for number in range(500):
        bed.forbid(path=f"/v1/jobs/{number}/logs")
    bed.forbid("mallory")
    written = [one.identity for one in bed.written()]
    assert written == ["eve"] * access_audit.LIMITS["Forbidden"].of_one + ["mallory"]


def test_each_order_is_an_entry_whatever_else_happens(bed: Bed) -> None:
    for number in range(500):
        bed.forbid(f"eve-{number}")
    for job in ("train", "eval", "eval"):
        bed.audit.note("OverrideChanged", "root", "10.0.0.2", "POST /v1/overrides", f"cancel {job}")
    bed.audit.note("TokensChanged", "", "", "token file", "removed bob@x.org (user)")
    bed.written()
    told = [line.entry.message for line in bed.log.tail(4)]
    assert told == ["removed bob@x.org (user)", "cancel eval", "cancel eval", "cancel train"]


def test_orders_are_bounded_too(bed: Bed) -> None:
    most = access_audit.LIMITS["OverrideChanged"].of_all
    for number in range(most + 5):
        bed.audit.note("OverrideChanged", "root", "10.0.0.2", "POST /v1/overrides", f"{number}")
    assert len(bed.written()) == most
    bed.now += access_audit.REPEAT_S
    bed.forbid()
    told = bed.written()[most:]
    assert [(one.action, one.identity, one.request, one.count) for one in told] == [
        ("OverrideChanged", "root", "", 5),
        ("Forbidden", "eve", "GET /v1/jobs/train/logs", 1),
    ]


def test_refusals_leave_room_for_what_was_read(bed: Bed) -> None:
    for number in range(500):
        bed.forbid(f"eve-{number}")
    bed.audit.note("LogsRead", "lead", "10.0.0.2", "GET /v1/jobs/train/logs", "of ada")
    assert bed.written()[-1].action == "LogsRead"


def test_calls_without_an_entry_are_counted_at_the_end(bed: Bed) -> None:
    async def scene() -> None:
        running = asyncio.create_task(bed.audit.run())
        await asyncio.sleep(0)
        for number in range(40):
            bed.forbid(path=f"/v1/jobs/{number}/logs")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    assert [(one.request, one.count) for one in bed.written()[30:]] == [("", 10)]


def test_a_changed_entry_breaks_the_chain(bed: Bed) -> None:
    for who in ("eve", "mallory", "bob"):
        bed.forbid(who)
    bed.written()
    text = bed.log.path.read_bytes()
    bed.log.path.write_bytes(text.replace(b"mallory", b"someone"))
    assert "changed after it was written" in bed.log.verify().wrong


def test_what_waits_at_the_end_is_written(bed: Bed) -> None:
    async def scene() -> None:
        running = asyncio.create_task(bed.audit.run())
        await asyncio.sleep(0)
        bed.forbid()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())
    assert len(bed.log.tail(10)) == 1


def test_a_full_disk_is_told_once_and_stops_nothing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_entry: audit_entries.AuditEntry) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(bed.log, "append", full)
    for who in ("eve", "mallory", "bob"):
        bed.forbid(who)
    bed.audit.write()
    (told,) = caplog.messages
    assert "no space left" in told


def read_logs(bed: Bed, who: str, count: int, first: int = 0) -> None:
    """Have somebody read the logs of many jobs."""
    for number in range(first, first + count):
        bed.audit.note("LogsRead", who, "10.0.0.3", f"GET /v1/jobs/j{number}/logs", "of ada@x.org")


def test_whose_logs_were_read_is_kept_however_many_there_are(bed: Bed) -> None:
    """Who reads many at once is whom an audit is for."""
    most = access_audit.LIMITS["LogsRead"].of_one
    read_logs(bed, "lead", most + 130)
    read_logs(bed, "lead", 5, first=most + 100)  # again
    bed.now += access_audit.REPEAT_S
    bed.forbid()
    written = bed.written()
    assert sum(one.count for one in written if one.action == "LogsRead") == most + 135
    assert len(written) <= most + 4
    for number in (0, most, most + 100, most + 129):
        query = audit_search.AuditQuery("lead", f"Job/j{number}", "LogsRead")
        found = audit_search.search(bed.log, query, before=None, limit=10).lines
        assert len(found) == 1, number
    assert f"GET /v1/jobs/j{most + 100}/logs of ada@x.org (2)" in found[0].entry.message
    read_logs(bed, "lead", 1, first=most + 129)
    assert bed.written()[-1].count == 1, "none is counted twice"


def test_what_was_read_is_bounded_and_the_rest_is_counted(bed: Bed) -> None:
    most = access_audit.LIMITS["LogsRead"].of_one
    for who in range(12):
        read_logs(bed, f"reader-{who}", 20_000)
    bed.now += access_audit.REPEAT_S
    bed.forbid()
    told = [one for one in bed.written() if one.action == "LogsRead"]
    assert sum(one.count for one in told) == 12 * 20_000
    assert {one.identity for one in told} == {f"reader-{who}" for who in range(12)}
    entries_max = access_audit.OBJECTS_MAX // access_audit.LISTED_MAX + 2 * 12
    assert len(told) <= access_audit.LIMITS["LogsRead"].of_all + entries_max
    assert bed.log.path.stat().st_size < 1_000_000
    assert most < access_audit.OBJECTS_EACH_MAX
