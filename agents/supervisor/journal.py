"""The durable record of what was started and how it ended. Standard library only.

After a crash the newest record of each attempt counts; a torn line is ignored. When the file has
grown it is rewritten as a whole. Disk space is reserved ahead, so that a task that fills the disk
cannot prevent its own end from being recorded.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH104, PTH108, PTH110, PTH120, PTH123

import ctypes
import json
import os
from typing import Any

Record = dict[str, Any]

BYTES_MAX = 4 * 2**20
#: Disk space reserved ahead, and how much of it must be left before more is reserved.
AHEAD_BYTES, LEFT_BYTES_MIN = 512 * 2**10, 256 * 2**10
_KEEP_SIZE = 1
_LIBC: Any = getattr(ctypes.CDLL(None), "fallocate64", None)


def can_be_told(name: str) -> bool:
    """Return True if an attempt's name is valid text, which messages need."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read(path: str) -> dict[str, Record]:
    """Return the newest record of each attempt in a journal. A torn line is ignored."""
    records: dict[str, Record] = {}
    if not os.path.exists(path):
        return records
    with open(path, "rb") as stream:
        for line in stream:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            for name in entry.get("forget", ()):
                records.pop(name, None)
            if "record" in entry:
                records[entry["record"]["id"]] = entry["record"]
    return records


class Journal:
    """Records of attempts, appended as JSON lines, and rewritten when they have grown."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self.pending: list[bytes] = []
        self.must_sync = False
        #: True after a failed sync: the kernel then considers the data written, and may have lost
        #: it. Only rewriting the journal makes it complete.
        self.doubtful = False
        self.limit = BYTES_MAX
        self.ahead = os.fstat(self.handle).st_blocks * 512
        self.take_room()

    def add(self, entry: Record, *, sync: bool) -> None:
        """Write an entry with the next :meth:`flush`, and to disk if ``sync``."""
        self.pending.append(json.dumps(entry, separators=(",", ":")).encode())
        self.must_sync = self.must_sync or sync

    def flush(self) -> None:
        """Write what is pending. A leading newline keeps a torn line from damaging the next."""
        if self.pending:
            data = memoryview(b"\n" + b"\n".join(self.pending) + b"\n")
            while data:
                data = data[os.write(self.handle, data) :]
            self.pending = []
        if self.must_sync:
            try:
                os.fdatasync(self.handle)
            except OSError:
                self.doubtful = True
                raise
            self.must_sync = False
        self.take_room()

    def take_room(self) -> None:
        """Reserve disk space for coming entries, if the file system supports it and has any."""
        size = os.fstat(self.handle).st_size
        if _LIBC is None or self.ahead - size >= LEFT_BYTES_MIN:
            return
        # From the end of the last range: some file systems release all of a range that they fail to
        # extend.
        begin = max(size, self.ahead)
        length = ctypes.c_int64(size + AHEAD_BYTES - begin)
        if _LIBC(self.handle, _KEEP_SIZE, ctypes.c_int64(begin), length) == 0:
            self.ahead = size + AHEAD_BYTES

    def compact(self, records: list[Record]) -> None:
        """Rewrite the journal with only the present records, if it has doubled since the last time.

        Raises:
            OSError: it failed. The journal is used as it is, and rewritten only after more entries.
        """
        if os.fstat(self.handle).st_size >= self.limit:
            self.renew(records)

    def renew(self, records: list[Record]) -> None:
        """Rewrite the journal with these records, which include everything pending.

        Raises:
            OSError: it failed, or its name could not be brought to disk. The journal can still be
                used.
        """
        size = os.fstat(self.handle).st_size
        fresh = self.path + ".new"
        handle = os.open(fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        lines = [json.dumps({"record": r}, separators=(",", ":")).encode() for r in records]
        data = memoryview(b"\n".join(lines) + b"\n")
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
            os.rename(fresh, self.path)
        except OSError:
            # each further try would use up handles, and half a copy a disk that is full
            self.limit = size + AHEAD_BYTES
            os.close(handle)
            os.unlink(fresh)
            raise
        os.close(self.handle)
        self.handle, self.pending, self.must_sync = handle, [], False
        self.limit = max(BYTES_MAX, 2 * os.fstat(handle).st_size)
        self.ahead = 0
        self.doubtful = True  # until its name is on disk as well
        folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.doubtful = False
        self.take_room()
