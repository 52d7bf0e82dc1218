"""Formats amounts, names, shapes and evictions for people."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from reconciler.model.observed.devices import INNER_WORDS
from reconciler.model.state import pending_reasons
from reconciler.model.values import quantities, times
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.inputs.snapshots import Vector
from reconciler.scheduling.nodes.requirements import needs_inner
from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import victims
from reconciler.scheduling.quota import quota_ledger

#: Texts of amounts that are remembered: the same ones are told of many shapes, in each cycle.
TEXTS_MAX = 8192
_NOUNS = ("CPUs", "memory", "GPUs")
_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)


@lru_cache(maxsize=TEXTS_MAX)
def amount_text(resource: int, amount: int) -> str:
    """Format an amount with its unit: ``8 GPUs``, ``1 CPU``, ``500m CPUs``, ``16Gi memory``."""
    noun = _NOUNS[resource]
    if resource != 1 and amount == 1000:
        noun = noun.removesuffix("s")
    return f"{_FORMATS[resource](amount)} {noun}"


def verb(resource: int, amount: int) -> str:
    """Return ``is`` or ``are`` for the text of an amount: 1 GPU is, 8 GPUs are, 16Gi memory is."""
    return "is" if resource % flavors.BASE == 1 or amount == 1000 else "are"


def quota_text(
    situation: snapshots.Snapshot, resource: int, amount: int, *, of: bool = True
) -> str:
    """Format an amount of a queue's resource: ``8 GPUs``, or ``8 GPUs in pool a100``.

    ``of``: with the pool.
    """
    text, pool = amount_text(resource % flavors.BASE, amount), flavors.pool_of(resource)
    if pool < 0 or situation.pools is None or not of:
        return text
    return f"{text} in pool {situation.pools.names[pool]}"


@lru_cache(maxsize=TEXTS_MAX)
def vector_text(amounts: Vector) -> str:
    """Format a request, GPUs first."""
    parts = [amount_text(r, amounts[r]) for r in (quota_ledger.GPU, 0, 1) if amounts[r]]
    return ", ".join(parts) or "nothing"


def leaving(situation: snapshots.Snapshot, names: Sequence[str]) -> str:
    """Format what must leave, with its verb: ``a has``, ``b[0] has``, ``3 tasks of a have``.

    Elements of jobs that are no arrays go by the job's name alone.

    ``names``: of units, or of elements; of these possibly only some tasks were told to leave.
    """
    if not names:
        return "work that is stopping has"
    counts: Counter[str] = Counter()
    for name in names:
        element, single, _ = name.partition(victims.TASK)
        counts[element] += 1 if single else _leaving_of(situation, element)
    arrays = {holding.job for holding in situation.holdings if holding.of_array}
    parts = []
    for element, count in counts.items():
        job = element.partition("[")[0]
        name = element if job in arrays else job
        parts.append(f"{count} task{'s' if count > 1 else ''} of {name}" if count else name)
    verb = "has" if [*counts.values()] in ([0], [1]) else "have"
    return f"{pending_reasons.names_text(tuple(parts))} {verb}"


def _leaving_of(situation: snapshots.Snapshot, element: str) -> int:
    """Return the number of tasks that leave an element that goes on; 0: it leaves as a whole."""
    running, found = situation.running, 0
    for row in np.flatnonzero(running.leaving & running.elastic).tolist():
        holding = situation.holdings[row]
        if f"{holding.job}[{holding.element}]" == element:
            same = (running.order == holding.order) & (running.element == holding.element)
            found += len(holding.tasks) if (same & ~running.leaving).any() else 0
    return found


def reserved_from(at: float | None) -> str:
    """Format the start of a reservation."""
    return (
        ""
        if at is None
        else f"; room is reserved for it from {times.format_time(at)} at the latest"
    )


def advice_text(waits: Sequence[str], changes: Sequence[str]) -> str:
    """Return advice in the imperative: ``wait until A, or until B, or raise C``."""
    until = [f"wait until {', or until '.join(waits)}"] if waits else []
    return ", or ".join([*until, *changes])


def task_text(
    situation: snapshots.Snapshot, group: snapshots.TaskGroupShape, count: int = 1
) -> str:
    """Format the request of some tasks of a group: as requested, not as charged.

    ``8 GPUs, 16 CPUs``; ``3 1g.10gb instances, 1 CPU``; ``12Gi of one GPU``.
    """
    cpu, memory, gpu = (amount * count for amount in group.amounts)
    devices = group.devices * count
    if group.profile >= 0:
        several = "s" if devices != 1 else ""
        first = f"{devices} {situation.profiles[group.profile]} instance{several}"
    elif group.share_bytes:
        each = quantities.format_memory(group.share_bytes)
        first = f"{each} of {'one GPU' if devices == 1 else f'each of {devices} GPUs'}"
    elif needs_inner(group) and not group.inner_preferred:
        each = "" if count == 1 else f", {group.devices} each"
        first = f"{devices} GPUs{each} of one {INNER_WORDS[group.inner]}"
    else:
        return vector_text((cpu, memory, gpu))
    return f"{first}, {vector_text((cpu, memory, 0))}" if cpu or memory else first


def freed_text(situation: snapshots.Snapshot, group: snapshots.TaskGroupShape) -> str:
    """Format what must come free for one task: ``0.6 of one GPU, 2 CPUs`` for a share.

    A share is of one device: the same amount over several does not help.
    """
    shares = group.devices > 0 and group.share < snapshots.WHOLE
    if not shares or group.share_bytes or group.profile >= 0:
        return task_text(situation, group)
    which = "one GPU" if group.devices == 1 else f"each of {group.devices} GPUs"
    first = f"{quantities.format_gpu(group.share)} of {which}"
    cpu, memory, _ = group.amounts
    return f"{first}, {vector_text((cpu, memory, 0))}" if cpu or memory else first


def shape_text(situation: snapshots.Snapshot, shape: snapshots.Shape) -> str:
    """Format the request of one element: ``4 tasks of 8 GPUs, 16 CPUs``."""
    return " and ".join(
        task_text(situation, group)
        if group.least == 1 and len(shape.groups) == 1
        else f"{group.least} task{'s' if group.least > 1 else ''} of {task_text(situation, group)}"
        + (f", {group.per_node} on each node" if group.per_node else "")
        for group in shape.groups
    )


def moved(situation: snapshots.Snapshot, job: str, tasks: tuple[TaskPlacement, ...]) -> str:
    """Return why an element moves, and where to."""
    nodes = tuple(dict.fromkeys(situation.nodes.names[task.node] for task in tasks))
    return f"moves to {pending_reasons.names_text(nodes)} so that {job} fits"


def evicted(
    situation: snapshots.Snapshot,
    ledger: quota_ledger.QuotaLedger,
    ask: request.PlacementRequest,
    unit: victims.Victim,
    ground: str,
) -> str:
    """Return for whom a victim leaves, and on what ground."""
    names = situation.queues.names
    taker, loser = names[ask.queue], names[unit.holding.queue]
    if unit.holding.queue == ask.queue:
        return (
            f"{ask.job} has priority {ask.line.priority} in queue {taker}, "
            f"above {unit.holding.priority}"
        )
    verb = "takes back" if ground == "reclaim" else "takes"
    above = _above(situation, ledger, ask, unit)
    return f"queue {taker} {verb} its share for {ask.job}; {above or f'queue {loser} gives way'}"


def _above(
    situation: snapshots.Snapshot,
    ledger: quota_ledger.QuotaLedger,
    ask: request.PlacementRequest,
    unit: victims.Victim,
) -> str:
    """Return the queue that had more than its share before a victim was told to leave, with
    amounts.
    """
    members = [m for m in ledger.paths[unit.holding.queue] if m not in ledger.paths[ask.queue]]
    counts = ledger.concerned(ask.amounts)
    for bounds, what in (
        (ledger.fair, "its fair share of {}"),
        (ledger.guaranteed, "the {} it is guaranteed"),
    ):
        for member in members:
            for resource in (quota_ledger.GPU, 0, 1, *reversed(counts[flavors.BASE :])):
                bound = bounds[member][resource]
                used = ledger.used(member, resource) + unit.total[resource]
                if ledger.rationed[member][resource] and used > bound:
                    name = situation.queues.names[member]
                    most = what.format(quota_text(situation, resource, bound))
                    return f"queue {name} has more than {most}"
    return ""


def together(situation: snapshots.Snapshot, group: snapshots.TaskGroupShape) -> str:
    """Format ``10 GPUs, 5 CPUs are free for 5 tasks of 2 GPUs, 1 CPU``."""
    several = "s" if group.least > 1 else ""
    tasks = f"{group.least} task{several} of {task_text(situation, group)}"
    return f"{task_text(situation, group, group.least)} are free for {tasks}"


def of_pools(
    situation: snapshots.Snapshot,
    shapes: Sequence[int],
    by_pool: Sequence[tuple[pending_reasons.Reason, ...]],
) -> tuple[pending_reasons.Reason, ...]:
    """Return the reason over the pools in which a job could start, and those that it cannot use.

    ``shapes``, ``by_pool``: its shape and reasons in each pool.
    """
    fitting = pending_reasons.of_fitting_pools(by_pool)
    ways = pending_reasons.of_open_pools(fitting)
    found = dict.fromkeys(reason for each in ways for reason in each)
    ranked = sorted(found, key=lambda reason: pending_reasons.PRECEDENCE[reason.code])
    if len(ways) < len(fitting):
        ranked[0] = and_barred(situation, ranked[0], shapes, by_pool)
    return tuple(ranked)


def and_barred(
    situation: snapshots.Snapshot,
    reason: pending_reasons.Reason,
    shapes: Sequence[int],
    by_pool: Sequence[Sequence[pending_reasons.Reason]],
) -> pending_reasons.Reason:
    """Return a reason with each pool in which a limit can never allow the request.

    Args:
        situation: the snapshot.
        reason: reason in the pools that are open to it.
        shapes, by_pool: shape and reasons in all pools.
    """
    parts = [reason.message]
    for shape, each in zip(shapes, by_pool, strict=True):
        barred = next((limit.message for limit in each if limit.is_barred), "")
        if barred:
            pool = situation.shapes[shape].pool
            pools = situation.pools if pool >= 0 else None
            where = f"pool {pools.names[pool]}" if pools is not None else "other pools"
            more, _, _ = barred.partition(f": {pending_reasons.CAN_NOT_START}")
            parts.append(f"it can't go to {where}: {more}")
    return msgspec.structs.replace(reason, message="; ".join(parts))
