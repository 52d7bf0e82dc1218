"""Which of what waits under quotas the last cycle found that no waiting lets start.

The reasons that records carry come in; kinds of claims go out. Quotas let those through last, so
that work which no node could ever hold has nobody wait for it. Claims of one kind are told the same
of nodes, guarantees and limits: what was told of one holds for all of it, also for those that no
cap let through yet.
"""

from collections.abc import Iterable

from reconciler.core import cycle_context
from reconciler.model import desired
from reconciler.model.state.pending_reasons import ReasonCode, never_starts

_OF_QUOTAS = frozenset({ReasonCode.OVER_LIMIT.value, ReasonCode.OVER_BUDGET.value})
#: After so long what was told is told anew where it lets others through: soon, and never at once
#: time and again.
AGAIN_S = 1.0
#: Queue, shape, whether it is preemptible.
Kind = tuple[str, int, bool]


def kind_of(spec: desired.Job, shape: int) -> Kind:
    """What is alike in claims of which none can start where one of them can't."""
    return (spec.queue, shape, spec.preemptible)


def key_of(code: ReasonCode, job: str) -> str:
    """The key of what a quota says of a job: it is of no other, however alike."""
    return f"{code.value}/{job}"


def kinds(
    context: cycle_context.CycleContext, capped: Iterable[tuple[str, Kind]]
) -> frozenset[Kind]:
    """The kinds of which a job carries a reason that no waiting ends.

    There are none where nodes are made for what waits: it is those claims which no node holds that
    a pool grows for, and then they start in their turn. Nor are there any of a strict queue, in
    which nobody passes the first.

    Args:
        work: with the reasons of the last cycle, or, after its schedule, of this one.
        capped: jobs that a quota holds for, with their kinds.
    """
    structure = context.desired.structure
    if any(pool.provisioning is not None for pool in structure.pools.values()):
        return frozenset()
    strict = {name for name, queue in structure.queues.items() if queue.strict}
    final: dict[str, bool] = {}
    found: set[Kind] = set()
    for job, kind in capped:
        if kind in found or kind[0] in strict:
            continue
        key = context.reason_key(job)
        code, _, whose = key.partition("/")
        if whose == job and code in _OF_QUOTAS:
            continue  # told by a quota, see ``key_of``
        if key not in final:
            final[key] = _says_final(context, key)
        if final[key]:
            found.add(kind)
    return frozenset(found)


def since_changed(context: cycle_context.CycleContext) -> bool:
    """Whether documents or nodes are others than those by which the last cycle told its reasons.

    What it found may have passed: then all are let through in order, and told anew.
    """
    if context.desired.generation != context.observed.desired_generation:
        return True
    before = context.observed.nodes
    for name in context.node_names():
        node, known = context.node(name), before.get(name)
        if node is not known and (
            node is None or known is None or node.inventory != known.inventory
        ):
            return True
    return False


def _says_final(context: cycle_context.CycleContext, key: str) -> bool:
    told = context.reasons.get(key)
    if told is None:
        told = context.observed.reasons.get(key, ())
    return never_starts(told)
