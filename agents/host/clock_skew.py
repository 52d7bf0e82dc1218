"""How far this node's clock is from the controller's, by the dates of the controller's answers.

An answer is dated in whole seconds, at a moment between its request and its arrival: both clocks
are apart by something within two bounds. What is within the limit by one answer may be so by chance
where the bounds lie far apart, as they do after a long poll; what is beyond it is so for sure.
"""

import datetime as dt

#: Clocks that are further apart make times of events and logs, and tickets of sites, go wrong.
SKEW_S_MAX = 10.0
#: A date is cut to its second, and servers look at their clock once a second.
DATED_S = 2.0
#: By how much two clocks of one machine may have gone differently over one exchange.
_STEP_S = 1.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Skew:
    """What is known of it. ``problem`` says in words what is wrong; empty: nothing is known to be.

    One thread or several may tell; each word stands by itself.
    """

    def __init__(self) -> None:
        self.problem = ""

    def heard(self, date: str, sent_at: float, came_at: float, took_s: float) -> None:
        """An answer has come.

        Args:
            date: its ``Date``, empty where it has none.
            sent_at: when its request was sent, by the clock of the wall.
            came_at: when it came, by the same clock.
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
    """Seconds since 1970 of a date as HTTP writes it, ``Sun, 06 Nov 1994 08:49:37 GMT``."""
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
