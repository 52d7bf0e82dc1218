"""How many nodes each pool is to have: more while work waits for them, fewer when nothing runs.

Pending work with its reasons, and the instances of pools, come in; nodes to make, and idle ones to
drain, go out into the books of ``provisioning``. Nodes are made only for work that would start on
them (``probing``): never for what is held, over a limit, or could not fit. It grows at once, or
after ``delay``, and shrinks late: an idle node leaves after ``idle``, not within ``cooldown`` of
the pool's last change, not while work waits that the pool is growing for.
"""

from collections.abc import Mapping

import msgspec

from reconciler.core import cycle_context
from reconciler.core.pools import pool_state, provisioning, scale_up
from reconciler.model.state import scheduler_state
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.values import quantities, times

#: What waits for one of these may be helped by more nodes.
ROOM = frozenset(
    {
        ReasonCode.NEVER_FITS,
        ReasonCode.NO_TOPOLOGY_DOMAIN,
        ReasonCode.FRAGMENTED,
        ReasonCode.INSUFFICIENT_RESOURCES,
        ReasonCode.RESERVED,
        ReasonCode.BEHIND,
    }
)
#: What would start is asked no more often than this, however often work comes and goes.
PROBE_EVERY_S = 5.0


def decide(
    context: cycle_context.CycleContext,
    states: provisioning.PoolStates,
    before: scheduler_state.Recollection,
    *,
    scheduled: bool,
) -> scheduler_state.Recollection:
    """Let pools grow and shrink; what is to be remembered of it.

    Args:
        work: after placing.
        before: what is remembered besides.
        scheduled: whether a schedule was made in this cycle, so that pending work may be other.
    """
    books = {name: book for name, book in states.items() if book.pool is not None}
    if not books:
        return _with(before, _NOTHING)
    growing = before.growing
    changed = scheduled or any(book.record() is not book.base for book in books.values())
    if changed:
        growing = msgspec.structs.replace(growing, due_at=context.now)
    if growing.due_at is not None:
        growing = _grow(context, books, growing)
    waiting = {
        job: pool
        for job, pool in growing.helped.items()
        if pool in books and _reason(context, job) is not None
    }
    if changed or waiting != before.growing.helped:
        for job, pool in waiting.items():
            _tell(context, job, books[pool])
    for book in books.values():
        _shrink(book, frozenset(waiting.values()), before)
    return _with(before, msgspec.structs.replace(growing, helped=waiting))


_NOTHING = scheduler_state.Growing()


def _with(
    of: scheduler_state.Recollection, growing: scheduler_state.Growing
) -> scheduler_state.Recollection:
    return of if growing == of.growing else msgspec.structs.replace(of, growing=growing)


# --- more nodes -----------------------------------------------------------------------------


def _grow(
    context: cycle_context.CycleContext,
    books: Mapping[str, pool_state.PoolState],
    before: scheduler_state.Growing,
) -> scheduler_state.Growing:
    """Make the nodes on which what waits would start, if it is time to ask."""
    waits = _candidates(context)
    able = [book for book in books.values() if book.is_known and _coming_or_free(book)]
    if not waits or not able or context.desired.structure.settings.suspend:
        return scheduler_state.Growing(probed_at=before.probed_at)
    next_at = 0.0
    if before.probed_at <= context.now:  # unless the clock was set back
        next_at = max(before.due_at or 0.0, before.probed_at + PROBE_EVERY_S)
    if next_at > context.now:
        context.wake(next_at)
        return msgspec.structs.replace(before, due_at=next_at)
    moments: list[float] = []
    helped: dict[str, str] = {}
    for delay_s in sorted({book.asked.delay_s for book in able}):
        moments += [since + delay_s for since in waits.values() if since + delay_s > context.now]
        jobs = [
            name
            for name, since in waits.items()
            if since + delay_s <= context.now and name not in helped
        ]
        if jobs:
            some = [book for book in able if book.asked.delay_s <= delay_s]
            helped |= _probe(context, jobs, some)
    moments += [
        book.retry_at
        for book in able
        if book.retry_at > context.now and book.name in helped.values()
    ]
    due_at = min(moments, default=None)
    if due_at is not None:
        context.wake(due_at)
    return scheduler_state.Growing(probed_at=context.now, due_at=due_at, helped=helped)


def _coming_or_free(book: pool_state.PoolState) -> bool:
    return bool(book.free()) or any(
        one.state is InstanceState.CREATING for one in book.instances.values()
    )


def _probe(
    context: cycle_context.CycleContext, jobs: list[str], books: list[pool_state.PoolState]
) -> dict[str, str]:
    coming = [
        one.node
        for book in books
        for one in book.instances.values()
        if one.state is InstanceState.CREATING and one.node in book.slots
    ]
    possible = [slot for book in books for slot in _free(book)]
    found = scale_up.probe(context, jobs, coming, possible)
    for book in books:
        if not provisioning.may_create(book):
            continue
        names = [job for job, pool in found.jobs.items() if pool == book.name]
        for slot in found.nodes:
            if slot in book.slots:
                book.create(slot, _for_whom(names))
    return found.jobs


def _free(book: pool_state.PoolState) -> list[str]:
    """Slots in which nodes may be made."""
    room = max(0, book.asked.maximum - len(book.instances))
    return book.free()[: min(room, scale_up.NODES_MAX)]


def _for_whom(jobs: list[str]) -> str:
    more = f" and {len(jobs) - 3} others" if len(jobs) > 3 else ""
    return f"for {', '.join(jobs[:3])}{more}" if jobs else "for what waits"


def _candidates(context: cycle_context.CycleContext) -> dict[str, float]:
    """Jobs that wait for room, those that go first in front, and since when each waits."""
    found = []
    for name in context.waiting_names():
        if _reason(context, name) is not None:
            record = (
                context.drafts[name].record()
                if name in context.drafts
                else context.observed.jobs[name]
            )
            found.append((-record.spec.priority, record.order, name, record.submitted_at))
    found.sort()
    return {name: since for _, _, name, since in found[: scale_up.JOBS_MAX]}


def _reason(context: cycle_context.CycleContext, job: str) -> Reason | None:
    """Why a job waits, where that is for want of room."""
    reasons = _reasons(context, job)[1]
    return reasons[0] if reasons and reasons[0].code in ROOM else None


def _reasons(context: cycle_context.CycleContext, job: str) -> tuple[str, tuple[Reason, ...]]:
    key = context.reason_key(job)
    if not key:
        return "", ()
    found = context.reasons.get(key)
    return key, context.observed.reasons.get(key, ()) if found is None else found


def _tell(context: cycle_context.CycleContext, job: str, book: pool_state.PoolState) -> None:
    """Say of a job what is done so that it can start; the same for all that wait alike."""
    key, reasons = _reasons(context, job)
    draft = context.draft(job)
    if draft is None or not reasons:
        return
    mark = f"+{book.name}"
    told = key if key.endswith(mark) else key + mark
    draft.reason_key = told
    why = reasons[0]
    message = why.message if why.code is not ReasonCode.NEVER_FITS else "no node has room for it"
    renewed = (Reason(ReasonCode.INSUFFICIENT_RESOURCES, message, why.funnel, _unblocks(book)),)
    if context.observed.reasons.get(told) == renewed:
        context.reasons.pop(told, None)
    else:
        context.reasons[told] = renewed


def _unblocks(book: pool_state.PoolState) -> str:
    count = sum(one.state is InstanceState.CREATING for one in book.instances.values())
    if count:
        nodes = "a node of pool {} is" if count == 1 else "{1} nodes of pool {0} are"
        return nodes.format(book.name, count) + " being created"
    if book.retry_at > book.context.now:
        again = times.format_time(book.retry_at)
        return f"pool {book.name} makes a node for it from {again} on; {book.failure}"
    return f"a node of pool {book.name} that is made for it"


# --- fewer nodes ----------------------------------------------------------------------------


def _shrink(
    book: pool_state.PoolState, wanted: frozenset[str], before: scheduler_state.Recollection
) -> None:
    """Have nodes leave on which nothing ran for long, as far as the least allows."""
    context, asked = book.context, book.asked
    spare = book.present - asked.minimum
    if spare <= 0 or book.name in wanted or context.desired.structure.settings.suspend:
        return
    kept = {name for room in before.kept for name in room.nodes}
    due: list[tuple[float, int, str]] = []
    for one in book.instances.values():
        if one.state is not InstanceState.UP or one.idle_since is None:
            continue
        if one.node in kept or not _is_idle(book, one.node):
            continue
        leaves_at = max(one.idle_since + asked.idle_s, book.changed_at + asked.cooldown_s)
        if leaves_at > context.now:
            context.wake(leaves_at)
        elif one.node in book.slots:
            due.append((one.idle_since, -book.slots.index(one.node), one.node))
    for _, _, name in sorted(due)[:spare]:
        why = f"nothing ran there for {quantities.format_duration(asked.idle_s)}"
        book.move(book.instances[name], InstanceState.DRAINING, why)
        book.changed_at = context.now
        context.wake(context.now)


def _is_idle(book: pool_state.PoolState, node: str) -> bool:
    """Whether nothing is there, and nobody has taken the node out of service to look at it."""
    if book.context.attempts_of_node(node):
        return False
    by_git = book.pool.drains if book.pool is not None else {}
    return node not in by_git and node not in book.context.override_drains
