"""Terms that a run with tasks on nodes goes on under, whatever its document says by now.

Limits, budgets, guarantees and reservations are judged where work starts. A change that would have
made the start wrong therefore waits until nothing is against it, which is judged anew when that
may have changed, or the run has no task on a node any more. What restricts the run counts at once.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from reconciler.model import desired
from reconciler.model.policy import queue_paths
from reconciler.model.state import identifiers
from reconciler.model.state.scheduler_state import KeptRoom


class Reserved(NamedTuple):
    """The backfill reservations, and the nodes on which tasks of a run are; asked if needed."""

    room: Collection[KeptRoom]
    nodes: Callable[[], Collection[str]]

    def holds_back(self, job: str) -> bool:
        """Return True if another job's tasks are to start where tasks of a job are now."""
        others = [one for one in self.room if one.job != job]
        if not others:
            return False
        mine = frozenset(self.nodes())
        return any(not mine.isdisjoint(one.nodes) for one in others)


NOTHING_RESERVED = Reserved((), frozenset)


def kept_fields(
    structure: desired.Structure,
    before: desired.Job,
    after: desired.Job,
    reserved: Reserved = NOTHING_RESERVED,
) -> tuple[str, ...]:
    """Return the fields of a job that stay as they were while tasks of it are on nodes.

    Args:
        structure: in force.
        before: what the run goes on under.
        after: what its document says.
        reserved: by backfill. A run that started before such a reservation, because it was to end
            before that begins, does not get more time at the cost of who waits.
    """
    kept = [
        field
        for field, judge in _JUDGES.items()
        if getattr(before, field) != getattr(after, field) and judge(structure, before, after)
    ]
    if "time_limit_s" not in kept and is_longer(before, after) and reserved.holds_back(after.name):
        kept.append("time_limit_s")
    if before.mutations != after.mutations:
        kept += _set_otherwise(before, after, kept)
    return tuple(kept)


def _set_otherwise(before: desired.Job, after: desired.Job, kept: Collection[str]) -> list[str]:
    """Return further fields that differ because policies, and not the document, say otherwise."""
    names = [
        name
        for name in dict.fromkeys((*before.mutated, *after.mutated))
        if name not in kept and getattr(before, name) != getattr(after, name)
    ]
    return [*names, *_OF_POLICIES] if names else []


def keep(before: desired.Job, after: desired.Job, fields: tuple[str, ...]) -> desired.Job:
    """Return what a document says, but for fields that stay as they were."""
    if not fields:
        return after
    found = msgspec.structs.replace(after, **{field: getattr(before, field) for field in fields})
    return before if found == before else found


def keep_folder(before: desired.Job, after: desired.Job) -> desired.Job:
    """Return what a document says, with the checkpoint folder of a run from an earlier version.

    It was named after the number alone, which the run's next try could not find any more.
    """
    old, new = before.checkpoint, after.checkpoint
    if old is None or new is None or old.path == new.path:
        return after
    if old.path != identifiers.earlier_checkpoint_path(before.name, before.run):
        return after
    checkpoint = msgspec.structs.replace(new, path=old.path)
    return msgspec.structs.replace(after, checkpoint=checkpoint)


def message(fields: tuple[str, ...]) -> str:
    """Return what is said of a run that keeps fields."""
    names = (WRITTEN.get(field, _camel(field)) for field in fields if field not in _OF_POLICIES)
    return f"{WAITS}{', '.join(names)}"


def _camel(field: str) -> str:
    first, *others = field.removesuffix("_s").split("_")
    return first + "".join(word.capitalize() for word in others)


def is_longer(before: desired.Job, after: desired.Job) -> bool:
    """Return True if a job may run for longer after a change."""
    old, new = before.time_limit_s, after.time_limit_s
    return old is not None and (new is None or new > old)


#: Fields that go with those that policies have set.
_OF_POLICIES = ("mutations", "mutated")
#: Fields as documents call them.
WRITTEN: Mapping[str, str] = {
    "queue": "queue",
    "time_limit_s": "timeLimit",
    "preemptible": "preemptible",
    "reservation": "reservation",
}
#: Beginning of the message of a run that keeps fields.
WAITS = (
    "its tasks go on under what they started with; at the next start at the latest it takes over "
    "its new "
)


def _leaves_queue(structure: desired.Structure, before: desired.Job, after: desired.Job) -> bool:
    """Return True if limits, guarantees or quotas count the run elsewhere in the other queue.

    What it leaves counts as what it enters: room in a guarantee or limit would be free for a
    further start, while the run goes on where it could not have started.
    """
    differing = set(_path_of(structure, before.queue)) ^ set(_path_of(structure, after.queue))
    nothing = desired.QuotaAmounts()
    return any(
        queue.limit != nothing
        or queue.guaranteed != nothing
        or queue.flavors
        or queue.gpu_milli_max
        for queue in map(structure.queues.__getitem__, differing)
    ) or any(quota.queue in differing for quota in structure.quotas.values())


def _path_of(structure: desired.Structure, queue: str) -> tuple[str, ...]:
    parents = {name: one.parent for name, one in structure.queues.items()}
    return tuple(
        name for name in (queue, *queue_paths.ancestors(queue, parents.get)) if name in parents
    )


def _outlives(structure: desired.Structure, before: desired.Job, after: desired.Job) -> bool:
    """Return True if a longer time limit costs a budget more, or can meet a reservation."""
    if not is_longer(before, after):
        return False
    groups = structure.access.groups_of(after.owner)
    path = _path_of(structure, before.queue)
    if structure.reservations:
        return True
    return any(
        quota.budget_gpu_s is not None and quota.holds_for(after.owner, groups, path)
        for quota in structure.quotas.values()
    )


def _is_settled(_structure: desired.Structure, before: desired.Job, _after: desired.Job) -> bool:
    """Return True if a run that can be evicted is to be one that can't."""
    return before.preemptible


def _always(_structure: desired.Structure, _before: desired.Job, _after: desired.Job) -> bool:
    return True


_JUDGES = {
    "queue": _leaves_queue,
    "time_limit_s": _outlives,
    "preemptible": _is_settled,
    "reservation": _always,
}
