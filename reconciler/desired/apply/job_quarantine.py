"""Jobs that were accepted and with which no cycle could be decided: each stays as it was a while.

The loop finds them and names them with what was written of them; as long as that is written and its
time is not over, what was in force of the job stays so. Afterwards it is tried again, each time
after twice as long, since what kept it from being decided may have passed.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from reconciler.desired.documents import faults
from reconciler.model import desired
from reconciler.model.rules import review_findings

#: What could not be decided is tried again after so long, and twice as long each time.
WAIT_S = 60.0
WAIT_S_MAX = 3600.0
#: What nobody came to try is tried after so long, so that the loop does something else as well.
UNTRIED_S = 30.0
#: In so many ways of writing it a job is remembered, the last ones.
WRITTEN_MAX = 4


RULE = review_findings.UNDECIDED
#: What is told of a job that waits with one that it depends on.
BLOCKED = "a job that it depends on could not be decided"


def is_parted(in_force: desired.Job | None, left: desired.Job | None) -> bool:
    """Whether a job that is left as it is runs something else than what is written of it.

    Who depends on it is to wait for what is written, and would go by what was before.
    """
    return in_force is None or left is None or in_force.key != left.key


class QuarantinedJob(msgspec.Struct, frozen=True):
    """A job with which no cycle passed.

    Attributes:
        name: of the job.
        spec: what was written of it; None: it was written no more.
        message: what is told of it.
        tried: False: nobody came to try it by itself.
        aside: nothing is decided about it: what is in force of it can't be either.
    """

    name: str
    spec: desired.Job | None
    message: str
    tried: bool = True
    aside: bool = False

    def is_same(self, other: "QuarantinedJob") -> bool:
        """Whether the same was written of it."""
        return (self.name, self.spec) == (other.name, other.spec)

    def problem(self, path: str) -> desired.Problem:
        """What is told of it where it has no document to point at."""
        return desired.Problem(RULE, "error", path, self.message, object=f"Job/{self.name}")


#: By name of a job what is known of it, for each way in which it was written.
Known = Mapping[str, tuple[QuarantinedJob, ...]]


class JobsLeftAsBefore:
    """Those of a revision that are left as they are while they are written so.

    Args:
        known: by name, one for each way in which it was written; each name is to be asked for.
    """

    def __init__(self, known: Known = MappingProxyType({})) -> None:
        self.known = known
        #: Those written so about which nothing is to be decided, with what is told of them.
        self.aside: dict[str, str] = {}
        self._parted: list[str] = []

    def of(self, name: str, spec: desired.Job | None) -> QuarantinedJob | None:
        """What is known of a job that is written so."""
        return next((one for one in self.known.get(name, ()) if one.spec == spec), None)

    def aside_of(self, in_force: Mapping[str, desired.Job]) -> dict[str, str]:
        """Those about which nothing is to be decided, with what is told of them.

        By what stays in force, whatever is written now: cycles go by that.
        """
        found = dict(self.aside)
        for name in self.known:
            one = self.of(name, in_force.get(name))
            if one is not None and one.aside:
                found[name] = one.message
        return found

    def faults(
        self, name: str, made: desired.Job | None, current: desired.Job | None
    ) -> list[faults.Fault]:
        """That no cycle passed with a job as it is written now; None: it is not any more."""
        one = self.of(name, made)
        if one is None or (made == current and not one.aside):
            return []
        if made is None and current is None:
            return []
        if one.aside:
            self.aside[name] = one.message
        if is_parted(made if one.aside and current is None else current, made):
            self._parted.append(name)
        return [faults.Fault(RULE, one.message)]

    def take_back(
        self,
        waiting: Iterable[str],
        proposed: dict[str, desired.Job],
        in_force: Mapping[str, desired.Job],
    ) -> list[str]:
        """Propose nothing of those that wait for a job that would go by another run of it."""
        users: dict[str, list[str]] = {}
        for name in waiting if self._parted else ():
            if proposed[name] != in_force.get(name):
                for one in proposed[name].depends_on:
                    users.setdefault(one.job, []).append(name)
        found: dict[str, None] = {}
        new = list(self._parted)
        while new:
            for name in users.get(new.pop(), ()):
                if name not in found:
                    found[name] = None
                    if is_parted(in_force.get(name), proposed[name]):
                        new.append(name)
        for name in found:
            del proposed[name]
            if name in in_force:
                proposed[name] = in_force[name]
        return list(found)


NOTHING = JobsLeftAsBefore()


class _Resting(NamedTuple):
    one: QuarantinedJob
    again_at: float
    wait_s: float
    last_s: float  # how long it had to wait when it was tried last, 0: it never was

    def rests(self, now: float) -> bool:
        """Whether it is left alone now; a clock that was set back makes that no longer."""
        return self.again_at - self.wait_s <= now < self.again_at


class QuarantineTimers:
    """Which jobs are left alone as they are written, and until when.

    A job may be known as it is in force and as it was written since: one makes nobody forget the
    other, or each would be tried whenever the other was.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Resting, ...]] = {}

    def put(self, found: Iterable[QuarantinedJob], now: float) -> None:
        """Leave jobs alone from now on; the same again for twice as long as the last time."""
        limit = now - WAIT_S_MAX  # of what has passed since nothing is to be known
        fresh = {
            name: tuple(old for old in known if old.again_at > limit)
            for name, known in self._known.items()
        }
        self._known = {name: known for name, known in fresh.items() if known}
        for one in found:
            known = self._known.get(one.name, ())
            before = next((old for old in known if old.one.is_same(one)), None)
            last_s = before.last_s if before is not None else 0.0
            if one.tried:
                last_s = wait_s = min(2 * last_s, WAIT_S_MAX) if last_s else WAIT_S
            else:
                wait_s = UNTRIED_S
            others = tuple(old for old in known if old is not before)
            made = _Resting(one, now + wait_s, wait_s, last_s)
            self._known[one.name] = (*others, made)[-WRITTEN_MAX:]

    def resting(self, now: float) -> Known:
        """Those to be left alone now, by name."""
        found = {
            name: tuple(old.one for old in known if old.rests(now))
            for name, known in self._known.items()
        }
        return {name: rest for name, rest in found.items() if rest}

    def again_at(self, left: Known) -> float | None:
        """When the first of ``left`` is to be tried again."""
        return min(
            (
                old.again_at
                for name, some in left.items()
                for old in self._known.get(name, ())
                if any(old.one is one for one in some)
            ),
            default=None,
        )
