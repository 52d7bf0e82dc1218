"""Checkers of guarantees and limits.

A ``View`` comes in, sentences about violations go out. Only ``reconciler.model`` is imported, so
that a mistake of the scheduler can't be in its checkers too.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from reconciler.model import desired
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.states import JobState
from reconciler.model.values.resources import Resources
from tests.simulation import views
from tests.simulation.invariants import LASTING, WHOLE
from tests.simulation.views import View

#: Reasons for which an owner of a guarantee is not asking at the moment.
_NOT_ASKING = LASTING - {pending_reasons.ReasonCode.WAITING_FOR_QUOTA} | {
    pending_reasons.ReasonCode.BACKING_OFF,
    pending_reasons.ReasonCode.ARRAY_LIMIT,
    pending_reasons.ReasonCode.RESERVED,
}


# -- 3. A guarantee is met when its owner asks and preemptible work could make room


def guarantees(view: View) -> list[str]:
    """Yield owners at rest that wait within their guarantee although capacity is or could be free.

    Only certain violations count: of each queue the first job, if it has one task. Capacity could
    be freed from preemptible work of queues without any guarantee.
    """
    queues = view.structure.queues
    usage = views.usage_by_queue(view)
    pending: defaultdict[str, list[records.JobRecord]] = defaultdict(list)
    for record in view.job_records.values():
        codes = {reason.code for reason in view.why.get(record.reason_key, ())}
        asks = not codes & _NOT_ASKING and not record.spec.suspend
        if record.state is JobState.PENDING and asks:
            pending[record.spec.queue].append(record)
    found = []
    for name, waiting in pending.items():
        if name not in queues or any(queue.suspend for queue in views.path(queues, name)):
            continue
        first = min(waiting, key=lambda record: (-record.spec.priority, record.order))
        asked = first.spec.groups[0].resources
        if first.spec.element_count > 1 or sum(g.least for g in first.spec.groups) > 1:
            continue
        covered = _covered(queues, usage, name, asked)
        node = _could_hold(view, first.spec, asked, covered) if name in covered else ""
        if node:
            found.append(f"{first.name} is within the guarantee of {name} and fits on {node}")
    return found


def _covered(
    queues: Mapping[str, desired.Queue],
    usage: Mapping[str, Resources],
    name: str,
    asked: Resources,
) -> frozenset[str]:
    """Return which of a queue and its ancestors stay within their guarantee; none if a limit is
    passed.
    """
    if not any(queues[name].guaranteed.as_vector()):
        return frozenset()
    found = set()
    for queue in views.path(queues, name):
        after = (usage.get(queue.name, Resources()) + asked).as_vector()
        owed, most = queue.guaranteed.as_vector(), queue.limit.as_vector()
        if any(m is not None and a > m for a, m in zip(after, most, strict=True)):
            return frozenset()
        if (asked.gpu_milli and queue.guaranteed.gpu_milli is None) or (
            queue.guaranteed.cpu_milli is None
        ):
            continue
        if all(o is None or a <= o for a, o in zip(after, owed, strict=True)):
            found.add(queue.name)
    return frozenset(found)


def _could_hold(view: View, spec: desired.Job, asked: Resources, covered: frozenset[str]) -> str:
    """Return a node with capacity once everything left that a guarantee may reclaim.

    A queue above that exceeds its guarantee must not grow by the exchange.
    """
    queues = view.structure.queues
    whole = all(queue.name in covered for queue in views.path(queues, spec.queue))
    pool_of = view.structure.pool_of_node()
    kept = {name for one in view.structure.reservations.values() for name in one.nodes}
    for name, node in view.nodes.items():
        pool = view.structure.pools.get(pool_of.get(name, ""))
        if pool is None or node.state.value != "Ready" or name in kept or spec.exclusive:
            continue
        if (spec.pools and pool.name not in spec.pools) or pool.taints:
            continue
        if views.is_shared_out(view, pool.name) and not _covers_there(view, spec, asked, pool.name):
            continue
        limited = views.in_pool(view, spec.queue, pool.name)
        if any(views.exceeds((used + asked).as_vector(), most, asked) for _, most, used in limited):
            continue
        room, shares, taken = pool.promised(), Counter[int](), Resources()
        for attempt in view.live():
            if attempt.node != name:
                continue
            if _may_be_taken(view, attempt, spec.queue, covered):
                taken += attempt.resources
                continue
            room -= attempt.resources
            for device in attempt.devices:
                shares[device] += attempt.share_milli
        count = pool.node_resources.gpu_milli // WHOLE
        near = max((group.inner_required for group in spec.groups), default="")
        domains = {"numa": pool.numa, "nvlink": pool.nvlink}.get(near) or (range(count),)
        free = max(sum(shares[device] == 0 for device in there) for there in domains)
        part = asked.gpu_milli % WHOLE
        enough = free * WHOLE >= asked.gpu_milli and not part
        if part:
            enough = any(shares[device] + asked.gpu_milli <= WHOLE for device in range(count))
        settled = whole or (spec.preemptible and asked.fits_in(taken))
        if asked.fits_in(room) and enough and settled and not _is_exclusive(view, name):
            return name
    return ""


def _covers_there(view: View, spec: desired.Job, asked: Resources, pool: str) -> bool:
    """Return True if a queue and its ancestors stay within their guarantee in a pool.

    Requested CPUs and GPUs have to be named there. Otherwise nothing is certain.
    """
    usage = views.usage_by_queue(view, pool=pool)
    for queue in views.path(view.structure.queues, spec.queue):
        owed = views.guaranteed_in(queue, pool)
        after = usage.get(queue.name, Resources()) + asked
        named = owed.cpu_milli is not None and (not asked.gpu_milli or owed.gpu_milli is not None)
        if not named or views.exceeds(after.as_vector(), owed, asked):
            return False
    return True


def _is_exclusive(view: View, node: str) -> bool:
    return any(a.node == node and view.job_records[a.job].spec.exclusive for a in view.live())


def _may_be_taken(
    view: View, attempt: records.AttemptRecord, taker: str, covered: frozenset[str]
) -> bool:
    """Return True if a guarantee may reclaim this work, by the point at which the two branches
    part.
    """
    queues = view.structure.queues
    spec = view.job_records[attempt.job].spec
    losing, taking = list(views.path(queues, spec.queue)), list(views.path(queues, taker))
    owed = any(any(queue.guaranteed.as_vector()) for queue in losing if queue not in taking)
    protected = view.structure.settings.scheduling.min_runtime_s
    if any(queue.min_runtime_s for queue in losing) or protected:
        return False
    if not spec.preemptible or spec.queue not in queues or owed:
        return False
    branch = [queue for queue in taking if queue not in losing]
    return bool(branch) and all(queue.name in covered for queue in branch)


# -- 4. A limit or quota is never exceeded by a new start


def limits(view: View) -> list[str]:
    """Yield starts beyond queue limits, quotas, or guarantees of non-preemptible work."""
    if not view.started:
        return []
    queues = view.structure.queues
    usage, firm = views.usage_by_queue(view), views.usage_by_queue(view, firm=True)
    found: dict[str, None] = {}
    for name in sorted(view.started):
        attempt = view.attempts.get(name)
        if attempt is None:
            continue
        spec = view.job_records[attempt.job].spec
        for queue in views.path(queues, spec.queue):
            bounds = [("limit", queue.limit, usage)]
            if not spec.preemptible:
                bounds.append(("guarantee of firm work", queue.guaranteed, firm))
            for what, most, used in bounds:
                amounts = used[queue.name].as_vector()
                text = f"{attempt.job} starts and {queue.name} has {amounts}, {what} {most}"
                if views.exceeds(amounts, most, attempt.resources):
                    found[text] = None
        found |= dict.fromkeys(_beyond_pool(view, attempt))
        for quota in view.structure.quotas.values():
            if not _holds_for(view, quota, spec):
                continue
            held = [a for a in view.live() if _holds_for(view, quota, view.job_records[a.job].spec)]
            amounts = views.total(held).as_vector()
            count = len({a.job for a in held})
            if views.exceeds(amounts, quota.resources, attempt.resources):
                found[f"{attempt.job} starts and quota {quota.name} has {amounts} in use"] = None
            if quota.running is not None and count > quota.running and _is_first(view, attempt):
                found[f"{attempt.job} starts as one of {count} under quota {quota.name}"] = None
    return list(found)


def _beyond_pool(view: View, attempt: records.AttemptRecord) -> list[str]:
    """Yield amounts of a pool that a start has exceeded."""
    pool_of, spec = view.structure.pool_of_node(), view.job_records[attempt.job].spec
    pool = pool_of.get(attempt.node, "")
    found = [
        f"{attempt.job} starts in {pool} and {whose} has {used} there, at most {most}"
        for whose, most, used in views.in_pool(view, spec.queue, pool)
        if views.exceeds(used.as_vector(), most, attempt.resources)
    ]
    if spec.preemptible or not views.is_shared_out(view, pool):
        return found
    firm = views.usage_by_queue(view, firm=True, pool=pool)
    for queue in views.path(view.structure.queues, spec.queue):
        owed = views.guaranteed_in(queue, pool).gpu_milli or 0
        amounts = firm.get(queue.name, Resources())
        if views.exceeds(
            amounts.as_vector(), desired.QuotaAmounts(gpu_milli=owed), attempt.resources
        ):
            found.append(f"{attempt.job} starts firm in {pool}, {queue.name} has {amounts} there")
    return found


def _is_first(view: View, attempt: records.AttemptRecord) -> bool:
    return all(a.id in view.started for a in view.live() if a.job == attempt.job)


def _holds_for(view: View, quota: desired.Quota, spec: desired.Job) -> bool:
    if quota.user:
        return quota.user == spec.owner
    return any(queue.name == quota.queue for queue in views.path(view.structure.queues, spec.queue))
