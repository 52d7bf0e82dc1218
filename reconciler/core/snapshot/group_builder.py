"""Builds pending groups: jobs of one queue that are alike in everything that matters to a decision.

Unfinished jobs come in; pending groups in order of arrival go out, with the reasons of jobs that
are not offered to the scheduler. A job that could grow is a pending job too.
"""

import collections
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from reconciler.core import job_draft, job_errors
from reconciler.core.cycle import cycle_alarm, cycle_jobs
from reconciler.core.jobs import elastic_jobs, readiness
from reconciler.core.quota import quota_usage, unschedulable
from reconciler.core.snapshot import (
    growing_jobs,
    pending_cache,
    reservation_windows,
    task_shapes,
)
from reconciler.model import desired
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import JobState
from reconciler.model.values import resources
from reconciler.scheduling.inputs import snapshots


@dataclass
class PendingInput:
    """Pending jobs for the scheduler, and those that wait for something else.

    Attributes:
        groups: pending groups.
        judged: groups of jobs that no quota has a place for and that could start under none. The
            scheduler only judges if that is still so.
        capped: jobs that a quota applies to, with their kinds.
        let_last: kinds that were admitted last.
        reasons: by key, of jobs that are in no group.
        reason_of: key of each such job.
        pending_jobs: number of pending jobs by queue.
        unreachable: jobs whose deadline can't be met any more, with the latest start it had.
        pressed: pending jobs with a deadline.
        in_time: jobs whose deadline can still be met.
    """

    groups: pending_cache.PendingGroups
    reasons: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    reason_of: dict[str, str] = field(default_factory=dict)
    pending_jobs: dict[str, int] = field(default_factory=dict)
    unreachable: dict[str, float] = field(default_factory=dict)
    pressed: list[snapshots.PendingJob] = field(default_factory=list)
    in_time: list[str] = field(default_factory=list)
    judged: tuple[snapshots.PendingGroup, ...] = ()
    capped: tuple[tuple[str, unschedulable.Kind], ...] = ()
    let_last: frozenset[unschedulable.Kind] = frozenset()


@dataclass(frozen=True)
class _Granted:
    """The elements of a job that quotas admit, each with ``tasks``: its minimum or all of them."""

    count: int
    tasks: tuple[resources.Resources, ...]
    capped: bool


#: Negated priority, order, record and shape of a resizable job, and how many elements it claims.
_Growing = tuple[int, int, records.JobRecord, int, int]
#: Returns the kinds that quotas admit last, of jobs that quotas apply to with their kinds.
LetLast = Callable[[Sequence[tuple[str, unschedulable.Kind]]], frozenset[unschedulable.Kind]]


class LatestStarts:
    """The latest starts that meet deadlines.

    Args:
        expected_s: returns the expected run time of a job.
        at: the moment of the snapshot.
        alarm: set to the moment at which a deadline gets out of reach.
    """

    def __init__(
        self,
        expected_s: Callable[[desired.Job], float],
        at: float,
        alarm: cycle_alarm.CycleAlarm,
    ) -> None:
        self.expected_s = expected_s
        self.at = at
        self._alarm = alarm

    def latest(self, spec: desired.Job) -> float:
        """Return the latest start that meets a job's deadline; infinite without one."""
        if spec.deadline is None:
            return math.inf
        expected_s = self.expected_s(spec)
        return spec.deadline - (expected_s if expected_s < math.inf else 0.0)

    def wake_after(self, latest: float) -> None:
        """Request a schedule for the moment after a latest start."""
        self._alarm.wake_schedule(math.nextafter(latest, math.inf))


class PendingGroupBuilder:
    """A builder of pending groups. What jobs have in common is computed once.

    Args:
        cached: plain jobs by group, up to date.
        shapes: of this cycle.
        opened: windows of reservations and maintenance.
        accounts: of quotas, which count what they admit.
        growing: running elements that could grow.
        starts: the latest starts of jobs with a deadline.
        nominations: elements of jobs with nominated capacity, in order of nomination.
    """

    def __init__(
        self,
        cached: pending_cache.PendingCache,
        *,
        shapes: task_shapes.Shapes,
        opened: tuple[snapshots.Window, ...],
        accounts: quota_usage.QuotaAccounts,
        growing: growing_jobs.GrowingJobs,
        starts: LatestStarts,
        nominations: Mapping[str, int],
    ) -> None:
        self._pending = cached
        self._shapes = shapes
        self._windows = opened
        self._structure = shapes.structure
        self._row_of_queue = {name: row for row, name in enumerate(self._structure.queues)}
        self._expected_s = starts.expected_s
        self._accounts = accounts
        self._growing_jobs = growing
        self._starts = starts
        self._nominations = nominations
        self._turns = {name: turn for turn, name in enumerate(nominations)}
        self._usable: dict[tuple[str, str, str], tuple[int, ...]] = {}
        self._found: dict[pending_cache.Key, list[snapshots.PendingJob]] = {}
        self._judged: dict[pending_cache.Key, list[snapshots.PendingJob]] = {}
        self._capped: list[tuple[int, int, records.JobRecord, readiness.Readiness, int]] = []
        self._growing: list[_Growing] = []
        self._input = PendingInput(pending_cache.NOTHING)

    def all(
        self,
        others: Iterable[records.JobRecord],
        ready: readiness.ReadinessCheck,
        let_last: LetLast,
    ) -> PendingInput:
        """Process all unfinished jobs: plain ones by group, each of the others alone.

        Args:
            others: unfinished jobs that are not plain, by name.
            ready: decides what of a job may start.
            let_last: returns the kinds that quotas admit last, of jobs with their kinds.
        """
        numbers = self._shapes.number(self._pending.forms())
        self._input.pending_jobs = {
            queue: count for queue, count in self._pending.counts.items() if count
        }
        for record in others:
            with job_errors.JobErrorScope(record.name):
                self._job(record, ready)
        self._let_through(let_last)
        self._input.groups = self._pending.lines(numbers, self._found)
        self._input.judged = tuple(
            pending_cache.line_of(key, self._judged[key]) for key in self._judged
        )
        return self._input

    def _let_through(self, let_last: LetLast) -> None:
        """Ask quotas about nominated jobs, pending ones that a guarantee covers, other pending
        ones, then those that grow.

        What a gang below its minimum lacks comes before pending ones of its priority. Jobs that can
        never start, by the last cycle, come last and take nobody's place.
        """
        pending_input, nominated = self._input, self._nominations
        self._capped.sort(key=lambda one: one[:2])
        pending_input.capped = tuple(
            (record.name, unschedulable.kind_of(record.spec, shape))
            for _, _, record, _, shape in self._capped
        )
        pending_input.let_last = let_last(pending_input.capped)
        granted = {
            record.name: self._admit_first(record, ready)
            for _, _, record, ready, _ in self._capped
            if record.name in nominated
        }
        for (name, kind), (_, _, record, ready, _) in zip(
            pending_input.capped, self._capped, strict=True
        ):
            if name not in nominated and kind not in pending_input.let_last:
                granted[name] = self._admit_first(record, ready)
        last = []
        growing = sorted(self._growing, key=lambda one: one[:2])
        lacking = collections.deque(growing)
        for (name, kind), one in zip(pending_input.capped, self._capped, strict=True):
            # what gangs lack that lost tasks goes before all of their priority
            for _, _, record, shape, claimed in _taken(lacking, one[0]):
                self._growth(record, shape, claimed, refills=True)
            if kind in pending_input.let_last and name not in nominated:
                last.append(one)
            else:
                _, _, record, ready, shape = one
                self._under_quota(record, ready, shape, granted.get(name))
        for _, _, record, shape, claimed in lacking:
            self._growth(record, shape, claimed, refills=True)
        # growing jobs get what quotas leave after all pending ones were admitted
        for _, _, record, shape, claimed in growing:
            self._growth(record, shape, claimed, refills=False)
        for _, _, record, ready, shape in last:
            self._under_quota(record, ready, shape, None, hopeful=False)

    def _job(self, record: records.JobRecord, check: readiness.ReadinessCheck) -> None:
        spec, pending_input = record.spec, self._input
        held = spec.suspend or record.state is JobState.HELD
        if job_draft.PENDING not in record.elements and not spec.is_elastic and not held:
            return  # nothing of it is pending
        ready = check.of(record, record.elements)
        if job_draft.PENDING in record.elements:
            self._note_deadline(spec)
            pending_input.pending_jobs[spec.queue] = (
                pending_input.pending_jobs.get(spec.queue, 0) + 1
            )
        grows = elastic_jobs.may_grow(record) and ready is not readiness.AWAITS
        if ready.reason is not None:
            self._explain(spec.name, ready.reason_key, ready.reason)
        if not (grows or ready.elements) or spec.queue not in self._row_of_queue:
            return
        shape, refusal = self._shapes.shape_of(spec)
        if refusal is not None:
            if ready.elements:
                self._explain(spec.name, f"NoUnixUser/{spec.owner}", refusal)
            return
        if ready.elements and ready.reason is None:
            if self._accounts.accounts_of(spec):
                self._capped.append((-spec.priority, record.order, record, ready, shape))
            else:
                self._claim(record, ready, shape)
        if grows:
            claimed = ready.startable if ready.elements and ready.reason is None else 0
            self._growing.append((-spec.priority, record.order, record, shape, claimed))

    def _note_deadline(self, spec: desired.Job) -> None:
        """Note if the deadline of a job can still be met, whatever it waits for."""
        latest = self._starts.latest(spec)
        if latest < self._starts.at:
            self._input.unreachable[spec.name] = latest
        elif latest < math.inf:
            self._input.in_time.append(spec.name)
            self._starts.wake_after(latest)

    def _explain(self, job: str, key: str, reason: Reason) -> None:
        self._input.reasons[key] = (reason,)
        self._input.reason_of[job] = key

    def _admit_first(self, record: records.JobRecord, ready: readiness.Readiness) -> _Granted:
        """Admit nominated elements, or those that their queue's guarantee covers, before others."""
        tasks, capped = _asked(self._accounts, record.spec)
        if record.name in self._nominations:
            elements = min(self._nominations[record.name], ready.startable)
            count = self._accounts.admit_nominated(record.spec, elements, tasks)
        else:
            count = self._accounts.admit_guaranteed(record.spec, ready.startable, tasks)
        return _Granted(count, tasks, capped)

    def _under_quota(
        self,
        record: records.JobRecord,
        ready: readiness.Readiness,
        shape: int,
        granted: _Granted | None,
        *,
        hopeful: bool = True,
    ) -> None:
        spec = record.spec
        if granted is None or not granted.count:  # others may have been admitted since
            granted = _Granted(0, *_asked(self._accounts, spec))
        tasks, capped = granted.tasks, granted.capped
        startable, reason = self._accounts.admit(
            spec, ready.startable - granted.count, tasks, since=record.submitted_at
        )
        startable += granted.count
        if not startable and reason is not None:
            if not hopeful and not pending_reasons.is_barred([reason]):
                self._judge(record, ready, shape, reason)
                return
            self._explain(spec.name, unschedulable.key_of(reason.code, spec.name), reason)
            return
        held_back = None
        if startable < ready.startable:
            held_back = self._accounts.refusal(spec, tasks)
        admitted = readiness.Readiness(ready.elements, startable)
        self._claim(record, admitted, shape, held_back=held_back, capped=capped)

    def _judge(
        self, record: records.JobRecord, ready: readiness.Readiness, shape: int, reason: Reason
    ) -> None:
        """Let the scheduler judge if a job without a place in a quota could start, and no more."""
        spec = record.spec
        claim = snapshots.PendingJob(
            spec.name, record.order, ready.elements, startable=0, held_back=reason
        )
        key = self._key(spec, shape, self._expected_s(spec), grows=False)
        self._judged.setdefault(key, []).append(claim)

    def _claim(
        self,
        record: records.JobRecord,
        ready: readiness.Readiness,
        shape: int,
        *,
        held_back: Reason | None = None,
        capped: bool = False,
    ) -> None:
        spec = record.spec
        if held_back is None and ready.startable < len(ready.elements) and spec.parallelism:
            held_back = readiness.array_limit(spec.parallelism)
        duration_s, slack_s = self._expected_s(spec), self._starts.latest(spec) - self._starts.at
        claim = snapshots.PendingJob(
            job=spec.name,
            order=record.order,
            elements=ready.elements,
            startable=ready.startable,
            owner=spec.owner,
            slack_s=slack_s,
            submitted_at=record.submitted_at,
            promised=self._nominations.get(spec.name, 0),
            promise_turn=self._turns.get(spec.name, 0),
            moved=any(record.notes[e].moved for e in ready.elements if e in record.notes),
            held_back=held_back,
            capped=capped,
        )
        if slack_s < math.inf:
            self._input.pressed.append(claim)
        self._found.setdefault(self._key(spec, shape, duration_s, grows=False), []).append(claim)

    def _growth(
        self, record: records.JobRecord, shape: int, claimed: int, *, refills: bool
    ) -> None:
        """Add the tasks that running elements of a job could gain.

        ``refills``: of those with fewer tasks than their minimum, otherwise of the others.
        ``claimed``: how many pending elements of it may start as well.
        """
        spec = record.spec
        if record.removed or spec.suspend or self._structure.settings.suspend:
            return
        # capacity is nominated to jobs, and tasks get what pending elements leave of it. Otherwise
        # the preempted job would start there again, be preempted again, and so on
        nominated = max(0, self._nominations.get(spec.name, 0) - claimed)
        for element in self._growing_jobs.elements(spec.name):
            missing = self._growing_jobs.admitted(record, element, refills=refills)
            if missing:
                claim = snapshots.PendingJob(
                    job=spec.name,
                    order=record.order,
                    elements=(element,),
                    startable=1,
                    owner=spec.owner,
                    submitted_at=record.submitted_at,
                    missing=missing,
                    refills=refills,
                    promised=nominated,
                    promise_turn=self._turns.get(spec.name, 0),
                    whole_s=self._expected_s(spec),
                )
                left_s = self._growing_jobs.left_s(spec, element)
                key = self._key(spec, shape, left_s, grows=True, refills=refills)
                self._found.setdefault(key, []).append(claim)

    def _key(
        self,
        spec: desired.Job,
        shape: int,
        duration_s: float,
        *,
        grows: bool,
        refills: bool = False,
    ) -> pending_cache.Key:
        return (
            self._row_of_queue[spec.queue],
            shape,
            spec.priority,
            spec.preemptible,
            duration_s,
            self._windows_of(spec) if self._windows else (),
            grows,
            spec.preempts,
            refills,
        )

    def _windows_of(self, spec: desired.Job) -> tuple[int, ...]:
        key = (spec.owner, spec.queue, spec.reservation)
        if key not in self._usable:
            above = desired.path_to_root(self._structure.queues, spec.queue)
            self._usable[key] = reservation_windows.usable_by(
                spec, self._structure, self._windows, above
            )
        return self._usable[key]


def _asked(
    accounts: quota_usage.QuotaAccounts, spec: desired.Job
) -> tuple[tuple[resources.Resources, ...], bool]:
    """Return what an element asks of quotas: all, or its minimum if all is too much."""
    tasks = tuple(group.resources.times(group.count) for group in spec.groups)
    if not spec.is_elastic or accounts.refusal(spec, tasks) is None:
        return tasks, False
    return tuple(group.resources.times(group.least) for group in spec.groups), True


def _taken(growing: collections.deque[_Growing], turn: int) -> Iterator[_Growing]:
    """Yield and remove the first that have at most this turn."""
    while growing and growing[0][0] <= turn:
        yield growing.popleft()


def affine_specs(jobs: cycle_jobs.CycleJobs, affine: AbstractSet[str]) -> Iterable[desired.Job]:
    """Yield pending and running jobs with affinities, of which most are among ``affine``."""
    for name in jobs.names_besides(affine):
        spec = jobs.spec_of(name)
        if spec is not None and spec.affinities:
            yield spec
