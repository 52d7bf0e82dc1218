"""The context of one cycle: what was observed, and what the phases renew.

Phases read jobs, attempts and nodes through its parts and see what earlier phases wrote. Nothing
they read changes in place, so ``reconcile`` stays a function. ``reconcile.PHASES`` lists what each
phase reads and writes. Only phases take the context: what they call gets the parts that it needs.
"""

from reconciler.core import cycle_attempts, cycle_cache, remedy_log
from reconciler.core.cycle import (
    attempt_losses,
    cycle_alarm,
    cycle_events,
    cycle_jobs,
    cycle_nodes,
    cycle_reasons,
    cycle_work,
    stop_orders,
)
from reconciler.model import desired
from reconciler.model.state import outcome, records


class CycleContext:
    """The values that the phases of one cycle read and write.

    Attributes:
        observed: every record, and what came in. It never changes.
        cache: what earlier cycles computed from these records.
        now: seconds since the epoch.
        events: of this cycle.
        alarm: when the next cycle and the next schedule are due.
        actions: what nodes and scripts have to do.
        jobs: records and drafts of jobs.
        attempts: all attempts, with new and renewed ones.
        nodes: all nodes, with new and renewed ones.
        stops: orders to attempts to stop.
        losses: ends of attempts that are not heard of again.
        reasons: pending reasons.
        work: what ended, from which the scheduler learns.
        remedies: remediations of the last day.
        overrides: those in force.
        answers: to requests about overrides, by id; empty if granted.
        override_drains: drains of overrides and provisioners, by node.
        absent: names of provisioned nodes that have no machine now.
        left_jobs: names of jobs that are forgotten.
        forget_at: when to look for more to forget.
    """

    def __init__(
        self,
        desired_state: desired.Desired,
        observed: records.Observed,
        now: float,
        cache: cycle_cache.CycleCache | None = None,
    ) -> None:
        """Begin a cycle.

        Args:
            desired_state: what git asks for. Its pools say how long tasks may take to stop.
            observed: every record, and what came in.
            now: seconds since the epoch.
            cache: of exactly these records; None: an empty one.

        Raises:
            ValueError: the cache knows other records.
        """
        if cache is None:
            cache = cycle_cache.CycleCache.from_observed(observed)
        elif cache.attempts is not observed.attempts:
            raise ValueError("the cache belongs to other records than those observed")
        self.cache = cache
        self.observed = observed
        self.now = now
        self.events = cycle_events.CycleEvents(now)
        self.alarm = cycle_alarm.CycleAlarm()
        self.actions: list[outcome.Action] = []
        self.jobs = cycle_jobs.CycleJobs(observed, cache, self.events, now)
        self.attempts = cycle_attempts.CycleAttempts(observed.attempts, cache, self.actions)
        self.nodes = cycle_nodes.CycleNodes(observed.nodes, cache.nodes, self.events)
        # overrides change neither pools nor settings
        graces = stop_orders.Graces(self.nodes, desired_state.structure)
        self.stops = stop_orders.StopOrders(self.attempts, graces, now)
        self.losses = attempt_losses.AttemptLosses(
            self.attempts, self.jobs, self.events, observed.nodes, now
        )
        self.reasons = cycle_reasons.CycleReasons(observed.reasons)
        self.work = cycle_work.CycleWork(observed.scheduler_state.short_since)
        self.remedies = remedy_log.RemedyLog(observed.remedies)
        self.overrides: tuple[records.Override, ...] = observed.overrides
        self.answers: dict[str, str] = {}
        self.override_drains: dict[str, desired.NodeDrain] = {}
        self.absent: set[str] = set()
        self.left_jobs: list[str] = []
        self.forget_at = 0.0
