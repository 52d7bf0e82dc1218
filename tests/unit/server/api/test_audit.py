"""The audit log is verified in processes of their own: one at a time, once for all who ask."""

import asyncio
from pathlib import Path

import psutil
import pytest

from reconciler.operations.audit import audit_entries, audit_log
from reconciler.server import errors
from reconciler.server.api import audit
from reconciler.server.auth import authentication
from reconciler.server.process import worker_processes


@pytest.fixture
def log(tmp_path: Path) -> audit_log.Log:
    made = audit_log.Log(tmp_path / audit_log.FILE, part_bytes_max=1000)
    for number in range(12):
        made.append(audit_entries.AuditEntry(at=1.0, revision=str(number), result="Synced"))
    return made


class Counted(audit.Verifications):
    """Knows how often it went along the log, and how many of these at once."""

    def __init__(self, log: audit_log.Log) -> None:
        super().__init__(log)
        self.runs = 0

    async def _run(self, module: str, *arguments: str) -> tuple[int, bytes]:
        self.runs += 1
        return await super()._run(module, *arguments)


def test_who_asks_while_the_log_stays_is_answered_by_one_look(log: audit_log.Log) -> None:
    one = Counted(log)

    async def ask() -> list[audit_log.ChainVerdict]:
        impatient = asyncio.create_task(one.verdict(1))
        await asyncio.sleep(0)
        others = [asyncio.create_task(one.verdict(1)) for _ in range(50)]
        await asyncio.sleep(0)
        impatient.cancel()
        return [*await asyncio.gather(*others), await one.verdict(1)]

    assert set(map(str, asyncio.run(ask()))) == {str(log.verify())}
    assert one.runs == 1
    log.append(audit_entries.AuditEntry(at=1.0, revision="new", result="Synced"))
    assert asyncio.run(one.verdict(1)).lines == 13
    part = log.parts()[0]
    part.write_bytes(
        part.read_bytes().replace(b'"revision":"0"', b'"revision":"z"')
    )  # as large as before
    assert "changed after it was written" in asyncio.run(one.verdict(1)).wrong
    assert "before line 3" in asyncio.run(one.verdict(3)).wrong
    assert one.runs == 4


def test_only_so_many_different_questions_wait(log: audit_log.Log) -> None:
    one = Counted(log)

    async def ask() -> list[audit_log.ChainVerdict | BaseException]:
        asked = []
        for first in range(1, worker_processes.WAITING_MAX + 4):
            authentication.CALLER.set(f"caller-{first}")
            asked.append(asyncio.create_task(one.verdict(first)))
        return await asyncio.gather(*asked, return_exceptions=True)

    refused = [told for told in asyncio.run(ask()) if isinstance(told, errors.Failure)]
    assert [told.status for told in refused] == [429] * 3
    assert one.runs == worker_processes.WAITING_MAX


def test_a_log_that_can_not_be_read_is_told(log: audit_log.Log) -> None:
    log.path.unlink()
    log.path.mkdir()
    with pytest.raises(errors.Failure, match="can't be read") as refused:
        asyncio.run(audit.Verifications(log).verdict(1))
    assert refused.value.status == 503


def test_one_that_takes_too_long_is_ended(
    log: audit_log.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "VERIFY_S_MAX", 0.0)
    with pytest.raises(errors.Failure, match="took longer than"):
        asyncio.run(audit.Verifications(log).verdict(1))
    left = [child.cmdline() for child in psutil.Process().children()]
    assert not [words for words in left if "reconciler.operations.audit.verify_worker" in words]
