"""Invariants, checked by code that shares nothing with the scheduler.

Records, desired state and the truth of virtual nodes come in; sentences about violations go out.
Only ``reconciler.model`` is imported, so that a mistake of the scheduler can't be in its checkers
too.
"""

from collections import Counter, defaultdict

import msgspec

from reconciler.model import desired
from reconciler.model.state import outcome, pending_reasons, records
from reconciler.model.state.states import ELEMENT_CODE, JobState
from reconciler.model.values.resources import Resources
from tests.simulation import views
from tests.simulation.views import Running, View

#: Milli-GPUs of one device.
WHOLE = 1000
#: Reasons with which work may wait for ever though nothing changes any more and nothing runs.
LASTING = frozenset(
    {
        pending_reasons.ReasonCode.HELD,
        pending_reasons.ReasonCode.DEPENDENCY,
        pending_reasons.ReasonCode.DEPENDENCY_NEVER_MET,
        pending_reasons.ReasonCode.NEVER_FITS,
        pending_reasons.ReasonCode.OVER_LIMIT,
        pending_reasons.ReasonCode.WAITING_FOR_QUOTA,
    }
)


# -- 1. No device is given to more than its capacity; no task runs where it can't be held


def capacity(view: View) -> list[str]:
    """Yield violations of capacity: amounts of nodes, shares of devices, and where new work may
    start.
    """
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
        found += _apart(attempt, spec, pool)
        if attempt.node in pool.drains:
            found.append(f"{name} starts on {attempt.node}, which is drained")
        found += [
            f"{name} starts on {attempt.node} in spite of its taint {taint.text()}"
            for taint in pool.taints
            if taint.hard and not spec.tolerates(taint)
        ]
    return found


def _apart(attempt: records.AttemptRecord, spec: desired.Job, pool: desired.Pool) -> list[str]:
    """Return devices that are not near each other as their group requires."""
    required = next((g.inner_required for g in spec.groups if g.name == attempt.group), "")
    domains = {"numa": pool.numa, "nvlink": pool.nvlink}.get(required, ())
    mine = set(attempt.devices)
    if len(mine) < 2 or not domains or any(mine <= set(members) for members in domains):
        return []
    return [f"{attempt.id} starts on {attempt.devices} of {domains}"]


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
    """Yield tries whose records are not a whole gang, or enough tasks of an elastic one."""
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
            mine = [attempt for attempt in attempts if attempt.group == group.name]
            begun = len(begins) == len(attempts)
            found += _unasked_nodes(f"{job}[{element}]", group, mine, begun=begun)
    return found


def _unasked_nodes(
    where: str, group: desired.TaskGroup, attempts: list[records.AttemptRecord], *, begun: bool
) -> list[str]:
    """Return nodes with another number of tasks than the group says.

    ``begun``: all of them start now; else some may have been lost or given up.
    """
    asked = group.tasks_per_node
    if not asked:
        return []
    nodes = Counter(attempt.node for attempt in attempts)
    found = [
        f"{where} has {count} tasks of {group.name} on {node} instead of {asked}"
        for node, count in nodes.items()
        if count > asked or (begun and count < asked)
    ]
    blocks = {(attempt.index // asked, attempt.node) for attempt in attempts}
    if len(blocks) > len({block for block, _ in blocks}):
        found.append(f"{where} has tasks of {group.name} that belong together on several nodes")
    if len(nodes) > group.count // asked:
        found.append(f"{where} has tasks of {group.name} on {len(nodes)} nodes")
    return found


Task = tuple[str, int, str, int]


class PartlyRunning:
    """A checker that no gang really runs in part for longer than it takes to notice and act.

    Args:
        silence_s: after which a node counts as silent.
        slack_s: how long messages and starts may take in addition to leases and graces.
    """

    def __init__(self, silence_s: float, slack_s: float) -> None:
        self._silence_s = silence_s
        self._slack_s = slack_s
        self._since: dict[tuple[str, int, int], float] = {}
        self._done: defaultdict[tuple[str, int, int], set[Task]] = defaultdict(set)

    def has_succeeded(self, attempt: records.AttemptRecord) -> None:
        """Note that a task has succeeded, so that it and its siblings need not run together."""
        key = (attempt.job_key, attempt.element, attempt.try_number)
        self._done[key].add((attempt.job, attempt.element, attempt.group, attempt.index))

    def restart(self, now: float) -> None:
        """Note that the controller restarted, and leases count from now."""
        self._since = dict.fromkeys(self._since, now)

    def check(self, view: View) -> list[str]:
        """Return what has run in part for too long."""
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


# -- 5. A job is never lost, and no task runs twice at once


class Jobs:
    """A checker that every job of git is accounted for, and ends at most once."""

    def __init__(self) -> None:
        self._finished: dict[str, JobState] = {}
        self._known: set[str] = set()

    def check(self, view: View) -> list[str]:
        """Return jobs that were lost, or lived on after their end."""
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
            if known is not None and not elsewhere and not _follows(known, spec):
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


#: Terms that a run with tasks on nodes may keep, and the states of such elements.
KEPT = ("queue", "time_limit_s", "preemptible", "reservation")
LIVE = {ELEMENT_CODE[JobState.STARTING], ELEMENT_CODE[JobState.RUNNING]}


def _follows(record: records.JobRecord, spec: desired.Job) -> bool:
    """Return True if a run is as its document says, but for terms that wait for its tasks' end."""
    if record.spec == spec:
        return True
    terms = {field: getattr(record.spec, field) for field in KEPT}
    is_live = not LIVE.isdisjoint(record.elements)
    return is_live and msgspec.structs.replace(spec, **terms) == record.spec


def once(view: View) -> list[str]:
    """Yield tasks that run twice at once, on any nodes."""
    tasks: defaultdict[tuple[str, int, str, int], list[str]] = defaultdict(list)
    for one in view.running:
        a = one.attempt
        if one.up:
            tasks[a.job, a.element, a.group, a.index].append(f"{a.id} on {one.node}")
    return [f"runs twice: {', '.join(both)}" for both in tasks.values() if len(both) > 1]


# -- 6. Same inputs, same decisions


def same(first: outcome.Outcome, second: outcome.Outcome) -> list[str]:
    """Return where two outcomes of one input differ."""
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
    """Return what changed between two moments at which nothing should."""
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
        f"{name} was {before.nodes.get(name)} and is {node.state}"
        for name, node in after.nodes.items()
        if name not in before.nodes or before.nodes[name].state is not node.state
    ]
    return found


def ended(view: View) -> list[str]:
    """Return what still runs, or waits for ever, after everything had time to end."""
    found = [f"{attempt.id} is {attempt.state}" for attempt in view.attempts.values()]
    found += [f"{one.attempt.id} runs on {one.node}" for one in view.running]
    waits = {
        name: (record.spec.queue, {one.code for one in view.why.get(record.reason_key, ())})
        for name, record in view.job_records.items()
        if not record.finished
    }
    # where nobody passes the first of a queue they wait as long as it does
    held_up = {
        queue
        for queue, codes in waits.values()
        if codes & LASTING
        and queue in view.structure.queues
        and view.structure.queues[queue].strict
    }
    for name, (queue, codes) in waits.items():
        behind = queue in held_up and pending_reasons.ReasonCode.BEHIND in codes
        if not codes & LASTING and not behind:
            state = view.job_records[name].state
            found.append(f"{name} is {state} at rest, for {sorted(codes)}")
    return found


# -- 8. A pending job always has a true reason


def true_reasons(view: View) -> list[str]:
    """Yield pending jobs without a reason, and reasons that are visibly false."""
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


def _is_true(view: View, record: records.JobRecord, code: pending_reasons.ReasonCode) -> bool:
    spec = record.spec
    if code is pending_reasons.ReasonCode.HELD:
        held = any(queue.suspend for queue in views.path(view.structure.queues, spec.queue))
        return spec.suspend or held or view.structure.settings.suspend
    if code is pending_reasons.ReasonCode.BACKING_OFF:
        return any(note.not_before > view.now for note in record.notes.values())
    if code in (
        pending_reasons.ReasonCode.DEPENDENCY,
        pending_reasons.ReasonCode.DEPENDENCY_NEVER_MET,
    ):
        return bool(spec.depends_on)
    if code is pending_reasons.ReasonCode.ARRAY_LIMIT:
        return spec.parallelism is not None
    if code is pending_reasons.ReasonCode.NEVER_FITS:
        return not _fits_alone(view, spec)
    return True


def _fits_alone(view: View, spec: desired.Job) -> bool:
    """Return True if a job of one task would fit on an empty node within all limits."""
    if sum(group.least for group in spec.groups) != 1 or not spec.preemptible:
        return False
    group = next(group for group in spec.groups if group.least)
    asked = group.resources
    amounts = asked.as_vector()
    for queue in views.path(view.structure.queues, spec.queue):
        if views.exceeds(amounts, queue.limit, asked):
            return False
    return any(
        asked.fits_in(pool.promised())
        and _has_near(pool, group)
        and (not spec.pools or pool.name in spec.pools)
        and not pool.taints
        and not any(
            views.exceeds(amounts, most, asked)
            for _, most, _ in views.in_pool(view, spec.queue, pool.name)
        )
        and any(view.nodes[n].state.value == "Ready" for n in pool.nodes if n in view.nodes)
        for pool in view.structure.pools.values()
    )


def _has_near(pool: desired.Pool, group: desired.TaskGroup) -> bool:
    """Return True if the declared GPUs of one task can be as near as required."""
    if not group.inner_required or not pool.numa:
        return True
    declared = range(pool.node_resources.gpu_milli // WHOLE)
    most = max(len([device for device in socket if device in declared]) for socket in pool.numa)
    return group.resources.gpu_milli <= most * WHOLE
