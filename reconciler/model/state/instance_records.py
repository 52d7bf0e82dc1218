"""Instances of pools whose nodes come and go, and orders to the scripts that make them.

Such a pool has *slots*, ``POOL-0`` to ``POOL-(max-1)``, each empty or with one *instance*, the
machine behind the node of that name. ``core`` keeps one record a pool and derives the open *orders*
from it: create, destroy or list. After a crash an order is derived again under the same request, so
that scripts can be idempotent.
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
    """State of the instance in one slot of a pool."""

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
    """The instance in one slot.

    Attributes:
        node: slot, which is the name of the node.
        request: id under which a script creates it; never used for another instance.
        since: start of its state. why: reason of the state, for people.
        id: name that the script gave it, empty until then.
        tries: runs of the script in this state.
        open: a script is about to run for it, or runs.
        retry_at: earliest start of the next run.
        failure: last error; empty for none.
        idle_since: start of the time in which nothing runs there, None while something does.
        missed: answers to ``list`` in a row without it.
        made_up: it existed before, and no script knows its request: ``request`` was made up.
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

    ``seen``: number of lists in a row that had it. Other fields are as in ``InstanceRecord``.
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
        """The id under which a script destroys it."""
        return f"orphan.{self.id}"


class Provision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record of the instances of one pool.

    Attributes:
        pool: its name.
        asked: the last settings in git; they hold on after the pool has left git.
        resources, gpu_model, labels: what a node must have, as scripts are told.
        instances: by slot.
        next_number: the least number of the next request; it is the time of the order, in
            milliseconds, if that is more.
        failures: failed creations in a row, and machines without what the pool declares.
        retry_at: earliest start of the next one.
        failure: last error of these.
        changed_at: last time an instance was asked for, or began to leave because it was idle.
        listed_at: last answered list, 0: never. list_tries: lists begun.
        list_open: a script is about to list. list_at: time of the next list.
        list_failure: error of the last list, empty for none.
        orphans: by id.
        freed: slots that were emptied, with the time: a late report of the old node is ignored.
        hour_began, hour_creates: start of the hour whose creations are counted, and their number.
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
    hour_began: float = 0.0
    hour_creates: int = 0

    @property
    def present(self) -> int:
        """Instances that stay or are coming."""
        return sum(one.state in STAYING for one in self.instances.values())

    def expected(self) -> list[str]:
        """Slots whose machine must be there now: those of instances that are not being
        destroyed.
        """
        return [n for n, one in self.instances.items() if one.state is not _S.DESTROYING]


STAYING = (InstanceState.CREATING, InstanceState.UP)


class Listed(msgspec.Struct, frozen=True):
    """One instance as a script lists it; ``request`` if the script knows it."""

    id: str
    node: str = ""
    request: str = ""


class Order(msgspec.Struct, frozen=True):
    """An order to a script. ``number`` tells attempts under one request apart."""

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
        """Identity of this attempt among all orders of its pool."""
        return f"{self.pool}/{self.verb}/{self.request}/{self.number}"


class OrderResult(msgspec.Struct, frozen=True):
    """Result of an order. ``failure`` is empty if it was carried out."""

    verb: Verb
    pool: str
    request: str
    number: int
    id: str = ""
    instances: tuple[Listed, ...] = ()
    failure: str = ""


def orders(provision: Provision) -> Iterator[Order]:
    """Return the open orders of a pool, as they follow from its record."""
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
    """Return an instance in its next state.

    Raises:
        InvalidTransitionError: the table does not allow the transition.
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
