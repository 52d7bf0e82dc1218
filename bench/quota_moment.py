"""Whether a quota refuses a job at a moment, reckoned as simply as can be."""

from collections.abc import Sequence

from bench import moment
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import ELEMENT_CODE, JobState

_PENDING = ELEMENT_CODE[JobState.PENDING]


class QuotaMoment(moment.Moment):
    """A moment, with what quotas leave to its jobs."""

    def quotas_of(self, spec: desired.Job) -> list[desired.Quota]:
        above = {queue.name for queue in self.path(spec.queue)}
        return [
            quota
            for quota in self.structure.quotas.values()
            if (quota.user == spec.owner if quota.user else quota.queue in above)
        ]

    def over_quota(self, quota: desired.Quota, record: records.JobRecord) -> bool:
        """Whether what runs, and what goes before it, leaves a job too little of a quota.

        What goes before it counts whether it starts or not: else it would overtake.
        """
        holders = [a for a in self.live if self._counts_for(quota, a)]
        used = [sum(a.resources.as_vector()[r] for a in holders) for r in range(3)]
        jobs = {a.job for a in holders}
        ahead = {
            one.name: (one, count)
            for one in self.seen.job_records.values()
            if (count := self._ahead(one, record, quota))
        }
        began = {a.job for a in holders if a.assigned_at >= self.seen.now}
        jobs_ahead = jobs | set(ahead)
        bounds = quota.resources.as_vector()
        for other, waiting in ahead.values():
            each = moment.whole(other.spec)
            if _passes(bounds, used, each):
                each = moment.asked(other.spec)  # an elastic one counts with what it may start with
            for resource in range(3):
                used[resource] += waiting * each[resource]
        for resource, more in enumerate(self._let_through(holders)):
            used[resource] += more
        if quota.running is not None and len(jobs_ahead - {record.name}) >= quota.running:
            return True
        considered = began | set(ahead)
        if quota.pending is not None and len(considered - {record.name}) >= quota.pending:
            return True
        # beside others of it that start with all their tasks, an element asks for all of its own
        spec = record.spec
        own = moment.whole(spec) if record.name in began else moment.asked(spec)
        return _passes(bounds, used, own)

    def _let_through(self, holders: list[records.AttemptRecord]) -> list[int]:
        """What elements that start in this very cycle counted with for caps, and did not get.

        A cap lets all tasks of an element through before it is known for how many there is room.
        """
        older = {(a.job, a.element) for a in holders if a.assigned_at < self.seen.now}
        rest = [0, 0, 0]
        begun = set()
        for attempt in holders:
            key, spec = (attempt.job, attempt.element), self.spec_of(attempt)
            if key in older or spec is None:
                continue
            whole = moment.whole(spec) if key not in begun else (0, 0, 0)
            begun.add(key)
            for resource, has in enumerate(attempt.resources.as_vector()):
                rest[resource] += whole[resource] - has
        return rest

    def _counts_for(self, quota: desired.Quota, attempt: records.AttemptRecord) -> bool:
        spec = self.spec_of(attempt)
        return spec is not None and quota in self.quotas_of(spec)

    def _ahead(self, one: records.JobRecord, other: records.JobRecord, quota: desired.Quota) -> int:
        """How many waiting elements of a job go before another job under a quota.

        Of what is not of higher priority or older, and has no room kept for it, only what a
        guarantee covers goes before; and none of that where jobs are let through one by one.
        """
        waiting = sum(code == _PENDING for code in one.elements)
        if one.finished or one.name == other.name or quota not in self.quotas_of(one.spec):
            return 0
        if (-one.spec.priority, one.order) < (-other.spec.priority, other.order):
            return waiting
        if one.name in self.seen.promised:
            return waiting
        if any(mine.pending is not None for mine in self.quotas_of(one.spec)):
            return 0
        covered = [
            self._covered(queue, each, waiting)
            for queue in self.path(one.spec.queue)
            for each in (moment.whole(one.spec), moment.asked(one.spec))
        ]
        return max(covered, default=0)

    def _covered(self, queue: desired.Queue, each: Sequence[int], waiting: int) -> int:
        """Return how many elements of a size the rest of a queue's own guarantee covers."""
        used = self.used()[queue.name]
        bounds = zip(queue.guaranteed.as_vector(), used, each, strict=True)
        fits = [
            max(0, most - has) // more for most, has, more in bounds if more and most is not None
        ]
        return min([waiting, *fits]) if fits else 0


def _passes(bounds: Sequence[int | None], used: Sequence[int], each: Sequence[int]) -> bool:
    """Return True if one more of a size would pass any bound."""
    return any(
        bound is not None and more and taken + more > bound
        for bound, taken, more in zip(bounds, used, each, strict=True)
    )
