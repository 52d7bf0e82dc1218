"""Moves work off nodes that are out of service, by the drain policy of their pool.

A drained or undeclared node gets no new work at once. How long its tasks may run is the policy of
the pool in whose service it was. The node's record keeps that policy, so that it holds after the
pool has left git. It also holds for unhealthy nodes; silent ones can't be told. Work that is moved
starts elsewhere without spending a retry.
"""

from reconciler.core import cycle_context, job_draft
from reconciler.core.cycle import cycle_alarm, cycle_events, cycle_jobs, stop_orders
from reconciler.core.jobs import lifecycle, verdicts
from reconciler.core.nodes import health
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, NodeState
from reconciler.model.values import times

#: States of nodes that receive orders.
_HEARS = (NodeState.DRAINING, NodeState.UNHEALTHY)


def apply(context: cycle_context.CycleContext) -> None:
    """Order work to stop whose time on a drained node is up."""
    for name in health.out_of_service(context.cache):
        node = context.nodes.get(name)
        if node is None or node.state not in _HEARS or node.leave is None:
            continue
        if node.drain_since:
            _drain(
                node,
                node.leave,
                stops=context.stops,
                jobs=context.jobs,
                events=context.events,
                alarm=context.alarm,
                now=context.now,
            )


def _drain(
    node: records.NodeRecord,
    policy: desired.Leaving,
    *,
    stops: stop_orders.StopOrders,
    jobs: cycle_jobs.CycleJobs,
    events: cycle_events.CycleEvents,
    alarm: cycle_alarm.CycleAlarm,
    now: float,
) -> None:
    ordered: set[tuple[str, int]] = set()
    for attempt in stops.attempts.of_node(node.name):
        key = (attempt.job, attempt.element)
        if key in ordered or attempt.state is AttemptState.ENDED or attempt.stop is not None:
            continue
        ordered.add(key)
        draft = jobs.draft(attempt.job)
        if draft is None or draft.finished:
            continue
        at = policy.leaves_at(draft.spec, node.drain_since)
        if at is None:
            continue
        if at > now:
            alarm.wake(at)
            continue
        live = draft.elements[attempt.element] in job_draft.LIVE_CODES
        if live and draft.note(attempt.element).verdict is None:
            verdicts.give_verdict(stops, draft, attempt.element, EndReason.DRAINED)
            why = node.message if node.drain is None else health.drain_message(node.drain)
            element_name = draft.spec.element_text(attempt.element)
            message = (
                f"{element_name} leaves {node.name}, which is out of service since "
                f"{times.format_time(node.drain_since)}: {why}"
            )
            events.add("JobDrained", message, job=attempt.job, node=node.name)
            lifecycle.settle(jobs, draft)
