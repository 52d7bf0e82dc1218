"""Accounting of usage, waits and shares, cycle by cycle, for reports over months.

Outcomes go in before the state takes them over; roll-ups come out with each commit. An attempt is
charged once, when it is concluded. Shares of queues are integrated between cycles. GPU utilisation
is summed up from reports of nodes, with the time that was measured, because a restart loses it.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping

from reconciler.metrics.counters import ClusterState, Counters
from reconciler.model.rules import usage_charges
from reconciler.model.state import outcome, records, usage_rollups
from reconciler.model.state.states import AttemptState

#: Of a longer silence nobody knows what the GPUs did.
GAP_S_MAX = 120.0
#: How often it is looked who starves where cycles follow each other closely: with many thousands of
#: different reasons that takes longer than a cycle may.
LOOK_EVERY_S = 10.0


class Meter:
    """Usage that is measured and not taken yet.

    ``counters`` has seen all cycles except the one that is being measured; it knows who starved so
    far.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._usage: dict[usage_rollups.UsageKey, usage_rollups.Usage] = {}
        self._waits: dict[usage_rollups.WaitKey, usage_rollups.WaitTotals] = {}
        self._shares: dict[usage_rollups.ShareKey, usage_rollups.Share] = {}
        self._pool_shares: dict[usage_rollups.PoolShareKey, usage_rollups.PoolShareTotals] = {}
        self._queues: tuple[outcome.QueueUsage, ...] = ()
        self._shared_at: float | None = None
        #: What queues lacked when it was last looked, and when that was.
        self._lacked: Mapping[str, int] = {}
        self._looked_at: float | None = None
        self._heard_at: dict[str, float] = {}
        #: Attempt to GPU-seconds that were measured, and in which kernels ran.
        self._busy: dict[str, tuple[float, float]] = {}

    def reported(
        self,
        node: str,
        ratios: Mapping[int, float],
        at: float,
        attempts: Iterable[records.AttemptRecord],
    ) -> None:
        """Take in a node's report of the utilisation of its GPUs, by number."""
        since = at - self._heard_at.get(node, at)
        self._heard_at[node] = at
        if not 0 < since <= GAP_S_MAX:
            return
        for attempt in attempts:
            if attempt.state is not AttemptState.RUNNING or not attempt.devices:
                continue
            share = attempt.share_milli / 1000
            seen = [ratios[device] for device in attempt.devices if device in ratios]
            measured, busy = self._busy.get(attempt.id, (0.0, 0.0))
            self._busy[attempt.id] = (
                measured + share * since * len(seen),
                busy + share * since * sum(min(1.0, max(0.0, ratio)) for ratio in seen),
            )

    def cycle(self, decided: outcome.Outcome, memory: ClusterState) -> None:
        """Measure an outcome; ``memory`` is the state before it."""
        self._share(decided, memory)
        for attempt in decided.attempts:
            if attempt.concluded and not attempt.was_lost:
                self._charge(attempt, memory, decided.now)
        started = [job for job in decided.jobs if _starts(job, memory.jobs.get(job.name))]
        first_tasks = _first_tasks(started, decided, memory) if started else {}
        for job in started:
            self._wait(job, _place(first_tasks.get(job.key), memory))
        for name in decided.left_nodes:
            self._heard_at.pop(name, None)

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Undo everything measured or taken inside the block if it raises, because it is tried
        again.
        """
        sums = self._usage.copy(), self._waits.copy(), self._shares.copy()
        pool_shares = self._pool_shares.copy()
        queues, shared_at = self._queues, self._shared_at
        lacked, looked_at = self._lacked, self._looked_at
        heard_at, busy = self._heard_at.copy(), self._busy.copy()
        try:
            yield
        except BaseException:  # whatever it is, what is tried again must not count twice
            self._usage, self._waits, self._shares = sums
            self._pool_shares = pool_shares
            self._queues, self._shared_at = queues, shared_at
            self._lacked, self._looked_at = lacked, looked_at
            self._heard_at, self._busy = heard_at, busy
            raise

    def take(self) -> usage_rollups.UsageRollup:
        """Return what was measured since the last call."""
        taken = usage_rollups.UsageRollup(self._usage, self._waits, self._shares, self._pool_shares)
        self._usage, self._waits, self._shares, self._pool_shares = {}, {}, {}, {}
        return taken

    def _share(self, decided: outcome.Outcome, memory: ClusterState) -> None:
        since = self._shared_at if self._shared_at is not None else decided.now
        spans = usage_rollups.by_hour(max(since, decided.now - usage_rollups.DAY_S), decided.now)
        lacks = self._lacks(memory, decided.now) if spans else {}
        for hour, span_s in spans:
            for queue in self._queues:
                self._share_of(queue, hour, span_s, lacks.get(queue.name, 0))
                for pool in queue.pools:
                    self._pool_share_of(queue.name, pool, hour, span_s)
        self._shared_at = max(since, decided.now)
        if decided.queues is not None:
            self._queues = decided.queues

    def _lacks(self, memory: ClusterState, now: float) -> Mapping[str, int]:
        """Return milli-GPUs that queues lack of their guarantee and could use; 0 if it
        names none.
        """
        if not any(_may_lack(queue) for queue in self._queues):
            return {}
        if self._looked_at is None or not 0 <= now - self._looked_at < LOOK_EVERY_S:
            starved = self._counters.starved(memory, now)
            self._lacked = {name: lack[2] for name, lack in starved.items()}
            self._looked_at = now
        return self._lacked

    def _share_of(self, queue: outcome.QueueUsage, hour: int, span_s: float, lacks: int) -> None:
        key = usage_rollups.ShareKey(hour, queue.name)
        before = self._shares.get(key, usage_rollups.Share())
        has, wants = queue.allocated[2], queue.demand[2]
        due = queue.guaranteed[2] or 0
        fair = queue.fair_share[2] or 0
        self._shares[key] = usage_rollups.Share(
            before.guaranteed_gpu_s + due * span_s / 1000,
            before.fair_gpu_s + fair * span_s / 1000,
            before.allocated_gpu_s + has * span_s / 1000,
            before.demand_gpu_s + wants * span_s / 1000,
            before.starved_gpu_s + lacks * span_s / 1000,
        )

    def _pool_share_of(self, queue: str, pool: outcome.PoolUsage, hour: int, span_s: float) -> None:
        due, fair = pool.guaranteed[2] or 0, pool.fair_share[2] or 0
        has, wants = pool.allocated[2], pool.demand[2]
        if not (due or fair or has or wants):
            return
        key = usage_rollups.PoolShareKey(hour, queue, pool.pool)
        before = self._pool_shares.get(key, usage_rollups.PoolShareTotals())
        self._pool_shares[key] = usage_rollups.PoolShareTotals(
            before.guaranteed_gpu_s + due * span_s / 1000,
            before.fair_gpu_s + fair * span_s / 1000,
            before.allocated_gpu_s + has * span_s / 1000,
            before.demand_gpu_s + wants * span_s / 1000,
        )

    def _wait(self, job: records.JobRecord, place: tuple[str, str]) -> None:
        started_at = job.submitted_at if job.started_at is None else job.started_at
        wait_s = max(0.0, started_at - job.submitted_at)
        key = usage_rollups.WaitKey(
            int(started_at // usage_rollups.DAY_S),
            job.spec.queue,
            job.spec.owner,
            *place,
            usage_rollups.bucket_of(wait_s),
        )
        before = self._waits.get(key, usage_rollups.WaitTotals())
        self._waits[key] = usage_rollups.WaitTotals(before.jobs + 1, before.wait_s + wait_s)

    def _charge(self, attempt: records.AttemptRecord, memory: ClusterState, now: float) -> None:
        measured = self._busy.pop(attempt.id, (0.0, 0.0))
        if attempt.measured_gpu_s > measured[0]:  # the node heard itself all the time
            measured = attempt.measured_gpu_s, attempt.busy_gpu_s
        job = memory.jobs.get(attempt.job)
        spec = job.spec if job is not None and job.key == attempt.job_key else None
        for key, usage in usage_charges.usage_of(
            attempt, spec, memory.nodes.get(attempt.node), now, measured
        ):
            self._usage[key] = self._usage.get(key, usage_rollups.Usage()) + usage


def _starts(job: records.JobRecord, before: records.JobRecord | None) -> bool:
    """Return True if a run started for the first time; ``before`` is its record until now."""
    known = before is not None and before.key == job.key and before.started_at is not None
    return job.started_at is not None and not known


def _first_tasks(
    jobs: Iterable[records.JobRecord], decided: outcome.Outcome, memory: ClusterState
) -> dict[str, records.AttemptRecord]:
    """Return the first task of each run that has started, by the run's key.

    Most of a gang may have started cycles before the last task, with which the run counts as
    started. So all known attempts are visited, once in each cycle in which something starts.
    """
    orders = {job.key: {group.name: n for n, group in enumerate(job.spec.groups)} for job in jobs}
    renewed = {attempt.id: attempt for attempt in decided.attempts}
    found: dict[str, tuple[tuple[int, ...], records.AttemptRecord]] = {}
    for attempt in itertools.chain(memory.attempts.values(), renewed.values()):
        order = orders.get(attempt.job_key)
        if order is None:
            continue
        now = renewed.get(attempt.id, attempt)
        rank = (now.element, order.get(now.group, len(order)), now.index, -now.try_number)
        if now.started_at is not None and (
            now.job_key not in found or rank < found[now.job_key][0]
        ):
            found[now.job_key] = (rank, now)
    return {key: attempt for key, (_, attempt) in found.items()}


def _place(attempt: records.AttemptRecord | None, memory: ClusterState) -> tuple[str, str]:
    """Return the pool and the GPU model of an attempt."""
    if attempt is None:
        return usage_rollups.UNKNOWN, usage_rollups.UNKNOWN
    node = memory.nodes.get(attempt.node)
    return usage_charges.pool_of(attempt, node), usage_charges.gpu_model(attempt, node)


def _may_lack(queue: outcome.QueueUsage) -> bool:
    """Return True if a queue asks for more than it has while it has less than its guarantee."""
    return queue.allocated[2] < min(queue.guaranteed[2] or 0, queue.demand[2])
