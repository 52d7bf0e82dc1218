"""The process that an agent is to end with: somebody has to notice that it is gone."""

import os


def watch(expected: int | None) -> int | None:
    """A handle that becomes readable when the parent ends; None: it need not be watched.

    Args:
        expected: its process id; 0: whatever it is now; None: the agent outlives it.

    Raises:
        ProcessLookupError: it is gone already.
    """
    if expected is None:
        return None
    parent = expected or os.getppid()
    handle = os.pidfd_open(parent)
    if os.getppid() != parent:  # it ended before it could be watched
        os.close(handle)
        raise ProcessLookupError(f"the parent, process {parent}, is gone")
    return handle
