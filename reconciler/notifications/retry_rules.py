"""When a message that was not taken is sent again: the same for channels and for people."""

from collections.abc import Callable

#: How often one is tried, and the first and the longest wait between two tries.
TRIES_MAX = 8
WAIT_S_MIN = 1.0
WAIT_S_MAX = 300.0


def is_delivered(status: int) -> bool:
    """Return True for the status of an answer that takes a message."""
    return 200 <= status < 300


def next_try_in_s(
    status: int, retry_after_s: float | None, tries: int, random: Callable[[], float]
) -> float | None:
    """Return the seconds until the next try; None: never.

    Args:
        status: of HTTP; 0 if there was no answer.
        retry_after_s: the receiver's wish for a delay.
        tries: made so far.
        random: from 0 to 1, for waits that do not all end together.
    """
    final = 300 <= status < 500 and status not in {408, 425, 429}
    if final or tries >= TRIES_MAX:
        return None
    wait_s: float = min(WAIT_S_MAX, WAIT_S_MIN * 2.0 ** (tries - 1))
    asked_s = min(retry_after_s or 0.0, WAIT_S_MAX)
    return max(wait_s * (0.5 + 0.5 * random()), asked_s)
