"""The instances behind the slots of provisioned pools.

Scripts' results and nodes' reports come in; instances change state and orders open, as the tables
of ``model.state.instance_records`` allow. An instance is made once: its request is recorded before
any script runs, until a script confirms that the machine is gone. ``autoscaling`` decides how many.
"""

import msgspec

from reconciler.core import cycle_attempts, cycle_context
from reconciler.core.cycle import cycle_nodes
from reconciler.core.nodes import health, mismatches
from reconciler.core.pools import pool_state
from reconciler.model import desired
from reconciler.model.state import instance_records, outcome, records
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.states import NodeState
from reconciler.model.values import quantities

#: How often a pool's instances are listed.
LIST_EVERY_S = 300.0
#: So many lists in a row have to agree that a machine is an orphan, or gone.
LISTS_MIN = 2
#: The most orphans of a pool that are handled at once.
ORPHANS_MAX = 1000
#: How long it is remembered that a slot was emptied, in multiples of a node's allowed silence.
FREED_SILENCES = 10
#: The most differences of a machine that a message names.
_LACKS_SHOWN = 3
#: Owner of the drains of nodes that leave their pool.
OWNER = "provisioner"

#: States of provisioned pools, by name.
PoolStates = dict[str, pool_state.PoolState]


def apply(context: cycle_context.CycleContext, structure: desired.Structure) -> PoolStates:
    """Apply the scripts' results, advance every instance, and mark nodes without a machine.

    Returns:
        The state of each provisioned pool, by name. Later phases of the cycle change it.
    """
    states: PoolStates = {}
    known = context.observed.provisions
    pools, settings = structure.pools, structure.settings
    scaled = {name for name, pool in pools.items() if pool.provisioning is not None}
    for name in sorted(scaled | known.keys()):
        pool = pools.get(name) if name in scaled else None
        base = known.get(name)
        if base is None:
            if pool is None or pool.provisioning is None:
                continue
            base = instance_records.Provision(name, pool.provisioning)
        states[name] = pool_state.PoolState(
            base,
            pool,
            suspended=settings.suspend,
            now=context.now,
            events=context.events,
            alarm=context.alarm,
            actions=context.actions,
        )
    for result in context.observed.provisioned:
        pool_record = states.get(result.pool)
        if pool_record is not None:
            _take(pool_record, result)
    for pool_record in states.values():
        _progress(pool_record, context.nodes, context.attempts, settings.node_silence_s)
        context.absent.update(_mark(pool_record, context.nodes, context.override_drains))
    return states


def replace(states: PoolStates, node: str, why: str, drains: dict[str, desired.NodeDrain]) -> str:
    """Replace the machine behind a node, once nothing runs there.

    Args:
        states: of provisioned pools.
        node: the node.
        why: the reason.
        drains: by node. That of this node is added.

    Returns:
        Why that is not possible; empty if it has begun now or before.
    """
    for pool_record in states.values():
        one = pool_record.instances.get(node)
        if one is None:
            continue
        if one.state is InstanceState.UP:
            pool_record.move(one, InstanceState.DRAINING, f"it is replaced: {why}")
            drains.setdefault(node, _drain(pool_record.instances[node].why))
            pool_record.alarm.wake(pool_record.now)
        return ""
    return f"{node} is in no pool whose nodes are made by a provisioner"


# --- results of scripts ---------------------------------------------------------------------


def _take(pool_record: pool_state.PoolState, result: instance_records.OrderResult) -> None:
    if result.verb == "list":
        if pool_record.list_open and result.number == pool_record.list_tries:
            _listed(pool_record, result)
        return
    for orphan in pool_record.orphans.values():
        if orphan.request == result.request and orphan.open and orphan.tries == result.number:
            _orphan_told(pool_record, orphan, result)
            return
    for one in pool_record.instances.values():
        if one.request == result.request:
            _told(pool_record, one, result)
            return


def _told(
    pool_record: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    result: instance_records.OrderResult,
) -> None:
    creating = one.state is InstanceState.CREATING
    if result.verb == "create" and not creating:
        if not one.id and result.id:
            pool_record.put(
                one, id=result.id
            )  # given up meanwhile: with its id it can be destroyed
        return
    if not one.open or one.tries != result.number or creating != (result.verb == "create"):
        return
    if not result.failure:
        if creating:
            pool_record.put(one, open=False, id=result.id or one.request, failure="")
        else:
            pool_record.empty(one)
        return
    message = f"{result.verb} of {one.request} failed: {result.failure}"
    pool_record.events.add("ProvisionerFailed", message, node=one.node)
    if creating and one.tries > pool_record.asked.retries:
        pool_record.failed(message)
        pool_record.begin(pool_record.move(one, InstanceState.DESTROYING, message))
        return
    retry_at = pool_record.now + pool_state.backoff_s(one.tries)
    pool_record.put(one, open=False, failure=result.failure, retry_at=retry_at)


def _orphan_told(
    pool_record: pool_state.PoolState,
    orphan: instance_records.Orphan,
    result: instance_records.OrderResult,
) -> None:
    if not result.failure:
        del pool_record.orphans[orphan.id]
        pool_record.events.add(
            "OrphanDestroyed", f"{orphan.id} of pool {pool_record.name}", node=orphan.node
        )
        return
    pool_record.events.add(
        "ProvisionerFailed", f"{orphan.request}: {result.failure}", node=orphan.node
    )
    pool_record.orphans[orphan.id] = msgspec.structs.replace(
        orphan,
        open=False,
        failure=result.failure,
        retry_at=pool_record.now + pool_state.backoff_s(orphan.tries),
    )


def _listed(pool_record: pool_state.PoolState, result: instance_records.OrderResult) -> None:
    """Compare listed machines with instances."""
    now, first = pool_record.now, pool_record.listed_at == 0
    pool_record.list_open = False
    if result.failure:
        if result.failure != pool_record.list_failure:
            pool_record.events.add(
                "ProvisionerFailed", f"list of {pool_record.name}: {result.failure}"
            )
        pool_record.list_failure = result.failure
        pool_record.list_at = now + pool_state.backoff_s(pool_record.list_tries)
        return
    pool_record.listed_at, pool_record.list_failure, pool_record.list_tries = now, "", 0
    pool_record.list_at = now + LIST_EVERY_S
    by_id = {one.id: one for one in pool_record.instances.values() if one.id}
    by_request = {one.request: one for one in pool_record.instances.values()}
    listed_requests = {found.request for found in result.instances}
    seen: set[str] = set()
    orphans: dict[str, instance_records.Orphan] = {}
    for found in result.instances:
        one = by_id.get(found.id) or by_request.get(found.request)
        if one is None:
            one = pool_record.instances.get(found.node)
            if one is not None and not _may_be(one, found, listed_requests):
                one = None  # another machine with the name of a known one
        if one is not None and one.id in {"", found.id}:
            seen.add(one.node)
            if not one.id and not one.open:
                one = pool_record.put(one, id=found.id)
                by_id[found.id] = one
            if one.made_up and found.request and not one.open:
                pool_record.put(one, request=found.request, made_up=False)
                pool_record.know_request(one.node, found.request)
        elif first and found.node in pool_record.slots and found.node not in pool_record.instances:
            _adopt(pool_record, found)
            seen.add(found.node)
        elif len(orphans) < ORPHANS_MAX:
            before = pool_record.orphans.get(found.id)
            orphans[found.id] = (
                instance_records.Orphan(found.id, found.node, now)
                if before is None
                else msgspec.structs.replace(before, seen=before.seen + 1)
            )
    pool_record.orphans = orphans
    for one in list(pool_record.instances.values()):
        if one.state in {InstanceState.UP, InstanceState.DRAINING}:
            missed = 0 if one.node in seen else one.missed + 1
            pool_record.put(pool_record.instances[one.node], missed=missed)


def _may_be(
    one: instance_records.InstanceRecord, found: instance_records.Listed, listed_requests: set[str]
) -> bool:
    """Return True if a listed machine with another request is an instance by its name.

    If the script lists no request, only the name counts. If it lists another one, the machine is
    the instance only if an agent's report revealed it, because then nobody knew its request.
    """
    if one.id:
        return False
    return not found.request or (one.made_up and one.request not in listed_requests)


def _adopt(pool_record: pool_state.PoolState, found: instance_records.Listed) -> None:
    """Add a listed instance that an earlier controller requested and whose record is lost."""
    pool_record.know_request(found.node, found.request)
    one = instance_records.InstanceRecord(
        found.node,
        InstanceState.CREATING,
        found.request or pool_record.new_request(found.node),
        pool_record.now,
        "it was there",
        id=found.id,
        made_up=not found.request,
    )
    pool_record.instances[found.node] = one
    pool_record.events.add("InstanceAdopted", f"{found.id} exists already", node=found.node)


# --- progress of instances ------------------------------------------------------------------


def _progress(
    pool_record: pool_state.PoolState,
    nodes: cycle_nodes.CycleNodes,
    attempts: cycle_attempts.CycleAttempts,
    silence_s: float,
) -> None:
    settings = pool_record.asked
    slots = frozenset(pool_record.slots)
    for one in list(pool_record.instances.values()):
        if one.state is InstanceState.CREATING:
            _creating(pool_record, one, nodes, stays=one.node in slots)
        elif one.state is InstanceState.UP:
            _up(pool_record, one, nodes, attempts, stays=one.node in slots)
        elif one.state is InstanceState.DRAINING:
            _draining(pool_record, one, nodes, attempts)
        else:
            _destroying(pool_record, one, nodes, silence_s)
    _adopt_reporting(pool_record, nodes, silence_s)
    if pool_record.pool is not None:
        for slot in pool_record.free()[: max(0, settings.minimum - pool_record.present)]:
            if pool_record.may_create():
                least = quantities.counted(settings.minimum, "node")
                pool_record.create(slot, f"the pool has at least {least}")
    if pool_record.scripted and not pool_record.list_open:
        if pool_record.list_at <= pool_record.now:
            pool_record.list_open = True
            pool_record.list_tries += 1
            pool_record.actions.append(
                outcome.RunProvisioner("list", pool_record.name, "list", pool_record.list_tries)
            )
        else:
            pool_record.alarm.wake(pool_record.list_at)
    _progress_orphans(pool_record, nodes, attempts)
    oldest = pool_record.now - FREED_SILENCES * silence_s
    pool_record.freed = {name: at for name, at in pool_record.freed.items() if at > oldest}


def _creating(
    pool_record: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    nodes: cycle_nodes.CycleNodes,
    *,
    stays: bool,
) -> None:
    settings = pool_record.asked
    if not stays:
        pool_record.begin(pool_record.move(one, InstanceState.DESTROYING, "no longer requested"))
        return
    node = nodes.get(one.node)
    if node is not None and node.last_report_at > one.since:
        up = pool_record.move(one, InstanceState.UP, "its agent reports")
        up = pool_record.put(up, idle_since=pool_record.now, failure="")
        _judge(pool_record, up, node.inventory)
        return
    late_at = one.since + settings.create_timeout_s
    if late_at <= pool_record.now:
        why = f"its agent did not report within {settings.create_timeout_s} s"
        if one.failure:
            why += f"; create failed: {one.failure}"
        pool_record.failed(f"{one.request}: {why}")
        pool_record.begin(pool_record.move(one, InstanceState.DESTROYING, why))
        return
    pool_record.alarm.wake(late_at)
    if not one.id:
        pool_record.begin(one)


def _judge(
    pool_record: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    inventory: records.Inventory,
) -> None:
    """Pause the pool if a machine that has joined lacks what the pool declares.

    The next machine would lack it too. This one stays for ``idleTime``, so that somebody can look
    at it, and ends the pause if it gets what it lacks.
    """
    pool = pool_record.pool
    lacks = mismatches.find_mismatches(inventory, pool) if pool is not None else []
    if lacks:
        if not one.failure:
            why = "; ".join(lack.message for lack in lacks[:_LACKS_SHOWN])
            message = f"{one.request} joined without what the pool declares: {why}"
            pool_record.put(one, failure=message)
            pool_record.failed(message, at_once=True)
    else:
        pool_record.put(one, failure="")
        pool_record.failures, pool_record.retry_at, pool_record.failure = 0, 0.0, ""


def _up(
    pool_record: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    nodes: cycle_nodes.CycleNodes,
    attempts: cycle_attempts.CycleAttempts,
    *,
    stays: bool,
) -> None:
    node = nodes.get(one.node)
    silent = node is None or node.state in {NodeState.UNKNOWN, NodeState.GONE}
    if one.missed >= LISTS_MIN and silent:
        pool_record.empty(
            pool_record.put(one, why="its script no longer lists it, and it is silent")
        )
        return
    if one.failure and node is not None:
        _judge(pool_record, one, node.inventory)
        one = pool_record.instances[one.node]
    busy = _has_work(nodes, attempts, one.node)
    if busy is (one.idle_since is not None):
        one = pool_record.put(one, idle_since=None if busy else pool_record.now)
    if not stays:
        pool_record.move(one, InstanceState.DRAINING, "no longer requested")
        pool_record.alarm.wake(pool_record.now)


def _draining(
    pool_record: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    nodes: cycle_nodes.CycleNodes,
    attempts: cycle_attempts.CycleAttempts,
) -> None:
    node = nodes.get(one.node)
    if _has_work(nodes, attempts, one.node):
        return
    if node is None or node.state is not NodeState.READY:  # it gets no new work
        pool_record.begin(pool_record.move(one, InstanceState.DESTROYING, one.why))
        pool_record.alarm.wake(pool_record.now)
    else:
        pool_record.alarm.wake(pool_record.now)


def _has_work(
    nodes: cycle_nodes.CycleNodes,
    attempts: cycle_attempts.CycleAttempts,
    name: str,
) -> bool:
    """Return True if anything runs on a node, or is about to."""
    node = nodes.get(name)
    return bool(attempts.of_node(name)) or (node is not None and bool(node.unwanted))


def _destroying(
    pool_record: pool_state.PoolState,
    one: instance_records.InstanceRecord,
    nodes: cycle_nodes.CycleNodes,
    silence_s: float,
) -> None:
    if pool_record.scripted:
        pool_record.begin(one)
        return
    node = nodes.get(one.node)
    silent_at = 0.0 if node is None else health.last_contact(node) + silence_s
    if silent_at <= pool_record.now:
        pool_record.empty(one)
    else:
        pool_record.alarm.wake(silent_at)


def _adopt_reporting(
    pool_record: pool_state.PoolState,
    nodes: cycle_nodes.CycleNodes,
    silence_s: float,
) -> None:
    """Add instances for nodes that report from slots without one."""
    for slot in pool_record.free():
        node = nodes.get(slot)
        if node is None or node.last_report_at <= pool_record.freed.get(slot, 0.0):
            continue
        if node.last_report_at + silence_s > pool_record.now:
            one = instance_records.InstanceRecord(
                slot,
                InstanceState.UP,
                pool_record.new_request(slot),
                pool_record.now,
                "it was there",
                idle_since=pool_record.now,
                made_up=True,
            )
            pool_record.instances[slot] = one
            pool_record.events.add(
                "InstanceAdopted", "its agent reports, but nobody requested it", node=slot
            )


def _progress_orphans(
    pool_record: pool_state.PoolState,
    nodes: cycle_nodes.CycleNodes,
    attempts: cycle_attempts.CycleAttempts,
) -> None:
    if pool_record.asked.orphans != "destroy" or pool_record.suspended:
        return
    for orphan in list(pool_record.orphans.values()):
        if orphan.open or orphan.seen < LISTS_MIN:
            continue
        if orphan.node and _has_work(nodes, attempts, orphan.node):
            continue  # if it is the machine of that node after all, its work would end
        if orphan.retry_at > pool_record.now:
            pool_record.alarm.wake(orphan.retry_at)
            continue
        tries = orphan.tries + 1
        pool_record.orphans[orphan.id] = msgspec.structs.replace(orphan, open=True, tries=tries)
        pool_record.actions.append(
            outcome.RunProvisioner("destroy", pool_record.name, orphan.request, tries)
        )


# --- nodes ----------------------------------------------------------------------------------


def _drain(why: str, *, gone: bool = False) -> desired.NodeDrain:
    return desired.NodeDrain(why, OWNER, gone=gone)


_NOTHING_THERE = _drain("no machine is behind it", gone=True)
_COMING = _drain("its machine is being created", gone=True)
_GOING = _drain("its machine is being destroyed", gone=True)


def _mark(
    pool_record: pool_state.PoolState,
    nodes: cycle_nodes.CycleNodes,
    drains: dict[str, desired.NodeDrain],
) -> set[str]:
    """Drain nodes that leave. Return the slots without a machine."""
    absent: set[str] = set()
    for slot in dict.fromkeys((*pool_record.slots, *pool_record.instances)):
        one = pool_record.instances.get(slot)
        if one is not None and one.state is InstanceState.UP:
            continue
        if one is not None and one.state is InstanceState.DRAINING:
            drains.setdefault(slot, _drain(one.why))
            continue
        absent.add(slot)
        if nodes.get(slot) is None:
            continue
        if one is None:
            drains[slot] = _NOTHING_THERE
        else:
            creating = one.state is InstanceState.CREATING
            drains[slot] = _COMING if creating else _GOING
    return absent
