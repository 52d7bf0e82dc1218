"""Ctrl-C during a command, from its first moment to its last, without a traceback.

While modules are imported, the process ends at once. While a command runs it gets a
`KeyboardInterrupt`, so that it can clean up; its exit code is the shell's for an interrupt. This
module imports next to nothing, not even `typing`, so that it is active early.
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
    """Make Ctrl-C end the process at once, quietly and without cleaning up."""
    _install(_leave)


def interrupt() -> None:
    """Make Ctrl-C raise `KeyboardInterrupt` in the running code."""
    sys.unraisablehook = _unraisable
    _install(_raise)


def came() -> bool:
    """Return True if Ctrl-C interrupted the command: errors that follow may be caused by it."""
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
    """End the process if an interrupt hit a finaliser, where it would be printed and forgotten."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(STATUS)
    sys.__unraisablehook__(lost)
