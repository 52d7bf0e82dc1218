"""What a revision would do at once: the controller's own function, asked and not obeyed.

The revision's objects are compared with those in force; then ``reconcile`` decides one cycle with
each, on the records as they stand, and what only the new one does is what the change does.
"""

from pathlib import Path

import msgspec

from reconciler.core import reconcile
from reconciler.model import desired, outcome, records
from reconciler.operations import revisions, views
from reconciler.store import Reader


class PlanError(Exception):
    """There is nothing to compare with, or the revision is not known; says which."""


class Effect(msgspec.Struct, frozen=True):
    """Something that would happen: ``start``, ``evict``, ``cancel``, ``wait`` or ``drain``."""

    effect: str
    subject: str
    message: str = ""


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """Changed objects, problems, and what would happen in the next cycle."""

    base: str
    head: str
    changes: list[revisions.Change]
    problems: list[views.ProblemView]
    effects: list[Effect]


#: Events of a cycle that are effects worth telling.
_EFFECTS = {
    "JobPlaced": "start",
    "JobEvicted": "evict",
    "JobRemoved": "cancel",
    "JobReplaced": "cancel",
    "JobChangeIgnored": "ignore",
    "NodeDraining": "drain",
    "NodeDrained": "drain",
}


def plan(repository: Path, sub_path: str, revision: str, reader: Reader, now: float) -> Plan:
    """What ``revision`` changes in the repository that is in force, and what that does at once.

    Raises:
        PlanError: nothing is in force yet.
        RevisionError: the repository or the revision can't be read.
    """
    sync = views.stored_sync(reader.view(views.SYNC))
    base = sync.jobs_revision
    if base is None:
        raise PlanError("no revision is in force yet; there is nothing to compare with")
    found = revisions.compare(repository, sub_path, base, revision)
    pools = {pool.name: pool for pool in views.stored_pools(reader.view(views.POOLS))}
    observed = reader.observed(now)
    return Plan(
        base=base,
        head=found.head.status.attempted_revision or revision,
        changes=list(found.changes),
        problems=[views.problem_view(problem) for problem in found.head.status.problems],
        effects=effects(observed, _as_run(found.base, pools), _as_run(found.head, pools), now),
    )


def _as_run(wanted: desired.Desired, pools: dict[str, desired.Pool]) -> desired.Desired:
    """The state with what the controller's own options add to its pools."""
    structure = wanted.structure
    changed = {
        name: msgspec.structs.replace(
            pool, allow_root=pool.allow_root or (name in pools and pools[name].allow_root)
        )
        for name, pool in structure.pools.items()
    }
    return msgspec.structs.replace(
        wanted, structure=msgspec.structs.replace(structure, pools=changed)
    )


def effects(
    observed: records.Observed, base: desired.Desired, head: desired.Desired, now: float
) -> list[Effect]:
    """What one cycle with ``head`` does that one with ``base`` does not."""
    as_is = msgspec.structs.replace(base, generation=observed.desired_generation)
    to_be = msgspec.structs.replace(head, generation=observed.desired_generation + 1)
    before = reconcile.reconcile(as_is, observed, now)
    after = reconcile.reconcile(to_be, observed, now)
    anyway = set(_told(before))
    found = [effect for effect in _told(after) if effect not in anyway]
    return found + _waits(after)


def _told(result: outcome.Outcome) -> list[Effect]:
    return [
        Effect(_EFFECTS[event.kind], event.job or event.node, event.message)
        for event in result.events
        if event.kind in _EFFECTS
    ]


def _waits(result: outcome.Outcome) -> list[Effect]:
    """Runs that begin with this revision and do not start at once, with their first reason."""
    new = set(result.new_runs)
    waiting = []
    for job in result.jobs:
        reasons = result.reasons.get(job.reason_key, ())
        if job.key in new and reasons:
            waiting.append(Effect("wait", job.name, f"{reasons[0].code}: {reasons[0].message}"))
    return waiting
