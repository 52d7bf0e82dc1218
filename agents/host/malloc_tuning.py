"""Keeps what the agent has of the memory level: its C library would grow, where Python does not.

Every thread would get an arena of its own in the C library's allocator, and what is freed in one
stays with it. Few arenas, and giving back now and then what is free, hold the process to what it
uses. Where the C library is another one, nothing is done.
"""

import ctypes

#: Of ``malloc.h``: how many arenas there may be.
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
    """Before there are threads: have them share what is freed. False where that can't be."""
    library = _library()
    return library is not None and bool(library.mallopt(_M_ARENA_MAX, ARENAS_MAX))


def give_back() -> bool:
    """Give free memory back to the machine; whether there was any."""
    library = _library()
    return library is not None and bool(library.malloc_trim(0))
