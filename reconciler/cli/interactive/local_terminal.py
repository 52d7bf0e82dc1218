"""The terminal that a person sits at: raw while a command has it, and as it was afterwards."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator

#: The most bytes of input that are read at once.
PIECE_BYTES = 2**16
STDIN, STDOUT, STDERR = 0, 1, 2


def is_one() -> bool:
    """Return True if a person sits at both ends: input and output are a terminal."""
    return sys.stdin is not None and os.isatty(STDIN) and os.isatty(STDOUT)


def size() -> tuple[int, int]:
    """Return rows and columns of the terminal; 24 and 80 if there is none."""
    for handle in (STDOUT, STDIN, STDERR):
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(handle)
            if found.lines and found.columns:
                return found.lines, found.columns
    return 24, 80


@contextlib.contextmanager
def raw(*, wanted: bool) -> Iterator[None]:
    """Have every key passed on as it is, Ctrl-C included; afterwards the terminal is as before."""
    if not wanted or not os.isatty(STDIN):
        yield
        return
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        with contextlib.suppress(termios.error):  # it has gone
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextlib.contextmanager
def heard(handlers: dict[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Have signals handled in the running loop; afterwards they are handled as before."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def typed() -> AsyncIterator[bytes]:
    """Yield standard input as it comes, until it ends."""
    loop = asyncio.get_running_loop()
    while True:
        came = asyncio.Event()
        try:
            loop.add_reader(STDIN, came.set)
        except (PermissionError, OSError):  # a file, which can always be read
            data = await asyncio.to_thread(_read)
        else:
            try:
                await came.wait()
            finally:
                loop.remove_reader(STDIN)
            data = _read()
        if not data:
            return
        yield data


def _read() -> bytes:
    try:
        return os.read(STDIN, PIECE_BYTES)
    except OSError:  # no standard input, or a terminal that has gone
        return b""


async def show(handle: int, data: bytes) -> None:
    """Write all of some output, however slowly it is taken.

    Raises:
        OSError: it can't be written.
    """
    left = memoryview(data)
    while left:
        # in a thread: the connection must be kept alive while nobody reads
        left = left[await asyncio.to_thread(os.write, handle, left) :]
