"""Notices when the process ends that the agent must end with."""

import os


def watch(expected: int | None) -> int | None:
    """Return a handle that becomes readable when the parent ends; None if it need not be watched.

    Args:
        expected: process id of the parent; 0 for the current one; None if the agent outlives it.

    Raises:
        ProcessLookupError: the parent has already ended.
    """
    if expected is None:
        return None
    parent = expected or os.getppid()
    handle = os.pidfd_open(parent)
    if os.getppid() != parent:  # it ended before it could be watched
        os.close(handle)
        raise ProcessLookupError(f"the parent, process {parent}, is gone")
    return handle
