"""A file system that hangs as where its server is away: a real FUSE mount that nobody answers.

Who asks it waits in the kernel: where the request was taken by the server (``swallow``) not even a
SIGKILL ends that wait, as with a dead disk; where it was not, a kill does, as with a dead NFS.
"""

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2
_BUFFER = 2**20
_LOOKUP, _FORGET, _GETATTR, _INIT, _INTERRUPT, _BATCH_FORGET = 1, 2, 3, 26, 36, 42
_SILENT = frozenset({_FORGET, _INTERRUPT, _BATCH_FORGET})
_ENOSYS = 38
#: A folder that everybody may go through.
_FOLDER = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o040755, 2, 0, 0, 0, 4096, 0)
_ATTRIBUTES = struct.pack("<QII", 0, 0, 0) + _FOLDER
_ENTRY = struct.pack("<4Q2I", 2, 0, 0, 0, 0, 0) + _FOLDER


class Hanging:
    """A mount in which every name is a folder, once it answers."""

    def __init__(self, place: Path, *, swallow: bool) -> None:
        self.place = place
        self._server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._server},rootmode=40000,user_id=0,group_id=0,allow_other"
        name = os.fsencode(place)
        if _LIBC.mount(b"hanging", name, b"fuse", ctypes.c_ulong(0), options.encode()):
            os.close(self._server)
            raise OSError(ctypes.get_errno(), "no FUSE here")
        request = os.read(self._server, _BUFFER)
        answer = struct.pack("<4I2H2I2H7I", 7, 31, 65536, 0, 12, 9, 65536, 1, 1, *[0] * 8)
        self._answer(request, answer)
        self._held: list[bytes] = []
        self._reads = threading.Event()
        self._answers = threading.Event()
        self._leave, self._leaves = os.pipe()
        #: Set as soon as somebody has asked for something, and waits for it.
        self.asked = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(swallow,), daemon=True)
        self._thread.start()

    def answer(self) -> None:
        """The server is back: whoever waits is answered."""
        self._answers.set()
        os.write(self._leaves, b"x")

    def die(self) -> None:
        """Whoever asks, or waits, is told that there is no server any more."""
        if self._server >= 0:
            os.write(self._leaves, b"end")
            self._thread.join(60)
            os.close(self._server)
            self._server = -1

    def close(self) -> None:
        """Nobody waits any more, and nothing is mounted."""
        self.die()
        _LIBC.umount2(os.fsencode(self.place), _DETACH)
        os.close(self._leave)
        os.close(self._leaves)

    def _serve(self, swallow: bool) -> None:
        while True:
            takes = swallow or self._answers.is_set()
            waited = [self._leave, self._server] if takes or not self.asked.is_set() else [
                self._leave
            ]  # fmt: skip
            ready, _, _ = select.select(waited, [], [])
            if self._leave in ready and b"e" in os.read(self._leave, 16):
                return
            if self._answers.is_set():
                for request in self._held:
                    self._reply(request)
                self._held = []
            if self._server not in ready:
                continue
            self.asked.set()
            if not takes:
                continue
            request = os.read(self._server, _BUFFER)
            if self._answers.is_set():
                self._reply(request)
            elif struct.unpack_from("<I", request, 4)[0] not in _SILENT:
                self._held.append(request)

    def _reply(self, request: bytes) -> None:
        (kind,) = struct.unpack_from("<I", request, 4)
        if kind == _LOOKUP:
            self._answer(request, _ENTRY)
        elif kind == _GETATTR:
            self._answer(request, _ATTRIBUTES)
        elif kind not in _SILENT:
            self._answer(request, b"", -_ENOSYS)

    def _answer(self, request: bytes, body: bytes, error: int = 0) -> None:
        (unique,) = struct.unpack_from("<Q", request, 8)
        with contextlib.suppress(FileNotFoundError):  # who asked was killed meanwhile
            os.write(self._server, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


@contextlib.contextmanager
def mounted(place: Path, *, swallow: bool = False) -> Iterator[Hanging]:
    """A file system at a place, which hangs until it is told to answer."""
    place.mkdir()
    try:
        made = Hanging(place, swallow=swallow)
    except OSError as problem:
        pytest.skip(f"no file system that hangs can be had here: {problem}")
    try:
        yield made
    finally:
        made.close()
