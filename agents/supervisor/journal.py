"""The durable memory of the supervisor: what was started and how it ended. Standard library only.

Records go in; after a crash the newest word on each attempt comes out. A line that was torn by a
crash is nothing; the file is written anew, whole, when it has grown. Room on the disk is taken
ahead: a task that fills it can't keep its own end from being written, without which nothing of it
would ever be deleted.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH104, PTH108, PTH110, PTH120, PTH123

import ctypes
import json
import os
from typing import Any

Record = dict[str, Any]

BYTES_MAX = 4 * 2**20
#: Room that is taken ahead, and how much of it has to be left until more is taken.
AHEAD_BYTES, LEFT_BYTES_MIN = 512 * 2**10, 256 * 2**10
_KEEP_SIZE = 1
_LIBC: Any = getattr(ctypes.CDLL(None), "fallocate64", None)


def can_be_told(name: str) -> bool:
    """Whether an attempt may have a name: nobody could read a message with another one in it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read(path: str) -> dict[str, Record]:
    """What a journal says of each attempt, newest word last; a torn line is nothing."""
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
    """Records of attempts, appended as JSON lines and written anew when they have grown."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self.pending: list[bytes] = []
        self.must_sync = False
        #: Bringing it to disk has failed: the kernel takes what it had of it then for written, and
        #: may have lost it. Only to be written anew makes it whole.
        self.doubtful = False
        self.limit = BYTES_MAX
        self.ahead = os.fstat(self.handle).st_blocks * 512
        self.take_room()

    def add(self, entry: Record, *, sync: bool) -> None:
        """Have an entry written by the next :meth:`flush`, on disk if ``sync``."""
        self.pending.append(json.dumps(entry, separators=(",", ":")).encode())
        self.must_sync = self.must_sync or sync

    def flush(self) -> None:
        """Write what is pending. A leading newline keeps a torn line from spoiling the next."""
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
        """Have the file system keep room for what is still to come, where it can and has any."""
        size = os.fstat(self.handle).st_size
        if _LIBC is None or self.ahead - size >= LEFT_BYTES_MIN:
            return
        # from where the last has ended: some file systems give back all of what they fail to extend
        begin = max(size, self.ahead)
        length = ctypes.c_int64(size + AHEAD_BYTES - begin)
        if _LIBC(self.handle, _KEEP_SIZE, ctypes.c_int64(begin), length) == 0:
            self.ahead = size + AHEAD_BYTES

    def compact(self, records: list[Record]) -> None:
        """Write the journal anew with only what still counts, once it has doubled since.

        Raises:
            OSError: it can't be; the journal goes on as it is, and is not tried anew before more
                has been added.
        """
        if os.fstat(self.handle).st_size >= self.limit:
            self.renew(records)

    def renew(self, records: list[Record]) -> None:
        """Write the journal anew with these records, which have all that is pending in them.

        Raises:
            OSError: it can't be, or its name can't be brought to disk; the journal goes on.
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
            # one more at each end would use up handles, and half a copy the disk that is full
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
