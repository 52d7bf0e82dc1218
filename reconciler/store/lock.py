"""A lock for one live controller of a SQLite file; the kernel drops it when its holder dies."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from reconciler import lock_file
from reconciler.store.errors import StoreBusyError, StoreError

_PID_BYTES_MAX = 64


class LeaderLock:
    """A lock on ``FILE.lock`` beside the store, held until it is closed."""

    def __init__(self, path: pathlib.Path) -> None:
        """Take the lock.

        Raises:
            StoreBusyError: a live process holds it; the message has its number.
            StoreError: the file cannot be made.
        """
        lock_path = _lock_path(path)
        try:
            self._descriptor = lock_file.open_file(lock_path)
        except OSError as error:
            raise StoreError(f"lock {lock_path} can't be made: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, _PID_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise StoreBusyError(
                f"store {path} is led by the controller with process number {holder or 'unknown'}, "
                "which is alive; stop it first, or give this one a store of its own"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


@contextlib.contextmanager
def not_led(path: pathlib.Path) -> Iterator[None]:
    """Keep controllers away from a store while the block runs, where one has led before.

    Raises:
        StoreBusyError: one leads there, even if the store's files were moved away.
        StoreError: the lock can't be opened.
    """
    if not _lock_path(path).exists():
        yield
        return
    with contextlib.closing(LeaderLock(path)):
        yield


def _lock_path(path: pathlib.Path) -> pathlib.Path:
    """Return the lock of a store."""
    return path.with_name(path.name + ".lock")
