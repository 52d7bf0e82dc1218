"""Nodes that come and go: what a pool asks for, which instances there are, what scripts are told.

A pool that can grow has *slots*: names ``POOL-0`` to ``POOL-(max-1)``, each empty or with one
*instance*, the machine behind the node of that name. ``core`` keeps the instances of each pool as
one record and derives from it the *orders* that are open: a script is to create, destroy or list.
The shell runs them, and what came of it is input of the next cycle. An order is found again in the
record after any crash and is given under the same request, so that scripts can be idempotent.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

import msgspec

from reconciler.model import desired
from reconciler.model.state import states
from reconciler.model.values.resources import Resources

Verb = Literal["create", "destroy", "list"]

#: The most instances that one answer to ``list`` may name, and the longest text of a script.
LISTED_MAX = 10_000
TEXT_MAX = 500


class InstanceState(StrEnum):
    """State of what is behind one slot of a pool."""

    CREATING = "Creating"
    UP = "Up"
    DRAINING = "Draining"
    DESTROYING = "Destroying"


_S = InstanceState
TRANSITIONS: frozenset[tuple[InstanceState, InstanceState]] = frozenset(
    {
        (_S.CREATING, _S.UP),
        (_S.CREATING, _S.DESTROYING),
        (_S.UP, _S.DRAINING),
        (_S.DRAINING, _S.DESTROYING),
    }
)


class InstanceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is behind one slot.

    Attributes:
        node: the slot, which is the name of the node.
        request: under which a script is asked to create it; never used for another instance.
        since: when its state began. why: why it is in it, for people.
        id: what the script calls it, empty until it has said so.
        tries: how often the script of this state was begun.
        open: whether a script is to run for it, or runs.
        retry_at: no script before.
        failure: what went wrong last; empty where nothing did.
        idle_since: since when nothing runs there, None while something does.
        missed: answers to ``list`` in a row that lacked it.
        made_up: it was there already, and no script has said under which request it was created:
            ``request`` is one that no script knows.
    """

    node: str
    state: InstanceState
    request: str
    since: float
    why: str = ""
    id: str = ""
    tries: int = 0
    open: bool = False
    retry_at: float = 0.0
    failure: str = ""
    idle_since: float | None = None
    missed: int = 0
    made_up: bool = False


class Orphan(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instance that a script lists and nobody asked for.

    ``seen``: how many lists in a row had it. The others are as in ``InstanceRecord``, for its end.
    """

    id: str
    node: str
    first_seen: float
    seen: int = 1
    tries: int = 0
    open: bool = False
    retry_at: float = 0.0
    failure: str = ""

    @property
    def request(self) -> str:
        """Under which a script is asked to destroy it."""
        return f"orphan.{self.id}"


class Provision(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is remembered of the instances of one pool.

    Attributes:
        pool: its name.
        asked: what git said of it last; goes on to hold where the pool has left git.
        resources, gpu_model, labels: what a node is to have, as scripts are told.
        instances: by slot.
        next_number: the least that the next request may have; it is the time of the order, in
            milliseconds, where that is more.
        failures: creations in a row that came to nothing. retry_at: none begins before.
        failure: what the last of them came to.
        changed_at: when an instance was last asked for, or began to leave for being idle.
        listed_at: when a list was last answered, 0: never. list_tries: lists begun.
        list_open: whether a script is to list. list_at: when to list again.
        list_failure: why the last list failed, empty where it did not.
        orphans: by id.
        freed: slots that were emptied, and when: a last word of the node that was is no news.
    """

    pool: str
    asked: desired.Provisioning
    resources: Resources = Resources()
    gpu_model: str = ""
    labels: dict[str, str] = {}
    instances: dict[str, InstanceRecord] = {}
    next_number: int = 1
    failures: int = 0
    retry_at: float = 0.0
    failure: str = ""
    changed_at: float = 0.0
    listed_at: float = 0.0
    list_tries: int = 0
    list_open: bool = False
    list_at: float = 0.0
    list_failure: str = ""
    orphans: dict[str, Orphan] = {}
    freed: dict[str, float] = {}

    @property
    def present(self) -> int:
        """Instances that are there to stay, or are coming."""
        return sum(one.state in STAYING for one in self.instances.values())

    def expected(self) -> list[str]:
        """Slots whose machine is to be there now: those of instances that are not being ended."""
        return [n for n, one in self.instances.items() if one.state is not _S.DESTROYING]


STAYING = (InstanceState.CREATING, InstanceState.UP)


class Listed(msgspec.Struct, frozen=True):
    """One instance as a script lists it; ``request`` where it knows."""

    id: str
    node: str = ""
    request: str = ""


class Order(msgspec.Struct, frozen=True):
    """What a script is to do. ``number`` tells tries under one request apart."""

    verb: Verb
    pool: str
    script: str
    request: str
    number: int
    timeout_s: int
    node: str = ""
    id: str = ""
    resources: Resources = Resources()
    gpu_model: str = ""
    labels: dict[str, str] = {}
    settings: dict[str, str] = {}

    @property
    def key(self) -> str:
        """What tells this try at this order from all others of its pool."""
        return f"{self.pool}/{self.verb}/{self.request}/{self.number}"


class OrderResult(msgspec.Struct, frozen=True):
    """What came of an order. ``failure`` is empty where it was carried out."""

    verb: Verb
    pool: str
    request: str
    number: int
    id: str = ""
    instances: tuple[Listed, ...] = ()
    failure: str = ""


def orders(provision: Provision) -> Iterator[Order]:
    """The orders of a pool that are open, as they follow from its record."""
    asked = provision.asked
    if not asked.script:
        return
    for one in provision.instances.values():
        if one.open:
            verb: Verb = "create" if one.state is InstanceState.CREATING else "destroy"
            order = _order(provision, verb, one.request, one.tries)
            yield msgspec.structs.replace(order, node=one.node, id=one.id)
    for orphan in provision.orphans.values():
        if orphan.open:
            order = _order(provision, "destroy", orphan.request, orphan.tries)
            yield msgspec.structs.replace(order, node=orphan.node, id=orphan.id)
    if provision.list_open:
        yield _order(provision, "list", "list", provision.list_tries)


def _order(of: Provision, verb: Verb, request: str, number: int) -> Order:
    return Order(
        verb=verb,
        pool=of.pool,
        script=of.asked.script,
        request=request,
        number=number,
        timeout_s=of.asked.script_timeout_s,
        resources=of.resources,
        gpu_model=of.gpu_model,
        labels=of.labels,
        settings=of.asked.settings,
    )


def moved(one: InstanceRecord, state: InstanceState, now: float, why: str) -> InstanceRecord:
    """An instance in its next state, if the table allows it.

    Raises:
        InvalidTransitionError: it does not.
    """
    if (one.state, state) not in TRANSITIONS:
        story = (f"asked for as {one.request}", f"{one.state.value} since {one.since}", one.why)
        raise states.InvalidTransitionError(
            f"instance {one.node}", one.state.value, state.value, story
        )
    return InstanceRecord(
        node=one.node,
        state=state,
        request=one.request,
        since=now,
        why=why,
        id=one.id,
        made_up=one.made_up,
        idle_since=one.idle_since if state is InstanceState.DRAINING else None,
    )
