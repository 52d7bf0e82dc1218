"""Tells nodes, scripts and people of a decision once it is durable.

A node gets its whole set whenever an outcome touches it, or when the server asks how it stands. A
set that can't be made is a defect that costs its node the news, and nobody else.
"""

from collections.abc import Callable, Iterable

import msgspec

from reconciler import containing, link_server
from reconciler.core import memory as core_memory
from reconciler.engines import agents as agents_engine
from reconciler.model import desired, link, outcome, provisioning


class Teller:
    """What the loop says to the server process and to provisioners.

    Args:
        server: the connection to the server process.
        engine: makes the sets of nodes.
        provision: given all open orders whenever they change.
        defects: counts sets that can't be made.
    """

    def __init__(
        self,
        server: link_server.LinkServer,
        engine: agents_engine.AgentsEngine,
        provision: Callable[[Iterable[provisioning.Order]], None],
        defects: containing.Defects,
    ) -> None:
        self._server = server
        self._engine = engine
        self._provision = provision
        self._defects = defects
        self._provisions: object = None
        self._told_generation: int | None = None
        #: Which question about each node waits for the next decision.
        self.questions: dict[str, int] = {}

    def tell(
        self,
        result: outcome.Outcome,
        structure: desired.Structure,
        memory: core_memory.Memory,
    ) -> None:
        """Tell the nodes that an outcome touches, and those that wait to hear how they stand."""
        touched = self._engine.touched(result.actions)
        waiting = set(self.questions)
        if result.desired_generation != self._told_generation:
            with self._defects.spare("tell"):
                waiting.update(self._engine.behind(structure, memory))
            self._told_generation = result.desired_generation
        for node in (*touched, *sorted(waiting - touched.keys())):
            with self._defects.spare("tell"):
                update = self._engine.update(node, structure, memory, touched.get(node, ()))
                confirms = self.questions.get(node, 0)
                self._server.send(msgspec.structs.replace(update, confirms=confirms))
                self.questions.pop(node, None)  # a set that can't be made is asked for again
        if memory.provisions is not self._provisions:  # the first time, and when it changed
            self._provisions = memory.provisions
            with self._defects.spare("tell"):
                self._provision(
                    order
                    for pool in memory.provisions.values()
                    for order in provisioning.orders(pool)
                )
        for identity, refused in result.answers.items():
            self._server.send(link.OverrideAnswered(identity, refused))

    def everything(self, structure: desired.Structure, memory: core_memory.Memory) -> None:
        """A server has connected: every node's set. Who asked the one before has gone."""
        self.questions.clear()
        for node in memory.nodes:
            with self._defects.spare("tell"):
                self._server.send(self._engine.update(node, structure, memory))
