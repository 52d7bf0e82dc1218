"""What must always hold (DESIGN section 9), checked by code that shares nothing with the scheduler.

Records, git's documents and the truth of virtual nodes come in; sentences about what is broken go
out, none where all is well. Nothing but ``reconciler.model`` is imported, so that a mistake of the
scheduler can't be in its checkers too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from reconciler.model import desired, outcome, reasons, records
from reconciler.model.resources import Resources
from reconciler.model.states import AttemptState, JobState

#: Milli-GPUs of one device.
WHOLE = 1000
#: Reasons with which work may wait for ever though nothing changes any more and nothing runs.
LASTING = frozenset(
    {
        reasons.ReasonCode.HELD,
        reasons.ReasonCode.DEPENDENCY,
        reasons.ReasonCode.DEPENDENCY_NEVER_MET,
        reasons.ReasonCode.NEVER_FITS,
        reasons.ReasonCode.OVER_LIMIT,
        reasons.ReasonCode.WAITING_FOR_QUOTA,
    }
)
#: Reasons for which an owner of a guarantee is not asking at the moment.
_NOT_ASKING = LASTING - {reasons.ReasonCode.WAITING_FOR_QUOTA} | {
    reasons.ReasonCode.BACKING_OFF,
    reasons.ReasonCode.ARRAY_LIMIT,
    reasons.ReasonCode.RESERVED,
}


class Running(msgspec.Struct, frozen=True):
    """A task on a virtual node: the truth, whatever records say.

    ``up``: it has started. ``told``: it was told to leave and takes its time.
    """

    node: str
    attempt: records.AttemptRecord
    up: bool = True
    told: bool = False
    reachable: bool = True


class View(msgspec.Struct, frozen=True):
    """Everything that a checker may look at, after one cycle.

    Attributes:
        structure, jobs: as git has them and the cycle saw them; ``generation`` numbers both.
        job_records, attempts, nodes, why: as the cycle left them; ``why`` are the reasons by key.
        hardware: what each virtual node really has.
        running: tasks on all virtual nodes.
        started: ids of attempts that this cycle starts.
        ended: records of runs that this cycle ended, those that another run has replaced too.
    """

    now: float
    structure: desired.Structure
    generation: int = 0
    jobs: Mapping[str, desired.Job] = {}
    job_records: Mapping[str, records.JobRecord] = {}
    attempts: Mapping[str, records.AttemptRecord] = {}
    nodes: Mapping[str, records.NodeRecord] = {}
    why: Mapping[str, tuple[reasons.Reason, ...]] = {}
    hardware: Mapping[str, Resources] = {}
    running: tuple[Running, ...] = ()
    started: frozenset[str] = frozenset()
    ended: tuple[records.JobRecord, ...] = ()

    def is_as(self, before: "View") -> bool:
        """Whether nothing but the time is other than it was, of nodes nothing but their words.

        Only checkers that go by ``now`` can then find what they did not find before.
        """
        return (
            self.structure is before.structure
            and self.generation == before.generation
            and not self.started
            and not self.ended
            and {name: (one.state, one.pool) for name, one in self.nodes.items()}
            == {name: (one.state, one.pool) for name, one in before.nodes.items()}
            and self.running == before.running
            and self.attempts == before.attempts
            and self.job_records == before.job_records
            and self.why == before.why
        )

    def live(self) -> Iterator[records.AttemptRecord]:
        """Attempts that hold something as far as records say."""
        for attempt in self.attempts.values():
            if attempt.state is not AttemptState.ENDED:
                yield attempt


# -- 1. No device is given to more than its capacity; no task runs where it can't be held


def capacity(view: View) -> list[str]:
    """Records and reality: amounts of nodes, shares of devices, and where new work may start."""
    found = _overfull("records", view, list(view.live()))
    found += _overfull("reality", view, [one.attempt for one in view.running])
    pool_of = view.structure.pool_of_node()
    for name in sorted(view.started):
        attempt = view.attempts.get(name)
        if attempt is None:
            continue
        spec = view.job_records[attempt.job].spec
        pool = view.structure.pools.get(pool_of.get(attempt.node, ""))
        if pool is None:
            found.append(f"{name} starts on {attempt.node}, which no pool declares")
            continue
        if spec.pools and pool.name not in spec.pools:
            found.append(f"{name} starts in pool {pool.name}, not in {spec.pools}")
        if attempt.node in pool.drains:
            found.append(f"{name} starts on {attempt.node}, which is drained")
        found += [
            f"{name} starts on {attempt.node} in spite of its taint {taint.text()}"
            for taint in pool.taints
            if taint.hard and not spec.tolerates(taint)
        ]
    return found


def _overfull(where: str, view: View, attempts: list[records.AttemptRecord]) -> list[str]:
    used: defaultdict[str, Resources] = defaultdict(Resources)
    devices: Counter[tuple[str, int]] = Counter()
    found = []
    for attempt in attempts:
        asked = attempt.resources
        used[attempt.node] += asked
        if len(set(attempt.devices)) != len(attempt.devices):
            found.append(f"{where}: {attempt.id} has a device twice: {attempt.devices}")
        if bool(asked.gpu_milli) is not bool(attempt.devices):
            found.append(f"{where}: {attempt.id} takes {asked.gpu_milli} of {attempt.devices}")
        for device in attempt.devices:
            devices[attempt.node, device] += asked.gpu_milli // len(attempt.devices)
    for name, amount in used.items():
        has = view.hardware.get(name, Resources())
        if not amount.fits_in(has):
            found.append(f"{where}: {name} has {has} and gives {amount}")
    for (name, device), share in devices.items():
        if share > WHOLE:
            found.append(f"{where}: device {device} of {name} is given {share} thousandths")
        if WHOLE * device >= view.hardware.get(name, Resources()).gpu_milli:
            found.append(f"{where}: {name} has no device {device}")
    return found


# -- 2. A gang never runs partly


def whole_gangs(view: View) -> list[str]:
    """In records: each try was decided whole, or with enough tasks where it is elastic."""
    tries: defaultdict[tuple[str, int], list[records.AttemptRecord]] = defaultdict(list)
    for attempt in view.attempts.values():
        tries[attempt.job, attempt.element].append(attempt)
    found = []
    for (job, element), attempts in tries.items():
        record = view.job_records.get(job)
        if record is None:
            found.append(f"{job}[{element}] has attempts and no record")
            continue
        if len({attempt.job_key for attempt in attempts}) > 1:
            found.append(f"{job}[{element}] has attempts of two runs")
        counts = Counter(attempt.group for attempt in attempts)
        begins = [attempt for attempt in attempts if attempt.id in view.started]
        for group in record.spec.groups:
            count = counts[group.name]
            if count > group.count:
                found.append(f"{job}[{element}] has {count} tasks of {group.name}")
            short = group.count if not record.spec.is_elastic else group.least
            if (not record.spec.is_elastic or len(begins) == len(attempts)) and count < short:
                found.append(f"{job}[{element}] has {count} of {short} tasks of {group.name}")
    return found


Task = tuple[str, int, str, int]


class PartlyRunning:
    """In reality: no gang runs partly for longer than it takes to learn of it and to act.

    Args:
        silence_s: after which a node counts as not heard of.
        slack_s: how long messages and starts may take on top of leases and graces.
    """

    def __init__(self, silence_s: float, slack_s: float) -> None:
        self._silence_s = silence_s
        self._slack_s = slack_s
        self._since: dict[tuple[str, int, int], float] = {}
        self._done: defaultdict[tuple[str, int, int], set[Task]] = defaultdict(set)

    def has_succeeded(self, attempt: records.AttemptRecord) -> None:
        """A task has done its work: it needs no siblings and they don't need it."""
        key = (attempt.job_key, attempt.element, attempt.try_number)
        self._done[key].add((attempt.job, attempt.element, attempt.group, attempt.index))

    def restart(self, now: float) -> None:
        """The controller begins anew, and with it its reckoning of leases."""
        self._since = dict.fromkeys(self._since, now)

    def check(self, view: View) -> list[str]:
        """What has run partly for too long."""
        gangs: defaultdict[tuple[str, int], list[Running]] = defaultdict(list)
        for one in view.running:
            if one.up and not one.told:
                gangs[one.attempt.job_key, one.attempt.element].append(one)
        found, partly = [], {}
        for (job_key, element), tasks in gangs.items():
            spec = _spec_of(view, tasks[0].attempt)
            first = min(task.attempt.try_number for task in tasks)
            key = (job_key, element, first)
            if spec is None or not self._lacks(spec, tasks, key):
                continue
            since = partly[key] = self._since.get(key, view.now)
            leases = [task.attempt.lease_s for task in tasks]
            if any(lease is None for lease in leases) and not all(t.reachable for t in tasks):
                partly[key] = view.now  # without a lease it runs on for as long as it is cut off
                continue
            lease_s = max([*(lease or 0 for lease in leases), view.structure.settings.lease_s])
            grace_s = max(task.attempt.grace_s for task in tasks)
            stale_s = view.structure.settings.scheduling.stale_gang_s
            allowed_s = 2 * (lease_s + grace_s) + self._silence_s + stale_s + self._slack_s
            if view.now - since > allowed_s:
                found.append(
                    f"{job_key}[{element}] runs partly for {view.now - since:.0f} s, as "
                    f"{tasks[0].attempt.id} on {tasks[0].node}"
                )
        self._since = partly
        return found

    def _lacks(self, spec: desired.Job, tasks: list[Running], key: tuple[str, int, int]) -> bool:
        there = {
            (t.attempt.job, t.attempt.element, t.attempt.group, t.attempt.index) for t in tasks
        }
        for try_key, done in self._done.items():
            if try_key[:2] == key[:2]:
                there |= done
        counts = Counter(group for _, _, group, _ in there)
        return any(counts[group.name] < group.least for group in spec.groups)


def _spec_of(view: View, attempt: records.AttemptRecord) -> desired.Job | None:
    record = view.job_records.get(attempt.job)
    return record.spec if record is not None and record.key == attempt.job_key else None


# -- 3. A guarantee is met when its owner asks and preemptible work could make room


def guarantees(view: View) -> list[str]:
    """At rest: owners within their guarantee wait though room is there or could be made.

    Only what is beyond doubt is told: of each queue its first job, of one task an element; and
    what could make room is preemptible work of queues that have no guarantee at all.
    """
    queues = view.structure.queues
    usage = _usage(view)
    pending: defaultdict[str, list[records.JobRecord]] = defaultdict(list)
    for record in view.job_records.values():
        if record.state is JobState.PENDING:
            pending[record.spec.queue].append(record)
    found = []
    for name, waiting in pending.items():
        if name not in queues or any(queue.suspend for queue in _path(queues, name)):
            continue
        first = min(waiting, key=lambda record: (-record.spec.priority, record.order))
        asked = first.spec.groups[0].resources
        codes = {reason.code for reason in view.why.get(first.reason_key, ())}
        if first.spec.element_count > 1 or sum(g.least for g in first.spec.groups) > 1:
            continue
        if codes & _NOT_ASKING or first.spec.suspend:
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
    """Which of a queue and all above it stay within their guarantee; none past any limit."""
    if not any(queues[name].guaranteed.as_vector()):
        return frozenset()
    found = set()
    for queue in _path(queues, name):
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
    """A node that would have room if all that may be taken for a guarantee left it.

    Where a queue above has more than its guarantee, that queue must not grow by the exchange.
    """
    queues = view.structure.queues
    whole = all(queue.name in covered for queue in _path(queues, spec.queue))
    pool_of = view.structure.pool_of_node()
    kept = {name for one in view.structure.reservations.values() for name in one.nodes}
    for name, node in view.nodes.items():
        pool = view.structure.pools.get(pool_of.get(name, ""))
        if pool is None or node.state.value != "Ready" or name in kept or spec.exclusive:
            continue
        if (spec.pools and pool.name not in spec.pools) or pool.taints:
            continue
        limited = _in_pool(view, spec.queue, pool.name)
        if any(_exceeds((used + asked).as_vector(), most, asked) for _, most, used in limited):
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
        free = sum(shares[device] == 0 for device in range(count))
        part = asked.gpu_milli % WHOLE
        enough = free * WHOLE >= asked.gpu_milli and not part
        if part:
            enough = any(shares[device] + asked.gpu_milli <= WHOLE for device in range(count))
        settled = whole or (spec.preemptible and asked.fits_in(taken))
        if asked.fits_in(room) and enough and settled and not _is_exclusive(view, name):
            return name
    return ""


def _is_exclusive(view: View, node: str) -> bool:
    return any(a.node == node and view.job_records[a.job].spec.exclusive for a in view.live())


def _may_be_taken(
    view: View, attempt: records.AttemptRecord, taker: str, covered: frozenset[str]
) -> bool:
    """Whether a guarantee is due from this work: judged below where the two branches part."""
    queues = view.structure.queues
    spec = view.job_records[attempt.job].spec
    losing, taking = list(_path(queues, spec.queue)), list(_path(queues, taker))
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
    """Queues' limits, firm work in guarantees, and quotas: whatever started stays within."""
    if not view.started:
        return []
    queues = view.structure.queues
    usage, firm = _usage(view), _usage(view, firm=True)
    found: dict[str, None] = {}
    for name in sorted(view.started):
        attempt = view.attempts.get(name)
        if attempt is None:
            continue
        spec = view.job_records[attempt.job].spec
        for queue in _path(queues, spec.queue):
            bounds = [("limit", queue.limit, usage)]
            if not spec.preemptible:
                bounds.append(("guarantee of firm work", queue.guaranteed, firm))
            for what, most, used in bounds:
                amounts = used[queue.name].as_vector()
                text = f"{attempt.job} starts and {queue.name} has {amounts}, {what} {most}"
                if _exceeds(amounts, most, attempt.resources):
                    found[text] = None
        found |= dict.fromkeys(_beyond_pool(view, attempt))
        for quota in view.structure.quotas.values():
            if not _holds_for(view, quota, spec):
                continue
            held = [a for a in view.live() if _holds_for(view, quota, view.job_records[a.job].spec)]
            amounts = _sum(held).as_vector()
            count = len({a.job for a in held})
            if _exceeds(amounts, quota.resources, attempt.resources):
                found[f"{attempt.job} starts and quota {quota.name} has {amounts} in use"] = None
            if quota.running is not None and count > quota.running and _is_first(view, attempt):
                found[f"{attempt.job} starts as one of {count} under quota {quota.name}"] = None
    return list(found)


def _beyond_pool(view: View, attempt: records.AttemptRecord) -> list[str]:
    """Amounts of the pool in which something starts that it went past."""
    pool_of, spec = view.structure.pool_of_node(), view.job_records[attempt.job].spec
    pool = pool_of.get(attempt.node, "")
    return [
        f"{attempt.job} starts in {pool} and {whose} has {used} there, at most {most}"
        for whose, most, used in _in_pool(view, spec.queue, pool)
        if _exceeds(used.as_vector(), most, attempt.resources)
    ]


def _in_pool(view: View, queue: str, pool: str) -> list[tuple[str, desired.Amounts, Resources]]:
    """Each limit that holds for a queue's work in a pool, whose it is, and what is in use of it."""
    pool_of = view.structure.pool_of_node()
    there = [a for a in view.live() if pool_of.get(a.node, "") == pool]
    found = []
    for one in _path(view.structure.queues, queue):
        for flavor in one.flavors:
            if flavor.pool == pool:
                own = [a for a in there if one in _path_of(view, a)]
                found.append((one.name, flavor.limit, _sum(own)))
    found += [
        (quota.name, quota.resources, _sum(there))
        for quota in view.structure.quotas.values()
        if quota.pool == pool
    ]
    return found


def _path_of(view: View, attempt: records.AttemptRecord) -> list[desired.Queue]:
    return list(_path(view.structure.queues, view.job_records[attempt.job].spec.queue))


def _is_first(view: View, attempt: records.AttemptRecord) -> bool:
    return all(a.id in view.started for a in view.live() if a.job == attempt.job)


def _exceeds(amounts: tuple[int, int, int], most: desired.Amounts, asked: Resources) -> bool:
    rows = zip(amounts, most.as_vector(), asked.as_vector(), strict=True)
    return any(bound is not None and more and has > bound for has, bound, more in rows)


def _holds_for(view: View, quota: desired.Quota, spec: desired.Job) -> bool:
    if quota.user:
        return quota.user == spec.owner
    return any(queue.name == quota.queue for queue in _path(view.structure.queues, spec.queue))


def _usage(view: View, *, firm: bool = False) -> dict[str, Resources]:
    """Amounts by queue; ``firm``: what can't be preempted, of elastic work its minimum only."""
    usage: defaultdict[str, Resources] = defaultdict(Resources)
    counts: Counter[tuple[str, int, str]] = Counter()
    for attempt in view.live():
        spec = view.job_records[attempt.job].spec
        counts[attempt.job, attempt.element, attempt.group] += 1
        least = next((g.least for g in spec.groups if g.name == attempt.group), 0)
        spare = counts[attempt.job, attempt.element, attempt.group] > least
        if firm and (spec.preemptible or spare):
            continue
        for queue in _path(view.structure.queues, spec.queue):
            usage[queue.name] += attempt.resources
    return usage


def _sum(attempts: Iterable[records.AttemptRecord]) -> Resources:
    return sum((attempt.resources for attempt in attempts), Resources())


def _path(queues: Mapping[str, desired.Queue], name: str | None) -> Iterator[desired.Queue]:
    while name is not None and name in queues:
        yield queues[name]
        name = queues[name].parent


# -- 5. A job is never lost, and no task runs twice at once


class Jobs:
    """Every job that git ever had is accounted for, and ends at most once."""

    def __init__(self) -> None:
        self._finished: dict[str, JobState] = {}
        self._known: set[str] = set()

    def check(self, view: View) -> list[str]:
        """What was lost, or lived on after its end."""
        found = [
            f"{record.key} was {self._finished[record.key]} and ends again"
            for record in view.ended
            if self._finished.setdefault(record.key, record.state) is not record.state
        ]
        keys = {name: record.key for name, record in view.job_records.items()}
        for name, spec in view.jobs.items():
            known = view.job_records.get(name)
            if known is None and spec.key not in self._finished:
                found.append(f"{name} is in git and nowhere else")
            elsewhere = known is None or known.finished or keys[name] != spec.key
            if known is not None and not elsewhere and known.spec != spec:
                found.append(f"{name} does not follow its document")
        for name, record in view.job_records.items():
            ended = self._finished.get(keys[name])
            if ended is not None and record.state is not ended:
                found.append(f"{record.key} was {ended} and is {record.state}")
            if record.finished:
                self._finished[keys[name]] = record.state
            elif name not in view.jobs and not record.removed:
                found.append(f"{name} has left git and lives on")
        self._known.update(keys.values())
        lost = self._known - set(keys.values()) - self._finished.keys()
        found += [f"{key} is gone without an end" for key in sorted(lost)]
        found += [
            f"{attempt.id} lives, its job has ended"
            for attempt in view.live()
            if attempt.job not in view.job_records or view.job_records[attempt.job].finished
        ]
        return found


def once(view: View) -> list[str]:
    """No task runs twice at once, on any nodes."""
    tasks: defaultdict[tuple[str, int, str, int], list[str]] = defaultdict(list)
    for one in view.running:
        a = one.attempt
        if one.up:
            tasks[a.job, a.element, a.group, a.index].append(f"{a.id} on {one.node}")
    return [f"runs twice: {', '.join(both)}" for both in tasks.values() if len(both) > 1]


# -- 6. Same inputs, same decisions


def same(first: outcome.Outcome, second: outcome.Outcome) -> list[str]:
    """Where two outcomes of one input differ."""
    encode = msgspec.msgpack.encode
    if encode(first) == encode(second):
        return []
    return [
        f"the same input decides otherwise about {field.name}"
        for field in msgspec.structs.fields(outcome.Outcome)
        if encode(getattr(first, field.name)) != encode(getattr(second, field.name))
    ]


# -- 7. With no more changes and no more faults it converges, and then nothing moves


def moves(before: View, after: View) -> list[str]:
    """What changed between two moments at which nothing should."""
    found = [
        f"{name} is {record.state} and has other elements than before"
        for name, record in after.job_records.items()
        if name not in before.job_records
        or (before.job_records[name].state, before.job_records[name].elements)
        != (record.state, record.elements)
    ]
    was = {name: (a.state, a.stop) for name, a in before.attempts.items()}
    now = {name: (a.state, a.stop) for name, a in after.attempts.items()}
    found += [
        f"{name} moves" for name in sorted(was.keys() | now) if was.get(name) != now.get(name)
    ]
    found += [
        f"{name} was {before.nodes[name].state} and is {node.state}"
        for name, node in after.nodes.items()
        if name not in before.nodes or before.nodes[name].state is not node.state
    ]
    return found


def ended(view: View) -> list[str]:
    """When all that ran had time to end: what still runs, or waits for what never comes."""
    found = [f"{attempt.id} is {attempt.state}" for attempt in view.attempts.values()]
    found += [f"{one.attempt.id} runs on {one.node}" for one in view.running]
    for name, record in view.job_records.items():
        codes = {reason.code for reason in view.why.get(record.reason_key, ())}
        if not record.finished and not codes & LASTING:
            found.append(f"{name} is {record.state} at rest, for {sorted(codes)}")
    return found


# -- 8. A pending job always has a true reason


def true_reasons(view: View) -> list[str]:
    """Whether each waiting job has a reason, and those are true that can be seen to be."""
    found = []
    for name, record in view.job_records.items():
        told = view.why.get(record.reason_key, ()) if record.reason_key else ()
        if record.state in (JobState.PENDING, JobState.HELD) and not told:
            found.append(f"{name} is {record.state} for no reason")
        if record.finished and record.reason_key:
            found.append(f"{name} is {record.state} and waits for {record.reason_key}")
        found += [
            f"{name} waits for {reason.code}, which is not true: {reason.message}"
            for reason in told
            if not reason.message or not _is_true(view, record, reason.code)
        ]
    return found


def _is_true(view: View, record: records.JobRecord, code: reasons.ReasonCode) -> bool:
    spec = record.spec
    if code is reasons.ReasonCode.HELD:
        held = any(queue.suspend for queue in _path(view.structure.queues, spec.queue))
        return spec.suspend or held or view.structure.settings.suspend
    if code is reasons.ReasonCode.BACKING_OFF:
        return any(note.not_before > view.now for note in record.notes.values())
    if code in (reasons.ReasonCode.DEPENDENCY, reasons.ReasonCode.DEPENDENCY_NEVER_MET):
        return bool(spec.depends_on)
    if code is reasons.ReasonCode.ARRAY_LIMIT:
        return spec.parallelism is not None
    if code is reasons.ReasonCode.NEVER_FITS:
        return not _fits_alone(view, spec)
    return True


def _fits_alone(view: View, spec: desired.Job) -> bool:
    """Whether one task, which is all that it is, would fit on an empty node within all limits."""
    if sum(group.least for group in spec.groups) != 1 or not spec.preemptible:
        return False
    asked = next(group.resources for group in spec.groups if group.least)
    amounts = asked.as_vector()
    for queue in _path(view.structure.queues, spec.queue):
        if _exceeds(amounts, queue.limit, asked):
            return False
    return any(
        asked.fits_in(pool.promised())
        and (not spec.pools or pool.name in spec.pools)
        and not pool.taints
        and not any(
            _exceeds(amounts, most, asked) for _, most, _ in _in_pool(view, spec.queue, pool.name)
        )
        and any(view.nodes[n].state.value == "Ready" for n in pool.nodes if n in view.nodes)
        for pool in view.structure.pools.values()
    )
