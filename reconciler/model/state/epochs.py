"""Epochs of leaders: whole numbers that only grow, and never fall behind the time in seconds.

What was lost with a store is made up for by the clock. What others claim is believed up to a limit,
because an epoch that is far ahead can neither be stored nor ever be exceeded.
"""

#: How far an epoch may be ahead of the time, in seconds: it is ahead by one for each leader that
#: followed another within a second.
EPOCH_AHEAD_S_MAX = 10 * 365 * 86400


def next_epoch(before: int, now: float) -> int:
    """Return the epoch of a new leader: larger than the last, and at least the time in seconds.

    Agents refuse epochs older than one they have seen. A store that was lost, or restored from a
    backup, has forgotten its last epochs; the clock has not.
    """
    return max(before + 1, int(now))


def highest(now: float) -> int:
    """Return the highest epoch that anybody can have reached now."""
    return int(now) + EPOCH_AHEAD_S_MAX
