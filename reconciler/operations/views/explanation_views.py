"""Views of a job with its reasons at a moment, and of the queues and nodes that explain them.

Of a moment in the past ``past_reasons`` makes them, in a process of its own.
"""

from collections.abc import Iterable, Mapping, Sequence

from reconciler.core.nodes import health
from reconciler.model import desired
from reconciler.model.rules import quota_limits
from reconciler.model.state import outcome, records
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.model.state.states import AttemptState
from reconciler.model.values import quantities, times
from reconciler.model.values.resources import Resources
from reconciler.operations.views import job_views, json_format, view_types

#: Exit codes of the process; what is printed is an ``Explained`` or a sentence that says why not.
DONE, NOTHING_THERE, UNREADABLE = 0, 4, 5


#: Reasons for which other work could have been evicted.
_OF_ROOM = frozenset({ReasonCode.INSUFFICIENT_RESOURCES.value, ReasonCode.FRAGMENTED.value})
_FORMATS = (quantities.format_cpu, quantities.format_memory, quantities.format_gpu)


class ReplayedCycle(json_format.View, frozen=True):
    """The cycle of an answer about the past.

    ``asked`` is the requested moment, ``decided`` that of the cycle. ``revision`` is the one whose
    jobs were in force, ``structureRevision`` that of all else. ``disagreements`` names the parts of
    the result that differ from the recorded ones.
    """

    asked: str
    decided: str
    cycle: int
    epoch: int
    revision: str | None
    structure_revision: str | None
    muster: str
    disagreements: list[str]


class Borrower(json_format.View, frozen=True):
    """A queue above its guarantee; ``over`` is by how much."""

    name: str
    over: view_types.AmountsView


class SilentNode(json_format.View, frozen=True):
    """A silent node with tasks of the job.

    ``lastHeard`` is null if it never reported; ``givenUp`` is when its tasks start elsewhere at the
    earliest, null if none has a lease; ``endless`` counts tasks without a lease.
    """

    node: str
    pool: str
    last_heard: str | None
    tasks: int
    given_up: str | None
    endless: int


class Explained(json_format.View, frozen=True):
    """A job at a moment, with its queue then and its events until then.

    ``isEarlierRun``: a later run had begun by then, without the element that was asked for.
    """

    job: view_types.JobView
    queue: view_types.QueueView | None
    events: list[view_types.EventView]
    replayed: ReplayedCycle
    borrowers: list[Borrower] = []
    not_reclaimed: str = ""
    silent: list[SilentNode] = []
    is_earlier_run: bool = False


def not_reclaimed(
    spec: desired.Job, view: view_types.JobView, queues: Sequence[outcome.QueueUsage]
) -> str:
    """Return why no other queue returns what it borrowed so that a job fits. It is empty if there
    are other reasons.

    A queue reclaims up to its fair share, and the job would put it above that.
    """
    own = next((one for one in queues if one.name == spec.queue), None)
    if own is None or not view.reasons or view.reasons[0].code not in _OF_ROOM:
        return ""
    if not borrowers(queues, spec.queue):
        return ""
    least = (one.resources.times(one.least) for one in spec.groups)
    requested = sum(least, start=Resources()).as_vector()
    for resource in (2, 0, 1):  # GPUs first
        due, has, more = own.fair_share[resource], own.allocated[resource], requested[resource]
        if due is not None and more and has + more > due:
            text, much = _FORMATS[resource], quota_limits.amount_of(resource, more)
            return (
                f"No queue gives work back for it: with {much} more queue {own.name} "
                f"would have {text(has + more)}, over its fair share of {text(due)}."
            )
    return ""


def borrowers(queues: Sequence[outcome.QueueUsage], own: str, most: int = 5) -> list[Borrower]:
    """Return the leaf queues furthest above their guarantees, first by GPUs.

    ``own`` is left out: it took nothing from itself. CPUs and memory count if some are guaranteed
    to a queue: otherwise they are not rationed.
    """
    parents = {queue.parent for queue in queues}
    over = []
    for queue in queues:
        if queue.name in parents or queue.name == own:
            continue
        held, (cpu_due, memory_due, gpu_due) = queue.allocated, queue.guaranteed
        dues = (
            held[0] if cpu_due is None else cpu_due,
            held[1] if memory_due is None else memory_due,
            gpu_due or 0,
        )
        cpu, _, gpu = more = [max(0, has - due) for has, due in zip(held, dues, strict=True)]
        if gpu or cpu:
            over.append((-gpu, -cpu, queue.name, more))
    return [Borrower(name, job_views.vector(more)) for _, _, name, more in sorted(over)[:most]]


def silent(
    attempts: Iterable[records.AttemptRecord], nodes: Mapping[str, records.NodeRecord]
) -> list[SilentNode]:
    """Return the silent nodes of a job's attempts, by name."""
    found: dict[str, list[records.AttemptRecord]] = {}
    for attempt in attempts:
        node = nodes.get(attempt.node)
        if node is not None and attempt.state is AttemptState.UNKNOWN:
            found.setdefault(node.name, []).append(attempt)
    return [_silent(nodes[name], found[name]) for name in sorted(found)]


def _silent(node: records.NodeRecord, attempts: Sequence[records.AttemptRecord]) -> SilentNode:
    heard_at = health.last_contact(node)
    ends = [health.given_up_at(attempt, heard_at) for attempt in attempts]
    known = [end for end in ends if end is not None]
    return SilentNode(
        node=node.name,
        pool=node.pool,
        last_heard=times.format_time(node.last_report_at) if node.last_report_at else None,
        tasks=len(attempts),
        given_up=times.format_time(max(known)) if known else None,
        endless=len(ends) - len(known),
    )
