"""A controller of a simulation: it takes reports, decides cycles by its own records, and answers.

There is mostly one. Where stores are lost or restored there may be two, each with records of its
own, and ``StoreKnowledge`` says what such a controller does not know.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from reconciler.core import cycle_cache, observed_state
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.simulation.engine import (
    faults,
    node_events,
    observer,
    simulated_network,
    simulated_nodes,
    world,
)

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


class StoreKnowledge(Protocol):
    """The knowledge of a controller of its own store: the adoption, and the key of proofs."""

    @property
    def asks(self) -> bool:
        """True while nodes have to say what they hold before they are told anything."""

    @property
    def leads(self) -> bool:
        """False while another controller leads, so that nodes get no answer."""

    def begin(self, now: float) -> None:
        """Begin a cycle."""

    def in_force(self, desired_state: desired.Desired) -> desired.Desired:
        """Return what the cycle goes by."""

    def commit(self, result: outcome.Outcome) -> None:
        """Store what is known with the outcome of a cycle."""

    def look(self, desired_state: desired.Desired, now: float) -> float | None:
        """Note what a cycle has found out, and return when another one is due; None: never."""

    def proof(self, attempt: str, node: str) -> str:
        """Return the proof that an attempt is assigned to a node."""

    def proven(self, node: str, proofs: Mapping[str, str]) -> tuple[str, ...]:
        """Return the attempts of which a node has a proof."""


class Surroundings(msgspec.Struct, frozen=True):
    """The parts that the controllers of a simulation share."""

    time: world.VirtualTime
    events: node_events.NodeEvents
    weather: faults.Weather
    watcher: observer.SimulationObserver
    decide: Decide


class SimulatedController:
    """A controller with its records, and its side of the network.

    Args:
        shared: with other controllers.
        timing: of cycles.
        loaded: records as stored.
        epoch: in which it leads.
        wanted: returns what git asks for now.
        knowledge: of its store; None: that is never in doubt.
    """

    def __init__(
        self,
        shared: Surroundings,
        timing: world.Timing,
        loaded: records.Observed,
        *,
        epoch: int,
        wanted: Callable[[], desired.Desired],
        knowledge: StoreKnowledge | None = None,
    ) -> None:
        self.wake_at: float | None = None
        self.epoch = epoch
        self.due = True
        self.timing = timing
        self.knowledge = knowledge
        self.memory = observed_state.ObservedState(loaded, leader_since=shared.time.now)
        self._wanted = wanted
        self._shared = shared
        self._not_before = self._still_until = -math.inf
        #: The agent process of each node that has told what it holds.
        self._told: dict[str, str] = {}
        self._network = simulated_network.SimulatedNetwork(
            shared.time, shared.events, shared.weather, self._receive
        )

    @property
    def _now(self) -> float:
        return self._shared.time.now

    def next_cycle_at(self) -> float | None:
        """Return when the next cycle is due; None: nothing waits for one."""
        at = self._now if self.due else self.wake_at
        return None if at is None else max(at, self._not_before, self._still_until)

    def send_report(
        self, node: simulated_nodes.SimulatedNode, *, complete: bool, starts_are_urgent: bool
    ) -> None:
        """Let a node send its report to this controller."""
        self._network.send_report(node, complete=complete, starts_are_urgent=starts_are_urgent)

    def cycle(self) -> None:
        """Decide one cycle, and answer the nodes that it concerns."""
        known, now = self.knowledge, self._now
        wanted = self._wanted()
        if known is not None:
            known.begin(now)
            wanted = known.in_force(wanted)
        self.due = False
        observed = self.memory.observed(*self.memory.take_input())
        result = self._shared.decide(wanted, observed, now, cache=self.memory.cache)
        self._not_before = now + self.timing.cycle_every_s
        if known is not None:
            known.commit(result)
        self.memory.absorb(result)
        far = result.wake_at is not None and result.wake_at >= now + NEVER_SILENT_S / 2
        self.wake_at = None if far else result.wake_at
        if known is not None and (again_at := known.look(wanted, now)) is not None:
            self.wake_at = again_at if self.wake_at is None else min(self.wake_at, again_at)
        self._shared.watcher.decided(result)
        changed: dict[str, None] = {}
        for action in result.actions:
            if isinstance(action, outcome.RunProvisioner):
                continue
            changed[action.node] = None
            if isinstance(action, outcome.Acknowledge):
                self._network.add_acknowledgement(action.node, action.attempt)
        if self.timing.heartbeat_s is not None:
            changed.update(dict.fromkeys(report.node for report in observed.reports))
        for name in changed:
            self._answer(name)

    def _answer(self, name: str) -> None:
        """Send a node its whole set; without faults it arrives at once."""
        known = self.knowledge
        if known is not None and not (known.leads and self._has_told(name)):
            return
        if not self._network.reaches(name):
            return
        if self.timing.heartbeat_s is not None:
            self.memory.answered[name] = self._now
        node, attempts = self.memory.nodes.get(name), self.memory.attempts
        assigned = tuple(attempts[a] for a in self.memory.attempts_by_node.get(name, ()))
        held = (one.id for one in assigned if self._holds(one))
        proofs = {one.id: known.proof(one.id, name) for one in assigned} if known else {}
        is_left_alone = node is not None and bool(node.unproven)
        self._network.send_assignments(
            name, None if is_left_alone else assigned, held, epoch=self.epoch, proofs=proofs
        )

    def _has_told(self, name: str) -> bool:
        """Return True if a node need not say first what it holds."""
        known, node = self.knowledge, self._shared.events.nodes.get(name)
        if known is None or not known.asks:
            return True
        return node is not None and self._told.get(name) == node.incarnation

    def _receive(
        self, report: records.NodeReport, proofs: Mapping[str, str], *, urgent: bool
    ) -> None:
        """Take a report; one that is not urgent waits for the next cycle, for a limited time."""
        known, name = self.knowledge, report.node
        if known is not None:
            if not known.leads:
                return
            if report.held is not None:
                self._told[name] = report.incarnation
            elif known.asks and self._told.get(name) != report.incarnation:
                self._network.ask_what_is_held(name)
                return
            report = msgspec.structs.replace(report, proven=known.proven(name, proofs))
        self.memory.add_report(msgspec.structs.replace(report, received_at=self._now))
        if urgent:
            self.due = True
        else:
            at = self._now + self.timing.start_report_within_s
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
        self._still_until = max(self._still_until, self._now + seconds)

    def hurry(self) -> None:
        """Decide on waiting input at once, however recent the last cycle was."""
        self._not_before = self._now

    def stored(self) -> records.Observed:
        """Return the records as another controller would load them."""
        return msgspec.structs.replace(
            self.memory.observed((), {}),
            nominations={},
            schedule_inputs=None,
            desired_generation=-1,
        )

    def start_again(self) -> None:
        """Let another controller go on from the stored state; reports under way to the old one are
        lost.
        """
        self.memory = observed_state.ObservedState(self.stored(), self._now)
        self._network.drop_acknowledgements()
        self._told.clear()
        self.wake_at = None
        self.due = True
