"""Jobs that can never start, so that a quota does not count them ahead of jobs that can.

Jobs of one kind (queue, shape, preemptible) share the verdict. A pool that provisions nodes, or a
strict queue, has no such jobs: the first may still get a node, in the second nothing overtakes.
"""

from collections.abc import Iterable

from reconciler.core.cycle import cycle_jobs, cycle_nodes, cycle_reasons
from reconciler.model import desired
from reconciler.model.state.pending_reasons import ReasonCode, never_starts

_OF_QUOTAS = frozenset({ReasonCode.OVER_LIMIT.value, ReasonCode.OVER_BUDGET.value})
#: How soon verdicts that admit other jobs are judged again. Not at once, so that it can't loop.
AGAIN_S = 1.0
#: Queue, shape, preemptible.
Kind = tuple[str, int, bool]


def kind_of(spec: desired.Job, shape: int) -> Kind:
    """Return the kind of a job. If one of a kind can't start, none can."""
    return (spec.queue, shape, spec.preemptible)


def key_of(code: ReasonCode, job: str) -> str:
    """Return the key of a quota's reason, which belongs to one job alone."""
    return f"{code.value}/{job}"


def unschedulable_kinds(
    structure: desired.Structure,
    jobs: cycle_jobs.CycleJobs,
    reasons: cycle_reasons.CycleReasons,
    capped: Iterable[tuple[str, Kind]],
) -> frozenset[Kind]:
    """Return the kinds whose last pending reason cannot be resolved by waiting.

    Args:
        structure: in force.
        jobs: of this cycle.
        reasons: of the last cycle, or after the schedule those of this one.
        capped: jobs that a quota applies to, with their kinds.
    """
    if any(pool.provisioning is not None for pool in structure.pools.values()):
        return frozenset()
    strict = {name for name, queue in structure.queues.items() if queue.strict}
    final: dict[str, bool] = {}
    found: set[Kind] = set()
    for job, kind in capped:
        if kind in found or kind[0] in strict:
            continue
        key = jobs.reason_key(job)
        code, _, whose = key.partition("/")
        if whose == job and code in _OF_QUOTAS:
            continue  # the quota's own reason, see ``key_of``
        if key not in final:
            final[key] = never_starts(reasons.of(key))
        if final[key]:
            found.add(kind)
    return frozenset(found)


def inputs_changed(
    desired_state: desired.Desired, admitted: int, nodes: cycle_nodes.CycleNodes
) -> bool:
    """Return True if desired state or a node's inventory changed since the last cycle.

    The verdicts may be wrong then, so all jobs are admitted in order, and judged again.

    Args:
        desired_state: in force.
        admitted: generation of the desired state that the last cycle admitted.
        nodes: of this cycle.
    """
    if desired_state.generation != admitted:
        return True
    before = nodes.known
    for name in nodes.names():
        node, known = nodes.get(name), before.get(name)
        if node is not known and (
            node is None or known is None or node.inventory != known.inventory
        ):
            return True
    return False
