"""Sends a decision to nodes and provisioners once it is durable.

A node gets its whole assignment set if an outcome touches it or if the server asks. An internal
error while a set is built costs only that node its update.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from reconciler.controller import server_link
from reconciler.controller.quarantine.internal_errors import MARK, InternalErrors, shorten
from reconciler.core import observed_state
from reconciler.engines import agents_engine
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import instance_records, outcome

log = logging.getLogger("muster.loop")

#: How often nodes that can't be updated are logged.
COMPLAIN_EVERY_S = 60.0


class Dispatcher:
    """The sender of assignments, orders and answers.

    Args:
        server: the connection to the server process.
        engine: builds assignment sets.
        provision: given all open orders whenever they change.
        internal_errors: counts sets that can't be built.
    """

    def __init__(
        self,
        server: server_link.LinkServer,
        engine: agents_engine.AgentsEngine,
        provision: Callable[[Iterable[instance_records.Order]], None],
        internal_errors: InternalErrors,
    ) -> None:
        self._server = server
        self._engine = engine
        self._provision = provision
        self._internal_errors = internal_errors
        self._provisions: object = None
        self._sent_structure: desired.Structure | None = None
        #: Nodes whose sets could not be built. Each decision tries them again.
        self._unserved: set[str] = set()
        self._complained_at = -math.inf
        #: By node the server's question that the next decision answers.
        self.questions: dict[str, int] = {}

    def dispatch(
        self,
        result: outcome.Outcome,
        structure: desired.Structure,
        state: observed_state.ObservedState,
    ) -> None:
        """Update the nodes that an outcome touches, and those that wait for an answer."""
        touched = self._engine.touched(result.actions)
        waiting = {*self.questions, *(self._unserved & state.nodes.keys())}
        self._unserved.clear()
        if structure is not self._sent_structure:
            waiting |= self._outdated(structure, state)
            self._sent_structure = structure
        for node in (*touched, *sorted(waiting - touched.keys())):
            with self._serving(node):
                update = self._engine.update(node, structure, state, touched.get(node, ()))
                confirms = self.questions.get(node, 0)
                self._server.send(msgspec.structs.replace(update, confirms=confirms))
                self.questions.pop(node, None)
        self._complain(result.now)
        if state.provisions is not self._provisions:  # at the start, and after each change
            with self._internal_errors.suppress("tell"):
                self._provision(
                    order
                    for pool in state.provisions.values()
                    for order in instance_records.orders(pool)
                )
                self._provisions = state.provisions
        for identity, refused in result.answers.items():
            self._server.send(loop_messages.OverrideAnswered(identity, refused))

    def dispatch_all(
        self, structure: desired.Structure, state: observed_state.ObservedState
    ) -> None:
        """Update every node after a server has connected.

        Questions of the previous server are dropped.
        """
        self.questions.clear()
        for node in state.nodes:
            with self._serving(node):
                self._server.send(self._engine.update(node, structure, state))

    def stop_renewing(
        self,
        nodes: Iterable[str],
        structure: desired.Structure,
        state: observed_state.ObservedState,
    ) -> None:
        """Stop renewing the leases of nodes whose reports can't be processed."""
        for node in nodes:
            self.questions.pop(node, None)
            with self._serving(node):
                update = self._engine.update(node, structure, state)
                self._server.send(msgspec.structs.replace(update, doubts=True))

    @contextlib.contextmanager
    def _serving(self, node: str) -> Iterator[None]:
        """Suppress errors of a node's update, which the next decision tries again."""
        self._unserved.add(node)
        with self._internal_errors.suppress("tell"):
            yield
            self._unserved.discard(node)

    def _outdated(
        self, structure: desired.Structure, state: observed_state.ObservedState
    ) -> set[str]:
        """Return the nodes whose plan has changed since their last update."""
        found = set()
        for node in self._engine.planned(state):
            with self._serving(node):
                if self._engine.is_behind(node, structure, state):
                    found.add(node)
        return found

    def _complain(self, now: float) -> None:
        """Log the nodes that can't be updated, once a minute."""
        if (
            not self._unserved
            or self._complained_at <= now < self._complained_at + COMPLAIN_EVERY_S
        ):
            return
        self._complained_at = now
        log.error(
            "%s prevents updates of %s: they continue with their last assignments",
            MARK,
            shorten([f"node {node}" for node in sorted(self._unserved)]),
        )
