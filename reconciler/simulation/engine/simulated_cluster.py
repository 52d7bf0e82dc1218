"""A cluster in virtual time: the real ``reconcile``, virtual nodes, a queue of events.

Events go in (a commit, a task's end, a report, a fault), all of one moment together. A cycle
follows if any of them is input to the controller, or when the last outcome's ``wake_at`` has come.
Its orders go to the nodes as whole sets, and their reports are new events. Nothing ticks except
optional heartbeats.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from reconciler.core import observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import (
    faults,
    node_events,
    observer,
    simulated_controller,
    simulated_nodes,
    world,
)
from reconciler.simulation.engine.event_queue import SimulationError

#: The most cycles at one moment: with more the controller and its nodes have no rest.
CYCLES_AT_ONCE_MAX = 1_000


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
        decide: simulated_controller.Decide = reconcile.reconcile,
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
        self._time = world.VirtualTime(now)
        self._timing = surroundings.timing
        loaded = observed or records.Observed()
        self._generation = loaded.desired_generation + 1
        self._events = node_events.NodeEvents(self._time, surroundings, watcher)
        self._shared = simulated_controller.Surroundings(
            self._time, self._events, surroundings.weather or faults.Weather(), watcher, decide
        )
        self.structure = structure
        #: Those that run now. Nodes speak to the first, unless ``routes`` names another.
        self.controllers = [self.start_controller(loaded, epoch=1)]
        self.memory.desired_generation = loaded.desired_generation
        self.routes: dict[str, simulated_controller.SimulatedController] = {}
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
    def memory(self) -> observed_state.ObservedState:
        """The records of the first controller."""
        return self.controllers[0].memory

    @property
    def wake_at(self) -> float | None:
        """When the first controller has to decide again; None: not by time alone."""
        return self.controllers[0].wake_at

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
            settings = msgspec.structs.replace(
                structure.settings, node_silence_s=simulated_controller.NEVER_SILENT_S
            )
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
        for one in self.controllers:
            one.due = True

    # -- time

    @property
    def idle(self) -> bool:
        """True if nothing can happen except the controller waking by itself."""
        is_due = any(one.due for one in self.controllers)
        return not (is_due or self._events.has_reports or len(self._time))

    def next_at(self) -> float | None:
        """Return the moment of the next event; None: there is none."""
        if self._events.has_reports:
            return self.now
        cycles = (one.next_cycle_at() for one in self.controllers)
        moments = [at for at in (self._time.next_at(), *cycles) if at is not None]
        return max(self.now, min(moments)) if moments else None

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
            self._send_reports()
            if not self._cycle() and not self._events.has_reports and self._time.is_over:
                return
        raise SimulationError(
            f"after {CYCLES_AT_ONCE_MAX} cycles at second {self.now} there is still no rest"
        )

    def _send_reports(self) -> None:
        """Let nodes report to their controllers; to one that does not run it is lost."""
        for node in self._events.take_reporting():
            controller = self.routes.get(node.name, self.controllers[0])
            if node.reachable and controller in self.controllers:
                controller.send_report(
                    node,
                    complete=self._timing.heartbeat_s is not None,
                    starts_are_urgent=not self._timing.start_report_within_s,
                )

    # -- controllers

    def start_controller(
        self,
        loaded: records.Observed,
        *,
        epoch: int,
        knowledge: simulated_controller.StoreKnowledge | None = None,
    ) -> simulated_controller.SimulatedController:
        """Return a controller with these records; it runs once it is in ``controllers``."""
        return simulated_controller.SimulatedController(
            self._shared,
            self._timing,
            loaded,
            epoch=epoch,
            wanted=self.wanted,
            knowledge=knowledge,
        )

    def wanted(self) -> desired.Desired:
        """Return what git asks for now."""
        return desired.Desired(
            generation=self._generation,
            structure=self.structure,
            jobs=self.jobs,
            status=desired.SyncStatus(sync="Synced"),
        )

    def _cycle(self) -> bool:
        """Let every controller decide whose time has come. Return True if there was one."""
        found = False
        for one in tuple(self.controllers):
            at = one.next_cycle_at()
            if at is not None and at <= self.now:
                one.cycle()
                self.cycles += 1
                found = True
        return found

    def pause(self, seconds: float) -> None:
        """Stop the first controller; its input waits meanwhile."""
        self.controllers[0].pause(seconds)

    def space_cycles(self, every_s: float) -> None:
        """Change the least time between two cycles."""
        self._timing = msgspec.structs.replace(self._timing, cycle_every_s=every_s)
        for one in self.controllers:
            one.timing = self._timing

    def hurry(self) -> None:
        """Decide on waiting input at once, however recent the last cycle was."""
        for one in self.controllers:
            one.hurry()

    def change_leader(self) -> None:
        """Let another controller go on from the stored state; reports under way to the old one are
        lost.
        """
        self.controllers[0].start_again()
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
