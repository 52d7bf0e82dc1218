"""The account of one quota: what counts for it, and the reason of a job that it refuses.

The reason has the arithmetic, and when time limits say that there is enough. ``quota_usage``
decides who is refused.
"""

import bisect
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from reconciler.core.jobs import run_times
from reconciler.model import desired
from reconciler.model.rules.quota_limits import (
    amount_of,
    charged_for,
    hours_of,
    hours_text,
    reserved_s,
    whom_of,
)
from reconciler.model.state.pending_reasons import Reason, ReasonCode, WaitsFor
from reconciler.model.values import quantities, times
from reconciler.scheduling.queues import job_order

#: Text for amounts admitted before in this cycle.
LEFT_BEFORE = "left to work before it"
#: How a person lets a job pass others of theirs that wait for room.
PASSES = "hold the waiting work before it, "
#: ``job_order.WAIT_MAX_S`` as text.
WAIT_MAX_TEXT = f"{job_order.WAIT_MAX_S / 86_400:g} days"


@dataclass(frozen=True)
class Kept:
    """A job that has waited so long that capacity is kept for it, and until when at most."""

    job: str
    until: float


@dataclass
class QuotaAccount:
    """The usage that counts for one quota.

    Attributes:
        used: amounts in use, with what was admitted in this cycle.
        let: the admitted part of it.
        jobs: jobs that hold something.
        considered: jobs that were admitted, or refused only by capacity.
        spent_gpu_s: settled within the window.
        reserved_gpu_s: reserved for what runs and what was admitted.
        let_gpu_s: the admitted part of it.
        running_gpu_s: used so far by what runs.
        gpus: held now.
        ends: by job, when all its time limits are up; infinite if unknown.
        goes_on: jobs of which more waits, so that they hold something after that.
        first_end: the number of jobs it was computed for, and the result.
        has: by job, what of it runs.
        back: by resource, what has come back by each end, in order; computed on demand.
        parts: of each element its end, amounts, used and reserved budget, and grace.
        returned: how much of the budget has come back by each moment, in order; on demand.
        kept: for whom capacity is kept.
    """

    quota: desired.Quota
    used: list[int] = field(default_factory=lambda: [0, 0, 0])
    let: list[int] = field(default_factory=lambda: [0, 0, 0])
    jobs: set[str] = field(default_factory=set)
    considered: int = 0
    spent_gpu_s: float = 0.0
    reserved_gpu_s: float = 0.0
    let_gpu_s: float = 0.0
    running_gpu_s: float = 0.0
    gpus: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)
    goes_on: set[str] = field(default_factory=set)
    first_end: tuple[int, str] = (-1, "")
    has: dict[str, list[int]] = field(default_factory=dict)
    back: dict[int, list[tuple[int, float, str]]] = field(default_factory=dict)
    parts: list[tuple[float, list[int], float, float]] = field(default_factory=list)
    returned: list[tuple[float, float]] | None = None
    kept: Kept | None = None

    def job_end(self, job: str) -> float:
        """Return when a job holds nothing any more at the latest; infinite if unknown."""
        return math.inf if job in self.goes_on else self.ends.get(job, math.inf)


def over_jobs(account: QuotaAccount, spec: desired.Job) -> Reason | None:
    quota = account.quota
    if quota.pending is not None and account.considered > quota.pending:
        jobs = quantities.counted(quota.pending, "job")
        return Reason(
            ReasonCode.OVER_LIMIT,
            f"Quota {quota.name} considers {jobs} of {whom_of(quota)} at a time",
            unblocks="wait for the start of one before it, or raise spec.jobs.pending of Quota "
            f"{quota.name}",
            waits_for=WaitsFor.EARLIER_START,
        )
    return over_running(account, spec)


def over_running(account: QuotaAccount, spec: desired.Job) -> Reason | None:
    quota = account.quota
    many = len(account.jobs) - (spec.name in account.jobs)
    if quota.running is None or many < quota.running:
        return None
    jobs = quantities.counted(quota.running, "job")
    text = f"Quota {quota.name} lets {jobs} of {whom_of(quota)} run at once"
    # nodes may have no capacity for these, so they may stay pending
    ahead = sorted(account.jobs - account.ends.keys() - {spec.name})
    if ahead:
        first = ahead[0] if len(ahead) == 1 else f"{ahead[0]} and {len(ahead) - 1} more"
        verb = "goes" if len(ahead) == 1 else "go"
        runs = "runs" if len(account.ends) == 1 else "run"
        text += f": {len(account.ends)} {runs}, and {first} {verb} first"
    bound = _first_end(account)
    end = f"the end of one of them{bound}"
    if ahead and not account.ends:
        end, bound = f"the start and the end of {ahead[0]}", ""
    return Reason(
        ReasonCode.OVER_LIMIT,
        text,
        unblocks=f"wait for {end}, or raise spec.jobs.running of Quota {quota.name}",
        waits_for=WaitsFor.TIME_LIMIT if bound else None,
    )


def _first_end(account: QuotaAccount) -> str:
    """Return the text until when one job fewer runs at the latest, if time limits say that."""
    many, most = len(account.jobs), account.quota.running or 0
    if account.first_end[0] != many:
        ranked = sorted((account.job_end(job), job) for job in account.jobs)
        end, job = ranked[many - most] if most and many >= most else (math.inf, "")
        text = f" (the time limit of {job} is up at {times.format_time(end)})"
        account.first_end = (many, text if end < math.inf else "")
    return account.first_end[1]


def asked_gpu_s(account: QuotaAccount, spec: desired.Job, each: Sequence[int]) -> float:
    """Return what one start reserves of a budget."""
    return each[2] / 1000 * reserved_s(spec, account.quota)


def left_gpu_s(account: QuotaAccount) -> float:
    """Return what is left of a budget."""
    return (account.quota.budget_gpu_s or 0.0) - account.spent_gpu_s - account.reserved_gpu_s


def back_by(account: QuotaAccount, index: int, lacks: int) -> tuple[float, str]:
    """Return when so much of a resource has come back by time limits, and which job ends then.

    Infinite: unknown.
    """
    if index not in account.back:
        ranked = sorted((end, job) for job, end in account.ends.items() if end < math.inf)
        sums = itertools.accumulate(account.has[job][index] for _, job in ranked)
        account.back[index] = [(all_, *one) for all_, one in zip(sums, ranked, strict=True)]
    back = account.back[index]
    at = bisect.bisect_left(back, lacks, key=operator.itemgetter(0))
    return (math.inf, "") if at == len(back) else back[at][1:]


def _enough_back(account: QuotaAccount, index: int, lacks: int) -> str:
    """Return the text until when enough of a resource has come back, if time limits say that."""
    end, job = back_by(account, index, lacks)
    if end == math.inf:
        return ""
    return (
        f" (the time limit of {job} is up at {times.format_time(end)}, and enough of it is "
        "back by then)"
    )


def over_amount(account: QuotaAccount, index: int, cap: int, amount: int) -> Reason:
    quota, let = account.quota, account.let[index]
    back = _enough_back(account, index, account.used[index] + amount - cap)
    # nodes may have no capacity for that, so it may start now or stay pending
    before = f", {amount_of(index, let)} {LEFT_BEFORE}" if let else ""
    return Reason(
        ReasonCode.OVER_LIMIT,
        f"Quota {quota.name} limits {whom_of(quota)} to {amount_of(index, cap)}: "
        f"{amount_of(index, account.used[index] - let)} in use{before}, "
        f"{amount_of(index, amount)} asked",
        unblocks=f"wait for the end of other work{back}, {PASSES if let else ''}or raise "
        f"spec.resources of Quota {quota.name}",
        waits_for=WaitsFor.TIME_LIMIT if back else None,
    )


def over_budget(account: QuotaAccount, spec: desired.Job, asked_s: float, back: str) -> Reason:
    quota, (shorter, charged) = account.quota, charged_for(spec)
    budget_s, window = quota.budget_gpu_s or 0.0, quantities.format_duration(quota.window_s)
    let_gpu_s = account.let_gpu_s
    before = f", {hours_of(let_gpu_s)} {LEFT_BEFORE}" if let_gpu_s else ""
    reserved_gpu_s = round(account.reserved_gpu_s - let_gpu_s, 6)
    return Reason(
        ReasonCode.OVER_BUDGET,
        f"Quota {quota.name} gives {whom_of(quota)} {hours_text(budget_s)} in {window}: "
        f"{hours_of(account.spent_gpu_s)} spent, {hours_of(reserved_gpu_s)} "
        f"reserved by running work{before}, {hours_of(asked_s)} asked (GPUs times {charged})",
        unblocks=f"{shorter}, wait{back}, or raise spec.budget.gpuHours of Quota {quota.name}",
    )


def kept_from(
    account: QuotaAccount, spec: desired.Job, each: Sequence[int], now: float
) -> Reason | None:
    """Return why a job may not take what is kept for another; None if it may, or ends before."""
    quota, holder = account.quota, account.kept
    if holder is None or holder.job == spec.name:
        return None
    capped = zip(quota.resources.as_vector(), each, strict=True)
    budget = quota.budget_gpu_s is not None and bool(each[2])
    if not budget and not any(cap is not None and more for cap, more in capped):
        return None
    if not budget and now + run_times.limit_of(spec) <= holder.until:
        return None  # a budget does not come back when work ends
    return Reason(
        ReasonCode.OVER_BUDGET if budget else ReasonCode.OVER_LIMIT,
        f"Quota {quota.name} keeps what comes free of the share of {whom_of(quota)} for "
        f"{holder.job}, which has waited for {WAIT_MAX_TEXT}",
        unblocks=f"wait for the start of {holder.job}, by {times.format_time(holder.until)} "
        "at the latest",
    )
