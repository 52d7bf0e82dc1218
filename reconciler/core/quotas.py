"""Caps of users, groups and queues beside what queues share: what they leave, and budgets.

A ``Gate`` knows what is in use by everyone whom a ``Quota`` holds for. What waits comes to it in
order of priority and arrival; it says how many elements may start, or which cap forbids it. What
is let through is counted at once, so that a cap holds whatever the scheduler then starts. Elements
that room is kept for come before all others: what has left for them would else be let through in
their place, start, have to leave for them again, and so on. Who asks in which order is said in
``lines``, and that what can't start at all comes last in ``hopeless``.
"""

import bisect
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from reconciler.core import drafts, learning, runtimes
from reconciler.core import held as holders
from reconciler.core import work as desk
from reconciler.model import capped, desired, quantities, records, resources, times
from reconciler.model.capped import (
    HOUR_S,
    amount_of,
    charged_for,
    hours_of,
    hours_text,
    reserved_s,
    whom_of,
)
from reconciler.model.reasons import TIME_IS_UP, Reason, ReasonCode

#: Of amounts that work which comes first may start with in this cycle.
LEFT_BEFORE = "left to work before it"


@dataclass
class Account:
    """What counts for one quota.

    Attributes:
        used: amounts in use, and let through in this cycle. let: of these what is let through.
        jobs: jobs that hold something. considered: jobs that were let through or refused room.
        spent_gpu_s: settled within the window. reserved_gpu_s: held back for what runs, and for
            what is let through in this cycle. let_gpu_s: of this what is for the latter.
        running_gpu_s: used so far by what runs. gpus: that it holds now.
        ends: of jobs that hold something, when the time limits of all of it are up; infinite where
            nobody knows. goes_on: of these jobs those of which more waits, so that they hold
            something after that. first_end: with how many jobs it was asked for, and what is told
            of it.
        has: of these jobs, what of them runs. back: by resource, once it was asked for, what is
            back by each end, in order.
        parts: of each element that holds something when its time limit is up, its amounts, what of
            the budget it has used and holds back, and the grace that it has after its limit.
        returned: once it was asked for, how much of the budget is back by each moment, in order.
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

    def job_end(self, job: str) -> float:
        """When a job holds nothing any more at the latest; infinite where nobody knows."""
        return math.inf if job in self.goes_on else self.ends.get(job, math.inf)


class Accounts:
    """The accounts of all quotas as this cycle finds them."""

    def __init__(self, work: desk.Work, held: holders.Held) -> None:
        structure = work.desired.structure
        self._structure = structure
        self._work = work
        self._of: dict[tuple[str, str], tuple[Account, ...]] = {}
        self.all = [Account(quota) for quota in structure.quotas.values()]
        if not self.all:
            return
        spent = work.observed.recollection.spent
        for account in self.all:
            oldest = (work.now - account.quota.window_s) / HOUR_S
            hours = spent.get(account.quota.name, {})
            account.spent_gpu_s = sum(s for hour, s in hours.items() if hour > oldest - 1)
        for one in work.ended:  # in this very cycle: it is not in the books of hours yet
            for account in self.of(one.spec):
                account.spent_gpu_s += one.gpu_s
        for (job, _), entry in held.items():
            spec = holders.spec_of(work, job)
            if spec is not None:
                self._count(spec, entry.attempts, entry.used_gpu_s)
        self._go_on()

    def _go_on(self) -> None:
        """Jobs of which more waits hold something after what runs of them has ended."""
        for account in self.all:
            for job in account.ends if account.quota.running else ():
                draft = self._work.drafts.get(job)
                record = draft.record() if draft else self._work.observed.jobs.get(job)
                # of one that is left out nobody decides anything while it runs
                if record is None or drafts.PENDING in record.elements:
                    account.goes_on.add(job)

    def _count(
        self, spec: desired.Job, attempts: list[records.AttemptRecord], used_gpu_s: float
    ) -> None:
        limit_s = runtimes.limit_of(spec)
        started = [math.inf if one.started_at is None else one.started_at for one in attempts]
        ends_at = max(started, default=math.inf) + limit_s
        grace_s = max((one.grace_s for one in attempts), default=0.0)
        for account in self.of(spec):
            account.jobs.add(spec.name)
            account.ends[spec.name] = max(account.ends.get(spec.name, 0.0), ends_at)
            account.spent_gpu_s += used_gpu_s
            before_gpu_s, part = account.reserved_gpu_s, [0, 0, 0]
            for attempt in attempts:
                for index, amount in enumerate(attempt.resources.as_vector()):
                    part[index] += amount
                gpus = attempt.resources.gpu_milli / 1000
                began = attempt.started_at or attempt.assigned_at
                ran_s = max(0.0, self._work.now - began)
                account.gpus += gpus
                account.running_gpu_s += gpus * ran_s
                account.reserved_gpu_s += gpus * max(ran_s, reserved_s(spec, account.quota))
            has = account.has.setdefault(spec.name, [0, 0, 0])
            for index, amount in enumerate(part):
                account.used[index] += amount
                has[index] += amount
            charged_gpu_s = used_gpu_s + account.reserved_gpu_s - before_gpu_s
            account.parts.append((ends_at, part, charged_gpu_s, grace_s))

    def returns(self, account: Account) -> list[tuple[float, float]]:
        """When GPU-seconds of a budget come back at the latest, and how many then, in order.

        What was spent leaves the window; what runs is spent by the hour in which its time limit and
        grace are up. Work without a time limit is not among it.
        """
        now, quota = self._work.now, account.quota
        spent = dict(self._work.observed.recollection.spent.get(quota.name, {}))
        this_hour = int(now // HOUR_S)
        for one in self._work.ended:  # in this very cycle
            if account in self.of(one.spec):
                spent[this_hour] = spent.get(this_hour, 0.0) + one.gpu_s
        for ends_at, _, gpu_s, grace_s in account.parts:
            if ends_at < math.inf:
                hour = int(max(ends_at + grace_s, now) // HOUR_S)
                spent[hour] = spent.get(hour, 0.0) + gpu_s
        back = [((hour + 1) * HOUR_S + quota.window_s, s) for hour, s in spent.items() if s > 0]
        # those that have left the window are in the books until the end of this cycle
        return sorted(one for one in back if one[0] > now)

    def of(self, spec: desired.Job) -> tuple[Account, ...]:
        """The accounts that a job counts for."""
        if not self.all:
            return ()
        key = (spec.owner, spec.queue)
        if key not in self._of:
            groups = self._structure.access.groups_of(spec.owner)
            above = learning.ancestors(self._structure, spec.queue)
            self._of[key] = tuple(
                account
                for account in self.all
                if account.quota.holds_for(spec.owner, groups, above)
            )
        return self._of[key]

    def admit(
        self, spec: desired.Job, elements: int, tasks: tuple[resources.Resources, ...]
    ) -> tuple[int, Reason | None]:
        """How many of some elements may start, and if none why; those let through are counted.

        Args:
            spec: the job.
            elements: how many could start.
            tasks: what all tasks of one element take.
        """
        accounts = self.of(spec)
        each = _sums(tasks)
        never = _first_never(accounts, spec, each)
        if never is not None:
            return 0, never  # nor does it take a place among those that are considered
        for account in accounts:
            account.considered += 1
            reason = _over_jobs(account, spec)
            if reason is not None:
                return 0, reason
        allowed = elements
        for account in accounts:
            count, reason = self._fitting(account, spec, each)
            if not count:
                return 0, reason
            allowed = min(allowed, count)
        self._let_through(accounts, spec, each, allowed)
        return allowed, None

    def _let_through(
        self, accounts: tuple[Account, ...], spec: desired.Job, each: list[int], times: int
    ) -> None:
        for account in accounts:
            account.jobs.add(spec.name)
            _count_in(account, spec, each, times)

    def admit_promised(
        self, spec: desired.Job, elements: int, tasks: tuple[resources.Resources, ...]
    ) -> int:
        """How many of the elements that room is kept for may start; they are counted.

        ``spec.jobs.pending`` is not asked about: these were among the considered ones when the room
        was promised to them. A quota may so have one job more considered than it names; the room
        that it waited for would otherwise be taken by others, and it would wait for ever.

        Args:
            spec, tasks: as for :meth:`admit`, which is to be asked about the others afterwards.
            elements: for how many room is kept.
        """
        accounts = self.of(spec)
        each = _sums(tasks)
        if any(_over_running(account, spec) for account in accounts):
            return 0
        allowed = min([elements, *(self._fitting(one, spec, each)[0] for one in accounts)])
        if allowed:
            self._let_through(accounts, spec, each, allowed)
        return allowed

    def refusal(self, spec: desired.Job, tasks: tuple[resources.Resources, ...]) -> Reason | None:
        """Why no element may start besides those that were let through; None: one more may."""
        never = _first_never(self.of(spec), spec, _sums(tasks))
        if never is not None:
            return never
        for account in self.of(spec):
            count, reason = self._fitting(account, spec, _sums(tasks))
            if not count:
                return reason
        return None

    def admit_more(self, spec: desired.Job, tasks: Sequence[resources.Resources]) -> int:
        """How many tasks, the first ones first, an element that runs may gain; they are counted."""
        accounts = self.of(spec)
        for count, task in enumerate(tasks):
            each = list(task.as_vector())
            if not all(self._fitting(account, spec, each)[0] for account in accounts):
                return count
            for account in accounts:
                _count_in(account, spec, each, 1)
        return len(tasks)

    def _fitting(
        self, account: Account, spec: desired.Job, each: list[int]
    ) -> tuple[int, Reason | None]:
        quota = account.quota
        most = 10**9
        for index, cap in enumerate(quota.resources.as_vector()):
            if cap is None or not each[index]:
                continue
            fits = max(0, (cap - account.used[index]) // each[index])
            if not fits:
                return 0, _over_amount(account, index, cap, each[index])
            most = min(most, fits)
        if quota.budget_gpu_s is not None and each[2]:
            asked_s = each[2] / 1000 * reserved_s(spec, quota)
            left_s = quota.budget_gpu_s - account.spent_gpu_s - account.reserved_gpu_s
            if asked_s <= 0:
                return most, None
            fits = math.floor(max(0.0, left_s) / asked_s + 1e-9)
            if not fits:
                self._wake_when_returned(quota)
                back = self._enough_returned(account, asked_s - left_s)
                return 0, _over_budget(account, spec, asked_s, back)
            most = min(most, fits)
        return most, None

    def _enough_returned(self, account: Account, lacks_gpu_s: float) -> str:
        """Until when so much of a budget is back, at the most, where that is known."""
        if account.returned is None:
            returns = self.returns(account)
            sums = itertools.accumulate(gpu_s for _, gpu_s in returns)
            account.returned = [(all_, at) for all_, (at, _) in zip(sums, returns, strict=True)]
        enough_gpu_s = lacks_gpu_s - 1e-6  # of sums in another order
        at = bisect.bisect_left(account.returned, enough_gpu_s, key=operator.itemgetter(0))
        if at == len(account.returned):
            return ""
        told = times.format_time(account.returned[at][1])
        return f" (by time limits enough of it is back by {told}, see `muster quotas`)"

    def _wake_when_returned(self, quota: desired.Quota) -> None:
        hours = set(self._work.observed.recollection.spent.get(quota.name, {}))
        if any(one.gpu_s for one in self._work.ended):
            hours.add(int(self._work.now // HOUR_S))
        # those that have left the window are in the books until the end of this cycle
        back = ((hour + 1) * HOUR_S + quota.window_s for hour in hours)
        back_at = min((at for at in back if at > self._work.now), default=None)
        if back_at is not None:
            self._work.wake_schedule(back_at)


def _sums(tasks: tuple[resources.Resources, ...]) -> list[int]:
    return [sum(amounts) for amounts in zip(*(task.as_vector() for task in tasks), strict=True)]


def _count_in(account: Account, spec: desired.Job, each: list[int], times: int) -> None:
    for index, amount in enumerate(each):
        account.used[index] += amount * times
        account.let[index] += amount * times
    reserved_gpu_s = times * each[2] / 1000 * reserved_s(spec, account.quota)
    account.reserved_gpu_s += reserved_gpu_s
    account.let_gpu_s += reserved_gpu_s


def _first_never(
    accounts: Sequence[Account], spec: desired.Job, each: Sequence[int]
) -> Reason | None:
    """The first cap that is less than one start asks for, whatever else ends under any of them."""
    found = (capped.never(account.quota, spec, each) for account in accounts)
    return next((reason for reason in found if reason is not None), None)


def _over_jobs(account: Account, spec: desired.Job) -> Reason | None:
    quota = account.quota
    if quota.pending is not None and account.considered > quota.pending:
        jobs = quantities.counted(quota.pending, "job")
        return Reason(
            ReasonCode.OVER_LIMIT,
            f"Quota {quota.name} considers {jobs} of {whom_of(quota)} at a time",
            unblocks="the start of one before it, or a higher spec.jobs.pending",
        )
    return _over_running(account, spec)


def _over_running(account: Account, spec: desired.Job) -> Reason | None:
    quota = account.quota
    many = len(account.jobs) - (spec.name in account.jobs)
    if quota.running is None or many < quota.running:
        return None
    jobs = quantities.counted(quota.running, "job")
    return Reason(
        ReasonCode.OVER_LIMIT,
        f"Quota {quota.name} lets {jobs} of {whom_of(quota)} run at once",
        unblocks=f"the end of one of them{_first_end(account)}, or a higher spec.jobs.running",
    )


def _first_end(account: Account) -> str:
    """Until when one job fewer than may run does, at the most, where time limits say that."""
    many, most = len(account.jobs), account.quota.running or 0
    if account.first_end[0] != many:
        ranked = sorted((account.job_end(job), job) for job in account.jobs)
        end, job = ranked[many - most] if most and many >= most else (math.inf, "")
        told = f" (the time limit of {job} {TIME_IS_UP} {times.format_time(end)})"
        account.first_end = (many, told if end < math.inf else "")
    return account.first_end[1]


def _enough_back(account: Account, index: int, lacks: int) -> str:
    """Until when so much of a resource is back, at the most, where time limits say that."""
    if index not in account.back:
        ranked = sorted((end, job) for job, end in account.ends.items() if end < math.inf)
        sums = itertools.accumulate(account.has[job][index] for _, job in ranked)
        account.back[index] = [(all_, *one) for all_, one in zip(sums, ranked, strict=True)]
    back = account.back[index]
    at = bisect.bisect_left(back, lacks, key=operator.itemgetter(0))
    if at == len(back):
        return ""
    _, end, job = back[at]
    return (
        f" (the time limit of {job} {TIME_IS_UP} {times.format_time(end)}, and enough of it is "
        "back by then)"
    )


def _over_amount(account: Account, index: int, cap: int, asked: int) -> Reason:
    quota, let = account.quota, account.let[index]
    back = _enough_back(account, index, account.used[index] + asked - cap)
    # whether nodes have room for that is not known yet: it may start now, or go on waiting
    before = f", {amount_of(index, let)} {LEFT_BEFORE}" if let else ""
    return Reason(
        ReasonCode.OVER_LIMIT,
        f"Quota {quota.name} limits {whom_of(quota)} to {amount_of(index, cap)}: "
        f"{amount_of(index, account.used[index] - let)} in use{before}, "
        f"{amount_of(index, asked)} asked",
        unblocks=f"the end of other work{back}, or a higher spec.resources",
    )


def _over_budget(account: Account, spec: desired.Job, asked_s: float, back: str) -> Reason:
    quota, (shorter, charged) = account.quota, charged_for(spec)
    budget_s, window = quota.budget_gpu_s or 0.0, quantities.format_duration(quota.window_s)
    let_gpu_s = account.let_gpu_s
    before = f", {hours_of(let_gpu_s)} {LEFT_BEFORE}" if let_gpu_s else ""
    reserved_gpu_s = round(account.reserved_gpu_s - let_gpu_s, 6)
    return Reason(
        ReasonCode.OVER_BUDGET,
        f"Quota {quota.name} gives {whom_of(quota)} {hours_text(budget_s)} in {window}: "
        f"{hours_of(account.spent_gpu_s)} spent, {hours_of(reserved_gpu_s)} "
        f"reserved by what runs{before}, {hours_of(asked_s)} asked (GPUs times {charged})",
        unblocks=f"{shorter}, time{back}, or a higher spec.budget.gpuHours",
    )


def spent_budgets(work: desk.Work) -> dict[str, str]:
    """Jobs that have to leave since a budget that ends work is used up, with its name.

    Asks for a cycle at the moment when the next one will be.
    """
    ending = [quota for quota in work.desired.structure.quotas.values() if quota.ends]
    if not ending:
        return {}
    held = holders.gather(work)
    accounts = Accounts(work, held)
    found: dict[str, str] = {}
    for account in accounts.all:
        quota = account.quota
        if not quota.ends or quota.budget_gpu_s is None or not account.gpus:
            continue
        left_s = quota.budget_gpu_s - account.spent_gpu_s - account.running_gpu_s
        if left_s > 0:
            work.wake(work.now + left_s / account.gpus)
            continue
        for job in sorted(account.jobs):
            if job in work.observed.aside:
                continue  # nothing is decided about it
            spec = holders.spec_of(work, job)
            if spec is not None and any(g.resources.gpu_milli for g in spec.groups):
                found[job] = quota.name
    return found
