"""What becomes of a cluster under a desired state, from a moment on.

A snapshot of everything that the controller knows and a desired state come in; the real
``reconcile`` goes through virtual time with it, and out comes when each job that waits starts, and
who is made to leave. Nothing is submitted meanwhile, and nothing fails. A task runs as long as its
like, or its owner's work, ran before, else as long as its time limit; without either it never ends.
``shifts`` compares two such futures.
"""

import math
from collections.abc import Mapping

import msgspec

from reconciler.core.jobs import lost_work, run_times
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import EndReason, JobState, NodeState
from reconciler.simulation.engine import faults, simulated_cluster, simulated_nodes

#: How far it is looked ahead.
HORIZON_S = 24 * 3600.0
#: How many cycles one future may take: so much by the nodes and jobs that each has to look at.
EFFORT_MAX = 24_000
CYCLES_MIN, CYCLES_MAX = 6, 2000
#: Less than this is not between two cycles: nodes need a moment to do what they are told.
CYCLE_EVERY_S = 0.5
#: When half of the cycles are spent, the next ones are each so much further away, as a share of
#: the time gone; what happens between two is decided at the later one.
COARSER_BY = 0.05
#: So often the controller may wake by itself while nothing can happen any more.
IDLE_STEPS_MAX = 100
#: A task leaves this long before its time limit would end it.
BEFORE_LIMIT_S = 0.5
#: Why somebody's work is made to leave by what others, or git, want; and which of it comes back.
COMES_BACK = frozenset({EndReason.PREEMPTED, EndReason.DRAINED})
MADE_TO_LEAVE = COMES_BACK | {EndReason.CANCELLED, EndReason.SUSPENDED}
#: Nodes of which nothing is heard: they stay away.
_AWAY = frozenset({NodeState.UNKNOWN, NodeState.GONE})


class ForecastEviction(msgspec.Struct, frozen=True):
    """An element is told to leave.

    Attributes:
        by: the job it makes room for; empty where it leaves for another reason.
        lost_gpu_s: GPU-seconds of work since the newest checkpoint that is known; 0 where none is
            and it checkpoints when it is told.
        back_at: when it starts again; None: not within the horizon.
    """

    job: str
    element: int
    reason: str
    at: float
    by: str = ""
    lost_gpu_s: float = 0.0
    back_at: float | None = None


class Future(msgspec.Struct):
    """What one desired state leads to. Times are seconds since the epoch.

    Attributes:
        starts: job to when it starts next: what waits now, what is new, what was made to leave.
        evictions: in the order in which they happen.
        reasons: job to the first reason for which it still waits at the end.
        estimated: of the starts, those that the scheduler expects after the last cycle.
        until: up to when every cycle was decided.
        coarse_from: from when on cycles were further apart, by ``COARSER_BY``.
    """

    starts: dict[str, float] = {}
    estimated: set[str] = set()
    evictions: list[ForecastEviction] = []
    reasons: dict[str, str] = {}
    until: float = 0.0
    coarse_from: float = math.inf
    cycles: int = 0


class _Observer:
    """Keeps what happens in one future."""

    def __init__(
        self, now: float, observed: records.Observed, expected: "ExpectedRuntimes"
    ) -> None:
        self.found = Future()
        self._now = now
        self._specs = {name: record.spec for name, record in observed.jobs.items()}
        self._known = frozenset(observed.attempts)
        self._gone: dict[tuple[str, int], int] = {}
        self._expected = expected
        self.waiting: set[str] = set()
        self.estimates: Mapping[str, outcome.ExpectedStart] = {}

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """A task is up: one that ran when the snapshot was made is no start."""
        if attempt.id in self._known:
            return
        self.found.starts.setdefault(attempt.job, at)
        self.waiting.discard(attempt.job)
        place = self._gone.pop((attempt.job, attempt.element), None)
        if place is not None:
            known = self.found.evictions[place]
            self.found.evictions[place] = msgspec.structs.replace(known, back_at=at)

    def ended(
        self,
        attempt: records.AttemptRecord,
        at: float,  # noqa: ARG002
        why: EndReason,
        ran_s: float,
    ) -> None:
        """A task has left; what it saved is not done again."""
        if why is not EndReason.EXITED:
            self._expected.interrupt(attempt, ran_s)

    def decided(self, result: outcome.Outcome) -> None:
        """A cycle has decided: who is told to leave, who is over, what it expects."""
        if result.expected is not None:
            self.estimates = result.expected
        for job in result.jobs:
            self._specs[job.name] = job.spec
            if job.finished:
                self.waiting.discard(job.name)
        left: dict[tuple[str, int], list[records.AttemptRecord]] = {}
        for attempt in result.attempts:
            stop = attempt.stop
            key = (attempt.job, attempt.element)
            if stop is None or stop.at != result.now or stop.reason not in MADE_TO_LEAVE:
                continue
            left.setdefault(key, []).append(attempt)
        for key, attempts in left.items():
            attempt = attempts[-1]
            gpu_s = lost_work.gpu_seconds(self._specs.get(attempt.job), attempts, result.now)
            if attempt.stop is not None:
                self._gone[key] = len(self.found.evictions)
                if attempt.stop.reason in COMES_BACK:
                    self.waiting.add(attempt.job)
                self.found.evictions.append(
                    ForecastEviction(
                        attempt.job,
                        attempt.element,
                        attempt.stop.reason.value,
                        result.now,
                        attempt.stop.by,
                        gpu_s,
                    )
                )


class ExpectedRuntimes:
    """How long tasks run; what an interrupted element has saved is not run again."""

    def __init__(self, observed: records.Observed, jobs: Mapping[str, desired.Job]) -> None:
        self._known = run_times.RunTimes(observed.recollection)
        self._jobs = {name: record.spec for name, record in observed.jobs.items()} | dict(jobs)
        self._saved_s: dict[tuple[str, int], float] = {}

    def of_job(self, spec: desired.Job, ran_s: float = 0.0) -> float:
        """Seconds of one run of an element that has run so long; infinite where nothing says it."""
        limit_s = math.inf if spec.time_limit_s is None else spec.time_limit_s - BEFORE_LIMIT_S
        return min(limit_s, self._known.usual_s(spec, ran_s))

    def fate(self, attempt: records.AttemptRecord, now: float) -> simulated_nodes.TaskOutcome:
        """What becomes of an attempt that begins, or has begun before ``now``."""
        spec = self._jobs.get(attempt.job)
        if spec is None:
            return simulated_nodes.TaskOutcome()
        saved_s = self._saved_s.get((attempt.job, attempt.element), 0.0)
        began = attempt.started_at
        ran_s = saved_s if began is None else saved_s + max(0.0, now - began)
        runs_s = self.of_job(spec, ran_s) - saved_s
        if began is not None and began + runs_s <= now and spec.time_limit_s is not None:
            runs_s = spec.time_limit_s - BEFORE_LIMIT_S  # it has run for longer than its like did
        elif began is not None and began + runs_s <= now:
            runs_s = math.inf
        return simulated_nodes.TaskOutcome(runs_s=max(0.0, runs_s))

    def interrupt(self, attempt: records.AttemptRecord, ran_s: float) -> None:
        """It left before its end; with a checkpoint it goes on from there."""
        spec = self._jobs.get(attempt.job)
        if spec is not None and spec.checkpoint is not None:
            key = (attempt.job, attempt.element)
            self._saved_s[key] = max(self._saved_s.get(key, 0.0), ran_s)


def future(
    wanted: desired.Desired,
    observed: records.Observed,
    now: float,
    *,
    base_nodes: frozenset[str],
    horizon_s: float = HORIZON_S,
) -> Future:
    """What ``wanted`` leads to from a snapshot.

    Args:
        wanted: what git asks for.
        observed: everything that the controller knows at ``now``.
        base_nodes: nodes declared so far: of those, the ones that are away stay away; others come
            up at once.
        horizon_s: how far it is looked.

    Raises:
        SimulationError: controller and nodes find no rest.
    """
    structure = wanted.structure
    known = {**observed.nodes}
    away = [name for name in base_nodes if name not in known or known[name].state in _AWAY]
    for name in away:
        if name in known:
            known[name] = msgspec.structs.replace(known[name], last_report_at=0.0)
    observed = msgspec.structs.replace(
        observed, nodes=known, reports=(), answered={}, asked=(), standing=None
    )
    expected = ExpectedRuntimes(observed, wanted.jobs)
    seen = _Observer(now, observed, expected)
    held: list[simulated_cluster.SimulatedCluster] = []  # the clock of what is about to be made
    cluster = simulated_cluster.SimulatedCluster(
        structure,
        now=now,
        jobs=wanted.jobs,
        observed=observed,
        fates=lambda attempt: expected.fate(attempt, held[0].now if held else now),
        watcher=seen,
        timing=simulated_cluster.Timing(
            start_report_within_s=horizon_s, cycle_every_s=CYCLE_EVERY_S
        ),
    )
    held.append(cluster)
    cluster.memory.leader_since = 0.0
    for name in away:
        if name in cluster.nodes:
            cluster.suffer(faults.InjectedFault(now, "cut", name))
    seen.waiting = _waiting(wanted, observed)
    _run(cluster, seen, now + horizon_s)
    return _found(cluster, seen, now + horizon_s)


def _found(cluster: simulated_cluster.SimulatedCluster, seen: _Observer, until: float) -> Future:
    """What was seen, with what the scheduler expects of those that still wait."""
    found = seen.found
    found.cycles = cluster.cycles
    for name in seen.waiting:
        estimate = seen.estimates.get(name)
        record = cluster.memory.jobs.get(name)
        told = cluster.memory.reasons.get(record.reason_key, ()) if record else ()
        if estimate is not None and cluster.now < estimate.at <= until:
            found.starts.setdefault(name, estimate.at)
            found.estimated.add(name)
        elif told:
            found.reasons[name] = f"{told[0].code}: {told[0].message}"
    return found


def _waiting(wanted: desired.Desired, observed: records.Observed) -> set[str]:
    """Jobs whose start is waited for: those that wait now, and those that are new."""
    found = set()
    for name, job in wanted.jobs.items():
        record = observed.jobs.get(name)
        is_new = record is None or record.key != job.key
        if job.suspend or (is_new and job.key in observed.past_runs):
            continue
        if is_new or (record is not None and record.state is JobState.PENDING):
            found.add(name)
    return found


def _run(cluster: simulated_cluster.SimulatedCluster, seen: _Observer, until: float) -> None:
    """Go on until all that waits has started, the cycles are spent, or ``until``."""
    now = cluster.now
    size = 1 + len(cluster.nodes) + len(seen.waiting)
    most = min(CYCLES_MAX, max(CYCLES_MIN, EFFORT_MAX // size))
    idle, looked_at = 0, -1
    while idle <= IDLE_STEPS_MAX and cluster.cycles < most:
        at = cluster.next_at()
        if at is None or at > until:
            if looked_at == len(seen.found.starts):
                break
            # nothing tells of the last starts, and who waits behind them would do so for ever
            looked_at = len(seen.found.starts)
            cluster.commit()
            continue
        idle = idle + 1 if cluster.idle else 0
        cluster.step()
        if not seen.waiting:
            break
        if 2 * cluster.cycles >= most:
            seen.found.coarse_from = min(seen.found.coarse_from, cluster.now)
            cluster.timing = msgspec.structs.replace(
                cluster.timing, cycle_every_s=max(CYCLE_EVERY_S, COARSER_BY * (cluster.now - now))
            )
    seen.found.until = until if cluster.cycles < most else cluster.now
