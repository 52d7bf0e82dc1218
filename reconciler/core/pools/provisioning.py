"""Nodes that come and go: the life of the instances behind a pool's slots.

What scripts answered and what nodes report comes in; instances move on, and orders open, under
the tables of ``model.provisioning``. An instance is made once: its request is in the record before
any script is begun, and stays until the script has said that the machine is gone. Which pool is to
have more nodes or fewer is decided in ``autoscaling``; here what was decided is seen through.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from reconciler.core import cycle_context
from reconciler.core.nodes import health
from reconciler.core.pools import pool_state
from reconciler.model import desired
from reconciler.model.state import instance_records, outcome
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.states import NodeState
from reconciler.model.values import quantities, times

#: How often a pool's instances are listed.
LIST_EVERY_S = 300.0
#: So many lists in a row have to agree on what nobody asked for, and on what is there no more.
LISTS_MIN = 2
#: The most orphans of a pool that are looked after at once.
ORPHANS_MAX = 1000
#: How long it is remembered when a slot was emptied, in times of a node's silence.
FREED_SILENCES = 10
#: Who drains a node that leaves its pool.
OWNER = "provisioner"

#: Pools whose nodes come and go, by name.
PoolStates = dict[str, pool_state.PoolState]


def apply(context: cycle_context.CycleContext) -> PoolStates:
    """Apply the scripts' results, advance every instance, and mark nodes without a machine.

    Returns:
        The state of each provisioned pool, by name. Later phases of the cycle change it.
    """
    states: PoolStates = {}
    known = context.observed.provisions
    pools = context.desired.structure.pools
    scaled = {name for name, pool in pools.items() if pool.provisioning is not None}
    for name in sorted(scaled | known.keys()):
        pool = pools.get(name) if name in scaled else None
        base = known.get(name)
        if base is None:
            if pool is None or pool.provisioning is None:
                continue
            base = instance_records.Provision(name, pool.provisioning)
        states[name] = pool_state.PoolState(context, base, pool)
    for result in context.observed.provisioned:
        book = states.get(result.pool)
        if book is not None:
            _take(book, result)
    for book in states.values():
        _progress(book)
        _mark(book)
    return states


def replace(states: PoolStates, node: str, why: str) -> str:
    """Have the machine behind a node destroyed, once nothing runs there, and made anew.

    Returns:
        Why that is not possible; empty where it has begun, or had begun before.
    """
    for book in states.values():
        one = book.instances.get(node)
        if one is None:
            continue
        if one.state is InstanceState.UP:
            book.move(one, InstanceState.DRAINING, f"it is replaced: {why}")
            book.context.override_drains.setdefault(node, _drain(book.instances[node].why))
            book.context.wake(book.context.now)
        return ""
    return f"{node} is in no pool whose nodes are made by a provisioner"


class InstanceDifference(NamedTuple):
    """Something of a pool's instances that is other than asked for; ``kind`` as of drift."""

    kind: str
    subject: str
    message: str
    pool: str
    node: str = ""


def differences(states: PoolStates) -> Iterator[InstanceDifference]:
    """What is other than pools ask for and could not be made so."""
    for book in states.values():
        for orphan in book.orphans.values():
            if orphan.seen < LISTS_MIN:
                continue
            name = f" as {orphan.node}" if orphan.node else ""
            message = f"{orphan.id} is there{name}, and nobody asked for it"
            if orphan.failure:
                message += f"; it could not be destroyed: {orphan.failure}"
            yield InstanceDifference(
                "instance-orphaned", f"{book.name}/{orphan.id}", message, book.name, orphan.node
            )
        for one in book.instances.values():
            if one.state is InstanceState.DESTROYING and one.failure:
                message = f"{one.request} could not be destroyed: {one.failure}"
                yield InstanceDifference(
                    "instance-left-over", one.node, message, book.name, one.node
                )
        if book.failures > book.asked.retries:
            message = (
                f"{quantities.counted(book.failures, 'node')} in a row did not come up, the last: "
                f"{book.failure}; the next is made from {times.format_time(book.retry_at)} on"
            )
            yield InstanceDifference("pool-not-growing", book.name, message, book.name)
        if book.list_failure:
            message = f"list failed: {book.list_failure}"
            yield InstanceDifference("provisioner-failing", book.name, message, book.name)


# --- what scripts answered ------------------------------------------------------------------


def _take(book: pool_state.PoolState, result: instance_records.OrderResult) -> None:
    if result.verb == "list":
        if book.list_open and result.number == book.list_tries:
            _listed(book, result)
        return
    for orphan in book.orphans.values():
        if orphan.request == result.request and orphan.open and orphan.tries == result.number:
            _orphan_told(book, orphan, result)
            return
    for one in book.instances.values():
        if one.request == result.request:
            _told(book, one, result)
            return


def _told(
    book: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    result: instance_records.OrderResult,
) -> None:
    creating = one.state is InstanceState.CREATING
    if result.verb == "create" and not creating:
        if not one.id and result.id:
            book.put(one, id=result.id)  # it was given up meanwhile: so it can be ended by its id
        return
    if not one.open or one.tries != result.number or creating != (result.verb == "create"):
        return
    if not result.failure:
        if creating:
            book.put(one, open=False, id=result.id or one.request, failure="")
        else:
            book.empty(one)
        return
    message = f"{result.verb} of {one.request} failed: {result.failure}"
    book.context.event("ProvisionerFailed", message, node=one.node)
    if creating and one.tries > book.asked.retries:
        book.failed(message)
        book.begin(book.move(one, InstanceState.DESTROYING, message))
        return
    retry_at = book.context.now + pool_state.backoff_s(one.tries)
    book.put(one, open=False, failure=result.failure, retry_at=retry_at)


def _orphan_told(
    book: pool_state.PoolState,
    orphan: instance_records.Orphan,
    result: instance_records.OrderResult,
) -> None:
    if not result.failure:
        del book.orphans[orphan.id]
        book.context.event("OrphanDestroyed", f"{orphan.id} of pool {book.name}", node=orphan.node)
        return
    book.context.event("ProvisionerFailed", f"{orphan.request}: {result.failure}", node=orphan.node)
    book.orphans[orphan.id] = msgspec.structs.replace(
        orphan,
        open=False,
        failure=result.failure,
        retry_at=book.context.now + pool_state.backoff_s(orphan.tries),
    )


def _listed(book: pool_state.PoolState, result: instance_records.OrderResult) -> None:
    """Compare what there is with what was asked for."""
    now, first = book.context.now, book.listed_at == 0
    book.list_open = False
    if result.failure:
        if result.failure != book.list_failure:
            book.context.event("ProvisionerFailed", f"list of {book.name}: {result.failure}")
        book.list_failure = result.failure
        book.list_at = now + pool_state.backoff_s(book.list_tries)
        return
    book.listed_at, book.list_failure, book.list_tries = now, "", 0
    book.list_at = now + LIST_EVERY_S
    by_id = {one.id: one for one in book.instances.values() if one.id}
    by_request = {one.request: one for one in book.instances.values()}
    told = {found.request for found in result.instances}
    seen: set[str] = set()
    orphans: dict[str, instance_records.Orphan] = {}
    for found in result.instances:
        one = by_id.get(found.id) or by_request.get(found.request)
        if one is None:
            one = book.instances.get(found.node)
            if one is not None and not _may_be(one, found, told):
                one = None  # another machine under the name of one that is known
        if one is not None and one.id in {"", found.id}:
            seen.add(one.node)
            if not one.id and not one.open:
                one = book.put(one, id=found.id)
                by_id[found.id] = one
            if one.made_up and found.request and not one.open:
                book.put(one, request=found.request, made_up=False)
                book.know_request(one.node, found.request)
        elif first and found.node in book.slots and found.node not in book.instances:
            _adopt(book, found)
            seen.add(found.node)
        elif len(orphans) < ORPHANS_MAX:
            before = book.orphans.get(found.id)
            orphans[found.id] = (
                instance_records.Orphan(found.id, found.node, now)
                if before is None
                else msgspec.structs.replace(before, seen=before.seen + 1)
            )
    book.orphans = orphans
    for one in list(book.instances.values()):
        if one.state in {InstanceState.UP, InstanceState.DRAINING}:
            missed = 0 if one.node in seen else one.missed + 1
            book.put(book.instances[one.node], missed=missed)


def _may_be(
    one: instance_records.InstanceRecord, found: instance_records.Listed, told: set[str]
) -> bool:
    """Whether a listed machine of an instance's name, but not of its request, is that instance.

    Where the script tells no request only the name is left to go by. Where it tells another one,
    it is so for an instance that was found by its agent: nobody knew its request.
    """
    if one.id:
        return False
    return not found.request or (one.made_up and one.request not in told)


def _adopt(book: pool_state.PoolState, found: instance_records.Listed) -> None:
    """An instance that an earlier controller asked for, whose records are lost."""
    book.know_request(found.node, found.request)
    one = instance_records.InstanceRecord(
        found.node,
        InstanceState.CREATING,
        found.request or book.new_request(found.node),
        book.context.now,
        "it was there",
        id=found.id,
        made_up=not found.request,
    )
    book.instances[found.node] = one
    book.context.event("InstanceAdopted", f"{found.id} is there already", node=found.node)


# --- how instances go on --------------------------------------------------------------------


def _progress(book: pool_state.PoolState) -> None:
    context, asked = book.context, book.asked
    slots = frozenset(book.slots)
    for one in list(book.instances.values()):
        if one.state is InstanceState.CREATING:
            _creating(book, one, stays=one.node in slots)
        elif one.state is InstanceState.UP:
            _up(book, one, stays=one.node in slots)
        elif one.state is InstanceState.DRAINING:
            _draining(book, one)
        else:
            _destroying(book, one)
    _adopt_reporting(book)
    if book.pool is not None:
        for slot in book.free()[: max(0, asked.minimum - book.present)]:
            if may_create(book):
                least = quantities.counted(asked.minimum, "node")
                book.create(slot, f"the pool has at least {least}")
    if book.scripted and not book.list_open:
        if book.list_at <= context.now:
            book.list_open = True
            book.list_tries += 1
            context.actions.append(
                outcome.RunProvisioner("list", book.name, "list", book.list_tries)
            )
        else:
            context.wake(book.list_at)
    _progress_orphans(book)
    silence_s = context.desired.structure.settings.node_silence_s
    oldest = context.now - FREED_SILENCES * silence_s
    book.freed = {name: at for name, at in book.freed.items() if at > oldest}


def may_create(book: pool_state.PoolState) -> bool:
    """Whether nodes may be asked for now."""
    context = book.context
    if context.desired.structure.settings.suspend or not book.is_known:
        return False
    if book.retry_at > context.now:
        context.wake(book.retry_at)
        return False
    return True


def _creating(
    book: pool_state.PoolState, one: instance_records.InstanceRecord, *, stays: bool
) -> None:
    context, asked = book.context, book.asked
    if not stays:
        book.begin(book.move(one, InstanceState.DESTROYING, "it is no longer asked for"))
        return
    node = context.node(one.node)
    if node is not None and node.last_report_at > one.since:
        book.failures, book.retry_at, book.failure = 0, 0.0, ""
        up = book.move(one, InstanceState.UP, "its agent reports")
        book.put(up, idle_since=context.now)
        return
    late_at = one.since + asked.create_timeout_s
    if late_at <= context.now:
        why = f"its agent was not heard of within {asked.create_timeout_s} s"
        if one.failure:
            why += f"; create failed: {one.failure}"
        book.failed(f"{one.request}: {why}")
        book.begin(book.move(one, InstanceState.DESTROYING, why))
        return
    context.wake(late_at)
    if not one.id:
        book.begin(one)


def _up(book: pool_state.PoolState, one: instance_records.InstanceRecord, *, stays: bool) -> None:
    context = book.context
    node = context.node(one.node)
    silent = node is None or node.state in {NodeState.UNKNOWN, NodeState.GONE}
    if one.missed >= LISTS_MIN and silent:
        book.empty(book.put(one, why="its script lists it no longer, and it is silent"))
        return
    busy = _has_work(context, one.node)
    if busy is (one.idle_since is not None):
        one = book.put(one, idle_since=None if busy else context.now)
    if not stays:
        book.move(one, InstanceState.DRAINING, "it is no longer asked for")
        context.wake(context.now)


def _draining(book: pool_state.PoolState, one: instance_records.InstanceRecord) -> None:
    context = book.context
    node = context.node(one.node)
    if _has_work(context, one.node):
        return
    if node is None or node.state is not NodeState.READY:  # nothing new is sent there
        book.begin(book.move(one, InstanceState.DESTROYING, one.why))
        context.wake(context.now)
    else:
        context.wake(context.now)


def _has_work(context: cycle_context.CycleContext, name: str) -> bool:
    """Whether anything runs on a node, or is to."""
    node = context.node(name)
    return bool(context.attempts_of_node(name)) or (node is not None and bool(node.unwanted))


def _destroying(book: pool_state.PoolState, one: instance_records.InstanceRecord) -> None:
    context = book.context
    if book.scripted:
        book.begin(one)
        return
    node = context.node(one.node)
    silence_s = context.desired.structure.settings.node_silence_s
    silent_at = 0.0 if node is None else health.last_contact(node) + silence_s
    if silent_at <= context.now:
        book.empty(one)
    else:
        context.wake(silent_at)


def _adopt_reporting(book: pool_state.PoolState) -> None:
    """Nodes that report from slots of which nothing is known are instances like the others."""
    context = book.context
    silence_s = context.desired.structure.settings.node_silence_s
    for slot in book.free():
        node = context.node(slot)
        if node is None or node.last_report_at <= book.freed.get(slot, 0.0):
            continue
        if node.last_report_at + silence_s > context.now:
            one = instance_records.InstanceRecord(
                slot,
                InstanceState.UP,
                book.new_request(slot),
                context.now,
                "it was there",
                idle_since=context.now,
                made_up=True,
            )
            book.instances[slot] = one
            context.event(
                "InstanceAdopted", "its agent reports, and nobody asked for it", node=slot
            )


def _progress_orphans(book: pool_state.PoolState) -> None:
    context = book.context
    if book.asked.orphans != "destroy" or context.desired.structure.settings.suspend:
        return
    for orphan in list(book.orphans.values()):
        if orphan.open or orphan.seen < LISTS_MIN:
            continue
        if orphan.node and _has_work(context, orphan.node):
            continue  # should it be the machine of that node after all, its work would end
        if orphan.retry_at > context.now:
            context.wake(orphan.retry_at)
            continue
        tries = orphan.tries + 1
        book.orphans[orphan.id] = msgspec.structs.replace(orphan, open=True, tries=tries)
        context.actions.append(outcome.RunProvisioner("destroy", book.name, orphan.request, tries))


# --- what follows for nodes -----------------------------------------------------------------


def _drain(why: str, *, gone: bool = False) -> desired.NodeDrain:
    return desired.NodeDrain(why, OWNER, gone=gone)


_NOTHING_THERE = _drain("no machine is behind it now", gone=True)
_COMING = _drain("its machine is being created", gone=True)
_GOING = _drain("its machine is being destroyed", gone=True)


def _mark(book: pool_state.PoolState) -> None:
    """Nothing starts on nodes that leave, and nodes that are not there are not missed."""
    context = book.context
    for slot in dict.fromkeys((*book.slots, *book.instances)):
        one = book.instances.get(slot)
        if one is not None and one.state is InstanceState.UP:
            continue
        if one is not None and one.state is InstanceState.DRAINING:
            context.override_drains.setdefault(slot, _drain(one.why))
            continue
        context.absent.add(slot)
        if context.node(slot) is None:
            continue
        if one is None:
            context.override_drains[slot] = _NOTHING_THERE
        else:
            creating = one.state is InstanceState.CREATING
            context.override_drains[slot] = _COMING if creating else _GOING
