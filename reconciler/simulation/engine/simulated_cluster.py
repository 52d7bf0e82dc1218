"""A cluster in virtual time: the real ``reconcile``, virtual nodes, a queue of events.

Events go in (a commit, a task's end, a report, a fault), all of one moment together. A cycle
follows if any of them is input to the controller, or when the last outcome's ``wake_at`` has come.
Its orders go to the nodes as whole sets, and their reports are new events. Nothing ticks except
optional heartbeats.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from reconciler.core import cycle_cache, observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import (
    faults,
    node_events,
    observer,
    simulated_network,
    simulated_nodes,
    world,
)
from reconciler.simulation.engine.event_queue import SimulationError

#: The most cycles at one moment: with more the controller and its nodes have no rest.
CYCLES_AT_ONCE_MAX = 1_000
#: ``Settings.node_silence_s`` of a cluster whose nodes send no heartbeats: for ever.
NEVER_SILENT_S = 10**10


class Decide(Protocol):
    """The controller's decision function."""

    def __call__(
        self,
        wanted: desired.Desired,
        observed: records.Observed,
        now: float,
        /,
        *,
        cache: cycle_cache.CycleCache | None,
    ) -> outcome.Outcome:
        """Decide one cycle; ``cache`` is the cache of these very records."""


class SimulatedCluster:
    """Controller, nodes and the network between them, at one virtual moment ``now``."""

    def __init__(
        self,
        structure: desired.Structure,
        *,
        now: float,
        jobs: Mapping[str, desired.Job] | None = None,
        observed: records.Observed | None = None,
        surroundings: world.World | None = None,
        watcher: observer.SimulationObserver | None = None,
        decide: Decide = reconcile.reconcile,
    ) -> None:
        """Create a cluster whose nodes are all up and have reported.

        Args:
            structure: pools, queues and settings as git has them.
            now: seconds since the epoch.
            jobs: as git has them.
            observed: known state; its live attempts run on the nodes.
            surroundings: of the controller; None: nothing takes time, ends or is lost.
            watcher: observer of what really happens.
            decide: the controller's decision function.
        """
        surroundings = surroundings or world.World()
        watcher = watcher or observer.NoWatcher()
        self.jobs: dict[str, desired.Job] = dict(jobs or {})
        self.cycles = 0
        self.wake_at: float | None = None
        self._time = world.VirtualTime(now)
        self._timing = surroundings.timing
        self._watcher: observer.SimulationObserver = watcher
        self._decide = decide
        loaded = observed or records.Observed()
        self._generation = loaded.desired_generation + 1
        self.memory = observed_state.ObservedState(loaded, leader_since=now)
        self.memory.desired_generation = loaded.desired_generation
        self._events = node_events.NodeEvents(self._time, surroundings, watcher)
        self._network = simulated_network.SimulatedNetwork(
            self._time, self._events, surroundings.weather or faults.Weather(), self._receive
        )
        self._due = True
        self._not_before = self._still_until = -math.inf
        self.structure = structure
        self.change_structure(structure)
        self._resume(loaded)

    def _resume(self, loaded: records.Observed) -> None:
        """Give nodes the attempts that the records say they have."""
        for attempt in loaded.attempts.values():
            if attempt.state is AttemptState.ENDED:
                continue
            node = self.nodes.get(attempt.node)
            if node is None and attempt.node in loaded.nodes:
                # of no pool any more: what runs there goes on
                capacity = loaded.nodes[attempt.node].inventory.capacity
                node = self._add_node(attempt.node, capacity)
            if node is not None:
                self._events.resume(node, attempt)

    @property
    def now(self) -> float:
        """The present."""
        return self._time.now

    @property
    def nodes(self) -> dict[str, simulated_nodes.SimulatedNode]:
        """The nodes, by name."""
        return self._events.nodes

    # -- what people do

    def at(self, moment: float, happening: Callable[[], None]) -> None:
        """Plan a call for a moment; it may call any method here."""
        self._time.plan(moment, happening)

    def commit(self, jobs: Iterable[desired.Job] = (), remove: Iterable[str] = ()) -> None:
        """Add these jobs to git, and remove those of ``remove``."""
        for name in remove:
            self.jobs.pop(name, None)
        for job in jobs:
            self.jobs[job.name] = job
        self._new_desired()

    def prune(self, names: Iterable[str]) -> None:
        """Remove documents of finished jobs from git; this changes nothing else."""
        for name in names:
            record = self.memory.jobs.get(name)
            if record is not None and record.finished:
                self.jobs.pop(name, None)

    def change_structure(self, structure: desired.Structure) -> None:
        """Put another structure in git; nodes that it adds come up."""
        if self._timing.heartbeat_s is None:
            settings = msgspec.structs.replace(structure.settings, node_silence_s=NEVER_SILENT_S)
            structure = msgspec.structs.replace(structure, settings=settings)
        # how long a provisioner takes is not known: pools are as large as they may become
        pools = {
            name: msgspec.structs.replace(pool, provisioning=None)
            for name, pool in structure.pools.items()
        }
        structure = msgspec.structs.replace(structure, pools=pools)
        self.structure = structure
        for pool in structure.pools.values():
            for name in pool.nodes:
                if name not in self.nodes:
                    self._add_node(name, pool.node_resources)
                self.nodes[name].follow(pool.mig)
        self._new_desired()

    def _add_node(self, name: str, resources: Resources) -> simulated_nodes.SimulatedNode:
        return self._events.add(name, resources, self.memory.nodes.get(name))

    def _new_desired(self) -> None:
        self._generation += 1
        self._due = True

    # -- time

    @property
    def idle(self) -> bool:
        """True if nothing can happen except the controller waking by itself."""
        return not (self._due or self._events.has_reports or len(self._time))

    def next_at(self) -> float | None:
        """Return the moment of the next event; None: there is none."""
        if self._events.has_reports:
            return self.now
        moments = [at for at in (self._time.next_at(), self._next_cycle_at()) if at is not None]
        return max(self.now, min(moments)) if moments else None

    def _next_cycle_at(self) -> float | None:
        at = self.now if self._due else self.wake_at
        return None if at is None else max(at, self._not_before, self._still_until)

    def run(self, until: float = math.inf, *, inclusive: bool = True) -> None:
        """Run all events up to ``until``, which is then the present (if finite).

        Raises:
            SimulationError: controller and nodes do not come to rest at one moment.
        """
        while True:
            at = self.next_at()
            if at is None or at > until or (at == until and not inclusive):
                break
            self.step()
        if until != math.inf:
            self._time.now = max(self.now, until)

    def step(self) -> None:
        """Go to the next moment with an event, and run all events of it.

        Raises:
            SimulationError: controller and nodes do not come to rest at that moment.
        """
        at = self.next_at()
        if at is None:
            return
        self._time.now = at
        for _ in range(CYCLES_AT_ONCE_MAX):
            self._time.run_due()
            self._network.send_reports(
                complete=self._timing.heartbeat_s is not None,
                starts_are_urgent=not self._timing.start_report_within_s,
            )
            cycle_at = self._next_cycle_at()
            if cycle_at is not None and cycle_at <= self.now:
                self._cycle()
            elif not self._events.has_reports and self._time.is_over:
                return
        raise SimulationError(
            f"after {CYCLES_AT_ONCE_MAX} cycles at second {self.now} there is still no rest"
        )

    # -- controller

    def _cycle(self) -> None:
        wanted = desired.Desired(
            generation=self._generation,
            structure=self.structure,
            jobs=self.jobs,
            status=desired.SyncStatus(sync="Synced"),
        )
        self._due = False
        observed = self.memory.observed(*self.memory.take_input())
        result = self._decide(wanted, observed, self.now, cache=self.memory.cache)
        self.cycles += 1
        self._not_before = self.now + self._timing.cycle_every_s
        self.memory.absorb(result)
        far = result.wake_at is not None and result.wake_at >= self.now + NEVER_SILENT_S / 2
        self.wake_at = None if far else result.wake_at
        self._watcher.decided(result)
        changed: dict[str, None] = {}
        for action in result.actions:
            if isinstance(action, outcome.RunProvisioner):
                continue
            changed[action.node] = None
            if isinstance(action, outcome.Acknowledge):
                self._network.add_acknowledgement(action.node, action.attempt)
        if self._timing.heartbeat_s is not None:
            changed.update(dict.fromkeys(report.node for report in observed.reports))
        for name in changed:
            self._answer(name)

    def _answer(self, name: str) -> None:
        """Send a node its whole set; without faults it arrives at once."""
        if not self._network.reaches(name):
            return
        if self._timing.heartbeat_s is not None:
            self.memory.answered[name] = self.now
        attempts = self.memory.attempts
        assignments = tuple(attempts[a] for a in self.memory.attempts_by_node.get(name, ()))
        held = (one.id for one in assignments if self._holds(one))
        self._network.send_assignments(name, assignments, held)

    def _receive(self, report: records.NodeReport, *, urgent: bool) -> None:
        """Take a report; one that is not urgent waits for the next cycle, for a limited time."""
        self.memory.add_report(msgspec.structs.replace(report, received_at=self.now))
        if urgent:
            self._due = True
        else:
            at = self.now + self._timing.start_report_within_s
            self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    def _holds(self, attempt: records.AttemptRecord) -> bool:
        """Return True if a task must wait because one of its gang lacks what it needs."""
        record = self.memory.jobs.get(attempt.job)
        if record is None or not record.spec.waits_for_images:
            return False
        gang = self.memory.cache.by_job.get(attempt.job, {}).get(attempt.element, ())
        others = [self.memory.attempts[name] for name in gang]
        return any(one.lacks_image and one.try_number == attempt.try_number for one in others)

    def pause(self, seconds: float) -> None:
        """Stop the controller; its input waits meanwhile."""
        self._still_until = max(self._still_until, self.now + seconds)

    def space_cycles(self, every_s: float) -> None:
        """Change the least time between two cycles."""
        self._timing = msgspec.structs.replace(self._timing, cycle_every_s=every_s)

    def hurry(self) -> None:
        """Decide on waiting input at once, however recent the last cycle was."""
        self._not_before = self.now

    def change_leader(self) -> None:
        """Let another controller go on from the stored state; reports under way to the old one are
        lost.
        """
        held = msgspec.structs.replace(
            self.memory.observed((), {}),
            nominations={},
            schedule_inputs=None,
            desired_generation=-1,
        )
        self.memory = observed_state.ObservedState(held, self.now)
        self._network.drop_acknowledgements()
        self.wake_at = None
        self._due = True
        if self._timing.heartbeat_s is None:
            self._events.request_all_reports()

    # -- faults

    def suffer(self, fault: faults.InjectedFault) -> None:
        """Apply one fault now, unless it changes nothing, such as a boot of a running node.

        Raises:
            SimulationError: there is no such node.
        """
        if fault.kind == "change-leader":
            self.change_leader()
        else:
            self._events.suffer(fault)
