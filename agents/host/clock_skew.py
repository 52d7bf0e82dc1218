"""Difference between this node's clock and the controller's, from the dates of its answers.

An answer is dated in whole seconds, at some moment between its request and its arrival. So each
answer gives a lower and an upper bound. A difference beyond the limit is certain; one within it may
be chance, especially after a long poll.
"""

import datetime as dt

#: Larger differences distort times of events and logs, and break Kerberos tickets and the like.
SKEW_S_MAX = 10.0
#: Dates are truncated to seconds, and servers read their clock once a second.
DATED_S = 2.0
#: Possible drift between two clocks of one machine during one exchange.
_STEP_S = 1.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ClockSkew:
    """The known difference of the clocks. ``problem`` describes it; empty if no problem is known.

    Any thread may add an answer; each one counts by itself.
    """

    def __init__(self) -> None:
        self.problem = ""

    def heard(self, date: str, sent_at: float, came_at: float, took_s: float) -> None:
        """Take the date of an answer into account.

        Args:
            date: value of its ``Date`` header; empty if it has none.
            sent_at: when the request was sent, by the wall clock.
            came_at: when the answer arrived, by the wall clock.
            took_s: the time between, by a clock that nobody sets.
        """
        dated_at = moment(date)
        if dated_at is None or abs(came_at - sent_at - took_s) > _STEP_S:
            return  # or this node's clock was set meanwhile
        least_s, most_s = sent_at - dated_at - DATED_S, came_at - dated_at
        if least_s > SKEW_S_MAX:
            self.problem = f"the clock is more than {SKEW_S_MAX:g} s ahead of the controller's"
        elif most_s < -SKEW_S_MAX:
            self.problem = f"the clock is more than {SKEW_S_MAX:g} s behind the controller's"
        elif most_s - least_s <= SKEW_S_MAX:
            self.problem = ""


def moment(date: str) -> float | None:
    """Return the seconds since 1970 of an HTTP date, like ``Sun, 06 Nov 1994 08:49:37 GMT``."""
    words = date.replace(":", " ").split()
    try:
        _, day, month, year, hours, minutes, seconds, zone = words
        number = _MONTHS.index(month) + 1
        found = dt.datetime(
            int(year), number, int(day), int(hours), int(minutes), int(seconds), tzinfo=dt.UTC
        )
    except (ValueError, OverflowError):
        return None
    return found.timestamp() if zone == "GMT" else None
