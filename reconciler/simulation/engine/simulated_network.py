"""The network of a simulation, between its nodes and its controller.

Sets of assignments and reports go in; they arrive at once, later, twice or never. A report of an
older agent process than the last that was heard does not arrive.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from reconciler.model.state import records
from reconciler.simulation.engine import faults, simulated_nodes
from reconciler.simulation.engine.node_events import NodeEvents, SentAssignments
from reconciler.simulation.engine.world import VirtualTime


class Receive(Protocol):
    """The controller's function that takes a report."""

    def __call__(
        self, report: records.NodeReport, proofs: Mapping[str, str], /, *, urgent: bool
    ) -> None:
        """Take a report, and the node's proofs by attempt; ``urgent``: it needs a cycle now."""


class SimulatedNetwork:
    """Messages between nodes and controller."""

    def __init__(
        self, time: VirtualTime, nodes: NodeEvents, weather: faults.Weather, receive: Receive
    ) -> None:
        self._time = time
        self._nodes = nodes
        self._weather = weather
        self._receive = receive
        self._waiting_acknowledgements: dict[str, list[str]] = {}
        self._asked_at: dict[str, float] = {}
        self._sessions: dict[str, int] = {}
        self._version = 0

    def add_acknowledgement(self, node: str, attempt: str) -> None:
        """Acknowledge an attempt's end with the next set for its node."""
        self._waiting_acknowledgements.setdefault(node, []).append(attempt)

    def drop_acknowledgements(self) -> None:
        """Forget acknowledgements that were not sent yet."""
        self._waiting_acknowledgements.clear()

    def reaches(self, name: str) -> bool:
        """Return True if a message to a node would arrive; if not, nothing waits for it."""
        node = self._nodes.nodes.get(name)
        if node is None or not node.reachable:
            self._waiting_acknowledgements.pop(name, None)
            return False
        return True

    def send_assignments(
        self,
        name: str,
        assignments: tuple[records.AttemptRecord, ...] | None,
        held: Iterable[str],
        *,
        epoch: int,
        proofs: Mapping[str, str],
    ) -> None:
        """Send a reachable node its whole set; without faults it arrives at once.

        None: it is left alone, and only its leases are renewed.
        """
        node, now = self._nodes.nodes[name], self._time.now
        self._version += 1
        sent = SentAssignments(
            node.incarnation,
            self._version,
            assignments,
            frozenset(held),
            tuple(self._waiting_acknowledgements.pop(name, ())),
            self._asked_at.get(name, now),
            epoch,
            proofs,
        )
        for delay_s in self._weather.carry():
            if delay_s:
                self._time.plan(now + delay_s, partial(self._nodes.deliver, node, sent))
            else:
                self._nodes.deliver(node, sent)

    def ask_what_is_held(self, name: str) -> None:
        """Ask a node to say with its next report what it holds."""
        for delay_s in self._weather.carry():
            self._time.plan(self._time.now + delay_s, partial(self._nodes.ask_what_is_held, name))

    def send_report(
        self, node: simulated_nodes.SimulatedNode, *, complete: bool, starts_are_urgent: bool
    ) -> None:
        """Send the report of a reachable node."""
        now = self._time.now
        urgent = starts_are_urgent or not node.news or any(a not in node.tasks for a in node.news)
        report, proofs = node.report(now, complete=complete), dict(node.proofs)
        for delay_s in self._weather.carry():
            if delay_s:
                arrive = partial(self._arrive, report, proofs, node.agent, now)
                self._time.plan(now + delay_s, arrive)
            else:
                self._arrive(report, proofs, node.agent, now, urgent=urgent)

    def _arrive(
        self,
        report: records.NodeReport,
        proofs: Mapping[str, str],
        agent: int,
        sent_at: float,
        *,
        urgent: bool = True,
    ) -> None:
        """Deliver a report to the controller, unless a newer agent process has a session there."""
        name = report.node
        if not self._nodes.nodes[name].connected or agent < self._sessions.get(name, 0):
            return
        self._sessions[name] = agent
        self._asked_at[name] = max(sent_at, self._asked_at.get(name, sent_at))
        self._receive(report, proofs, urgent=urgent)
