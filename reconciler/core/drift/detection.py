"""Last phase: detects differences between git and the cluster.

Nodes, attempts, queues and the sync status come in; typed differences go out, each with evidence,
the policy's action, and its progress. Nothing acts here. ``remediation`` acts in the next cycle, so
that every difference is listed before anything is done about it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from reconciler.core import (
    cycle_cache,
    cycle_context,
    detected_drift,
    overrides,
    rate_limits,
)
from reconciler.core.cycle import cycle_alarm, cycle_events, cycle_nodes
from reconciler.core.drift import remediation, task_drift
from reconciler.core.nodes import flapping, health, mismatches
from reconciler.core.pools import instance_differences, provisioning
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.policy.drift_kinds import KINDS, Drift
from reconciler.model.rules import redaction
from reconciler.model.state import outcome, records
from reconciler.model.state.states import NodeState
from reconciler.model.values import quantities, resources, times

#: The most processes listed for one node.
FOREIGN_MAX = 64
_MESSAGE_CHARACTERS_MAX = 500
#: The latest time that a node may report, in the year 2100.
_TIME_MAX = 4.1e9
#: States of nodes whose last report may be outdated.
_NOT_HEARD = (NodeState.UNKNOWN, NodeState.GONE)
#: Differences of nodes that report nothing.
_OF_SILENCE = ("node-silent", "node-missing")
_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)


class _Alike(cycle_cache.CachePart):
    """A cache of nodes that may differ from git. The other nodes were found not to."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.others: set[str] = set()
        self.missing: tuple[str, ...] = ()
        self._made_for: desired.Structure | None = None

    def look(
        self, structure: desired.Structure, nodes: cycle_nodes.CycleNodes, declared: Iterable[str]
    ) -> list[str]:
        """Return the names of nodes to compare, sorted."""
        anew = self._made_for is not structure
        changed = self.take_nodes({*nodes.renewed, *nodes.left})
        if anew:
            self._made_for = structure
            self.others = set(nodes.names())
        self.others |= changed
        if anew or changed.intersection(self.missing) or nodes.left:
            self.missing = tuple(n for n in sorted(declared) if nodes.get(n) is None)
        return sorted(self.others)


def detect_drift(
    context: cycle_context.CycleContext,
    desired_state: desired.Desired,
    states: provisioning.PoolStates,
    queues: Iterable[outcome.QueueUsage] | None,
) -> tuple[Drift, ...]:
    """Return every current difference.

    Args:
        context: of this cycle, after every other phase.
        desired_state: in force.
        states: of provisioned pools.
        queues: use of each queue; None: as in the cycle before.
    """
    structure, nodes, jobs = desired_state.structure, context.nodes, context.jobs
    attempts, alarm = context.attempts, context.alarm
    known = {row.key: row for row in context.observed.drift}
    declared = health.pool_of_node(
        context.cache, structure, context.observed.leader_since, nodes, context.now
    )
    tasks = task_drift.TaskDrift(attempts, jobs, nodes, listed=known, alarm=alarm, now=context.now)
    found = [
        *_of_nodes(
            context.cache.part(_Alike),
            structure,
            nodes,
            declared=declared,
            absent=context.absent,
            tasks=tasks,
        ),
        *tasks.all(),
        *_of_queues(context.observed.drift, queues),
        *instance_differences.differences(states),
        *_of_overrides(structure, context.overrides, nodes),
        *_of_repository(desired_state.status),
    ]
    limits = rate_limits.RateLimits(structure, context.remedies, context.now)
    waits_for = functools.partial(
        remediation.waits_for, limits=limits, nodes=nodes, attempts=attempts, states=states
    )
    recovery = desired_state.recovery
    if recovery is not None and not recovery.answers:  # it is not the nodes that are silent
        found = [one for one in found if one.kind not in _OF_SILENCE]
    return tuple(
        _row(
            difference,
            known.get(f"{difference.kind}:{difference.subject}"),
            limits=limits,
            events=context.events,
            alarm=alarm,
            waits_for=waits_for,
        )
        for difference in found
    )


def _row(
    difference: detected_drift.DetectedDrift,
    before: Drift | None,
    *,
    limits: rate_limits.RateLimits,
    events: cycle_events.CycleEvents,
    alarm: cycle_alarm.CycleAlarm,
    waits_for: Callable[[str, str, str], str],
) -> Drift:
    """Return a difference with its age, action and progress.

    Args:
        difference: as it was found.
        before: as the last cycle listed it; None: it did not.
        limits: of remediations.
        events: of this cycle.
        alarm: set to when it may be remediated.
        waits_for: returns what the remediation of a failed check waits for, by node, pool and
            subject.
    """
    kind = KINDS[difference.kind]
    key = f"{difference.kind}:{difference.subject}"
    action = rate_limits.action_of(limits.structure, difference.kind, difference.pool)
    stand, waits = rate_limits.Stand(), ""
    is_check = difference.kind == "node-check-failed"
    if is_check and limits.healing_of(difference.pool, difference.subject) is None:
        action = "report" if action == "remediate" else action
    if action == "remediate":
        stand = limits.stand_of(difference.kind, key, difference.pool)
        if stand.looks_at is not None and difference.kind in rate_limits.ACTED_ON:
            if stand.looks_at > limits.now:
                alarm.wake(stand.looks_at)
            elif before is None:  # later only news changes that
                alarm.wake(limits.now + rate_limits.LISTED_S)
        if stand.given_up and (before is None or not before.given_up):
            events.add(
                "RemediationGivenUp",
                f"{key}: {stand.text}",
                job=difference.job,
                node=difference.node,
            )
        if is_check and _is_due(stand, limits.now):
            waits = waits_for(difference.node, difference.pool, difference.subject)
    return Drift(
        kind=difference.kind,
        subject=difference.subject,
        message=difference.message,
        severity=kind.severity,
        action=action,
        first_seen=limits.now if before is None else before.first_seen,
        wanted=difference.wanted,
        found=difference.found,
        pool=difference.pool,
        node=difference.node,
        job=difference.job,
        attempt=difference.attempt,
        remedy=waits or stand.text,
        tries=stand.tries,
        given_up=stand.given_up,
    )


def _is_due(stand: rate_limits.Stand, now: float) -> bool:
    return stand.next_at is not None and stand.next_at <= now


# --- nodes ----------------------------------------------------------------------------------


def _of_nodes(
    alike: _Alike,
    structure: desired.Structure,
    nodes: cycle_nodes.CycleNodes,
    *,
    declared: Mapping[str, str],
    absent: AbstractSet[str],
    tasks: task_drift.TaskDrift,
) -> Iterator[detected_drift.DetectedDrift]:
    for name in alike.look(structure, nodes, declared):
        node = None if name in nodes.left else nodes.get(name)
        pool = structure.pools.get(declared.get(name, ""))
        there = node is not None and name not in absent
        found = list(_of_node(node, pool)) if there and node is not None else []
        found += tasks.beyond(name, pool) if there and pool is not None else []
        if not found and name not in nodes.renewed:
            alike.others.discard(name)
        yield from found
    for name in alike.missing:
        if name in absent:
            continue
        message, pool_name = "declared, but no agent reports", declared[name]
        yield detected_drift.DetectedDrift(
            "node-missing", name, message, "reporting", "absent", pool=pool_name, node=name
        )


def _of_node(
    node: records.NodeRecord, pool: desired.Pool | None
) -> Iterator[detected_drift.DetectedDrift]:
    """Yield the differences of one node."""
    name, heard = node.name, node.state not in _NOT_HEARD
    if pool is None and node.state is not NodeState.GONE:
        message = "no pool declares it"
        yield detected_drift.DetectedDrift(
            "node-undeclared", name, message, "absent", "reporting", node=name
        )
    if pool is not None and node.state is NodeState.UNKNOWN:
        message = node.message or "not heard of"
        yield detected_drift.DetectedDrift(
            "node-silent", name, message, "reporting", "silent", pool=pool.name, node=name
        )
        if node.given is not None and node.given.trial:
            message = f"silent while it tries {', '.join(node.given.trial)}: the others keep theirs"
            yield detected_drift.DetectedDrift(
                "node-check-trial", name, message, "healthy", "silent", pool=pool.name, node=name
            )
    elif pool is not None and heard:
        yield from _of_inventory(node, pool)
        yield from _of_checks(node, pool)
    if heard:
        where = pool.name if pool else ""
        yield from _on_devices(node, where)
        yield from _unwanted(node, where)


def _of_inventory(
    node: records.NodeRecord, pool: desired.Pool
) -> Iterator[detected_drift.DetectedDrift]:
    """Yield what a node has less or other than its pool declares."""
    inventory = node.inventory
    for one in [
        *mismatches.find_mismatches(inventory, pool),
        *mismatches.layouts(inventory, pool),
        *mismatches.labels(inventory, pool),
    ]:
        subject = f"{node.name}/{one.subject}" if one.subject else node.name
        yield detected_drift.DetectedDrift(
            one.kind, subject, one.message, one.wanted, one.found, pool=pool.name, node=node.name
        )


def _of_checks(
    node: records.NodeRecord, pool: desired.Pool
) -> Iterator[detected_drift.DetectedDrift]:
    """Yield failed health checks of a node, and that it is a black hole."""
    held = node.brake is not None and node.brake.held
    for one in pool.counted(node.inventory.checks):
        failed = "node-check-braked" if held else "node-check-failed"
        if node.given is not None and one.name in node.given.trial:
            failed = "node-check-trial"
        kind = failed if one.verdict == "failed" else "node-check-degraded"
        subject = f"{node.name}/{one.name}"
        yield detected_drift.DetectedDrift(
            kind, subject, one.message, "healthy", one.verdict, pool=pool.name, node=node.name
        )
    if pool.black_hole is not None and node.out_until:
        message = health.black_hole_message(node)
        yield detected_drift.DetectedDrift(
            "node-black-hole", node.name, message, "tasks that succeed", "tasks that fail",
            pool=pool.name, node=node.name,
        )  # fmt: skip
    if flapping.keeps_out(node, pool) and not held:
        message = flapping.message(node, pool)
        yield detected_drift.DetectedDrift(
            "node-flapping", node.name, message, "checks that stay well", "checks that come and go",
            pool=pool.name, node=node.name,
        )  # fmt: skip


def _on_devices(node: records.NodeRecord, pool: str) -> Iterator[detected_drift.DetectedDrift]:
    for one in node.inventory.foreign_gpu_processes[:FOREIGN_MAX]:
        subject = f"{node.name}/gpu{one.gpu}/{one.pid}"
        yield detected_drift.DetectedDrift(
            "gpu-process-foreign", subject, _who(one), "tasks alone", one.name or "a process",
            pool=pool, node=node.name,
        )  # fmt: skip


def _unwanted(node: records.NodeRecord, pool: str) -> Iterator[detected_drift.DetectedDrift]:
    for attempt in node.unwanted:
        message = "still runs although it was given up or is unknown; the node is ending it"
        yield detected_drift.DetectedDrift(
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


# --- queues, overrides, git -----------------------------------------------------------------


def _of_queues(
    listed: Iterable[Drift],
    queues: Iterable[outcome.QueueUsage] | None,
) -> Iterator[detected_drift.DetectedDrift]:
    if queues is None:
        for row in listed:
            if row.kind == "queue-over-limit":
                yield detected_drift.DetectedDrift(
                    row.kind, row.subject, row.message, row.wanted, row.found
                )
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
            yield detected_drift.DetectedDrift(
                "queue-over-limit", usage.name, message, limits, amounts
            )


def _of_overrides(
    structure: desired.Structure,
    in_force: Iterable[records.Override],
    nodes: cycle_nodes.CycleNodes,
) -> Iterator[detected_drift.DetectedDrift]:
    signed = structure.settings.verification == "required"
    for one in in_force:
        described = f"{overrides.describe(one)}; {overrides.settled_by(one, signed=signed)}"
        if one.verb == "cancel":
            yield detected_drift.DetectedDrift(
                "job-cancelled-by-override", one.subject, described, "running", "cancelled",
                job=one.subject,
            )  # fmt: skip
        elif one.verb == "submit":
            found = "refused" if one.waiting is None else "waits for git"
            yield detected_drift.DetectedDrift(
                "submission-not-committed", one.subject, described, "in git", found
            )
        elif one.verb == "suspend":
            yield detected_drift.DetectedDrift(
                "suspended-by-override", one.subject, described, "at work", "suspended"
            )
        else:
            yield detected_drift.DetectedDrift(
                "node-drained-by-override", one.subject, described, "in service", "drained",
                pool=nodes.pool_of(one.subject), node=one.subject,
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


def _of_repository(status: desired.SyncStatus) -> Iterator[detected_drift.DetectedDrift]:
    if status.sync == "OutOfSync":
        subject = status.attempted_revision or "head"
        in_force = (status.structure_revision or "none")[:12]
        yield detected_drift.DetectedDrift(
            "head-not-applied", subject, _why(status), subject[:12], in_force
        )
    elif status.sync == "Unknown":
        yield detected_drift.DetectedDrift(
            "repository-unreadable", "repository", status.message, "readable", "unreadable"
        )
