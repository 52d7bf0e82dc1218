"""Last phase: detects differences between git and the cluster.

Nodes, attempts, queues and the sync status come in; typed differences go out, each with evidence,
the policy's action, and its progress. Nothing acts here. ``remediation`` acts in the next cycle, so
that every difference is listed before anything is done about it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reconciler.core import cycle_cache, cycle_context, overrides, rate_limits
from reconciler.core.drift import remediation
from reconciler.core.jobs import external_kills
from reconciler.core.nodes import flapping, health, mismatches
from reconciler.core.pools import instance_differences, provisioning
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.policy.drift_kinds import KINDS, Drift
from reconciler.model.rules import redaction
from reconciler.model.state import outcome, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState, NodeState
from reconciler.model.values import quantities, resources, times

#: The most processes listed for one node.
FOREIGN_MAX = 64
#: A task that its node has not started after so long is missing.
START_WITHIN_S = 60.0
#: How long a killed task is listed that need not run again, so that metrics are scraped meanwhile.
KILLED_TOLD_S = 30.0
_FIRST_ENDED = bytes([ELEMENT_CODE[JobState.SUCCEEDED]])
_MESSAGE_CHARACTERS_MAX = 500
#: The latest time that a node may report, in the year 2100.
_TIME_MAX = 4.1e9
#: States of nodes whose last report may be outdated.
_NOT_HEARD = (NodeState.UNKNOWN, NodeState.GONE)
_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)


class _Alike(cycle_cache.CachePart):
    """A cache of nodes that may differ from git. The other nodes were found not to."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.others: set[str] = set()
        self.missing: tuple[str, ...] = ()
        self._made_for: desired.Structure | None = None

    def look(self, context: cycle_context.CycleContext) -> list[str]:
        """Return the names of nodes to compare, sorted."""
        structure, count = context.desired.structure, len(self.missing)
        changed = self.take_nodes({*context.nodes.renewed, *context.nodes.left})
        if self._made_for is not structure:
            self._made_for = structure
            self.others = set(context.nodes.names())
            count = -1
        self.others |= changed
        if changed or count < 0:
            declared = health.pool_of_node(context)
            if count < 0 or changed.intersection(self.missing) or context.nodes.left:
                self.missing = tuple(n for n in sorted(declared) if context.nodes.get(n) is None)
        return sorted(self.others)


class DetectedDrift(NamedTuple):
    """A difference as it is found, before its age and action are known."""

    kind: str
    subject: str
    message: str
    wanted: str = ""
    found: str = ""
    pool: str = ""
    node: str = ""
    job: str = ""
    attempt: str = ""


def detect_drift(
    context: cycle_context.CycleContext,
    states: provisioning.PoolStates,
    queues: Iterable[outcome.QueueUsage] | None,
) -> tuple[Drift, ...]:
    """Return every current difference.

    Args:
        context: of this cycle, after every other phase.
        states: of provisioned pools.
        queues: use of each queue; None: as in the cycle before.
    """
    known = {one.key: one for one in context.observed.drift}
    found = [
        *_of_nodes(context),
        *_of_attempts(context, known),
        *_of_queues(context, queues),
        *_of_provisioners(states),
        *_of_overrides(context),
        *_of_repository(context.desired.status),
    ]
    return tuple(_row(context, states, one, known) for one in found)


def _row(
    context: cycle_context.CycleContext,
    states: provisioning.PoolStates,
    one: DetectedDrift,
    known: dict[str, Drift],
) -> Drift:
    """Return a difference with its age, action and progress."""
    kind = KINDS[one.kind]
    key = f"{one.kind}:{one.subject}"
    before = known.get(key)
    action = rate_limits.action_of(context.desired.structure, one.kind, one.pool)
    stand, waits = rate_limits.Stand(), ""
    if (
        one.kind == "node-check-failed"
        and rate_limits.healing_of(context, one.pool, one.subject) is None
    ):
        action = "report" if action == "remediate" else action
    if action == "remediate":
        stand = rate_limits.stand_of(context, one.kind, key, one.pool)
        if stand.looks_at is not None and one.kind in rate_limits.ACTED_ON:
            if stand.looks_at > context.now:
                context.alarm.wake(stand.looks_at)
            elif before is None:  # later only news changes that
                context.alarm.wake(context.now + rate_limits.LISTED_S)
        if stand.given_up and (before is None or not before.given_up):
            context.events.add(
                "RemediationGivenUp", f"{key}: {stand.text}", job=one.job, node=one.node
            )
        if one.kind == "node-check-failed" and _is_due(stand, context.now):
            waits = remediation.waits_for(context, states, one.node, one.pool, one.subject)
    return Drift(
        kind=one.kind,
        subject=one.subject,
        message=one.message,
        severity=kind.severity,
        action=action,
        first_seen=context.now if before is None else before.first_seen,
        wanted=one.wanted,
        found=one.found,
        pool=one.pool,
        node=one.node,
        job=one.job,
        attempt=one.attempt,
        remedy=waits or stand.text,
        tries=stand.tries,
        given_up=stand.given_up,
    )


def _is_due(stand: rate_limits.Stand, now: float) -> bool:
    return stand.next_at is not None and stand.next_at <= now


def _of_provisioners(states: provisioning.PoolStates) -> Iterator[DetectedDrift]:
    """Yield instances, and pools of them, that are not as requested."""
    for one in instance_differences.differences(states):
        yield DetectedDrift(one.kind, one.subject, one.message, pool=one.pool, node=one.node)


# --- nodes ----------------------------------------------------------------------------------


def _of_nodes(context: cycle_context.CycleContext) -> Iterator[DetectedDrift]:
    alike, declared = context.cache.part(_Alike), health.pool_of_node(context)
    for name in alike.look(context):
        node = None if name in context.nodes.left else context.nodes.get(name)
        pool = context.desired.structure.pools.get(declared.get(name, ""))
        there = node is not None and name not in context.absent
        found = list(_of_node(node, pool)) if there and node is not None else []
        found += _beyond(context, name, pool) if there and pool is not None else []
        if not found and name not in context.nodes.renewed:
            alike.others.discard(name)
        yield from found
    for name in alike.missing:
        if name in context.absent:
            continue
        message, pool_name = "declared, but no agent reports", declared[name]
        yield DetectedDrift(
            "node-missing", name, message, "reporting", "absent", pool=pool_name, node=name
        )


def _of_node(node: records.NodeRecord, pool: desired.Pool | None) -> Iterator[DetectedDrift]:
    """Yield the differences of one node."""
    name, heard = node.name, node.state not in _NOT_HEARD
    if pool is None and node.state is not NodeState.GONE:
        message = "no pool declares it"
        yield DetectedDrift("node-undeclared", name, message, "absent", "reporting", node=name)
    if pool is not None and node.state is NodeState.UNKNOWN:
        message = node.message or "not heard of"
        yield DetectedDrift(
            "node-silent", name, message, "reporting", "silent", pool=pool.name, node=name
        )
    elif pool is not None and heard:
        yield from _of_inventory(node, pool)
        yield from _of_checks(node, pool)
    if heard:
        where = pool.name if pool else ""
        yield from _on_devices(node, where)
        yield from _unwanted(node, where)


def _of_inventory(node: records.NodeRecord, pool: desired.Pool) -> Iterator[DetectedDrift]:
    """Yield what a node has less or other than its pool declares."""
    inventory = node.inventory
    for one in [
        *mismatches.find_mismatches(inventory, pool),
        *mismatches.layouts(inventory, pool),
        *mismatches.labels(inventory, pool),
    ]:
        subject = f"{node.name}/{one.subject}" if one.subject else node.name
        yield DetectedDrift(
            one.kind, subject, one.message, one.wanted, one.found, pool=pool.name, node=node.name
        )


def _of_checks(node: records.NodeRecord, pool: desired.Pool) -> Iterator[DetectedDrift]:
    """Yield failed health checks of a node, and that it is a black hole."""
    for one in node.inventory.checks if pool.checks is not None else ():
        kind = "node-check-failed" if one.verdict == "failed" else "node-check-degraded"
        subject = f"{node.name}/{one.name}"
        yield DetectedDrift(
            kind, subject, one.message, "healthy", one.verdict, pool=pool.name, node=node.name
        )
    if pool.black_hole is not None and node.out_until:
        message = health.black_hole_message(node)
        yield DetectedDrift(
            "node-black-hole", node.name, message, "tasks that succeed", "tasks that fail",
            pool=pool.name, node=node.name,
        )  # fmt: skip
    if flapping.keeps_out(node, pool):
        message = flapping.message(node, pool)
        yield DetectedDrift(
            "node-flapping", node.name, message, "checks that stay well", "checks that come and go",
            pool=pool.name, node=node.name,
        )  # fmt: skip


def _beyond(
    context: cycle_context.CycleContext, node: str, pool: desired.Pool
) -> Iterator[DetectedDrift]:
    """Yield tasks on GPUs that their node's pool no longer declares."""
    for attempt in sorted(context.attempts.of_node(node), key=lambda one: one.id):
        one = mismatches.held(attempt, pool)
        if one is not None:
            subject = external_kills.subject(attempt, is_array=_is_array(context, attempt.job))
            yield DetectedDrift(
                one.kind, subject, one.message, one.wanted, one.found,
                pool=pool.name, node=node, job=attempt.job, attempt=attempt.id,
            )  # fmt: skip


def _on_devices(node: records.NodeRecord, pool: str) -> Iterator[DetectedDrift]:
    for one in node.inventory.foreign_gpu_processes[:FOREIGN_MAX]:
        subject = f"{node.name}/gpu{one.gpu}/{one.pid}"
        yield DetectedDrift(
            "gpu-process-foreign", subject, _who(one), "tasks alone", one.name or "a process",
            pool=pool, node=node.name,
        )  # fmt: skip


def _unwanted(node: records.NodeRecord, pool: str) -> Iterator[DetectedDrift]:
    for attempt in node.unwanted:
        message = "still runs although it was given up or is unknown; the node is ending it"
        yield DetectedDrift(
            "task-unwanted", f"{node.name}/{attempt}", message, "absent", "running",
            pool=pool, node=node.name, attempt=attempt,
        )  # fmt: skip


def _who(process: devices.GpuProcess) -> str:
    """Return what is known of a process on a GPU that belongs to no task."""
    parts = [f"{process.name or 'a process'} ({process.pid})"]
    if process.user:
        parts.append(f"of user {process.user}")
    parts.append(f"holds GPU {process.gpu} ({process.uuid})")
    if process.memory_bytes:
        parts.append(f"with {process.memory_bytes / 2**20:.0f} MiB")
    if process.started_at and 0 < process.started_at < _TIME_MAX:
        parts.append(f"since {times.format_time(process.started_at)}")
    detail = f": {process.detail}" if process.detail else ""
    return (" ".join(parts) + " and belongs to no task" + detail)[:_MESSAGE_CHARACTERS_MAX]


# --- tasks ----------------------------------------------------------------------------------


def _of_attempts(
    context: cycle_context.CycleContext, known: dict[str, Drift]
) -> Iterator[DetectedDrift]:
    """Yield tasks that somebody else ended, and tasks that do not start on their node."""
    yield from _killed(context, known)
    listed = [row.attempt for row in known.values() if row.kind == "task-missing"]
    looked_at = {
        one.id: one for name in context.nodes.renewed for one in context.attempts.of_node(name)
    }
    for name in listed:
        attempt = context.attempts.get(name)
        if attempt is not None:
            looked_at[name] = attempt
    for _, attempt in sorted(looked_at.items()):
        if attempt.state is not AttemptState.ASSIGNED or attempt.stop is not None:
            continue
        node = context.nodes.get(attempt.node)
        if node is None or node.boot_id != attempt.boot_id:
            continue
        if node.last_report_at >= attempt.assigned_at + START_WITHIN_S:
            is_array = _is_array(context, attempt.job)
            yield DetectedDrift(
                "task-missing", external_kills.subject(attempt, is_array=is_array),
                f"assigned to {attempt.node} at {times.format_time(attempt.assigned_at)}, which "
                "reports but does not have it",
                "running", "absent",
                pool=node.pool, node=attempt.node, job=attempt.job, attempt=attempt.id,
            )  # fmt: skip


def _killed(
    context: cycle_context.CycleContext, known: dict[str, Drift]
) -> Iterator[DetectedDrift]:
    """Yield tasks that somebody else ended, until they run again or are not needed."""
    now: dict[str, DetectedDrift] = {}
    for attempt in context.attempts.renewed.values():
        before = context.observed.attempts.get(attempt.id)
        ended_before = before is not None and before.state is AttemptState.ENDED
        if not external_kills.was_killed(attempt) or ended_before:
            continue
        subject = external_kills.subject(attempt, is_array=_is_array(context, attempt.job))
        message = f"ended on {attempt.node} by signal {attempt.signal}, which Muster did not send"
        now[subject] = DetectedDrift(
            "task-killed", subject, message, "running", f"ended by signal {attempt.signal}",
            pool=context.nodes.pool_of(attempt.node), node=attempt.node, job=attempt.job,
            attempt=attempt.id,
        )  # fmt: skip
    for row in known.values():
        if row.kind == "task-killed" and row.subject not in now and _still_missing(context, row):
            now[row.subject] = DetectedDrift(
                row.kind, row.subject, row.message, row.wanted, row.found,
                pool=row.pool, node=row.node, job=row.job, attempt=row.attempt,
            )  # fmt: skip
    yield from now.values()


def _still_missing(context: cycle_context.CycleContext, row: Drift) -> bool:
    """Return True if an ended task does not run again although its job needs it.

    If the job or element ended with it, the difference is listed for ``KILLED_TOLD_S`` more, so
    that it is seen at all.
    """
    draft = context.jobs.drafts.get(row.job)
    record = context.jobs.known.get(row.job)
    spec = draft.spec if draft else record.spec if record else None
    state = context.jobs.state_of(row.job)
    if spec is None or not row.attempt.startswith(f"{spec.key}."):
        return False
    if state in (JobState.SUCCEEDED, JobState.CANCELLED, JobState.TIMED_OUT):
        return False
    element, group, index, _ = row.attempt.removeprefix(f"{spec.key}.").rsplit(".", 3)
    elements = bytes(draft.elements) if draft else record.elements if record else b""
    ended = elements[int(element) : int(element) + 1] >= _FIRST_ENDED
    if ended or state in (JobState.FAILED, JobState.HELD):
        until = row.first_seen + KILLED_TOLD_S
        if context.now < until:
            context.alarm.wake(until)
        return context.now < until
    return not any(
        one.group == group and str(one.index) == index and one.id != row.attempt and _runs(one)
        for one in context.attempts.of_element(row.job, int(element))
    )


def _runs(attempt: records.AttemptRecord) -> bool:
    return attempt.state in (AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.ENDED)


def _is_array(context: cycle_context.CycleContext, job: str) -> bool:
    draft = context.jobs.drafts.get(job)
    record = context.jobs.known.get(job)
    spec = draft.spec if draft else record.spec if record else None
    return spec is not None and spec.array_count is not None


# --- queues, overrides, git -----------------------------------------------------------------


def _of_queues(
    context: cycle_context.CycleContext,
    queues: Iterable[outcome.QueueUsage] | None,
) -> Iterator[DetectedDrift]:
    if queues is None:
        for row in context.observed.drift:
            if row.kind == "queue-over-limit":
                yield DetectedDrift(row.kind, row.subject, row.message, row.wanted, row.found)
        return
    for usage in queues:
        rows = [("", usage.limit, usage.allocated)]
        rows += [(f" in pool {one.pool}", one.limit, one.allocated) for one in usage.pools]
        wanted, found = [], []
        for where, limit, allocated in rows:
            for position, cap in enumerate(limit):
                amount = allocated[position]
                if cap is not None and amount > cap:
                    name, text = resources.RESOURCE_NAMES[position], _FORMATS[position]
                    wanted.append(f"{name} {text(cap)}{where}")
                    found.append(f"{name} {text(amount)}{where}")
        if wanted:
            limits, amounts = ", ".join(wanted), ", ".join(found)
            message = f"it holds {amounts}; its limit is {limits}"
            yield DetectedDrift("queue-over-limit", usage.name, message, limits, amounts)


def _of_overrides(context: cycle_context.CycleContext) -> Iterator[DetectedDrift]:
    signed = context.desired.structure.settings.verification == "required"
    for one in context.overrides:
        described = f"{overrides.describe(one)}; {overrides.settled_by(one, signed=signed)}"
        if one.verb == "cancel":
            yield DetectedDrift(
                "job-cancelled-by-override", one.subject, described, "running", "cancelled",
                job=one.subject,
            )  # fmt: skip
        elif one.verb == "suspend":
            yield DetectedDrift(
                "suspended-by-override", one.subject, described, "at work", "suspended"
            )
        else:
            yield DetectedDrift(
                "node-drained-by-override", one.subject, described, "in service", "drained",
                pool=context.nodes.pool_of(one.subject), node=one.subject,
            )  # fmt: skip


def _why(status: desired.SyncStatus) -> str:
    """Return why the newest revision is not applied: the first error and the number of others."""
    errors = [
        redaction.unquoted(one).text()  # everybody who may look sees it
        for one in status.problems
        if one.severity == "error" and one.message != status.message
    ]
    if not errors:
        return status.message
    more = f"; and {len(errors) - 1} more, by `muster status`" if len(errors) > 1 else ""
    return f"{status.message}: {errors[0]}{more}" if status.message else f"{errors[0]}{more}"


def _of_repository(status: desired.SyncStatus) -> Iterator[DetectedDrift]:
    if status.sync == "OutOfSync":
        subject = status.attempted_revision or "head"
        in_force = (status.structure_revision or "none")[:12]
        yield DetectedDrift("head-not-applied", subject, _why(status), subject[:12], in_force)
    elif status.sync == "Unknown":
        yield DetectedDrift(
            "repository-unreadable", "repository", status.message, "readable", "unreadable"
        )
