"""Jobs that were accepted and with which no cycle could be decided: each stays as it was a while.

The loop finds them and names them with what was written of them; as long as that is written and its
time is not over, what was in force of the job stays so. Afterwards it is tried again, each time
after twice as long, since what kept it from being decided may have passed.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from reconciler.model import desired

#: What could not be decided is tried again after so long, and twice as long each time.
WAIT_S = 60.0
WAIT_S_MAX = 3600.0
#: What nobody came to try is tried after so long, so that the loop does something else as well.
UNTRIED_S = 30.0


class Undecided(msgspec.Struct, frozen=True):
    """A job with which no cycle passed.

    Attributes:
        name: of the job.
        spec: what was written of it; None: it was written no more.
        message: what is told of it.
        tried: False: nobody came to try it by itself.
    """

    name: str
    spec: desired.Job | None
    message: str
    tried: bool = True

    def problem(self, path: str) -> desired.Problem:
        """What is told of it where it has no document to point at."""
        return desired.Problem("defect", "error", path, self.message, object=f"Job/{self.name}")


class _Resting(NamedTuple):
    one: Undecided
    again_at: float
    wait_s: float

    def rests(self, now: float) -> bool:
        """Whether it is left alone now; a clock that was set back makes that no longer."""
        return self.again_at - self.wait_s <= now < self.again_at


class Rests:
    """Which jobs are left alone, and until when."""

    def __init__(self) -> None:
        self._known: dict[str, _Resting] = {}

    def put(self, found: Iterable[Undecided], now: float) -> None:
        """Leave jobs alone from now on; the same again for twice as long as the last time."""
        limit = now - WAIT_S_MAX  # of what has passed since nothing is to be known
        self._known = {name: old for name, old in self._known.items() if old.again_at > limit}
        for one in found:
            before = self._known.get(one.name)
            wait_s = WAIT_S if one.tried else UNTRIED_S
            if one.tried and before is not None and before.one == one:
                wait_s = min(2 * before.wait_s, WAIT_S_MAX)
            self._known[one.name] = _Resting(one, now + wait_s, wait_s)

    def resting(self, now: float) -> Mapping[str, Undecided]:
        """Those to be left alone now, by name."""
        return {name: known.one for name, known in self._known.items() if known.rests(now)}

    def again_at(self, names: Iterable[str]) -> float | None:
        """When the first of ``names`` is to be tried again."""
        return min(
            (self._known[name].again_at for name in names if name in self._known), default=None
        )
