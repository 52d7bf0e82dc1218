"""Views of quotas: what the core counts for each, as JSON shows it.

The structure in force and active work come in; for each quota its caps, usage and the next end go
out. The arithmetic is the core's own (``reconciler.core.quota``), so that what is shown decides the
next start.
"""

import math

from reconciler.core.quota import quota_accounts, quota_usage
from reconciler.model import desired
from reconciler.model.rules import quota_limits
from reconciler.model.state import records
from reconciler.model.values.resources import Resources
from reconciler.operations.views import job_views, json_format, view_types


class BudgetView(json_format.View, frozen=True):
    """A budget in GPU-hours: spent within the window, and reserved for running work.

    ``returns`` is when the first of it comes back at the latest: from spending that leaves the
    window, or from running work with a time limit; null if unknown. ``onExhausted``: running work
    continues (``wait``) or ends (``end``).
    """

    gpu_hours: float
    spent_gpu_hours: float
    reserved_gpu_hours: float
    window_s: int
    on_exhausted: str
    returns: str | None


class EndsView(json_format.View, frozen=True):
    """The latest time at which the first holder of each resource ends, by time limits. It is null
    if it is unknown.

    ``running`` is about whole jobs, whatever they hold.
    """

    cpu: str | None
    memory: str | None
    gpu: str | None
    running: str | None


class QuotaView(json_format.View, frozen=True):
    """A quota and what counts for it. One of ``user``, ``group``, ``queue`` and ``pool`` is set.

    ``used`` is the total, ``limit`` null if it caps nothing; ``running`` are jobs that hold
    something, null for a pool.
    """

    name: str
    user: str | None
    group: str | None
    queue: str | None
    pool: str | None
    used: view_types.AmountsView
    limit: view_types.AmountsView
    running: int | None
    running_max: int | None
    pending_max: int | None
    first_ends: EndsView
    budget: BudgetView | None


NOBODY_KNOWS = EndsView(None, None, None, None)


def quota_views(
    structure: desired.Structure, observed: records.Observed, now: float
) -> list[QuotaView]:
    """Return all quotas by name.

    Args:
        structure: in force.
        observed: active attempts, their jobs, and remembered usage.
        now: seconds since the epoch.
    """
    if not structure.quotas:
        return []
    accounts = quota_usage.accounts_of_records(structure, observed, now)
    found = [
        _of_pool(one.quota, structure, observed) if one.quota.pool else _of(one, accounts)
        for one in accounts.all
    ]
    return sorted(found, key=lambda one: one.name)


def _of(account: quota_accounts.QuotaAccount, accounts: quota_usage.QuotaAccounts) -> QuotaView:
    return _view(
        account.quota,
        account.used,
        running=len(account.jobs),
        ends=_first_ends(account),
        budget=_budget(account, accounts),
    )


def _first_ends(account: quota_accounts.QuotaAccount) -> EndsView:
    """Return the first end of an element for each resource, and the first end of a job."""
    ends = [
        min((end for end, part, *_ in account.parts if part[index]), default=math.inf)
        for index in range(3)
    ]
    ends.append(min(map(account.job_end, account.jobs), default=math.inf))
    return EndsView(*(json_format.time_or_none(at) if at < math.inf else None for at in ends))


def _of_pool(
    quota: desired.Quota, structure: desired.Structure, observed: records.Observed
) -> QuotaView:
    """Return the usage of a pool's quota, which counts everything on its nodes."""
    pool = structure.pools.get(quota.pool)
    nodes = frozenset(pool.nodes if pool is not None else ())
    used = sum(
        (
            one.resources
            for one in observed.attempts.values()
            if one.ended_at is None and one.node in nodes
        ),
        start=Resources(),
    )
    return _view(quota, list(used.as_vector()))


def _view(
    quota: desired.Quota,
    used: list[int],
    *,
    running: int | None = None,
    ends: EndsView = NOBODY_KNOWS,
    budget: BudgetView | None = None,
) -> QuotaView:
    return QuotaView(
        name=quota.name,
        user=quota.user or None,
        group=quota.group or None,
        queue=quota.queue or None,
        pool=quota.pool or None,
        used=job_views.vector(used),
        limit=job_views.vector(quota.resources.as_vector()),
        running=running,
        running_max=quota.running,
        pending_max=quota.pending,
        first_ends=ends,
        budget=budget,
    )


def _budget(
    account: quota_accounts.QuotaAccount, accounts: quota_usage.QuotaAccounts
) -> BudgetView | None:
    quota = account.quota
    if quota.budget_gpu_s is None:
        return None
    first = next((at for at, _ in accounts.returns(account)), None)
    return BudgetView(
        gpu_hours=_hours(quota.budget_gpu_s),
        spent_gpu_hours=_hours(account.spent_gpu_s),
        reserved_gpu_hours=_hours(account.reserved_gpu_s),
        window_s=quota.window_s,
        on_exhausted="end" if quota.ends else "wait",
        returns=json_format.time_or_none(first),
    )


def _hours(gpu_s: float) -> float:
    """Return GPU-hours, rounded as on other pages."""
    return round(gpu_s / quota_limits.HOUR_S, 4)
