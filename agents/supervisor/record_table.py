"""Records of all attempts of a node: in memory, in the journal, and those still to be reported.

An end is reported only after the journal that holds it is on disk. Standard library only.
"""

# No contextlib here: it would cost the supervisor memory.
# ruff: noqa: PTH208

import os
import time
from collections.abc import Callable
from typing import Any

from agents.host import processes
from agents.supervisor import journal, spawn
from agents.supervisor.supervisor_log import complain

Record = dict[str, Any]

#: Wait before the journal is written again after an error.
RETRY_S = 1.0
#: A program that does not find its files fails within this time.
SOON_S = 60.0
#: Exit code by which a shell reports that there is no such command.
_NOT_FOUND = 127


class RecordTable:
    """The records of one supervisor.

    Attributes:
        records: by attempt.
        news: records that agents have not been told of.
        retry_at: when to write the journal again, on the boot clock; 0 if it is written.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.journal = journal.Journal(f"{root}/journal")
        self.records: dict[str, Record] = {
            name: record
            for name, record in journal.read(self.journal.path).items()
            if journal.can_be_told(name)
        }
        self.news: dict[str, Record] = {}
        self.retry_at = 0.0

    def is_known(self, name: str) -> bool:
        """Return True if an attempt has a record."""
        return name in self.records

    def certain(self) -> list[Record]:
        """Return all records, without ends that are not on disk yet.

        Those ends are among the news and are reported with them; a full disk may delay them.
        """
        return [self._certain(record) for record in self.records.values()]

    def _certain(self, record: Record) -> Record:
        if record["state"] != "Ended" or record["id"] not in self.news:
            return record
        return {
            "id": record["id"], "state": "Stopping", "pid": record.get("pid", 0),
            "started_at": record.get("started_at"),
        }  # fmt: skip

    def repeat(self, name: str) -> None:
        """Report an attempt again that was ordered twice."""
        self.news[name] = self.records[name]

    def report_hang(self, name: str, message: str) -> None:
        """Report that an attempt takes long to start its program."""
        self.news[name] = {"id": name, "state": "Starting", "pid": 0, "message": message}

    def put(self, record: Record) -> None:
        """Take a record and report it."""
        self.records[record["id"]] = self.news[record["id"]] = record

    def begin(self, record: Record) -> None:
        """Record that the program of an attempt runs."""
        self.put(record)
        self.journal.add({"record": record}, sync=False)

    def end(self, record: Record, reason: str, *, message: str = "") -> None:
        """Record the end of an attempt; it is durable, and reported, after the next publication.

        Remarks about its start follow the message of its end if they may explain it.
        """
        if record.get("secrets"):
            remove_secrets(self._root, record["id"])
        ended = {**record, "state": "Ended", "end_reason": reason, "ended_at": time.time()}
        ended["message"] = "; ".join(filter(None, (message, *_told_of_start(ended))))
        ended.pop("hint", None)
        self.put(ended)
        self.journal.add({"record": ended}, sync=True)

    def forget(self, names: list[str]) -> None:
        """Forget those of the attempts that have ended."""
        ended = [name for name in names if self.records.get(name, {}).get("state") == "Ended"]
        for name in ended:
            del self.records[name]
        if ended:
            self.journal.add({"forget": ended}, sync=False)

    def publish(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Make ends durable, then report everything new by ``tell``."""
        try:
            if self.journal.doubtful:
                self.journal.renew(list(self.records.values()))
            self.journal.flush()
        except OSError as problem:
            complain(f"journal {self.journal.path}: {problem}; trying again in a second")
            self.retry_at = processes.boottime() + RETRY_S
            return
        self.retry_at = 0.0
        try:
            self.journal.compact(list(self.records.values()))
        except OSError as problem:
            complain(f"journal {self.journal.path} can't be rewritten: {problem}")
        if self.news:
            message = {"records": list(self.news.values())}
            self.news = {}
            tell(message)


def _told_of_start(ended: Record) -> tuple[str, ...]:
    """Return the remarks about the start of an attempt that may explain its end.

    What others ended, or what could not start for other reasons, did not end because of it.
    """
    reason, status = ended["end_reason"], ended.get("exit_code")
    if reason != "Exited" and not (reason == "StartFailed" and status == _NOT_FOUND):
        return ()
    ran_s = ended["ended_at"] - (ended.get("started_at") or ended["ended_at"])
    failed_soon = reason == "Exited" and bool(status) and ran_s <= SOON_S
    return ended.get("message", ""), ended.get("hint", "") if failed_soon else ""


def remove_secrets(root: str, name: str) -> None:
    """Delete the secrets of an attempt that is over.

    The attempt's folder belongs to its user. Whatever is called ``secrets`` there now, only a
    folder that is still the supervisor's own is touched.
    """
    try:
        attempt = os.open(f"{root}/attempts/{name}", spawn.FOLDER)
    except (OSError, ValueError):  # there is none, or its name cannot be one
        return
    folder = -1
    try:
        folder = os.open("secrets", spawn.FOLDER, dir_fd=attempt)
        if os.fstat(folder).st_uid == os.geteuid():
            for file in os.listdir(folder):
                os.unlink(file, dir_fd=folder)
    except OSError:
        pass
    finally:
        os.close(attempt)
        if folder >= 0:
            os.close(folder)
