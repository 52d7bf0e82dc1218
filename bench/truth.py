"""Whether the reasons that waiting jobs are given are true, found out by slow and obvious means.

Records as a cycle left them come in, with the reasons by key; a finding for each job and reason
goes out: true, false, or open where this module can't tell. Nothing but ``reconciler.model`` is
imported, so that a mistake of the scheduler can't be in its checker too. What a reason says of room
is tried out task by task on the nodes. Two sets of nodes keep that honest where eligibility is in
doubt: on the *sure* ones a job could start beyond any doubt, the *possible* ones are all that it
might use. A reason that denies room is false when the sure ones have it; one that says there is
room is false when not even the possible ones do.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from bench import moment, quota_moment
from bench.tryout import WHOLE
from reconciler.model import desired
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState
from reconciler.model.values import times

_PENDING = ELEMENT_CODE[JobState.PENDING]
_LIVE = (ELEMENT_CODE[JobState.STARTING], ELEMENT_CODE[JobState.RUNNING])
_FINISHED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT})
_DUE = re.compile(r"room is due to (?P<job>\S+) at (?P<at>[^\s;]+)(?:;|$)")
_STRICT = re.compile(r"(?P<job>\S+) goes first, and nobody passes it")
_FIRST = re.compile(r"others go first: (?P<jobs>[^;]+)")

#: A step of a funnel that says which pools a reason is not about.
_POOLS = re.compile(r"(?P<outside>not )?in pool (?P<names>.+)")


class Verdict(StrEnum):
    """What was found of one reason."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "open"


class Finding(msgspec.Struct, frozen=True):
    """One reason of one job, and whether it is true; ``because`` says what was found instead."""

    job: str
    reason: pending_reasons.Reason
    verdict: Verdict
    because: str = ""


class Checker(quota_moment.QuotaMoment):
    """The reasons of one moment."""

    def __init__(self, seen: moment.Seen) -> None:
        super().__init__(seen)
        self._of_code: dict[
            ReasonCode, Callable[[records.JobRecord, pending_reasons.Reason], str | None]
        ]
        self._of_code = {
            ReasonCode.HELD: self._held,
            ReasonCode.INVALID: self._invalid,
            ReasonCode.NO_UNIX_USER: self._no_unix_user,
            ReasonCode.DEPENDENCY_NEVER_MET: self._dependency_never_met,
            ReasonCode.DEPENDENCY: self._dependency,
            ReasonCode.BACKING_OFF: self._backing_off,
            ReasonCode.ARRAY_LIMIT: self._array_limit,
            ReasonCode.OVER_LIMIT: self._over_limit,
            ReasonCode.OVER_BUDGET: self._over_budget,
            ReasonCode.NEVER_FITS: self._never_fits,
            ReasonCode.NO_TOPOLOGY_DOMAIN: self._no_topology_domain,
            ReasonCode.WAITING_FOR_QUOTA: self._waiting_for_quota,
            ReasonCode.FRAGMENTED: self._fragmented,
            ReasonCode.INSUFFICIENT_RESOURCES: self._insufficient,
            ReasonCode.WAITING_FOR_EVICTIONS: self._waiting_for_evictions,
            ReasonCode.RESERVED: self._reserved,
            ReasonCode.BEHIND: self._behind,
        }

    def findings(self) -> Iterator[Finding]:
        """One for each reason of each job that waits."""
        for name, record in self.seen.job_records.items():
            if record.finished or not record.reason_key:
                continue
            for reason in self.seen.why.get(record.reason_key, ()):
                yield self._judge(name, record, reason)

    def _judge(
        self, name: str, record: records.JobRecord, reason: pending_reasons.Reason
    ) -> Finding:
        check, record = self._of_code.get(reason.code), self._where(record, reason)
        try:
            because = "" if check is None else check(record, reason)
        except _OpenError as told:
            return Finding(name, reason, Verdict.OPEN, str(told))
        if check is None:
            return Finding(name, reason, Verdict.OPEN, "nothing here checks this code")
        return Finding(name, reason, Verdict.FALSE if because else Verdict.TRUE, because or "")

    def _where(
        self, record: records.JobRecord, reason: pending_reasons.Reason
    ) -> records.JobRecord:
        """A job as if it might go only to the pools that a reason is about: there is one for each.

        ``not in pool A`` leaves A, ``in pool A or B`` what has no amounts of its own.
        """
        pools = list(record.spec.pools or self.structure.pools)
        for step in reason.funnel:
            found = _POOLS.fullmatch(step.why)
            if found is not None:
                named = found["names"].split(" or ")
                pools = [pool for pool in pools if (pool in named) is bool(found["outside"])]
        if not pools or len(pools) == len(self.structure.pools):
            return record
        spec = msgspec.structs.replace(record.spec, pools=tuple(pools))
        return msgspec.structs.replace(record, spec=spec)

    # -- room

    def _is_one_short(self) -> bool:
        """Whether an elastic gang goes on with fewer tasks than its minimum."""
        there = Counter(
            (one.job, one.element, one.group)
            for one in self.seen.attempts.values()
            if one.state is not AttemptState.ENDED and one.stop is None
        )
        return any(
            there[one.job, one.element, group.name] < group.least
            for one in self.seen.attempts.values()
            if not one.concluded and one.job in self.seen.job_records
            for group in self.seen.job_records[one.job].spec.groups
            if self.seen.job_records[one.job].spec.is_elastic
        )

    def _fit_now(self, record: records.JobRecord) -> str | None:
        """What a reason that denies room is false for."""
        fits = [self.holds(spec, "now", sure=True) for spec in self._specs(record.spec)]
        if True not in fits:
            if None in fits:
                raise _OpenError("whether it fits was not found out")
            return None
        others = sorted(set(self.seen.promised) - {record.name})
        if others:
            raise _OpenError(f"what fits may be kept for {', '.join(others[:3])}")
        if self._is_one_short():
            raise _OpenError("what fits may be kept for a gang that lost a task")
        codes = {one.code for one in self.seen.why.get(record.reason_key, ())}
        if ReasonCode.RESERVED in codes:  # which is judged by itself
            raise _OpenError("what fits is due to others, as another of its reasons says")
        return "it fits as things stand"

    def _specs(self, spec: desired.Job) -> list[desired.Job]:
        """A job as it is tried: where a pool that it may go to has amounts of its own, in one such
        pool after the other and in the rest together, if there it stays within what is allowed."""
        named = {bound[0] for bound in self._bounds([*self.structure.queues.values()])}
        pools = spec.pools or tuple(self.structure.pools)
        if named.isdisjoint(pools):
            return [spec]
        asked = moment.asked(spec)
        tried: list[tuple[str, ...]] = [
            (pool,)
            for pool in pools
            if pool in named
            and not self._over_in_pool(spec, asked, f"pool {pool}")
            and not self.is_beyond_firm(spec, pool, now=True)
        ]
        rest = tuple(pool for pool in pools if pool not in named)
        tried += [rest] if rest else []
        return [msgspec.structs.replace(spec, pools=one) for one in tried]

    def _bounds(
        self, queues: Iterable[desired.Queue]
    ) -> list[tuple[str, desired.QuotaAmounts, str]]:
        """Limits in pools, and caps on pools: pool, amounts, and whose queue's (a cap: '')."""
        bounds = [
            (flavor.pool, flavor.limit, queue.name) for queue in queues for flavor in queue.flavors
        ]
        quotas = self.structure.quotas.values()
        return bounds + [(quota.pool, quota.resources, "") for quota in quotas if quota.pool]

    # -- what a job waits for before it asks for room

    def _held(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        spec = record.spec
        above = any(queue.suspend for queue in self.path(spec.queue))
        held = spec.suspend or record.state is JobState.HELD or above
        return None if held or self.structure.settings.suspend else "nothing holds it"

    def _invalid(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        return "its queue exists" if record.spec.queue in self.structure.queues else None

    def _no_unix_user(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        if record.spec.owner in self.structure.unix_users:
            return "its owner has a Unix user"
        asks = [h for h in self.all_hosts("empty") if not h.pool.allow_root]
        asks = [h for h in asks if self.seen.nodes[h.name].inventory.runs_as_root]
        return None if asks else "no node asks for one"

    def _state_of(self, job: str) -> JobState | None:
        record = self.seen.job_records.get(job)
        if record is not None and record.declared_over and record.state in _FINISHED:
            return JobState.SUCCEEDED  # it counts as done for what waits for it
        return None if record is None else record.state

    def _dependency_never_met(
        self, record: records.JobRecord, _: pending_reasons.Reason
    ) -> str | None:
        for one in record.spec.depends_on:
            state = self._state_of(one.job)
            if state not in _FINISHED or one.per_element or one.condition == "afterAny":
                continue
            if (state is JobState.SUCCEEDED) != (one.condition == "afterOk"):
                return None
        return "nothing that it depends on has ended in another way"

    def _dependency(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        for one in record.spec.depends_on:
            if one.per_element or self._state_of(one.job) not in _FINISHED:
                return None
        return "all that it depends on has ended"

    def _backing_off(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        waits = [n for n, code in enumerate(record.elements) if code == _PENDING]
        if any(one.per_element for one in record.spec.depends_on):
            waits = [n for n in waits if n in record.notes]
        until = [record.notes[n].not_before if n in record.notes else 0.0 for n in waits]
        ready = sum(at <= self.seen.now for at in until)
        return f"{ready} elements need not wait" if ready or not until else None

    def _array_limit(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        most = record.spec.parallelism
        if most is None:
            return "nothing limits its elements"
        live = sum(code in _LIVE for code in record.elements)
        count = live + self.seen.promised.get(record.name, 0)
        return f"{count} of {most} run or have room kept" if count < most else None

    # -- amounts

    def _over_limit(self, record: records.JobRecord, reason: pending_reasons.Reason) -> str | None:
        spec, asked, used = record.spec, moment.asked(record.spec), self.used()
        for queue in self.path(spec.queue):
            bounds = queue.limit.as_vector()
            after = zip(used[queue.name], asked, bounds, strict=True)
            if any(b is not None and more and has + more > b for has, more, b in after):
                return None
        quotas = [
            quota for quota in self.quotas_of(spec) if f"Quota {quota.name} " in reason.message
        ]
        if any(self.over_quota(quota, record) for quota in quotas):
            return None
        if self._over_in_pool(spec, asked, reason.message):
            return None
        return "it stays within every limit"

    def _over_in_pool(self, spec: desired.Job, asked: Sequence[int], message: str) -> bool:
        """Whether a job would pass a limit, or a cap, of a pool that its reason names."""
        pool_of = self.structure.pool_of_node()
        for pool, most, whose in self._bounds(self.path(spec.queue)):
            if f"pool {pool}" not in message:
                continue
            there = [a for a in self.live if pool_of.get(a.node) == pool]
            if whose:
                there = [a for a in there if whose in self._queues_of(a)]
            has = [sum(a.resources.as_vector()[r] for a in there) for r in range(3)]
            held = zip(has, self._kept_in(pool, whose), asked, most.as_vector(), strict=True)
            if any(m is not None and more and h + k + more > m for h, k, more, m in held):
                return True
        return False

    def _kept_in(self, pool: str, whose: str) -> list[int]:
        """What room is kept for of a queue's work (of anybody's) that may go to a pool."""
        kept = [0, 0, 0]
        for job, count in self.seen.promised.items():
            record = self.seen.job_records.get(job)
            if record is None or (record.spec.pools and pool not in record.spec.pools):
                continue
            if not whose or whose in {queue.name for queue in self.path(record.spec.queue)}:
                kept = [k + count * a for k, a in zip(kept, moment.asked(record.spec), strict=True)]
        return kept

    def _queues_of(self, attempt: records.AttemptRecord) -> set[str]:
        record = self.seen.job_records[attempt.job]
        return {queue.name for queue in self.path(record.spec.queue)}

    def _over_budget(self, record: records.JobRecord, reason: pending_reasons.Reason) -> str | None:
        for quota in self.quotas_of(record.spec):
            if quota.budget_gpu_s is not None and f"Quota {quota.name} " in reason.message:
                gpus = moment.whole(record.spec)[2] / WHOLE
                limit_s = min(record.spec.time_limit_s or quota.window_s, quota.window_s)
                if gpus * limit_s > quota.budget_gpu_s:
                    return None
                raise _OpenError("what was spent is not known here")
        return "no budget holds for it"

    def _waiting_for_quota(
        self, record: records.JobRecord, _: pending_reasons.Reason
    ) -> str | None:
        spec = record.spec
        pools = spec.pools or tuple(self.structure.pools)
        if any(self.is_beyond_firm(spec, pool, now=True) for pool in ("", *pools)):
            return None
        if any(self._kept_back(queue, moment.asked(spec)) for queue in self.path(spec.queue)):
            return None
        return "its queue's guarantee covers it" if not spec.preemptible else "nobody keeps back"

    def _kept_back(self, queue: desired.Queue, asked: tuple[int, int, int]) -> bool:
        """Whether a queue's siblings use, or don't lend, what it would need."""
        used, above = self.used(), self.structure.queues.get(queue.parent or "")
        ready = [h for h in self.all_hosts("empty") if self.is_ready(h.name)]
        whole = moment.total(host.pool.promised() for host in ready)
        owed = list(whole) if above is None else self.guaranteed(above)
        for resource, more in enumerate(asked):
            taken = used[queue.name][resource] + more
            for other in self.structure.queues.values():
                if other.parent == queue.parent and other.name != queue.name:
                    lent = other.lending_limit.as_vector()[resource]
                    least = 0 if lent is None else self.guaranteed(other)[resource] - lent
                    taken += max(used[other.name][resource], least)
            if more and taken > owed[resource]:
                return True
        return False

    # -- room

    def _never_fits(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        if self.is_beyond_firm(record.spec, "", now=False):
            return None
        pools = record.spec.pools or tuple(self.structure.pools)
        open_to = tuple(p for p in pools if not self.is_beyond_firm(record.spec, p, now=False))
        if not open_to:
            return None
        spec = msgspec.structs.replace(record.spec, pools=open_to)
        fits = self.holds(spec, "empty", sure=True)
        if fits is None:
            raise _OpenError("whether it fits was not found out")
        return "it fits where nothing runs" if fits else None

    def _no_topology_domain(
        self, record: records.JobRecord, _: pending_reasons.Reason
    ) -> str | None:
        spec = record.spec
        levels = [spec.topology, *(group.topology for group in spec.groups)]
        if not any(one.required or one.slice_size for one in levels):
            return "it asks for no domain"
        return self._fit_now(record)

    def _fragmented(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        free = sum(sum(h.devices) for h in self.usable(record.spec, "now", sure=False))
        asked = moment.asked(record.spec)[2]
        if free < asked:
            return f"{free} thousandths of GPUs are free, {asked} asked"
        return self._fit_now(record)

    def _insufficient(self, record: records.JobRecord, _: pending_reasons.Reason) -> str | None:
        return self._fit_now(record)

    def _waiting_for_evictions(
        self, record: records.JobRecord, _: pending_reasons.Reason
    ) -> str | None:
        if not self.seen.promised.get(record.name):
            return "no room is kept for it"
        if not self.stopping:
            return "nothing is stopping"
        fits = self.holds(record.spec, "later", sure=False)
        if fits is None:
            raise _OpenError("whether it fits was not found out")
        return None if fits else "it would not fit when all that stops has stopped"

    def _reserved(self, record: records.JobRecord, reason: pending_reasons.Reason) -> str | None:
        due = _DUE.search(reason.message)
        spec = record.spec
        if due is None:
            return None if self.structure.reservations else "there are no reservations"
        if self.holds(spec, "now", sure=False) is False:
            return "it does not fit now"
        other = self.seen.job_records.get(due["job"])
        # the one that room was due to may have got it in this very cycle, after others were judged
        waits = other is not None and _PENDING in other.elements
        if not waits and due["job"] not in self._began():
            return f"{due['job']} does not wait for room"
        at = times.parse_time(due["at"])
        if spec.time_limit_s is not None and self.seen.now + spec.time_limit_s < at:
            return "it would have ended by then"
        return None

    def _began(self) -> set[str]:
        """Jobs of which something was started in this cycle."""
        return {a.job for a in self.live if a.assigned_at >= self.seen.now}

    def _behind(self, record: records.JobRecord, reason: pending_reasons.Reason) -> str | None:
        strict = _STRICT.search(reason.message)
        if strict is not None:
            return self._behind_strictly(record, strict["job"])
        named = _FIRST.search(reason.message)
        if named is None:
            return "it does not say who goes first"
        if self.holds(record.spec, "begin", sure=False) is False:
            return "it did not fit before either"
        began = self._began()
        for job in named["jobs"].removesuffix(" and others").split(", "):
            if job not in began and job not in self.seen.promised:
                return f"{job} did not get room"
        return self._fit_now(record)

    def _behind_strictly(self, record: records.JobRecord, job: str) -> str | None:
        if not self.structure.queues[record.spec.queue].strict:
            return "its queue is not strict"
        first = self.seen.job_records.get(job)
        if first is None or first.finished:
            return f"{job} does not wait"
        if first.spec.queue != record.spec.queue:
            return f"{job} waits in another queue"
        return f"{job} has less priority" if first.spec.priority < record.spec.priority else None


class _OpenError(Exception):
    """This module can't tell."""
