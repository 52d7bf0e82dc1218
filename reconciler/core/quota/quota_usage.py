"""Quotas of users, groups and queues: how many pending elements they admit.

Pending jobs come in order of priority and arrival; the answer is how many elements may start, or
which quota forbids it. What is admitted counts at once. Nominated elements come first, because
others would otherwise take their capacity again and again. Jobs that fit may pass those that don't,
but after ``WAIT_MAX_S`` capacity is kept for the one that waits.
"""

import bisect
import itertools
import math
import operator
from collections.abc import Mapping, Sequence

from reconciler.core import cycle_attempts, cycle_cache, job_draft
from reconciler.core.cycle import cycle_alarm, cycle_events, cycle_jobs, cycle_work
from reconciler.core.jobs import run_times, running_gangs
from reconciler.core.quota import guaranteed_turns, quota_accounts
from reconciler.model import desired
from reconciler.model.rules import quota_limits
from reconciler.model.rules.quota_limits import HOUR_S, reserved_s
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.values import resources, times
from reconciler.scheduling.queues import job_order


class QuotaAccounts:
    """The accounts of all quotas in this cycle.

    Args:
        structure: has the quotas.
        held: running gangs.
        jobs: of this cycle.
        spent: accounted use of budgets by quota and hour.
        ended: work of this cycle, whose hours are not accounted yet.
        alarm: set to the moment at which a budget has room again.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        structure: desired.Structure,
        held: running_gangs.RunningGangs,
        *,
        jobs: cycle_jobs.CycleJobs,
        spent: Mapping[str, Mapping[int, float]],
        ended: Sequence[cycle_work.Ended],
        alarm: cycle_alarm.CycleAlarm,
        now: float,
    ) -> None:
        self._structure = structure
        self._spent = spent
        self._ended = ended
        self._alarm = alarm
        self._now = now
        self._of: dict[tuple[str, str], tuple[quota_accounts.QuotaAccount, ...]] = {}
        self.all = [quota_accounts.QuotaAccount(quota) for quota in structure.quotas.values()]
        self._guarantees = guaranteed_turns.GuaranteedTurns(structure, held.allocated)
        if not self.all:
            return
        for account in self.all:
            oldest = (now - account.quota.window_s) / HOUR_S
            hours = spent.get(account.quota.name, {})
            account.spent_gpu_s = sum(s for hour, s in hours.items() if hour > oldest - 1)
        for work in ended:
            for account in self.accounts_of(work.spec):
                account.spent_gpu_s += work.gpu_s
        for (job, _), entry in held.items():
            spec = jobs.spec_or_aside(job)
            if spec is not None:
                self._count(spec, entry.attempts, entry.used_gpu_s)
        _go_on(self.all, jobs)

    def _count(
        self, spec: desired.Job, attempts: list[records.AttemptRecord], used_gpu_s: float
    ) -> None:
        limit_s = run_times.limit_of(spec)
        started = [math.inf if one.started_at is None else one.started_at for one in attempts]
        ends_at = max(started, default=math.inf) + limit_s
        grace_s = max((one.grace_s for one in attempts), default=0.0)
        for account in self.accounts_of(spec):
            account.jobs.add(spec.name)
            account.ends[spec.name] = max(account.ends.get(spec.name, 0.0), ends_at)
            account.spent_gpu_s += used_gpu_s
            before_gpu_s, part = account.reserved_gpu_s, [0, 0, 0]
            for attempt in attempts:
                for index, amount in enumerate(attempt.resources.as_vector()):
                    part[index] += amount
                gpus = attempt.resources.gpu_milli / 1000
                began = attempt.started_at or attempt.assigned_at
                ran_s = max(0.0, self._now - began)
                account.gpus += gpus
                account.running_gpu_s += gpus * ran_s
                account.reserved_gpu_s += gpus * max(ran_s, reserved_s(spec, account.quota))
            has = account.has.setdefault(spec.name, [0, 0, 0])
            for index, amount in enumerate(part):
                account.used[index] += amount
                has[index] += amount
            charged_gpu_s = used_gpu_s + account.reserved_gpu_s - before_gpu_s
            account.parts.append((ends_at, part, charged_gpu_s, grace_s))

    def returns(self, account: quota_accounts.QuotaAccount) -> list[tuple[float, float]]:
        """Return when GPU-seconds of a budget come back at the latest, and how many, in order.

        Spent ones leave the window. Running work counts in the hour in which its time limit and
        grace end. Work without a time limit is not included.
        """
        now, quota = self._now, account.quota
        spent = dict(self._spent.get(quota.name, {}))
        this_hour = int(now // HOUR_S)
        for one in self._ended:  # ended in this cycle
            if account in self.accounts_of(one.spec):
                spent[this_hour] = spent.get(this_hour, 0.0) + one.gpu_s
        for ends_at, _, gpu_s, grace_s in account.parts:
            if ends_at < math.inf:
                hour = int(max(ends_at + grace_s, now) // HOUR_S)
                spent[hour] = spent.get(hour, 0.0) + gpu_s
        back = [((hour + 1) * HOUR_S + quota.window_s, s) for hour, s in spent.items() if s > 0]
        # hours that have left the window are accounted until the end of this cycle
        return sorted(one for one in back if one[0] > now)

    def accounts_of(self, spec: desired.Job) -> tuple[quota_accounts.QuotaAccount, ...]:
        """Return the accounts that a job counts for."""
        if not self.all:
            return ()
        key = (spec.owner, spec.queue)
        if key not in self._of:
            groups = self._structure.access.groups_of(spec.owner)
            above = desired.path_to_root(self._structure.queues, spec.queue)
            self._of[key] = tuple(
                account
                for account in self.all
                if account.quota.holds_for(spec.owner, groups, above)
            )
        return self._of[key]

    def admit(
        self,
        spec: desired.Job,
        elements: int,
        tasks: tuple[resources.Resources, ...],
        *,
        since: float = math.inf,
    ) -> tuple[int, Reason | None]:
        """Return how many of some elements may start, and if none the reason. Admitted ones count.

        Args:
            spec: the job.
            elements: how many could start.
            tasks: what all tasks of one element take.
            since: since when it has waited, in seconds since the epoch.
        """
        accounts = self.accounts_of(spec)
        each = _sums(tasks)
        never = _first_never(accounts, spec, each)
        if never is not None:
            return 0, never  # it takes no place among the considered jobs
        for account in accounts:
            account.considered += 1
            reason = quota_accounts.over_jobs(account, spec)
            if reason is not None:
                return 0, reason
        allowed = elements
        for account in accounts:
            count, reason = self._fitting(account, spec, each)
            if not count:
                if self._now - since >= job_order.WAIT_MAX_S:
                    self._keep(accounts, spec, each)
                return 0, reason
            allowed = min(allowed, count)
        _let_through(accounts, spec, each, allowed)
        return allowed, None

    def _keep(
        self,
        accounts: Sequence[quota_accounts.QuotaAccount],
        spec: desired.Job,
        each: Sequence[int],
    ) -> None:
        """Keep capacity for a job under all its quotas, if it is known when that is enough.

        Under all of them, because others would take what is free under one while another fills up.
        """
        if any(account.kept for account in accounts):
            return  # capacity is kept for another first, and it is unknown what is left then
        until = max([self._enough_by(account, spec, each) for account in accounts])
        if until < math.inf:
            for account in accounts:
                account.kept = quota_accounts.Kept(spec.name, until)

    def _enough_by(
        self, account: quota_accounts.QuotaAccount, spec: desired.Job, each: Sequence[int]
    ) -> float:
        """Return when a quota leaves enough for a job if nothing new starts; infinite: unknown."""
        found = self._now
        for index, cap in enumerate(account.quota.resources.as_vector()):
            lacks = 0 if cap is None else account.used[index] + each[index] - cap
            if each[index] and lacks > 0:
                found = max(found, quota_accounts.back_by(account, index, lacks)[0])
        if account.quota.budget_gpu_s is not None and each[2]:
            lacks_gpu_s = quota_accounts.asked_gpu_s(
                account, spec, each
            ) - quota_accounts.left_gpu_s(account)
            if lacks_gpu_s > 0:
                found = max(found, self._returned_by(account, lacks_gpu_s))
        return found

    def admit_nominated(
        self, spec: desired.Job, elements: int, tasks: tuple[resources.Resources, ...]
    ) -> int:
        """Return how many nominated elements may start. They count.

        ``spec.jobs.pending`` does not apply: they were considered when they were nominated. A quota
        may so consider one job more than it names. Otherwise others would take the capacity for
        ever.

        Args:
            spec: as for :meth:`admit`, which decides about the others afterwards.
            tasks: as for :meth:`admit`.
            elements: how many are nominated.
        """
        accounts = self.accounts_of(spec)
        each = _sums(tasks)
        if any(quota_accounts.over_running(account, spec) for account in accounts):
            return 0
        allowed = min([elements, *(self._fitting(one, spec, each)[0] for one in accounts)])
        if allowed:
            _let_through(accounts, spec, each, allowed)
            self._guarantees.take(spec.queue, each, allowed)
        return allowed

    def admit_guaranteed(
        self, spec: desired.Job, elements: int, tasks: tuple[resources.Resources, ...]
    ) -> int:
        """Return how many elements may start that the guarantee of their queue covers. They count.

        They go before what waits for room without a guarantee. Where jobs are let through one by
        one, by ``spec.jobs.pending``, everybody keeps their turn.

        Args:
            spec: as for :meth:`admit`, which decides about the others afterwards.
            elements: how many could start.
            tasks: as for :meth:`admit`.
        """
        if any(account.quota.pending is not None for account in self.accounts_of(spec)):
            return 0
        covered = self._guarantees.covered(spec.queue, _sums(tasks), elements)
        return self.admit_nominated(spec, covered, tasks) if covered else 0

    def refusal(self, spec: desired.Job, tasks: tuple[resources.Resources, ...]) -> Reason | None:
        """Return why no element may start besides those admitted; None if one more may."""
        never = _first_never(self.accounts_of(spec), spec, _sums(tasks))
        if never is not None:
            return never
        for account in self.accounts_of(spec):
            count, reason = self._fitting(account, spec, _sums(tasks))
            if not count:
                return reason
        return None

    def admit_more(self, spec: desired.Job, tasks: Sequence[resources.Resources]) -> int:
        """Return how many tasks, the first ones first, a running element may gain. They count."""
        accounts = self.accounts_of(spec)
        for count, task in enumerate(tasks):
            each = list(task.as_vector())
            if not all(self._fitting(account, spec, each)[0] for account in accounts):
                return count
            for account in accounts:
                _count_in(account, spec, each, 1)
        return len(tasks)

    def _fitting(
        self, account: quota_accounts.QuotaAccount, spec: desired.Job, each: list[int]
    ) -> tuple[int, Reason | None]:
        quota = account.quota
        most = 10**9
        reason = quota_accounts.kept_from(account, spec, each, self._now)
        if reason is not None:
            return 0, reason
        for index, cap in enumerate(quota.resources.as_vector()):
            if cap is None or not each[index]:
                continue
            fits = max(0, (cap - account.used[index]) // each[index])
            if not fits:
                return 0, quota_accounts.over_amount(account, index, cap, each[index])
            most = min(most, fits)
        if quota.budget_gpu_s is not None and each[2]:
            asked_s = quota_accounts.asked_gpu_s(account, spec, each)
            left_s = quota_accounts.left_gpu_s(account)
            if asked_s <= 0:
                return most, None
            fits = math.floor(max(0.0, left_s) / asked_s + 1e-9)
            if not fits:
                self._wake_when_returned(quota)
                back = self._enough_returned(account, asked_s - left_s)
                return 0, quota_accounts.over_budget(account, spec, asked_s, back)
            most = min(most, fits)
        return most, None

    def _enough_returned(self, account: quota_accounts.QuotaAccount, lacks_gpu_s: float) -> str:
        """Return the text until when enough of a budget has come back, if that is known."""
        by = self._returned_by(account, lacks_gpu_s)
        if by == math.inf:
            return ""
        returned_at = times.format_time(by)
        return f" (by time limits enough of it is back by {returned_at}, see `muster quotas`)"

    def _returned_by(self, account: quota_accounts.QuotaAccount, lacks_gpu_s: float) -> float:
        """Return when so much of a budget has come back; infinite: unknown."""
        if account.returned is None:
            returns = self.returns(account)
            sums = itertools.accumulate(gpu_s for _, gpu_s in returns)
            account.returned = [(all_, at) for all_, (at, _) in zip(sums, returns, strict=True)]
        enough_gpu_s = lacks_gpu_s - 1e-6  # sums in another order differ a little
        at = bisect.bisect_left(account.returned, enough_gpu_s, key=operator.itemgetter(0))
        return math.inf if at == len(account.returned) else account.returned[at][1]

    def _wake_when_returned(self, quota: desired.Quota) -> None:
        hours = set(self._spent.get(quota.name, {}))
        if any(one.gpu_s for one in self._ended):
            hours.add(int(self._now // HOUR_S))
        # hours that have left the window are accounted until the end of this cycle
        back = ((hour + 1) * HOUR_S + quota.window_s for hour in hours)
        back_at = min((at for at in back if at > self._now), default=None)
        if back_at is not None:
            self._alarm.wake_schedule(back_at)


def _go_on(accounts: Sequence[quota_accounts.QuotaAccount], jobs: cycle_jobs.CycleJobs) -> None:
    """Note jobs of which more is pending after what runs of them has ended."""
    for account in accounts:
        for job in account.ends if account.quota.running else ():
            record = jobs.record_of(job)
            # a quarantined job is not decided while it runs
            if record is None or job_draft.PENDING in record.elements:
                account.goes_on.add(job)


def _let_through(
    accounts: Sequence[quota_accounts.QuotaAccount],
    spec: desired.Job,
    each: list[int],
    times: int,
) -> None:
    for account in accounts:
        account.jobs.add(spec.name)
        _count_in(account, spec, each, times)


def _sums(tasks: tuple[resources.Resources, ...]) -> list[int]:
    return [sum(amounts) for amounts in zip(*(task.as_vector() for task in tasks), strict=True)]


def _count_in(
    account: quota_accounts.QuotaAccount, spec: desired.Job, each: list[int], times: int
) -> None:
    for index, amount in enumerate(each):
        account.used[index] += amount * times
        account.let[index] += amount * times
    reserved_gpu_s = times * each[2] / 1000 * reserved_s(spec, account.quota)
    account.reserved_gpu_s += reserved_gpu_s
    account.let_gpu_s += reserved_gpu_s


def _first_never(
    accounts: Sequence[quota_accounts.QuotaAccount], spec: desired.Job, each: Sequence[int]
) -> Reason | None:
    """Return the first quota that is smaller than one start, whatever ends under any of them."""
    found = (quota_limits.never(account.quota, spec, each) for account in accounts)
    return next((reason for reason in found if reason is not None), None)


def accounts_of_records(
    structure: desired.Structure, observed: records.Observed, now: float
) -> QuotaAccounts:
    """Return the accounts of all quotas between cycles."""
    cache = cycle_cache.CycleCache.from_observed(observed)
    jobs = cycle_jobs.CycleJobs(observed, cache, cycle_events.CycleEvents(now), now)
    return _between_cycles(structure, observed, now, cache, jobs)


def spent_of_records(
    structure: desired.Structure, observed: records.Observed, now: float
) -> dict[str, str]:
    """Return what ``spent_budgets`` does, between cycles."""
    if not any(quota.ends for quota in structure.quotas.values()):
        return {}
    cache = cycle_cache.CycleCache.from_observed(observed)
    jobs = cycle_jobs.CycleJobs(observed, cache, cycle_events.CycleEvents(now), now)
    accounts = _between_cycles(structure, observed, now, cache, jobs)
    return spent_budgets(accounts, jobs, cycle_alarm.CycleAlarm(), now)


def _between_cycles(
    structure: desired.Structure,
    observed: records.Observed,
    now: float,
    cache: cycle_cache.CycleCache,
    jobs: cycle_jobs.CycleJobs,
) -> QuotaAccounts:
    attempts = cycle_attempts.CycleAttempts(observed.attempts, cache, [])
    return QuotaAccounts(
        structure,
        running_gangs.gather(cache, jobs, attempts),
        jobs=jobs,
        spent=observed.scheduler_state.spent,
        ended=(),
        alarm=cycle_alarm.CycleAlarm(),
        now=now,
    )


def spent_budgets(
    accounts: QuotaAccounts, jobs: cycle_jobs.CycleJobs, alarm: cycle_alarm.CycleAlarm, now: float
) -> dict[str, str]:
    """Return the jobs that have to stop because their budget is used up, with the quota's name.

    Request a cycle for the next such moment.
    """
    found: dict[str, str] = {}
    for account in accounts.all:
        quota = account.quota
        if not quota.ends or quota.budget_gpu_s is None or not account.gpus:
            continue
        left_s = quota.budget_gpu_s - account.spent_gpu_s - account.running_gpu_s
        if left_s > 0:
            alarm.wake(now + left_s / account.gpus)
            continue
        for job in sorted(account.jobs):
            spec = jobs.spec_or_aside(job)
            if jobs.aside(job) is None and spec is not None and _uses_gpus(spec):
                found[job] = quota.name
    return found


def _uses_gpus(spec: desired.Job) -> bool:
    return any(group.resources.gpu_milli for group in spec.groups)
