"""Decides who may run something in a task: the verb ``exec``, and ``impersonate`` of its owner."""

from reconciler.model.policy import access, queue_paths
from reconciler.operations.views import stored_views
from reconciler.server.auth import authorization, tokens
from reconciler.store import StoreReader


def why_not(reader: StoreReader, caller: tokens.Caller, job: str, queue: str, owner: str) -> str:
    """Return why somebody may not run anything in tasks of a job; empty if they may.

    Args:
        reader: the store.
        caller: who asks.
        job: its name.
        queue: its queue.
        owner: as whom it runs.

    Raises:
        StoreError: the store can't be read.
    """
    if caller.role == authorization.ADMIN:
        return ""
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    if structure is None or sync.structure_revision is None:
        return authorization.NOTHING_IN_FORCE
    parents = {name: one.parent for name, one in structure.queues.items()}
    above = queue_paths.ancestors(queue, parents.get)
    decision = access.of_exec(structure.access, caller.name, queue, above, owner)
    if decision.allowed:
        return ""
    whose = (
        "" if owner in {"", caller.name} else f"; job {job} belongs to {owner}, and runs as them"
    )
    return (
        f"{decision.why}{whose}. To fix: ask for a role with {{verbs: [exec], queues: [{queue}]}}"
        + (f" and {{verbs: [impersonate], owners: [{owner}]}}" if whose else "")
    )
