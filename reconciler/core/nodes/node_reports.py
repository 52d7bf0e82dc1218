"""First phase: applies reports of nodes to attempts and nodes.

A report is what a node knows, not an order of events: it may come twice, late, or cross a newer
one. Nothing is concluded from a report that an older state can't lead to.
"""

import math

import msgspec

from reconciler.core import cycle_context
from reconciler.model.observed import task_reports
from reconciler.model.state import outcome, records, report_limits
from reconciler.model.state.states import ATTEMPT_TRANSITIONS, AttemptState, EndReason, NodeState

#: States that a node may report of a live attempt.
_ALIVE = (
    AttemptState.FETCHING,
    AttemptState.READY,
    AttemptState.STARTING,
    AttemptState.RUNNING,
    AttemptState.STOPPING,
)
#: States in which no process of a task runs yet.
_AHEAD = frozenset({AttemptState.FETCHING, AttemptState.READY, AttemptState.STARTING})
#: The longest text of a node that is kept.
MESSAGE_CHARACTERS_MAX = 2000
#: The most owners whose failures on a node are remembered.
FAILURES_MAX = 16
_CODE_MAX, _SIGNAL_MAX = 2**31 - 1, 127
_SEEN_RUNNING = (AttemptState.STARTING, AttemptState.RUNNING)


def apply_reports(context: cycle_context.CycleContext) -> None:
    """Apply every report, oldest first, then the times at which nodes were answered."""
    for report in context.observed.reports:
        _apply_report(context, report)
    for name, told_at in context.observed.answered.items():
        node, at = context.nodes.get(name), min(context.now, told_at)
        if node is not None and at > node.last_answer_at:
            context.nodes.renew(node, last_answer_at=at)


def _apply_report(context: cycle_context.CycleContext, report: records.NodeReport) -> None:
    node = context.nodes.get(report.node)
    if node is None:
        pool = context.desired.structure.pool_of_node().get(report.node, "")
        node = records.NodeRecord(
            name=report.node,
            state=NodeState.UNKNOWN,
            pool=pool,
            first_seen_at=report.received_at,
        )
        context.nodes.add(node)
        context.events.add("NodeSeen", "its agent reports for the first time", node=node.name)
    crossed = (
        report.incarnation == node.incarnation
        and report.boot_id == node.boot_id
        and report.sequence < node.sequence
    )
    if crossed:
        return
    heard_at = max(node.last_report_at, min(context.now, report.received_at))
    if tells_nothing(report):
        context.nodes.renew(node, undecided=report.undecided, last_report_at=heard_at)
        return
    if node.boot_id and report.boot_id != node.boot_id:
        _lose_earlier_boot(context, node, report)
    if node.incarnation and report.incarnation != node.incarnation:
        context.events.add("AgentRestarted", "a new agent process reports", node=node.name)
    node = context.nodes.renew(
        node,
        boot_id=report.boot_id,
        incarnation=report.incarnation,
        sequence=report.sequence,
        inventory=_inventory(node, report),
        usage=report_limits.usage(report.usage, context.now) if report.usage else node.usage,
        # a report that waited while the clock was set back was not received after now
        last_report_at=heard_at,
        undecided=report.undecided,
        unwanted=_unwanted(context, node, report),
    )
    for reported in report.attempts:
        _apply_attempt(context, node, reported)
    if report.complete:
        _lose_unlisted(context, node, {reported.id for reported in report.attempts})


def _inventory(node: records.NodeRecord, report: records.NodeReport) -> records.Inventory:
    """Return the node's inventory. An agent that has just begun has checked nothing yet."""
    if report.inventory is None:
        return node.inventory
    reported = report_limits.inventory(report.inventory)
    if reported.unchecked:
        reported = msgspec.structs.replace(reported, checks=node.inventory.checks)
    return reported


def tells_nothing(report: records.NodeReport) -> bool:
    """Return True if a report only says that a part of one could not be processed."""
    reported = report.attempts or report.inventory or report.usage or report.remedies
    return bool(report.undecided) and not reported


def _unwanted(
    context: cycle_context.CycleContext, node: records.NodeRecord, report: records.NodeReport
) -> tuple[str, ...]:
    """Return attempts that live on the node although they were given up."""
    found = set() if report.complete else set(node.unwanted)
    for reported in report.attempts:
        if reported.state is AttemptState.ENDED:
            found.discard(reported.id)
        elif reported.state not in _AHEAD:
            attempt = context.attempts.get(reported.id)
            if attempt is None or attempt.state is AttemptState.ENDED:
                found.add(reported.id)
    return tuple(sorted(found))


def _apply_attempt(
    context: cycle_context.CycleContext, node: records.NodeRecord, reported: records.AttemptReport
) -> None:
    attempt = context.attempts.get(reported.id)
    if attempt is None or attempt.node != node.name:
        if reported.state is AttemptState.ENDED:
            context.actions.append(outcome.Acknowledge(attempt=reported.id, node=node.name))
        return
    if reported.state is AttemptState.ENDED:
        if attempt.state is not AttemptState.ENDED:
            _end(context, attempt, reported)
        context.actions.append(outcome.Acknowledge(attempt=reported.id, node=node.name))
        return
    if attempt.state is AttemptState.ENDED:
        return  # it was given up but lives: the node stops it, because its set does not have it
    state = AttemptState.STOPPING if attempt.stop is not None else reported.state
    if reported.state not in _ALIVE or (attempt.state, state) not in ATTEMPT_TRANSITIONS:
        state = attempt.state
    started_at, saved = _started_at(context, attempt, reported), _saved(context, attempt, reported)
    if (state, started_at, saved) != (attempt.state, attempt.started_at, attempt.saved):
        context.attempts.renew(attempt, state=state, started_at=started_at, saved=saved)
        if state is AttemptState.RUNNING and attempt.state is not AttemptState.RUNNING:
            context.events.add(
                "AttemptRunning",
                f"{_task(context, attempt)} runs",
                job=attempt.job,
                node=attempt.node,
                attempt=attempt.id,
            )


def _task(context: cycle_context.CycleContext, attempt: records.AttemptRecord) -> str:
    """Return ``task main-0``, or in an array ``task main-0 of element 7``."""
    spec = context.jobs.spec_or_aside(attempt.job)
    of_array = spec is not None and spec.array_count is not None
    element = f" of element {attempt.element}" if of_array else ""
    return f"task {attempt.group}-{attempt.index}{element}"


def _moment(
    context: cycle_context.CycleContext, attempt: records.AttemptRecord, reported: float
) -> float:
    """Return a moment of a node's clock, bounded by the assignment and now."""
    return min(context.now, max(attempt.assigned_at, reported))  # this order of arguments drops NaN


def _started_at(
    context: cycle_context.CycleContext,
    attempt: records.AttemptRecord,
    reported: records.AttemptReport,
) -> float | None:
    if attempt.started_at is not None or reported.started_at is None:
        return attempt.started_at
    return _moment(context, attempt, reported.started_at)


def _saved(
    context: cycle_context.CycleContext,
    attempt: records.AttemptRecord,
    reported: records.AttemptReport,
) -> task_reports.Saved | None:
    """Return the newest checkpoint. One that the node no longer reports stays known."""
    one = reported.checkpoint
    if one is None or not one.path or len(one.path) > task_reports.PATH_CHARACTERS_MAX:
        return attempt.saved
    at = min(context.now, max(0.0, one.at))  # this order of arguments drops NaN
    if attempt.saved is not None and at <= attempt.saved.at:
        return attempt.saved
    step = one.step if one.step is not None and math.isfinite(one.step) else None
    return task_reports.Saved(one.path, at, step, min(report_limits.AMOUNT_MAX, max(0, one.bytes)))


def _within(number: int | None, most: int) -> int | None:
    return number if number is not None and abs(number) <= most else None


def _end(
    context: cycle_context.CycleContext,
    attempt: records.AttemptRecord,
    reported: records.AttemptReport,
) -> None:
    code, signal = _within(reported.exit_code, _CODE_MAX), _within(reported.signal, _SIGNAL_MAX)
    reason = reported.end_reason or EndReason.EXITED
    message = task_reports.told_text(reported.message, MESSAGE_CHARACTERS_MAX)
    context.attempts.renew(
        attempt,
        state=AttemptState.ENDED,
        started_at=_started_at(context, attempt, reported),
        ended_at=context.now
        if reported.ended_at is None
        else _moment(context, attempt, reported.ended_at),
        exit_code=code,
        signal=signal,
        end_reason=reason,
        message=message,
        max_memory_bytes=min(report_limits.AMOUNT_MAX, max(0, reported.max_memory_bytes)),
        cpu_s=min(float(report_limits.AMOUNT_MAX), max(0.0, reported.cpu_s)),
        read_bytes=min(report_limits.AMOUNT_MAX, max(0, reported.read_bytes)),
        written_bytes=min(report_limits.AMOUNT_MAX, max(0, reported.written_bytes)),
        saved=_saved(context, attempt, reported),
    )
    _count_failure(context, context.attempts.renewed[attempt.id])
    how = f" with signal {signal}" if signal else "" if code is None else f" with status {code}"
    detail = f": {message}" if message else ""
    context.events.add(
        "AttemptEnded",
        f"{_task(context, attempt)}: {reason.value}{how}{detail}",
        job=attempt.job,
        node=attempt.node,
        attempt=attempt.id,
    )


def _count_failure(context: cycle_context.CycleContext, ended: records.AttemptRecord) -> None:
    """Note that a task failed on its own on its node. A success clears the count."""
    node = context.nodes.get(ended.node)
    pool = context.desired.structure.pools.get(node.pool) if node else None
    if node is None or pool is None or pool.black_hole is None or ended.stop is not None:
        return
    if ended.end_reason is not EndReason.EXITED or ended.started_at is None:
        return
    if ended.exit_code == 0:
        if node.failures:
            context.nodes.renew(node, failures=())
        return
    draft, record = context.jobs.drafts.get(ended.job), context.jobs.known.get(ended.job)
    spec = draft.spec if draft else record.spec if record else None
    owner = spec.owner if spec else ""
    ran_s = max(0.0, (ended.ended_at or context.now) - ended.started_at)
    others = tuple(one for one in node.failures if one.owner != owner)
    failures = (*others, records.QuickFailure(owner, context.now, ran_s))[-FAILURES_MAX:]
    context.nodes.renew(node, failures=failures)


def lose(
    context: cycle_context.CycleContext,
    attempt: records.AttemptRecord,
    reason: EndReason,
    message: str,
) -> None:
    """End an attempt that will not be heard of again."""
    context.attempts.renew(
        attempt, state=AttemptState.ENDED, ended_at=context.now, end_reason=reason, message=message
    )
    context.actions.append(outcome.WithdrawAttempt(attempt=attempt.id, node=attempt.node))
    context.events.add(
        "AttemptLost",
        f"{_task(context, attempt)}: {message}",
        job=attempt.job,
        node=attempt.node,
        attempt=attempt.id,
    )


def _lose_earlier_boot(
    context: cycle_context.CycleContext, node: records.NodeRecord, report: records.NodeReport
) -> None:
    """End the attempts of a machine's earlier boot."""
    ended = {reported.id for reported in report.attempts if reported.state is AttemptState.ENDED}
    for attempt in context.attempts.of_node(node.name):
        if attempt.boot_id != report.boot_id and attempt.id not in ended:
            lose(context, attempt, EndReason.NODE_LOST, f"{node.name} was started again")
    context.events.add("NodeRebooted", "another boot of the node reports", node=node.name)


def _lose_unlisted(
    context: cycle_context.CycleContext, node: records.NodeRecord, listed: set[str]
) -> None:
    """End attempts that the node reported before and no longer knows.

    Others are on their way to it.
    """
    for attempt in context.attempts.of_node(node.name):
        if attempt.id in listed or attempt.boot_id != node.boot_id:
            continue
        seen = attempt.state in _SEEN_RUNNING or attempt.started_at is not None
        if seen:
            lose(context, attempt, EndReason.LOST, f"{node.name} no longer knows it")
