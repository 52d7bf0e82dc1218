"""A cluster in virtual time: the real ``reconcile``, virtual nodes, a queue of events.

Events go in (a commit, a task's end, a report, a fault), all of one moment together. A cycle
follows if any of them is input to the controller, or when the last outcome's ``wake_at`` has come.
Its orders go to the nodes as whole sets, and their reports are new events. Nothing ticks except
optional heartbeats.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from reconciler.core import cycle_cache, observed_state, reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import faults, observer, simulated_nodes
from reconciler.simulation.engine.event_queue import EventQueue, SimulationError

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


Fates = Callable[[records.AttemptRecord], simulated_nodes.TaskOutcome]


class Timing(msgspec.Struct, frozen=True):
    """Durations in the simulation.

    Attributes:
        start_s: from an order's arrival at a node until the task is up.
        heartbeat_s: interval at which a node reports everything it knows; None: it reports only
            news,
            and no message is lost.
        start_report_within_s: time within which a start reaches the controller, unless a cycle
            comes
            earlier; 0: at once. Ends are always reported at once.
        cycle_every_s: least time between two cycles; input in between waits.
    """

    start_s: float = 0.0
    heartbeat_s: float | None = None
    start_report_within_s: float = 0.0
    cycle_every_s: float = 0.0


def endless(_: records.AttemptRecord) -> simulated_nodes.TaskOutcome:
    """Return the fate of tasks that run until they are stopped."""
    return simulated_nodes.TaskOutcome()


class _Told(msgspec.Struct, frozen=True):
    """A node's whole set as of one cycle, and the agent process it was made for.

    ``held`` are attempts that must wait until their whole gang has what it needs.
    """

    incarnation: str
    version: int
    assignments: tuple[records.AttemptRecord, ...]
    held: frozenset[str]


class SimulatedCluster:
    """Controller, nodes and the network between them, at one virtual moment ``now``."""

    def __init__(
        self,
        structure: desired.Structure,
        *,
        now: float,
        jobs: Mapping[str, desired.Job] | None = None,
        observed: records.Observed | None = None,
        fates: Fates = endless,
        timing: Timing | None = None,
        weather: faults.Weather | None = None,
        watcher: observer.SimulationObserver | None = None,
        decide: Decide = reconcile.reconcile,
    ) -> None:
        """Create a cluster whose nodes are all up and have reported.

        Args:
            structure: pools, queues and settings as git has them.
            now: seconds since the epoch.
            jobs: as git has them.
            observed: known state; its live attempts run on the nodes.
            fates: returns the fate of each attempt.
            watcher: observer of what really happens.
            decide: the controller's decision function.
        """
        self.now = now
        self.jobs: dict[str, desired.Job] = dict(jobs or {})
        self.timing = timing or Timing()
        self.cycles = 0
        self.wake_at: float | None = None
        self._fates = fates
        self._weather = weather or faults.Weather()
        self._watcher: observer.SimulationObserver = watcher or observer.NoWatcher()
        self._decide = decide
        loaded = observed or records.Observed()
        self.generation = loaded.desired_generation + 1
        self.memory = observed_state.ObservedState(loaded, leader_since=now)
        self.memory.desired_generation = loaded.desired_generation
        self.nodes: dict[str, simulated_nodes.SimulatedNode] = {}
        self._agenda: EventQueue[Callable[[], None]] = EventQueue()
        self._due = True
        self._not_before = self._still_until = -math.inf
        self._speaking: dict[str, None] = {}
        self._waiting_acknowledgements: dict[str, list[str]] = {}
        self._asked_at: dict[str, float] = {}
        self._sessions: dict[str, int] = {}
        self._version = 0
        self.structure = structure
        self.change_structure(structure)
        self._take_over(loaded)

    def _take_over(self, loaded: records.Observed) -> None:
        """Give nodes the attempts that the records say they have."""
        for attempt in loaded.attempts.values():
            if attempt.state is AttemptState.ENDED:
                continue
            node = self.nodes.get(attempt.node)
            if node is None and attempt.node in loaded.nodes:
                # of no pool any more: what runs there goes on
                capacity = loaded.nodes[attempt.node].inventory.capacity
                node = self._begin_node(attempt.node, capacity)
            if node is None:
                continue
            if attempt.boot_id in ("", node.boot_id):
                self._begin(node, attempt, attempt.started_at or self.now)
                if attempt.stop is not None:
                    task = node.tasks[attempt.id]
                    node.tell_to_leave(task, attempt.stop.reason, self.now, attempt.stop.grace_s)
                    self._plan_end(node, attempt.id, task.ends_at)

    # -- what people do

    def at(self, moment: float, happening: Callable[[], None]) -> None:
        """Plan a call for a moment; it may call any method here."""
        self._agenda.put(moment, happening)

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
        if self.timing.heartbeat_s is None:
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
                    self._begin_node(name, pool.node_resources)
                self.nodes[name].follow(pool.mig)
        self._new_desired()

    def _begin_node(self, name: str, resources: Resources) -> simulated_nodes.SimulatedNode:
        """Return a node that is up, with its last known inventory."""
        known = self.memory.nodes.get(name)
        boot_id = known.boot_id if known else ""
        told = known.inventory if known and known.inventory.hostname else None
        node = self.nodes[name] = simulated_nodes.SimulatedNode(name, resources, boot_id, told)
        if known is not None and known.incarnation == node.incarnation:
            node.restart_agent()  # the records are of another simulation, whose agent is not ours
        self._speaking[name] = None
        self._plan_heartbeat(name)
        return node

    def _new_desired(self) -> None:
        self.generation += 1
        self._due = True

    # -- time

    @property
    def idle(self) -> bool:
        """True if nothing can happen except the controller waking by itself."""
        return not (self._due or self._speaking or len(self._agenda))

    def next_at(self) -> float | None:
        """Return the moment of the next event; None: there is none."""
        if self._speaking:
            return self.now
        moments = [at for at in (self._agenda.next_at(), self._next_cycle_at()) if at is not None]
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
            self.now = max(self.now, until)

    def step(self) -> None:
        """Go to the next moment with an event, and run all events of it.

        Raises:
            SimulationError: controller and nodes do not come to rest at that moment.
        """
        at = self.next_at()
        if at is None:
            return
        self.now = at
        for _ in range(CYCLES_AT_ONCE_MAX):
            for happening in self._agenda.take(self.now):
                happening()
            self._speak()
            cycle_at = self._next_cycle_at()
            if cycle_at is not None and cycle_at <= self.now:
                self._cycle()
            elif not self._speaking and (self._agenda.next_at() or math.inf) > self.now:
                return
        raise SimulationError(
            f"after {CYCLES_AT_ONCE_MAX} cycles at second {self.now} there is still no rest"
        )

    # -- controller

    def _cycle(self) -> None:
        wanted = desired.Desired(
            generation=self.generation,
            structure=self.structure,
            jobs=self.jobs,
            status=desired.SyncStatus(sync="Synced"),
        )
        self._due = False
        observed = self.memory.observed(*self.memory.take_input())
        result = self._decide(wanted, observed, self.now, cache=self.memory.cache)
        self.cycles += 1
        self._not_before = self.now + self.timing.cycle_every_s
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
                self._waiting_acknowledgements.setdefault(action.node, []).append(action.attempt)
        if self.timing.heartbeat_s is not None:
            changed.update(dict.fromkeys(report.node for report in observed.reports))
        for name in changed:
            self._answer(name)

    def _answer(self, name: str) -> None:
        """Send a node its whole set; without faults it arrives at once."""
        acknowledged = tuple(self._waiting_acknowledgements.pop(name, ()))
        node = self.nodes.get(name)
        if node is None or not node.reachable:
            return
        if self.timing.heartbeat_s is not None:
            self.memory.answered[name] = self.now
        attempts = self.memory.attempts
        assignments = tuple(attempts[a] for a in self.memory.attempts_by_node.get(name, ()))
        held = frozenset(one.id for one in assignments if self._holds(one))
        self._version += 1
        told = _Told(node.incarnation, self._version, assignments, held)
        asked_at = self._asked_at.get(name, self.now)
        for delay_s in self._weather.carry():
            take = partial(self._take, node, told, acknowledged, asked_at)
            if delay_s:
                self.at(self.now + delay_s, take)
            else:
                take()

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
        self._waiting_acknowledgements.clear()
        self.wake_at = None
        self._due = True
        if self.timing.heartbeat_s is None:
            self._speaking.update(dict.fromkeys(self.nodes))

    # -- nodes

    def _take(
        self,
        node: simulated_nodes.SimulatedNode,
        told: _Told,
        acknowledged: tuple[str, ...],
        asked_at: float,
    ) -> None:
        """Deliver a set to a node, unless its agent process has changed or it has a newer set."""
        if not node.reachable or node.incarnation != told.incarnation:
            return
        node.renewed_at = max(node.renewed_at, asked_at)
        node.acknowledge(acknowledged)
        if told.version < node.version:
            return
        node.version = told.version
        for name, task in node.to_stop(told.assignments, self.now):
            self._plan_end(node, name, task.ends_at)
        for name in node.to_go(told.held, self.now):
            self._starts(node, name, self.now + self.timing.start_s)
        for attempt in node.to_start(told.assignments, self.now):
            fate = self._fates(attempt)
            held = attempt.id in told.held
            if fate.fetch_s or held:
                task = node.fetch(attempt, fate, self.now, held=held)
                self.at(task.fetched_at, partial(self._fetched, node, attempt.id))
            else:
                self._begin(node, attempt, self.now + self.timing.start_s)
        if node.news:
            self._speaking[node.name] = None

    def _begin(
        self, node: simulated_nodes.SimulatedNode, attempt: records.AttemptRecord, starts_at: float
    ) -> None:
        node.start(attempt, self._fates(attempt), starts_at)
        self._starts(node, attempt.id, starts_at)

    def _fetched(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        """Start a task whose needs are met, unless it must wait for the rest of its gang."""
        task = node.tasks.get(name)
        if task is None or task.told or not task.waits or task.fetched_at > self.now:
            return
        node.news[name] = None
        self._speaking[node.name] = None
        if not task.held:
            self._starts(node, name, self.now + self.timing.start_s)

    def _starts(self, node: simulated_nodes.SimulatedNode, name: str, starts_at: float) -> None:
        task = node.tasks[name]
        task.go(starts_at)
        if task.starts_at <= self.now:
            self._watcher.started(task.attempt, task.starts_at)
        else:
            self.at(task.starts_at, partial(self._is_up, node, name))
        if task.ends_at != math.inf:
            self._plan_end(node, name, max(self.now, task.ends_at))

    def _is_up(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        task = node.tasks.get(name)
        if task is not None and not task.told:
            node.news[name] = None
            self._speaking[node.name] = None
            self._watcher.started(task.attempt, task.starts_at)

    def _look_again(self, node: simulated_nodes.SimulatedNode) -> None:
        """Let a new agent find out what waiting tasks have, and fetch what they lack."""
        for task in node.fetch_again(self.now):
            self.at(task.known_at, partial(self._tell, node.name))
            self.at(max(self.now, task.fetched_at), partial(self._fetched, node, task.attempt.id))

    def _tell(self, name: str) -> None:
        self._speaking[name] = None

    def _plan_end(self, node: simulated_nodes.SimulatedNode, name: str, at: float) -> None:
        self.at(at, partial(self._end, node, name))

    def _end(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        task = node.tasks.get(name)
        if task is not None and node.end(name, self.now):
            self._watcher.ended(
                task.attempt, self.now, task.why, max(0.0, self.now - task.starts_at)
            )
            self._speaking[node.name] = None

    def _speak(self) -> None:
        """Let nodes with news report."""
        if not self._speaking:
            return
        names, self._speaking = self._speaking, {}
        complete = self.timing.heartbeat_s is not None
        for name in names:
            node = self.nodes[name]
            if not node.reachable:
                continue
            slack_s = self.timing.start_report_within_s
            urgent = not slack_s or not node.news or any(a not in node.tasks for a in node.news)
            report = node.report(self.now, complete=complete)
            for delay_s in self._weather.carry():
                if delay_s:
                    self.at(self.now + delay_s, partial(self._arrive, report, node.agent, self.now))
                else:
                    self._arrive(report, node.agent, self.now, urgent=urgent)

    def _arrive(
        self, report: records.NodeReport, agent: int, sent_at: float, *, urgent: bool = True
    ) -> None:
        """Deliver a report to the controller, unless a newer agent process has a session there."""
        name = report.node
        if not self.nodes[name].connected or agent < self._sessions.get(name, 0):
            return
        self._sessions[name] = agent
        self._asked_at[name] = max(sent_at, self._asked_at.get(name, sent_at))
        self.memory.add_report(msgspec.structs.replace(report, received_at=self.now))
        if urgent:
            self._due = True
        else:
            at = self.now + self.timing.start_report_within_s
            self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    def _plan_heartbeat(self, name: str) -> None:
        if self.timing.heartbeat_s is not None:
            self.at(self.now + self.timing.heartbeat_s, partial(self._heartbeat, name))

    def _heartbeat(self, name: str) -> None:
        """Let a node report everything it knows, and check its leases until the next time."""
        node = self.nodes[name]
        self._plan_heartbeat(name)
        if not node.up:
            return
        self._speaking[name] = None
        heartbeat_s = self.timing.heartbeat_s or 0.0
        for task in node.tasks.values():
            lease_s = task.attempt.lease_s
            if lease_s is not None and not task.told:
                ends_at = max(self.now, node.renewed_at + lease_s)
                if ends_at <= self.now + heartbeat_s:
                    self.at(ends_at, partial(self._lease_ends, node, task.attempt.id))

    def _lease_ends(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        task = node.tasks.get(name)
        if task is None or task.told or task.attempt.lease_s is None:
            return
        if node.renewed_at + task.attempt.lease_s <= self.now:
            node.tell_to_leave(task, EndReason.LEASE_EXPIRED, self.now, task.attempt.grace_s)
            self._plan_end(node, name, task.ends_at)

    # -- faults

    def plan_faults(self, plan: Iterable[faults.InjectedFault]) -> None:
        """Plan faults for their moments."""
        for fault in plan:
            self.at(fault.at, partial(self.suffer, fault))

    def suffer(self, fault: faults.InjectedFault) -> None:
        """Apply one fault now, unless it changes nothing, such as a boot of a running node.

        Raises:
            SimulationError: there is no such node.
        """
        if fault.kind == "change-leader":
            self.change_leader()
            return
        node = self.nodes.get(fault.node)
        if node is None:
            raise SimulationError(f"{fault.kind}: there is no node {fault.node!r}")
        if fault.kind == "cut":
            node.connected = False
        elif fault.kind == "skew-clock":
            node.clock_offset_s = fault.amount_s
        elif fault.kind == "power-off" and node.up:
            for task in node.tasks.values():
                ran_s = max(0.0, self.now - task.starts_at)
                self._watcher.ended(task.attempt, self.now, EndReason.NODE_LOST, ran_s)
            node.lose_everything()
        elif fault.kind == "boot" and not node.up:
            node.boot_again()
        elif fault.kind == "restart-agent" and node.up:
            node.restart_agent()
            self._look_again(node)
        elif fault.kind == "connect":
            node.connected = True
        self._speaking[node.name] = None
