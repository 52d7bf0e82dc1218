"""The desired state of one cycle: what git asks for, without the jobs that are set aside."""

from collections.abc import Iterator, Mapping

import msgspec

from reconciler.controller import adoption
from reconciler.controller.quarantine import job_bisection
from reconciler.core import observed_state
from reconciler.core.jobs import quarantined_jobs
from reconciler.model import desired

#: The first generation of the states made here; the next ones count down. No loader uses them.
GENERATION = -3


class DesiredInForce:
    """A filter of desired states: it leaves out jobs that wait for adoption or are set aside.

    Args:
        adoption: withholds jobs until somebody adopts them.
        search: sets jobs aside.
        state: what is known of runs.
        generations: numbers that no other desired state has.
    """

    def __init__(
        self,
        adoption: adoption.Adoption,
        search: job_bisection.JobBisection,
        state: observed_state.ObservedState,
        generations: Iterator[int],
    ) -> None:
        self._adoption = adoption
        self._search = search
        self._state = state
        self._generations = generations
        self._last: tuple[desired.Desired, Mapping[str, str], desired.Desired] | None = None

    @property
    def is_reduced(self) -> bool:
        """True if jobs wait for adoption, or are set aside while a search goes on."""
        return self._adoption.pending or self._search.is_open

    def adopted(self, desired_state: desired.Desired) -> desired.Desired:
        """Return the desired state, without its jobs while they wait for adoption."""
        return self._adoption.in_force(desired_state)

    def of(self, desired_state: desired.Desired) -> desired.Desired:
        """Return the desired state that a cycle uses if this is asked for."""
        known, aside = self.adopted(desired_state), self._search.aside
        if not known.quarantined and not aside:
            return known
        if self._last is None or self._last[0] is not known or self._last[1] != aside:
            self._last = (known, aside, self.without(known, aside))
        return self._last[2]

    def without(self, known: desired.Desired, aside: Mapping[str, str]) -> desired.Desired:
        """Return a desired state without some more jobs."""
        fewer = quarantined_jobs.without(known, {**known.quarantined, **aside}, self._state)
        if not aside:
            return fewer
        return msgspec.structs.replace(fewer, generation=next(self._generations))
