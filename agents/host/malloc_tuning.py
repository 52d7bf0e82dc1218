"""Keeps the agent's memory usage level, by settings of the C library's allocator.

By default every thread gets its own arena, and memory that is freed there stays there. Few arenas,
and returning free memory now and then, limit the process to what it uses. With another C library
nothing is done.
"""

import ctypes

#: ``M_ARENA_MAX`` of ``malloc.h``.
_M_ARENA_MAX = -8
ARENAS_MAX = 1


def _library() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(None)
        _ = found.mallopt, found.malloc_trim
    except (OSError, AttributeError):
        return None
    return found


def restrain() -> bool:
    """Make all threads share arenas. Call it before there are threads. Return False if it is
    impossible.
    """
    library = _library()
    return library is not None and bool(library.mallopt(_M_ARENA_MAX, ARENAS_MAX))


def give_back() -> bool:
    """Return free memory to the machine. Return True if there was any."""
    library = _library()
    return library is not None and bool(library.malloc_trim(0))
