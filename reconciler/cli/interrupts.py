"""What Ctrl-C does to a command, from its first moment to its last, without a traceback.

While modules are imported there is nothing to tidy up, and an exception could leave half a module
behind: the process ends where it stands. While a command runs it gets a ``KeyboardInterrupt``, so
that what it holds is given back; whatever comes of that, the status is the shell's for an
interrupt. Commands that have more to do install a handler of their own. Next to nothing is imported
here, not even ``typing``, so that next to no time goes by before.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

#: 128 + SIGINT, as shells have it.
STATUS = 130

_came = False


def leave_at_once() -> None:
    """From here on Ctrl-C ends the process, quietly and without tidying up."""
    _install(_leave)


def interrupt() -> None:
    """From here on Ctrl-C is a ``KeyboardInterrupt`` in what runs."""
    sys.unraisablehook = _unraisable
    _install(_raise)


def came() -> bool:
    """Whether Ctrl-C has interrupted what ran: errors that follow may come of it."""
    return _came


def _install(handler: Callable[[int, FrameType | None], None]) -> None:
    # who started the process may want Ctrl-C ignored, as shells do for what runs behind `&`
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(STATUS)


def _raise(_number: int, _frame: FrameType | None) -> None:
    global _came  # noqa: PLW0603 - a handler has nobody to return it to
    _came = True
    raise KeyboardInterrupt


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """An interrupt that hits a finaliser goes nowhere: it would be printed, and forgotten."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(STATUS)
    sys.__unraisablehook__(lost)
