"""Quarantined jobs: accepted jobs with which no cycle passed; each keeps its version in force.

The loop names such jobs with the spec that failed. While git has that spec and the wait isn't over,
the version in force applies. Then the spec is tried again, after twice the wait each time, because
the cause may have passed.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from reconciler.desired.documents import faults
from reconciler.model import desired
from reconciler.model.rules import review_findings

#: The first wait before a quarantined job is tried again, doubled each time, and its maximum.
WAIT_S = 60.0
WAIT_S_MAX = 3600.0
#: The wait of a job that was never tried alone, so that the loop does other work as well.
UNTRIED_S = 30.0
#: Specs that are remembered of a job, the newest.
WRITTEN_MAX = 4

RULE = review_findings.UNDECIDED
#: Message about a job that waits because its dependency is quarantined.
BLOCKED = "a job that it depends on could not be decided"


def is_parted(in_force: desired.Job | None, left: desired.Job | None) -> bool:
    """Return True if the version in force runs something else than the spec in git.

    Jobs that depend on the new run must wait then: they would follow the old one.
    """
    return in_force is None or left is None or in_force.key != left.key


class QuarantinedJob(msgspec.Struct, frozen=True):
    """A job with which no cycle passed.

    Attributes:
        name: its name.
        spec: the spec that failed; None if the job's removal failed.
        message: what people read about it.
        tried: False if it was not tried alone.
        aside: the version in force fails as well, so cycles decide nothing about the job.
    """

    name: str
    spec: desired.Job | None
    message: str
    tried: bool = True
    aside: bool = False

    def is_same(self, other: "QuarantinedJob") -> bool:
        """Return True if both have the same spec."""
        return (self.name, self.spec) == (other.name, other.spec)

    def problem(self, path: str) -> desired.Problem:
        """Return the problem to show when git has no document of the job."""
        return desired.Problem(RULE, "error", path, self.message, object=f"Job/{self.name}")


#: Quarantined specs by name of the job.
Known = Mapping[str, tuple[QuarantinedJob, ...]]


class JobsLeftAsBefore:
    """The jobs of a revision that keep their version in force because their spec is quarantined.

    Args:
        known: quarantined specs by name. ``faults`` has to be called for each name.

    Attributes:
        aside: messages by name of the jobs about which cycles decide nothing.
    """

    def __init__(self, known: Known = MappingProxyType({})) -> None:
        self.known = known
        self.aside: dict[str, str] = {}
        self._parted: list[str] = []

    def of(self, name: str, spec: desired.Job | None) -> QuarantinedJob | None:
        """Return the quarantine of a job with this spec, if there is one."""
        return next((one for one in self.known.get(name, ()) if one.spec == spec), None)

    def aside_of(self, in_force: Mapping[str, desired.Job]) -> dict[str, str]:
        """Return messages by name of the jobs about which cycles decide nothing.

        Cycles follow the version in force, so that counts as well as the spec in git.
        """
        found = dict(self.aside)
        for name in self.known:
            one = self.of(name, in_force.get(name))
            if one is not None and one.aside:
                found[name] = one.message
        return found

    def faults(
        self, name: str, written: desired.Job | None, current: desired.Job | None
    ) -> list[faults.Fault]:
        """Return a fault if a job's spec in git (None: it was removed) is quarantined."""
        one = self.of(name, written)
        if one is None or (written == current and not one.aside):
            return []
        if written is None and current is None:
            return []
        if one.aside:
            self.aside[name] = one.message
        if is_parted(written if one.aside and current is None else current, written):
            self._parted.append(name)
        return [faults.Fault(RULE, one.message)]

    def take_back(
        self,
        waiting: Iterable[str],
        proposed: dict[str, desired.Job],
        in_force: Mapping[str, desired.Job],
    ) -> list[str]:
        """Put jobs back in force whose dependencies keep another run than git has.

        Args:
            waiting: names of jobs that have dependencies.
            proposed: accepted jobs by name; changed in place.
            in_force: jobs by name before this revision.

        Returns:
            The names of the jobs that were put back.
        """
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


class QuarantineWait(NamedTuple):
    """The wait of a job or a head before it is tried again."""

    again_at: float
    wait_s: float

    def lasts(self, now: float) -> bool:
        """Return True if the wait isn't over; a clock that was set back ends it."""
        return self.again_at - self.wait_s <= now < self.again_at


class _Resting(NamedTuple):
    job: QuarantinedJob
    wait: QuarantineWait
    last_s: float  # the wait before its last try; 0 if there was none


class QuarantineTimers:
    """The waits of quarantined jobs.

    A job may have several specs here, such as the one in force and a newer one. Neither replaces
    the other, or each would be tried whenever the other was.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Resting, ...]] = {}

    def put(self, found: Iterable[QuarantinedJob], now: float) -> None:
        """Start the waits of jobs; a spec that was tried before waits twice as long as before."""
        limit = now - WAIT_S_MAX  # older ones are forgotten
        fresh = {
            name: tuple(old for old in known if old.wait.again_at > limit)
            for name, known in self._known.items()
        }
        self._known = {name: known for name, known in fresh.items() if known}
        for job in found:
            known = self._known.get(job.name, ())
            before = next((old for old in known if old.job.is_same(job)), None)
            last_s = before.last_s if before is not None else 0.0
            if job.tried:
                last_s = wait_s = min(2 * last_s, WAIT_S_MAX) if last_s else WAIT_S
            else:
                wait_s = UNTRIED_S
            others = tuple(old for old in known if old is not before)
            resting = _Resting(job, QuarantineWait(now + wait_s, wait_s), last_s)
            self._known[job.name] = (*others, resting)[-WRITTEN_MAX:]

    def resting(self, now: float) -> Known:
        """Return the specs whose wait isn't over, by name."""
        found = {
            name: tuple(old.job for old in known if old.wait.lasts(now))
            for name, known in self._known.items()
        }
        return {name: rest for name, rest in found.items() if rest}

    def again_at(self, left: Known) -> float | None:
        """Return when the first of ``left`` is tried again, in seconds since the epoch."""
        return min(
            (
                old.wait.again_at
                for name, some in left.items()
                for old in self._known.get(name, ())
                if any(old.job is one for one in some)
            ),
            default=None,
        )
