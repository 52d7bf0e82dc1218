"""Attempts that nodes report to a store from the past without a proof.

The store may have been older than the assignment, the key of proofs may be lost, or the agent may
know none. A node may also lie. So nothing follows from one until somebody has said which nodes
to believe, and the node that has one is left alone: what runs there goes on.
"""

import msgspec

from reconciler.core import cycle_attempts, cycle_context
from reconciler.core.cycle import cycle_nodes
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState

#: The most of one node that are kept. No node runs so many tasks.
UNPROVEN_MAX = 4096
#: The doubt about a task whose job is unknown. Its end changes nothing.
OF_NOBODY = "neither the store nor git has a job of its name: it ends once nodes are named"
_ALIVE = (
    AttemptState.FETCHING,
    AttemptState.READY,
    AttemptState.STARTING,
    AttemptState.RUNNING,
    AttemptState.STOPPING,
)


def follows(
    attempt: records.AttemptRecord, before: records.AttemptRecord, spec: desired.Job
) -> bool:
    """Return True if an attempt of an element is of a newer try, by which another one is over.

    Tasks of an elastic gang join it later, by tries with higher numbers, and the others go on.
    """
    is_same = (attempt.group, attempt.index) == (before.group, before.index)
    return before.try_number < attempt.try_number and (is_same or not spec.is_elastic)


class Doubts:
    """The reasons for which an attempt can hardly be a node's.

    Args:
        structure: in force.
        attempts: of this cycle.
        nodes: of this cycle.
        since: when this leader began.
    """

    def __init__(
        self,
        structure: desired.Structure,
        attempts: cycle_attempts.CycleAttempts,
        nodes: cycle_nodes.CycleNodes,
        since: float,
    ) -> None:
        self._structure = structure
        self._attempts = attempts
        self._nodes = nodes
        self._since = since

    def rival(self, attempt: records.AttemptRecord, spec: desired.Job) -> str:
        """Return which earlier try is alive by the word of another node; empty: none.

        A newer try would be the end of it, with a proof as well as without one.
        """
        for before in self._attempts.of_element(attempt.job, attempt.element):
            node = self._nodes.get(before.node)
            is_alive = before.state in _ALIVE and not before.concluded
            is_heard = node is not None and node.last_report_at >= self._since
            is_other = before.node != attempt.node and follows(attempt, before, spec)
            if is_alive and is_heard and is_other:
                return f"try {before.try_number} is alive on {before.node}"
        return ""

    def of(self, attempt: records.AttemptRecord, spec: desired.Job, known_tries: int) -> str:
        """Return why an attempt without a proof can hardly be true; empty: nothing says so."""
        node = self._nodes.get(attempt.node)
        if known_tries and attempt.try_number > known_tries + 1:
            return f"it would be try {attempt.try_number}, and {known_tries} are known"
        if rival := self.rival(attempt, spec):
            return rival
        pool = self._structure.pools.get(node.pool) if node is not None else None
        if node is None or pool is None or pool.observe_only:
            return f"{attempt.node} is in no pool that runs jobs"
        if spec.pools and pool.name not in spec.pools:
            return f"{attempt.node} is not in pool {' or '.join(spec.pools)}"
        if (spec.hosts and node.name not in spec.hosts) or node.name in spec.exclude_hosts:
            return f"{attempt.node} is no node that it may use by spec.hosts or spec.excludeHosts"
        own = node.inventory.labels
        for label, value in sorted(spec.node_selector.items()):
            if desired.label_of(node.name, pool, own, label) != value:
                return f"{attempt.node} has no label {label}={value}"
        if attempt.resources.gpu_milli > 1000 * len(node.inventory.gpus):
            return f"{attempt.node} has not the GPUs for it"
        return ""


def note(
    context: cycle_context.CycleContext,
    node: records.NodeRecord,
    found: list[records.UnprovenAttempt],
) -> None:
    """Note what a node reports without a proof. Ends that it has told before stay noted."""
    names = {one.report.id for one in found}
    kept = [one for one in node.unproven if _is_over(one) and one.report.id not in names]
    unproven = (*found, *kept)[:UNPROVEN_MAX]
    if unproven != node.unproven:
        context.nodes.renew(node, unproven=unproven)


def follow(
    context: cycle_context.CycleContext, node: records.NodeRecord, report: records.NodeReport
) -> None:
    """Follow what becomes of unproven attempts, by a report that does not tell what it holds."""
    told = {one.id: one for one in report.attempts}
    kept = tuple(
        now
        for one in node.unproven
        if one.report.id in told or not report.complete or _is_over(one)
        for now in [msgspec.structs.replace(one, report=told.get(one.report.id, one.report))]
        if now.report.state is not AttemptState.ENDED or _is_over(now)
    )
    if kept != node.unproven:
        _forget(context, node, kept)


def forget_all(context: cycle_context.CycleContext, node: records.NodeRecord) -> None:
    """Forget a node's unproven attempts. It gets its assignments, and ends what is none of them."""
    _forget(context, node, ())


def _forget(
    context: cycle_context.CycleContext,
    node: records.NodeRecord,
    kept: tuple[records.UnprovenAttempt, ...],
) -> None:
    context.nodes.renew(node, unproven=kept)
    left = {one.report.id for one in kept}
    for one in node.unproven:
        if one.report.id not in left:
            context.actions.append(outcome.WithdrawAttempt(one.report.id, node.name))


def _is_over(one: records.UnprovenAttempt) -> bool:
    """Return True if a task has ended, and somebody has to know it."""
    return one.report.state is AttemptState.ENDED and one.doubt != OF_NOBODY
