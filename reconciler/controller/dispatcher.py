"""Tells nodes, scripts and people of a decision once it is durable.

A node gets its whole set whenever an outcome touches it, or when the server asks how it stands. A
set that can't be made is a defect that costs its node the news, and nobody else.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from reconciler.controller import server_link
from reconciler.controller.quarantine import defects, isolate_failures
from reconciler.core import observed_state
from reconciler.engines import agents
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import instance_records, outcome

log = logging.getLogger("muster.loop")

#: How often it is said which nodes can't be told anything.
COMPLAIN_EVERY_S = 60.0


class Dispatcher:
    """What the loop says to the server process and to provisioners.

    Args:
        server: the connection to the server process.
        engine: makes the sets of nodes.
        provision: given all open orders whenever they change.
        defects: counts sets that can't be made.
    """

    def __init__(
        self,
        server: server_link.LinkServer,
        engine: agents.AgentsEngine,
        provision: Callable[[Iterable[instance_records.Order]], None],
        defects: defects.Defects,
    ) -> None:
        self._server = server
        self._engine = engine
        self._provision = provision
        self._defects = defects
        self._provisions: object = None
        self._told_generation: int | None = None
        #: Nodes whose sets could not be made: each decision tries them again.
        self._unserved: set[str] = set()
        self._said_at = -math.inf
        #: Which question about each node waits for the next decision.
        self.questions: dict[str, int] = {}

    def tell(
        self,
        result: outcome.Outcome,
        structure: desired.Structure,
        state: observed_state.ObservedState,
    ) -> None:
        """Tell the nodes that an outcome touches, and those that wait to hear how they stand."""
        touched = self._engine.touched(result.actions)
        waiting = {*self.questions, *(self._unserved & state.nodes.keys())}
        self._unserved.clear()
        if result.desired_generation != self._told_generation:
            waiting |= self._behind(structure, state)
            self._told_generation = result.desired_generation
        for node in (*touched, *sorted(waiting - touched.keys())):
            with self._serving(node):
                update = self._engine.update(node, structure, state, touched.get(node, ()))
                confirms = self.questions.get(node, 0)
                self._server.send(msgspec.structs.replace(update, confirms=confirms))
                self.questions.pop(node, None)
        self._complain(result.now)
        if state.provisions is not self._provisions:  # the first time, and when it changed
            with self._defects.spare("tell"):
                self._provision(
                    order
                    for pool in state.provisions.values()
                    for order in instance_records.orders(pool)
                )
                self._provisions = state.provisions
        for identity, refused in result.answers.items():
            self._server.send(loop_messages.OverrideAnswered(identity, refused))

    def everything(self, structure: desired.Structure, state: observed_state.ObservedState) -> None:
        """A server has connected: every node's set. Who asked the one before has gone."""
        self.questions.clear()
        for node in state.nodes:
            with self._serving(node):
                self._server.send(self._engine.update(node, structure, state))

    def doubt(
        self,
        nodes: Iterable[str],
        structure: desired.Structure,
        state: observed_state.ObservedState,
    ) -> None:
        """Let no lease of these nodes be renewed: what they say can't be decided."""
        for node in nodes:
            self.questions.pop(node, None)
            with self._serving(node):
                update = self._engine.update(node, structure, state)
                self._server.send(msgspec.structs.replace(update, doubts=True))

    @contextlib.contextmanager
    def _serving(self, node: str) -> Iterator[None]:
        """What raises costs this node the news until the next decision, and nobody else."""
        self._unserved.add(node)
        with self._defects.spare("tell"):
            yield
            self._unserved.discard(node)

    def _behind(
        self, structure: desired.Structure, state: observed_state.ObservedState
    ) -> set[str]:
        """Nodes that have to hear of another plan than they know."""
        found = set()
        for node in self._engine.planned(state):
            with self._serving(node):
                if self._engine.is_behind(node, structure, state):
                    found.add(node)
        return found

    def _complain(self, now: float) -> None:
        """Name the nodes that can't be told anything, now and then for as long as it is so."""
        if not self._unserved or self._said_at <= now < self._said_at + COMPLAIN_EVERY_S:
            return
        self._said_at = now
        log.error(
            "%s: what is wanted of %s can't be told there; they go on by what they were told last",
            isolate_failures.MARK,
            isolate_failures.listed([f"node {node}" for node in sorted(self._unserved)]),
        )
