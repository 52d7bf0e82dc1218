"""Decides if a job may be offered to the scheduler, and why not.

Holds, dependencies, back-off and the parallelism of arrays are checked here; the scheduler checks
quota and capacity. A job has reasons of one kind or the other, never of both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from reconciler.core import job_draft, overrides
from reconciler.core.cycle import cycle_alarm, cycle_jobs
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import Reason, ReasonCode, WaitsFor
from reconciler.model.state.states import ELEMENT_CODE, FINISHED_JOB_STATES, JobState
from reconciler.model.values import index_ranges, times, unknown_names


@dataclass(frozen=True, slots=True)
class Readiness:
    """The elements that may start now, how many of them at once, or the reason why none may."""

    elements: tuple[int, ...] = ()
    startable: int = 0
    reason_key: str = ""
    reason: Reason | None = None


def array_limit(parallelism: int) -> Reason:
    """Return the reason of pending elements of an array whose parallelism is used up."""
    ran = f"{parallelism} element{'s run' if parallelism != 1 else ' runs'}"
    return Reason(
        code=ReasonCode.ARRAY_LIMIT,
        message=f"{ran} at once (parallelism)",
        unblocks="wait for the end of a running element, or raise spec.array.parallelism",
    )


_NO_NOTE = records.ElementNote()
#: Of a job that waits to be adopted, which does not grow either.
AWAITS = Readiness(
    reason_key="Held/adoption",
    reason=Reason(
        code=ReasonCode.HELD,
        message=desired.AWAITS_ADOPTION,
        unblocks="run `muster adopt`, which lists what waits, and say what is to start",
    ),
)
_ONE_WAITS = bytes([job_draft.PENDING])
#: Codes of ended elements are this or higher.
_FINISHED_FROM = ELEMENT_CODE[JobState.SUCCEEDED]
#: The most elements of a dependency named in a reason.
ELEMENTS_TOLD = 3
_READY = Readiness(elements=(0,), startable=1)
#: How long after a cycle found that a job waits in vain the one comes that may end it.
END_AFTER_S = 0.1
#: Begins the keys of reasons of jobs whose dependencies can't be met any more; their names follow.
NEVER_MET = "DependencyNeverMet/"


def _not_before(at: float) -> Readiness:
    """Return the reason of a job that asked for a later start."""
    written = times.format_time(at)
    return Readiness(
        reason_key=f"BackingOff/until/{written}",
        reason=Reason(
            code=ReasonCode.BACKING_OFF,
            message=f"it asked to start at {written} at the earliest (spec.notBefore)",
            unblocks="wait until then, or change spec.notBefore",
        ),
    )


def _waiting(elements: bytes) -> list[int]:
    found: list[int] = np.flatnonzero(
        np.frombuffer(elements, dtype=np.uint8) == job_draft.PENDING
    ).tolist()
    return found


def _held_elements(spec: desired.Job) -> Readiness:
    """Return the reason of a job of which all waiting elements are held."""
    return Readiness(
        reason_key=f"Held/elements/{spec.name}",
        reason=Reason(
            code=ReasonCode.HELD,
            message=f"all elements that wait are held by its document ({spec.array_held})",
            unblocks=f"run `muster release '{spec.name}[{spec.array_held}]'`",
        ),
    )


def _suspended_behind_git(override: records.Override) -> Readiness:
    return Readiness(
        reason_key=f"Held/cluster/{override.owner}/{override.expires_at}/{override.reason}",
        reason=Reason(
            code=ReasonCode.HELD,
            message=f"the cluster is suspended {overrides.describe(override)}: nothing new starts",
            unblocks="run `muster resume cluster --override`, or wait until that ends",
            waits_for=WaitsFor.RESUME,
        ),
    )


def _condition_met(condition: str, state: JobState, *, is_done: bool) -> bool:
    """Return True if a dependency on a job in an end state is met.

    Of a job that somebody said is done (``is_done``) nobody knows how it ended: it counts as
    succeeded, so that work that waits for it can start.
    """
    if condition == "afterAny":
        return True
    has_succeeded = is_done or state is JobState.SUCCEEDED
    return has_succeeded == (condition == "afterOk")


def _dependency_reason(
    spec: desired.Job, dependency: desired.Dependency, until: str, ends: str = ""
) -> Readiness:
    """Return the reason of a pending job.

    ``ends`` names whose end counts, by default the whole job's.
    """
    return Readiness(
        reason_key=f"Dependency/{spec.name}",
        reason=Reason(
            code=ReasonCode.DEPENDENCY,
            message=f"{dependency.condition} {dependency.job}: waits until {until}",
            unblocks=f"wait for the end of {ends or dependency.job}",
        ),
    )


def _unknown(spec: desired.Job, dependency: desired.Dependency) -> Readiness:
    until = "there is one" if dependency.per_element else "there is one, and it has ended"
    return Readiness(
        reason_key=f"Dependency/{spec.name}",
        reason=Reason(
            code=ReasonCode.DEPENDENCY,
            message=(
                f"{dependency.condition} {dependency.job}: there is no Job/{dependency.job}; this "
                f"one waits until {until}"
            ),
            unblocks=f"commit a Job {dependency.job}, or change spec.dependsOn",
        ),
    )


class ReadinessCheck:
    """A check of jobs against everything but quota and capacity.

    Args:
        structure: in force.
        overrides: in force. They name who suspended the cluster.
        jobs: of this cycle, which others may depend on.
        alarm: set to the next end of a back-off.
        now: seconds since the epoch.
        recovery: of a store from the past, whose jobs wait to be adopted.
    """

    def __init__(
        self,
        structure: desired.Structure,
        overrides: Iterable[records.Override],
        jobs: cycle_jobs.CycleJobs,
        alarm: cycle_alarm.CycleAlarm,
        now: float,
        *,
        recovery: desired.Recovery | None = None,
    ) -> None:
        self._awaiting = recovery.awaiting if recovery is not None else frozenset()
        self._structure = structure
        self._overrides = overrides
        self._jobs = jobs
        self._alarm = alarm
        self._now = now

    def of(self, record: records.JobRecord, elements: bytes) -> Readiness:
        """Return which pending elements of an active job may start in this cycle."""
        spec = record.spec
        blocked = self._blocked_whole(record)
        if blocked is not None:
            return blocked
        limited = spec.depends_on or spec.parallelism is not None or spec.array_held
        if elements == _ONE_WAITS and not record.notes and not limited:
            return _READY  # most jobs of a long queue
        waiting = _waiting(elements)
        if not waiting:
            return Readiness()
        if spec.array_held:
            held = frozenset(index_ranges.parse(spec.array_held))
            waiting = [i for i in waiting if i not in held]
            if not waiting:
                return _held_elements(spec)
        indexes = waiting
        per_element = [d for d in spec.depends_on if d.per_element]
        if per_element:
            indexes = [i for i in indexes if all(self._element_met(d, i) for d in per_element)]
            if not indexes:
                return self._same_elements(spec, per_element, waiting)
        if record.notes:
            next_at = 0.0
            ready = [i for i in indexes if record.notes.get(i, _NO_NOTE).not_before <= self._now]
            if len(ready) < len(indexes):
                next_at = min(
                    record.notes[i].not_before
                    for i in indexes
                    if i in record.notes and record.notes[i].not_before > self._now
                )
                self._alarm.wake_schedule(next_at)
            if not ready:
                return Readiness(
                    reason_key=f"BackingOff/{spec.name}",
                    reason=Reason(
                        code=ReasonCode.BACKING_OFF,
                        message="the last try failed or was lost; the next one starts at "
                        f"{times.format_time(next_at)} at the earliest",
                        unblocks="wait for the next try",
                    ),
                )
            indexes = ready
        startable = len(indexes)
        if spec.parallelism is not None:
            live = sum(elements.count(code) for code in job_draft.LIVE_CODES)
            startable = min(startable, spec.parallelism - live)
            if startable <= 0:
                reason = array_limit(spec.parallelism)
                return Readiness(reason_key=f"ArrayLimit/{spec.name}", reason=reason)
        return Readiness(elements=tuple(indexes), startable=startable)

    def _blocked_whole(self, record: records.JobRecord) -> Readiness | None:
        spec = record.spec
        structure = self._structure
        if spec.name in self._awaiting:
            return AWAITS
        if record.state is JobState.HELD or spec.suspend:  # some of it may still be stopping
            why = spec.suspend_reason if spec.suspend else ""
            return Readiness(
                reason_key=f"Held/job/{why}" if why else "Held/job",
                reason=Reason(
                    code=ReasonCode.HELD,
                    message=f"held by its document: {why}"
                    if why
                    else "held by its document (spec.suspend)",
                    unblocks="run `muster release`, or set spec.suspend: false",
                ),
            )
        if structure.settings.suspend:
            suspension = overrides.suspension(self._overrides, records.SUSPENDED_CLUSTER)
            if suspension is not None:
                return _suspended_behind_git(suspension)
            return Readiness(
                reason_key="Held/cluster",
                reason=Reason(
                    code=ReasonCode.HELD,
                    message="the cluster is suspended: nothing new starts",
                    unblocks="run `muster resume cluster`, or set spec.suspend: false in Cluster",
                    waits_for=WaitsFor.RESUME,
                ),
            )
        if spec.queue not in structure.queues:
            return Readiness(
                reason_key=f"Invalid/queue/{spec.queue}",
                reason=Reason(
                    code=ReasonCode.INVALID,
                    message=unknown_names.describe("queue", spec.queue, structure.queues).text(
                        "spec.queue"
                    ),
                    unblocks=f"commit a Queue {spec.queue}, or change spec.queue",
                ),
            )
        for dependency in spec.depends_on:
            blocked = self._dependency_blocks(spec, dependency)
            if blocked is not None:
                if blocked.reason_key.startswith(NEVER_MET) and record.state is JobState.PENDING:
                    self._end_soon(structure.queues[spec.queue])
                return blocked
        if spec.not_before is not None and spec.not_before > self._now:
            self._alarm.wake_schedule(spec.not_before)
            return _not_before(spec.not_before)
        return None

    def _end_soon(self, queue: desired.Queue) -> None:
        """Request the cycle that ends a job which waits in vain, if its queue says so."""
        if queue.cancels_never_met:
            self._alarm.wake(self._now + END_AFTER_S)

    def _dependency_blocks(
        self, spec: desired.Job, dependency: desired.Dependency
    ) -> Readiness | None:
        state = self._jobs.state_of(dependency.job)
        if state is None:
            return _unknown(spec, dependency)
        if dependency.per_element:
            return None
        if state not in FINISHED_JOB_STATES:
            return _dependency_reason(spec, dependency, "it ends")
        is_done = self._jobs.is_declared_over(dependency.job)
        if _condition_met(dependency.condition, state, is_done=is_done):
            return None
        return Readiness(
            reason_key=f"{NEVER_MET}{spec.name}",
            reason=Reason(
                code=ReasonCode.DEPENDENCY_NEVER_MET,
                message=f"{dependency.condition} {dependency.job}, which "
                + ("counts as done" if is_done else f"is {state.value}"),
                unblocks=f"run `muster rerun {dependency.job}`, or change spec.dependsOn",
            ),
        )

    def _element_met(self, dependency: desired.Dependency, element: int) -> bool:
        elements = self._jobs.elements_of(dependency.job)
        if element >= len(elements):
            return False
        code = elements[element]
        finished = code >= _FINISHED_FROM
        state = JobState.SUCCEEDED if code == ELEMENT_CODE[JobState.SUCCEEDED] else JobState.FAILED
        is_done = self._jobs.is_declared_over(dependency.job)
        return finished and _condition_met(dependency.condition, state, is_done=is_done)

    def _same_elements(
        self,
        spec: desired.Job,
        dependencies: Sequence[desired.Dependency],
        waiting: Sequence[int],
    ) -> Readiness:
        """Return the reason if each element waits for the one of the same number."""
        dependency, unmet = dependencies[0], list(waiting)
        for dependency in dependencies:
            unmet = [i for i in waiting if not self._element_met(dependency, i)]
            if unmet:
                break
        elements = self._jobs.elements_of(dependency.job)
        still = (i for i in unmet if i < len(elements) and elements[i] < _FINISHED_FROM)
        names = [f"{dependency.job}[{i}]" for i in islice(still, ELEMENTS_TOLD + 1)]
        ends = f"one of {', '.join(names[:ELEMENTS_TOLD])}" if len(names) > 1 else "".join(names)
        ends += " and others" if len(names) > ELEMENTS_TOLD else ""
        return _dependency_reason(spec, dependency, "the same element of it ends", ends)
