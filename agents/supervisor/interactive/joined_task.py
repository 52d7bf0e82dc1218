"""The place of a task that runs, which another process takes over. Standard library only."""

import ctypes
import fcntl
import os
import termios
from typing import Any, NamedTuple

#: A library whose calls keep the interpreter's lock: the caller is a forked child.
_SETNS: Any = ctypes.PyDLL(None, use_errno=True).setns


class JoinedTask(NamedTuple):
    """The place of a task that runs, for a process that joins it; nothing for a task itself.

    Attributes:
        namespaces: handles of its namespaces, to be entered in this order.
        oom_score_adj: how much sooner than the task it is killed when memory ends.
        terminal: True if its standard input is to be its controlling terminal.
    """

    namespaces: tuple[int, ...] = ()
    oom_score_adj: int = 0
    terminal: bool = False

    def enter(self, handles: list[int]) -> None:
        """Enter the namespaces, whose handles are ``handles`` by now; raise OSError if refused.

        From here on nothing may be imported or looked up: the files are the task's.
        """
        if self.oom_score_adj:
            handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(handle, str(self.oom_score_adj).encode())
            os.close(handle)
        for handle in handles:
            if _SETNS(handle, 0) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            os.close(handle)

    def take_terminal(self) -> None:
        """Make the standard input the controlling terminal, if it is to be one."""
        if self.terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


#: For a task, which takes over nothing.
NOTHING = JoinedTask()
