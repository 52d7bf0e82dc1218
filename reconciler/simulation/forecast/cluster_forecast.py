"""Forecasts a cluster under a desired state, from a moment on.

A snapshot of the controller's state and a desired state come in. The real ``reconcile`` runs
through virtual time, and the starts of pending jobs and the evictions come out. Nothing is
submitted or fails meanwhile. A task runs as long as similar work did before, else as long as its
time limit, else for ever.
"""

import math
from collections.abc import Mapping

import msgspec

from reconciler.core.jobs import lost_work, run_times
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import EndReason, JobState, NodeState
from reconciler.simulation.engine import faults, simulated_cluster, simulated_nodes, world

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
    """Eviction of an element.

    Attributes:
        by: job that it makes room for; empty if there is another reason.
        lost_gpu_s: GPU-seconds of work since the newest known checkpoint; 0 if none is known and it
            checkpoints when it is stopped.
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
    """Result of one desired state. Times are seconds since the epoch.

    Attributes:
        starts: next start of each job that is pending, new, or evicted.
        evictions: in the order in which they happen.
        reasons: first reason of each job that is still pending at the end.
        estimated: starts that the scheduler expects after the last cycle.
        until: time up to which every cycle was decided.
        coarse_from: time from which cycles were further apart, by ``COARSER_BY``.
    """

    starts: dict[str, float] = {}
    estimated: set[str] = set()
    evictions: list[ForecastEviction] = []
    reasons: dict[str, str] = {}
    until: float = 0.0
    coarse_from: float = math.inf
    cycles: int = 0


class _Observer:
    """An observer that records one future."""

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
        """Note that a task is up; one that ran in the snapshot is no start."""
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
        """Note that a task has ended; saved work is not done again."""
        if why is not EndReason.EXITED:
            self._expected.interrupt(attempt, ran_s)

    def decided(self, result: outcome.Outcome) -> None:
        """Note the evictions, ends and expected starts of a cycle."""
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
    """Expected run times of tasks; saved work of an interrupted element is not run again."""

    def __init__(self, observed: records.Observed, jobs: Mapping[str, desired.Job]) -> None:
        self._known = run_times.RunTimes(observed.scheduler_state)
        self._jobs = {name: record.spec for name, record in observed.jobs.items()} | dict(jobs)
        self._saved_s: dict[tuple[str, int], float] = {}

    def of_job(self, spec: desired.Job, ran_s: float = 0.0) -> float:
        """Return the seconds of one run of an element that has run this long. It is infinite if it
        is unknown.
        """
        limit_s = math.inf if spec.time_limit_s is None else spec.time_limit_s - BEFORE_LIMIT_S
        return min(limit_s, self._known.usual_s(spec, ran_s))

    def fate(self, attempt: records.AttemptRecord, now: float) -> simulated_nodes.TaskOutcome:
        """Return the fate of an attempt that starts, or has started before ``now``."""
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
        """Note an interrupted attempt; with a checkpoint its element goes on from there."""
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
    """Return the future of ``wanted`` from a snapshot.

    Args:
        wanted: desired state.
        observed: everything that the controller knows at ``now``.
        base_nodes: nodes declared so far: of those, absent ones stay absent; others come up at
            once.
        horizon_s: how far to look ahead.

    Raises:
        SimulationError: controller and nodes do not come to rest.
    """
    structure = wanted.structure
    known = {**observed.nodes}
    away = [name for name in base_nodes if name not in known or known[name].state in _AWAY]
    for name in away:
        if name in known:
            known[name] = msgspec.structs.replace(known[name], last_report_at=0.0)
    observed = msgspec.structs.replace(
        observed, nodes=known, reports=(), answered={}, asked=(), schedule_inputs=None
    )
    expected = ExpectedRuntimes(observed, wanted.jobs)
    seen = _Observer(now, observed, expected)
    held: list[simulated_cluster.SimulatedCluster] = []  # the clock of what is about to be made
    cluster = simulated_cluster.SimulatedCluster(
        structure,
        now=now,
        jobs=wanted.jobs,
        observed=observed,
        surroundings=world.World(
            fates=lambda attempt: expected.fate(attempt, held[0].now if held else now),
            timing=world.Timing(start_report_within_s=horizon_s, cycle_every_s=CYCLE_EVERY_S),
        ),
        watcher=seen,
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
    """Return the recorded future, with the scheduler's estimates for jobs still pending."""
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
    """Return jobs whose start is awaited: pending and new ones."""
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
    """Run until every pending job has started, the cycles are used up, or ``until``."""
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
            cluster.space_cycles(max(CYCLE_EVERY_S, COARSER_BY * (cluster.now - now)))
    seen.found.until = until if cluster.cycles < most else cluster.now
