"""Replays a workload through the real controller in virtual time.

Rows become jobs, the structure is given or generated, and the ``SimulatedCluster`` runs until all
have ended. Work lost by evictions is accounted here: a job goes on from its last checkpoint, or
starts again.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import EndReason
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import simulated_cluster, simulated_nodes, world
from reconciler.simulation.traces import trace_results, workloads

#: Second 0 of a replay.
BEGIN = 1_000_000.0
#: What made-up nodes have of what the workload does not ask for.
_PLENTY = 2**50
_HASH = "0" * 16
#: Within which time a start reaches the controller, if no other input comes earlier.
START_REPORT_WITHIN_S = 3600.0
#: How often the estimates of all that wait are noted, beside the first one of each.
RETOLD_EVERY_S = 3600.0
#: So often, and for so many virtual seconds, the controller may wake by itself before a cluster in
#: which nothing runs is given up, as what waits in it may do so for ever: after a year in which it
#: woke at least so often, and at the latest after as many as the last.
IDLE_STEPS_MIN, IDLE_S_MAX, IDLE_STEPS_MAX = 100, 366 * 86_400.0, 2_000

Progress = Callable[[int], None]
#: Looks at the cluster after a cycle.
Look = Callable[[simulated_cluster.SimulatedCluster], None]
Runs = Callable[[str, int], float]


class Options(msgspec.Struct, frozen=True):
    """Options of a replay.

    Attributes:
        cycle_every_s: seconds of input decided in one cycle; 0: a cycle for every moment.
        checkpoint_every_s: most work that an eviction loses; None: all since its start.
        until_s: second at which the simulation stops; None: when nothing more happens.
    """

    cycle_every_s: float = 0.0
    checkpoint_every_s: float | None = None
    until_s: float | None = None


def make_structure(
    nodes: int,
    per_node: int,
    unit: workloads.Unit,
    guaranteed: Mapping[str, int],
    settings: desired.ClusterSettings | None = None,
) -> desired.Structure:
    """Return a pool of equal nodes, and a queue for each name with its guarantee."""
    gpu = per_node * 1000 if unit == "gpu" else 0
    cpu = per_node * 1000 if unit == "cpu" else _PLENTY
    width = len(str(max(1, nodes)))
    pool = desired.Pool(
        name="nodes",
        nodes=tuple(f"node-{number:0{width}d}" for number in range(1, nodes + 1)),
        node_resources=Resources(cpu, _PLENTY, gpu),
        runs_unmapped=True,
        grace_s=0,
    )
    queues = {
        name: desired.Queue(
            name=name,
            guaranteed=desired.QuotaAmounts(gpu_milli=units * 1000)
            if unit == "gpu"
            else desired.QuotaAmounts(cpu_milli=units * 1000),
        )
        for name, units in guaranteed.items()
    }
    return desired.Structure(
        settings=settings or desired.ClusterSettings(), pools={pool.name: pool}, queues=queues
    )


def make_job(row: workloads.TraceJob, per_node: int, unit: workloads.Unit) -> desired.Job:
    """Return a row as a gang: as few equal tasks as fit on nodes of ``per_node`` units."""
    each = next(n for n in range(min(per_node, row.size), 0, -1) if row.size % n == 0)
    amount = Resources(0, 0, each * 1000) if unit == "gpu" else Resources(each * 1000, 0, 0)
    return desired.Job(
        name=row.name,
        run=1,
        hash=_HASH,
        queue=row.queue,
        owner=row.owner,
        groups=(desired.TaskGroup("main", row.size // each, amount),),
        time_limit_s=row.limit_s,
        grace_s=0,
    )


class _Life(msgspec.Struct):
    """An element from the start of its first task to the end of its last.

    Attributes:
        began_at: start of the first task.
        ends_at: end of its work, for all its tasks at once.
        up: its running tasks. running, exited: running and finished tasks of each group.
        left: the other tasks that are gone: run time and units of each.
        timed_out: a time limit ended one of them.
    """

    began_at: float
    ends_at: float
    up: set[str] = set()
    running: dict[str, int] = {}
    exited: dict[str, int] = {}
    left: list[tuple[float, float]] = []
    timed_out: bool = False


class _Ledger:
    """The real history of each element of each job, as nodes report it."""

    def __init__(self, unit: workloads.Unit, checkpoint_every_s: float | None) -> None:
        self.unit = unit
        self.look: Callable[[], None] | None = None
        self.now: Callable[[], float] = lambda: BEGIN
        self.checkpoint_every_s = checkpoint_every_s
        self.elements: dict[tuple[str, int], trace_results.JobResult] = {}
        self.stretches: list[trace_results.Occupancy] = []
        self.lost_unit_s = 0.0
        self.finished_now: list[str] = []
        self._enough: dict[str, dict[str, int]] = {}
        self._lives: dict[tuple[str, int], _Life] = {}
        self._done_s: dict[tuple[str, int], float] = {}
        self._expected: dict[str, trace_results.StartEstimate] = {}
        self._retold: dict[str, list[trace_results.StartEstimate]] = {}
        self._retold_at = -math.inf
        self.estimates: list[trace_results.StartEstimate] = []
        self.retold: list[trace_results.StartEstimate] = []

    def add(self, job: desired.Job, submit_s: float, runs_s: Runs) -> None:
        """Expect a job; ``runs_s`` returns the duration of the work of each element."""
        self._enough[job.name] = {group.name: group.least for group in job.groups}
        size = sum(group.count * self._units(group.resources) for group in job.groups)
        for element in job.run_elements:
            name = job.name if job.array_count is None else f"{job.name}[{element}]"
            self.elements[job.name, element] = trace_results.JobResult(
                name, job.queue, size, submit_s, runs_s(job.name, element)
            )

    def _units(self, resources: Resources) -> float:
        return units_in(resources, self.unit)

    def fate(self, attempt: records.AttemptRecord) -> simulated_nodes.TaskOutcome:
        """Return the fate by the remaining work of its element: tasks of an element end
        together.
        """
        key = (attempt.job, attempt.element)
        life = self._lives.get(key)
        left_s = self._left_s(key) if life is None else life.ends_at - self.now()
        return simulated_nodes.TaskOutcome(runs_s=max(0.0, left_s))

    def _left_s(self, key: tuple[str, int]) -> float:
        return self.elements[key].runs_s - self._done_s.get(key, 0.0)

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        """Note that a task is up; its element has started once each group has enough tasks."""
        key = (attempt.job, attempt.element)
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = _Life(began_at=at, ends_at=at + self._left_s(key))
        life.up.add(attempt.id)
        life.running[attempt.group] = life.running.get(attempt.group, 0) + 1
        job = self.elements[key]
        if job.start_s is None and self._is_enough(attempt.job, life.running):
            job.start_s = at - BEGIN
            first = self._expected.pop(attempt.job, None)
            for told, noted in (
                ([first] if first is not None else [], self.estimates),
                (self._retold.pop(attempt.job, []), self.retold),
            ):
                noted += [msgspec.structs.replace(one, started_s=job.start_s) for one in told]

    def _is_enough(self, job: str, tasks: Mapping[str, int]) -> bool:
        return all(tasks.get(name, 0) >= least for name, least in self._enough[job].items())

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        """Note that a task has left; with the last one the element is done, timed out, or
        evicted.
        """
        key = (attempt.job, attempt.element)
        job, units = self.elements[key], self._units(attempt.resources)
        end_s = at - BEGIN
        if ran_s > 0:
            place = (attempt.node, units, end_s - ran_s, end_s)
            evicted = why is EndReason.PREEMPTED
            self.stretches.append(trace_results.Occupancy(job.name, job.queue, *place, evicted))
        life = self._lives.get(key)
        if life is None or attempt.id not in life.up:
            return  # it left before it was up
        life.up.remove(attempt.id)
        life.running[attempt.group] -= 1
        if why is EndReason.EXITED:
            life.exited[attempt.group] = life.exited.get(attempt.group, 0) + 1
        else:
            life.left.append((ran_s, units))
            life.timed_out |= why is EndReason.TIMED_OUT
        if life.up:
            return
        del self._lives[key]
        if self._is_enough(attempt.job, life.exited):
            job.end_s = end_s
        elif life.timed_out:  # it never comes back, and nobody took anything of it
            job.end_s, job.timed_out = end_s, True
        else:
            job.evictions += 1
            self._lose(key, life, at)

    def _lose(self, key: tuple[str, int], life: _Life, at: float) -> None:
        """Record the work that an eviction throws away.

        An element works as long as any of its tasks is up.
        """
        ran_s = at - life.began_at
        self._done_s[key] = self._kept(self._done_s.get(key, 0.0) + ran_s)
        lost_s = max(0.0, ran_s - self._kept(ran_s))
        self.lost_unit_s += sum(min(lost_s, task_s) * units for task_s, units in life.left)

    def _kept(self, done_s: float) -> float:
        """Return the work that a checkpoint has saved."""
        if self.checkpoint_every_s is None:
            return 0.0
        return done_s // self.checkpoint_every_s * self.checkpoint_every_s

    def decided(self, result: outcome.Outcome) -> None:
        """Note a cycle's outcome."""
        self.finished_now += [record.name for record in result.jobs if record.finished]
        told = result.expected or {}
        for job, one in told.items():
            if job not in self._expected:
                self._expected[job] = _estimate(job, one, self.now())
        if told and self.now() >= self._retold_at:
            self._retold_at = self.now() + RETOLD_EVERY_S
            for job, one in told.items():
                self._retold.setdefault(job, []).append(_estimate(job, one, self.now()))
        if self.look is not None:
            self.look()


def _estimate(job: str, one: outcome.ExpectedStart, now: float) -> trace_results.StartEstimate:
    return trace_results.StartEstimate(
        job,
        told_s=now - BEGIN,
        expected_s=one.at - BEGIN,
        latest_s=math.inf if one.latest is None else one.latest - BEGIN,
        is_certain=one.certain,
        between_s=tuple(moment - BEGIN for moment in one.between),
    )


def replay(
    structure: desired.Structure,
    arrivals: Sequence[tuple[float, desired.Job]],
    runs_s: Runs,
    *,
    unit: workloads.Unit,
    options: Options | None = None,
    progress: Progress | None = None,
    look: Look | None = None,
) -> trace_results.Run:
    """Run jobs that arrive at their seconds, on a structure, under the real controller.

    Args:
        runs_s: (name of a job, element) to the seconds of its work.
        unit: unit of the results.
        progress: called with the number of ended jobs.
        look: called after each cycle.
    """
    chosen = options or Options()
    settings = msgspec.structs.replace(structure.settings, retain_finished_jobs_s=0)
    structure = msgspec.structs.replace(structure, settings=settings)  # the ledger remembers
    ledger = _Ledger(unit, chosen.checkpoint_every_s)
    cluster = simulated_cluster.SimulatedCluster(
        structure,
        now=BEGIN,
        surroundings=world.World(
            fates=ledger.fate,
            timing=world.Timing(
                start_report_within_s=_starts_reported_within_s(arrivals, runs_s),
                cycle_every_s=chosen.cycle_every_s,
            ),
        ),
        watcher=ledger,
    )
    ledger.now = lambda: cluster.now
    if look is not None:
        ledger.look = partial(look, cluster)
    for submit_s, job in arrivals:
        ledger.add(job, submit_s, runs_s)
        cluster.at(BEGIN + submit_s, partial(cluster.commit, (job,)))
    gave_up_s = _run(cluster, ledger, chosen, progress)
    until_s = math.inf if chosen.until_s is None else chosen.until_s
    elements = ledger.elements.values()
    return trace_results.Run(
        policy="muster",
        units=units_of(structure, unit),
        unit=unit,
        jobs=[element for element in elements if element.submit_s <= until_s],
        later=[element.name for element in elements if element.submit_s > until_s],
        stretches=ledger.stretches + _under_way(cluster, ledger),
        guaranteed=_guaranteed(structure, unit),
        lost_unit_s=ledger.lost_unit_s,
        estimates=ledger.estimates,
        retold=ledger.retold,
        cycles=cluster.cycles,
        gave_up_s=gave_up_s,
    )


def _starts_reported_within_s(arrivals: Sequence[tuple[float, desired.Job]], runs_s: Runs) -> float:
    """Return the time in which starts must be reported, for limits counted from a known start."""
    ending = (
        float(job.time_limit_s)
        for _, job in arrivals
        if job.time_limit_s is not None
        and any(runs_s(job.name, n) > job.time_limit_s for n in job.run_elements)
    )
    return min(START_REPORT_WITHIN_S, min(ending, default=math.inf))


def _run(
    cluster: simulated_cluster.SimulatedCluster,
    ledger: _Ledger,
    options: Options,
    progress: Progress | None,
) -> float | None:
    """Run the simulation; return the second since which nothing happened if it was given up."""
    until = math.inf if options.until_s is None else BEGIN + options.until_s
    ended = idle = 0
    idle_since = cluster.now
    gave_up_s = None
    while True:
        at = cluster.next_at()
        if at is None or at > until:
            break
        if not cluster.idle:
            idle = 0
        elif idle == 0:
            idle, idle_since = 1, cluster.now
        else:
            idle += 1  # the controller only looks at its clock now and then
        is_long = idle > IDLE_STEPS_MIN and at - idle_since > IDLE_S_MAX
        if is_long or idle > IDLE_STEPS_MAX:
            gave_up_s = idle_since - BEGIN
            break
        cluster.step()
        if ledger.finished_now:
            cluster.prune(ledger.finished_now)
            ended += len(ledger.finished_now)
            ledger.finished_now.clear()
            if progress is not None:
                progress(ended)
    if gave_up_s is None and until != math.inf:
        cluster.run(until)
    return gave_up_s


def _under_way(
    cluster: simulated_cluster.SimulatedCluster, ledger: _Ledger
) -> list[trace_results.Occupancy]:
    """Return what still runs when the simulation stops."""
    now_s = cluster.now - BEGIN
    found = []
    for node in cluster.nodes.values():
        for task in node.tasks.values():
            attempt = task.attempt
            job = ledger.elements[attempt.job, attempt.element]
            units = units_in(attempt.resources, ledger.unit)
            begin_s = min(now_s, task.starts_at - BEGIN)
            found.append(
                trace_results.Occupancy(job.name, job.queue, node.name, units, begin_s, now_s)
            )
    return found


def units_in(resources: Resources, unit: workloads.Unit) -> float:
    """Return the GPUs, or CPUs, of some amounts. Of shared devices it counts the fractions."""
    return (resources.gpu_milli if unit == "gpu" else resources.cpu_milli) / 1000


def units_of(structure: desired.Structure, unit: workloads.Unit) -> float:
    """Return the GPUs, or CPUs, of all nodes."""
    pools = structure.pools.values()
    return sum(len(pool.nodes) * units_in(pool.node_resources, unit) for pool in pools)


def _guaranteed(structure: desired.Structure, unit: workloads.Unit) -> dict[str, float]:
    found = {}
    for queue in structure.queues.values():
        amounts = queue.guaranteed
        milli = amounts.gpu_milli if unit == "gpu" else amounts.cpu_milli
        found[queue.name] = (milli or 0) / 1000
    return found


def replay_rows(
    workload: workloads.Workload,
    structure: desired.Structure,
    per_node: int,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    look: Look | None = None,
) -> trace_results.Run:
    """Replay a workload's rows on a cluster of nodes with ``per_node`` units each."""
    lengths = {row.name: row.runs_s for row in workload.rows}
    arrivals = [(row.submit_s, make_job(row, per_node, workload.unit)) for row in workload.rows]
    return replay(
        structure,
        arrivals,
        lambda job, _: lengths[job],
        unit=workload.unit,
        options=options,
        progress=progress,
        look=look,
    )


def drawn_runs(wanted: desired.Desired, seed: int, default_s: float) -> Runs:
    """Draw run times of jobs that only have a limit: a seeded fraction of it, from a tenth to all.

    ``default_s`` stands for the limit of jobs that have none.
    """
    drawn: dict[tuple[str, int], float] = {}
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    for name in sorted(wanted.jobs):
        job = wanted.jobs[name]
        limit_s = float(job.time_limit_s or default_s)
        for element in job.run_elements:
            drawn[name, element] = limit_s * chance.uniform(0.1, 1.0)
    return lambda job, element: drawn[job, element]


def replay_state(
    wanted: desired.Desired,
    runs_s: Runs,
    options: Options | None = None,
    progress: Progress | None = None,
) -> trace_results.Run:
    """Run all jobs of a desired state from the beginning, on its own pools and queues.

    GPUs are counted, or CPUs if no node has a GPU or no job takes one.
    """
    pools, jobs = wanted.structure.pools.values(), wanted.jobs.values()
    has_gpus = any(pool.node_resources.gpu_milli for pool in pools)
    takes_gpus = any(group.resources.gpu_milli for job in jobs for group in job.groups)
    arrivals = [(0.0, job) for job in jobs]
    unit: workloads.Unit = "gpu" if has_gpus and takes_gpus else "cpu"
    return replay(wanted.structure, arrivals, runs_s, unit=unit, options=options, progress=progress)
