"""Events on the nodes of a simulation: fetches, starts, ends, leases, faults.

Sets of assignments go in; planned events, and names of nodes with something to report, come out.
Nothing here knows the controller.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from reconciler.model.state import records
from reconciler.model.state.states import EndReason
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import faults, observer, simulated_nodes
from reconciler.simulation.engine.event_queue import SimulationError
from reconciler.simulation.engine.world import VirtualTime, World


class SentAssignments(msgspec.Struct, frozen=True):
    """A node's whole set as of one cycle, and the agent process it was made for.

    Attributes:
        assignments: the set; None: what runs there is left alone.
        held: attempts that must wait until their whole gang has what it needs.
        acknowledged: attempts whose ends are durable.
        asked_at: when the report was sent that this answers.
        epoch: of the controller that sent it.
        proofs: that these attempts are assigned to the node, by attempt.
    """

    incarnation: str
    version: int
    assignments: tuple[records.AttemptRecord, ...] | None
    held: frozenset[str]
    acknowledged: tuple[str, ...]
    asked_at: float
    epoch: int
    proofs: Mapping[str, str]


class NodeEvents:
    """The nodes, and the events that are planned for them."""

    def __init__(
        self, time: VirtualTime, world: World, watcher: observer.SimulationObserver
    ) -> None:
        self.nodes: dict[str, simulated_nodes.SimulatedNode] = {}
        self._time = time
        self._fates, self._timing = world.fates, world.timing
        self._watcher = watcher
        self._reporting: dict[str, None] = {}

    def add(
        self, name: str, resources: Resources, known: records.NodeRecord | None
    ) -> simulated_nodes.SimulatedNode:
        """Return a new node that is up, with its last known inventory."""
        boot_id = known.boot_id if known else ""
        inventory = known.inventory if known and known.inventory.hostname else None
        node = simulated_nodes.SimulatedNode(name, resources, boot_id, inventory)
        self.nodes[name] = node
        if known is not None and known.incarnation == node.incarnation:
            node.restart_agent()  # the records are of another simulation, whose agent is not ours
        self.request_report(name)
        self._plan_heartbeat(name)
        return node

    # -- reports

    @property
    def has_reports(self) -> bool:
        """True if nodes have something to report now."""
        return bool(self._reporting)

    def request_report(self, name: str) -> None:
        """Let a node report as soon as possible."""
        self._reporting[name] = None

    def request_all_reports(self) -> None:
        """Let all nodes report as soon as possible."""
        self._reporting.update(dict.fromkeys(self.nodes))

    def take_reporting(self) -> list[simulated_nodes.SimulatedNode]:
        """Return the nodes with something to report, in the order in which that came up."""
        names, self._reporting = self._reporting, {}
        return [self.nodes[name] for name in names]

    # -- assignments

    def resume(self, node: simulated_nodes.SimulatedNode, attempt: records.AttemptRecord) -> None:
        """Let a node have an attempt that the records say it has."""
        if attempt.boot_id not in ("", node.boot_id):
            return
        self._begin(node, attempt, attempt.started_at or self._time.now)
        if attempt.stop is not None:
            task, stop = node.tasks[attempt.id], attempt.stop
            node.tell_to_leave(task, stop.reason, self._time.now, stop.grace_s)
            self._plan_end(node, attempt.id, task.ends_at)

    def deliver(self, node: simulated_nodes.SimulatedNode, sent: SentAssignments) -> None:
        """Deliver a set to a node, unless its agent process has changed or it has a newer set."""
        if not node.reachable or node.incarnation != sent.incarnation or sent.epoch < node.epoch:
            return
        now = self._time.now
        node.renewed_at = max(node.renewed_at, sent.asked_at)
        node.acknowledge(sent.acknowledged)
        set_number = (sent.epoch, sent.version)
        node.epoch = sent.epoch
        if sent.assignments is None or set_number < node.set_number:
            return
        node.set_number = set_number
        node.take(sent.assignments, sent.proofs)
        for name, task in node.to_stop(sent.assignments, now):
            self._plan_end(node, name, task.ends_at)
        for name in node.to_go(sent.held, now):
            self._starts(node, name, now + self._timing.start_s)
        for attempt in node.to_start(sent.assignments, now):
            fate = self._fates(attempt)
            held = attempt.id in sent.held
            if fate.fetch_s or held:
                task = node.fetch(attempt, fate, now, held=held)
                self._time.plan(task.fetched_at, partial(self._fetched, node, attempt.id))
            else:
                self._begin(node, attempt, now + self._timing.start_s)
        if node.news:
            self.request_report(node.name)

    def ask_what_is_held(self, name: str) -> None:
        """Let a node say with its next report what it holds."""
        node = self.nodes[name]
        if node.reachable:
            node.tells_held = True
            self.request_report(name)

    # -- tasks

    def _begin(
        self, node: simulated_nodes.SimulatedNode, attempt: records.AttemptRecord, starts_at: float
    ) -> None:
        node.start(attempt, self._fates(attempt), starts_at)
        self._starts(node, attempt.id, starts_at)

    def _fetched(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        """Start a task whose needs are met, unless it must wait for the rest of its gang."""
        task, now = node.tasks.get(name), self._time.now
        if task is None or task.told or not task.waits or task.fetched_at > now:
            return
        node.news[name] = None
        self.request_report(node.name)
        if not task.held:
            self._starts(node, name, now + self._timing.start_s)

    def _starts(self, node: simulated_nodes.SimulatedNode, name: str, starts_at: float) -> None:
        task, now = node.tasks[name], self._time.now
        task.go(starts_at)
        if task.starts_at <= now:
            self._watcher.started(task.attempt, task.starts_at)
        else:
            self._time.plan(task.starts_at, partial(self._is_up, node, name))
        if task.ends_at != math.inf:
            self._plan_end(node, name, max(now, task.ends_at))

    def _is_up(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        task = node.tasks.get(name)
        if task is not None and not task.told:
            node.news[name] = None
            self.request_report(node.name)
            self._watcher.started(task.attempt, task.starts_at)

    def _plan_end(self, node: simulated_nodes.SimulatedNode, name: str, at: float) -> None:
        self._time.plan(at, partial(self._end, node, name))

    def _end(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        task, now = node.tasks.get(name), self._time.now
        if task is not None and node.end(name, now):
            self._watcher.ended(task.attempt, now, task.why, max(0.0, now - task.starts_at))
            self.request_report(node.name)

    # -- leases

    def _plan_heartbeat(self, name: str) -> None:
        if self._timing.heartbeat_s is not None:
            at = self._time.now + self._timing.heartbeat_s
            self._time.plan(at, partial(self._heartbeat, name))

    def _heartbeat(self, name: str) -> None:
        """Let a node report everything it knows, and check its leases until the next time."""
        node, now = self.nodes[name], self._time.now
        self._plan_heartbeat(name)
        if not node.up:
            return
        self.request_report(name)
        heartbeat_s = self._timing.heartbeat_s or 0.0
        for task in node.tasks.values():
            lease_s = task.attempt.lease_s
            if lease_s is not None and not task.told:
                ends_at = max(now, node.renewed_at + lease_s)
                if ends_at <= now + heartbeat_s:
                    self._time.plan(ends_at, partial(self._lease_ends, node, task.attempt.id))

    def _lease_ends(self, node: simulated_nodes.SimulatedNode, name: str) -> None:
        task, now = node.tasks.get(name), self._time.now
        if task is None or task.told or task.attempt.lease_s is None:
            return
        if node.renewed_at + task.attempt.lease_s <= now:
            node.tell_to_leave(task, EndReason.LEASE_EXPIRED, now, task.attempt.grace_s)
            self._plan_end(node, name, task.ends_at)

    # -- faults

    def suffer(self, fault: faults.InjectedFault) -> None:
        """Apply one fault of a node now, unless it changes nothing.

        Raises:
            SimulationError: there is no such node.
        """
        node = self.nodes.get(fault.node)
        if node is None:
            raise SimulationError(f"{fault.kind}: there is no Node/{fault.node}")
        if fault.kind == "cut":
            node.connected = False
        elif fault.kind == "skew-clock":
            node.clock_offset_s = fault.amount_s
        elif fault.kind == "power-off" and node.up:
            self._lose(node.tasks.values())
            node.lose_everything()
        elif fault.kind == "boot" and not node.up:
            node.boot_again()
        elif fault.kind == "restart-agent" and node.up:
            node.restart_agent()
            self._fetch_again(node)
        elif fault.kind == "connect":
            node.connected = True
        self.request_report(node.name)

    def _lose(self, tasks: Iterable[simulated_nodes.SimulatedTask]) -> None:
        now = self._time.now
        for task in tasks:
            ran_s = max(0.0, now - task.starts_at)
            self._watcher.ended(task.attempt, now, EndReason.NODE_LOST, ran_s)

    def _fetch_again(self, node: simulated_nodes.SimulatedNode) -> None:
        """Let a new agent find out what waiting tasks have, and fetch what they lack."""
        now = self._time.now
        for task in node.fetch_again(now):
            self._time.plan(task.known_at, partial(self.request_report, node.name))
            fetched = partial(self._fetched, node, task.attempt.id)
            self._time.plan(max(now, task.fetched_at), fetched)
