"""Authorization of callers: the rules of ``Access``, by the token's identity.

The same rules decide on signed commits (``desired.authorize``). A token with the role ``admin`` is
above them, as is everybody without a token file: it belongs to whoever runs the controller.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import records
from reconciler.model.values import times
from reconciler.operations.changes import remote_changes, suspension
from reconciler.operations.views import stored_views
from reconciler.server import errors
from reconciler.server.auth import tokens
from reconciler.store import StoreReader

ADMIN = "admin"
#: Verbs that change the document of a job, which has its owner.
OF_DOCUMENTS = frozenset({"cancel", "hold", "release", "rerun", "prune"})


class AuthorizationContext(Protocol):
    """Reads from the store that a decision on a change needs."""

    def view(self, name: str) -> bytes | None:
        """Return a view that the loop has stored."""
        ...

    def job(self, name: str) -> records.JobRecord | None:
        """Return the newest run of a job."""
        ...

    def node(self, name: str) -> records.NodeRecord | None:
        """Return a node."""
        ...


class Once:
    """A store whose views are read once, however many changes are decided by them.

    Make one after a request came, so that no request is decided by an older state.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._views: dict[str, bytes | None] = {}

    def view(self, name: str) -> bytes | None:
        """Return a view that the loop has stored."""
        if name not in self._views:
            self._views[name] = self._reader.view(name)
        return self._views[name]

    def job(self, name: str) -> records.JobRecord | None:
        """Return the newest run of a job."""
        return self._reader.job(name)

    def node(self, name: str) -> records.NodeRecord | None:
        """Return a node."""
        return self._reader.node(name)


def are_signed(reader: AuthorizationContext) -> bool:
    """Return True if people have to sign their commits.

    Raises:
        StoreError: the store can't be read.
    """
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    return structure is not None and structure.settings.verification == "required"


def uncommittable(
    reader: AuthorizationContext,
    changes: Sequence[remote_changes.SubmittedDocument],
    *,
    key: str | None,
    now: float,
) -> dict[int, str]:
    """Return positions of the changes that have no effect if the controller commits them, and why.

    If signatures are required, the controller's key counts for jobs and approvals only.

    Args:
        reader: the store.
        changes: the requested changes.
        key: the public key that the controller signs with; empty: unknown; None: there is none.
        now: seconds since the epoch: keys expire.

    Raises:
        StoreError: the store can't be read.
    """
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    if structure is None or structure.settings.verification != "required":
        return {}
    yourself = "commit it yourself, signed, in a clone (--clone)"
    wrong = _wrong_key(structure.access, key, now)
    if wrong:
        why = f"commits have to be signed, and {wrong}: {yourself}"
        return dict.fromkeys(range(len(changes)), why)
    found: dict[int, str] = {}
    for position, change in enumerate(changes):
        if change.verb in {"drain", "undrain", "suspend", "resume"}:
            what = "pools" if change.verb.endswith("drain") else "queues and the cluster"
            found[position] = (
                f"commits have to be signed, and {what} are for people: {yourself}; "
                f"{_WITHOUT_GIT[change.verb].format(change.name)}"
            )
    return found


#: What can be done at once, of what a person has to sign in git.
_WITHOUT_GIT = {
    "drain": "if it can't wait: --override",
    "suspend": "if it can't wait: --override",
    "undrain": "what only an override drains: muster overrides clear drain {0}",
    "resume": "what only an override suspends: muster overrides clear suspend {0}",
}


def elsewhere(
    reader: AuthorizationContext,
    changes: Sequence[remote_changes.SubmittedDocument],
    *,
    jobs_folder: str,
) -> dict[int, str]:
    """Return positions of the jobs whose newest run is in a file where the controller's key is
    invalid.

    Only git knows where a document is when it is changed (``confined``): this check saves asking
    git.

    Raises:
        StoreError: the store can't be read.
    """
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    if structure is None or structure.settings.verification != "required":
        return {}
    found: dict[int, str] = {}
    for position, change in enumerate(changes):
        record = reader.job(change.name)
        why = (
            remote_changes.why_not_signable(record.spec.path, jobs_folder)
            if record is not None
            else ""
        )
        if why:
            found[position] = why
    return found


def _wrong_key(known: access.Access, key: str | None, now: float) -> str:
    """Return why the controller's signatures do not count; empty if they do."""
    if key is None:
        return "this controller has no --signing-key"
    if not key:
        return ""
    found = [
        one for identity in known.identities.values() for one in identity.keys if one.text == key
    ]
    if not found:
        return (
            f"the --signing-key of this controller, {key}, is nobody's in the Access in force "
            "(list it there, with acts: submitter)"
        )
    ends = [one.valid_before for one in found]
    until = max((one for one in ends if one is not None), default=now)
    if None in ends or now < until:
        return ""
    return (
        f"the --signing-key of this controller was valid until {times.format_time(until)} by the "
        "Access in force"
    )


def confined(
    reader: AuthorizationContext,
    changes: Sequence[remote_changes.SubmittedDocument],
    *,
    jobs_folder: str,
) -> list[remote_changes.SubmittedDocument]:
    """Return the same changes, limited to files in which the controller's key counts.

    Where a document is, is known when it is changed: another one may have its name.

    Raises:
        StoreError: the store can't be read.
    """
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    if structure is None or structure.settings.verification != "required":
        return list(changes)
    return [msgspec.structs.replace(change, below=jobs_folder) for change in changes]


NOTHING_IN_FORCE = (
    "no structure is in force yet, so it is not known who may do what: try again when "
    "`muster status` shows one, or ask an admin"
)


def canonical_names(verb: remote_changes.Verb, names: list[str]) -> list[str]:
    """Return the names of a request, each in its only form, which everything after this uses.

    The permission is then checked for the same name that is changed, and an override has one name.

    Raises:
        Failure: a subject can't be suspended or resumed.
    """
    if verb not in {"suspend", "resume"}:
        return names
    try:
        return [suspension.canonical(name) for name in names]
    except suspension.SubjectError as error:
        raise errors.Failure(400, f"names: {error}") from None


def refusals(
    reader: AuthorizationContext,
    caller: tokens.Caller,
    changes: Sequence[remote_changes.SubmittedDocument],
    written: Mapping[str, remote_changes.Documents] | None = None,
) -> dict[int, str]:
    """Return positions of the changes that the caller may not make, and the rule that refuses them.

    Args:
        reader: the store.
        caller: the authenticated caller.
        changes: the requested changes.
        written: the documents of jobs that are changed, by name; for other jobs the newest known
            run
            is used.

    Raises:
        StoreError: the store can't be read.
    """
    if caller.role == ADMIN:
        return {}
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    if structure is None or sync.structure_revision is None:
        return dict.fromkeys(range(len(changes)), NOTHING_IN_FORCE)
    found: dict[int, str] = {}
    unanswered = unanswered_jobs(sync)
    for position, change in enumerate(changes):
        if not structure.access.roles and change.verb != "submit":
            continue  # everybody may do everything but act as somebody else
        found_there = (written or {}).get(change.name, ())
        if (
            change.verb == "cancel"
            and change.name in unanswered
            and is_in_force(reader, change.name)
        ):
            found_there = ()  # what stands there is not in force: whoever has the run may end it
        decision = _decision(reader, structure, caller.name, change, found_there)
        if not decision.allowed:
            found[position] = decision.why
    return found


def unanswered_jobs(sync: desired.SyncStatus) -> frozenset[str]:
    """Return the names of jobs with documents that nobody with the right signed."""
    return frozenset(
        one.object.removeprefix("Job/")
        for one in sync.problems
        if one.object.startswith("Job/")
        and one.severity == "error"
        and desired.is_unanswered(one.message)
    )


def is_in_force(reader: AuthorizationContext, name: str) -> bool:
    """Return True if a version of a written job is in force, whatever is wrong with others.

    Raises:
        StoreError: the store can't be read.
    """
    refused = stored_views.stored_refused(reader.view(stored_views.REFUSED))
    return name not in refused and reader.job(name) is not None


def early_refusals(
    reader: AuthorizationContext,
    caller: tokens.Caller,
    changes: Sequence[remote_changes.SubmittedDocument],
) -> dict[int, str]:
    """Return refusals as ``refusals`` does, of changes that can be decided before git is asked.

    The owner and the queue of a changed document are in the document: ``at_commit`` decides. A
    caller who may change no job at all is refused here, without a lookup in the queue of
    everybody's changes.

    Raises:
        StoreError: the store can't be read.
    """
    at = [position for position, one in enumerate(changes) if one.verb not in OF_DOCUMENTS]
    found = refusals(reader, caller, [changes[position] for position in at])
    refused = {at[position]: why for position, why in found.items()}
    if len(at) < len(changes) and caller.role != ADMIN:
        why = why_no_job(reader, caller.name)
        others = set(range(len(changes))).difference(at) if why else ()
        refused |= dict.fromkeys(others, why)
    return refused


def why_no_job(reader: AuthorizationContext, who: str) -> str:
    """Return why a person may change no job at all; empty if there may be one.

    Raises:
        StoreError: the store can't be read.
    """
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    if structure is None or sync.structure_revision is None:
        return NOTHING_IN_FORCE
    decision = access.of_any_job(structure.access, who)
    return "" if decision.allowed else decision.why


def why_not_owner(reader: AuthorizationContext, who: str, owner: str) -> str:
    """Return why a person's jobs may not be those of an owner; empty if they may.

    Raises:
        StoreError: the store can't be read.
    """
    if owner in {"", who}:
        return ""
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    if structure is None:
        return NOTHING_IN_FORCE
    decision = access.of_impersonation(structure.access, who, owner)
    return "" if decision.allowed else decision.why


def at_commit(
    reader: AuthorizationContext,
    change: remote_changes.SubmittedDocument,
    written: remote_changes.Documents,
) -> str:
    """Return why a change may not be made, by what is in force when it is committed; empty: it may.

    Args:
        reader: the store.
        change: the requested change, with its caller.
        written: the documents of the job that is changed.

    Raises:
        StoreError: the store can't be read.
    """
    caller = tokens.Caller(change.identity, ADMIN if change.above else "user")
    return refusals(reader, caller, [change], {change.name: written}).get(0, "")


def why_not_snapshot(reader: StoreReader, caller: tokens.Caller) -> str:
    """Return why a caller may not read the records of everybody's jobs; empty if it may.

    Raises:
        StoreError: the store can't be read.
    """
    if caller.role == ADMIN:
        return ""
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    if structure is None:
        return NOTHING_IN_FORCE
    decision = access.of_snapshot(structure.access, caller.name)
    if decision.allowed:
        return ""
    return (
        f"{decision.why}; a plan made by the controller (GET /v1/plan), or one that leaves out "
        "running work and forecast, takes no such right"
    )


def _decision(
    reader: AuthorizationContext,
    structure: desired.Structure,
    who: str,
    change: remote_changes.SubmittedDocument,
    written: remote_changes.Documents,
) -> access.Decision:
    """Return the decision on a change; refused if nobody can tell whose object it is."""
    known = structure.access
    if change.verb == "approve":
        return access.of_approval(known, who)
    if change.verb in {"suspend", "resume"}:
        try:
            kind, name = suspension.parse(change.name)  # by which it is also acted upon
        except suspension.SubjectError as error:
            return access.Decision(allowed=False, why=str(error))
        label = f"{kind}/{name}" if name else structure.settings.label
        return access.of_object(known, who, "change", label)
    if change.verb in {"drain", "undrain"}:
        pool = structure.pool_of_node().get(change.name)
        if pool is None:
            return _of_node_without_pool(reader, known, who, change.name)
        return access.of_object(known, who, "drain", f"NodePool/{pool}")
    holders = [(change.queue, change.owner)]
    if change.verb != "submit":
        holders = remote_changes.queues_and_owners(written)
        record = reader.job(change.name) if len(holders) < max(len(written), 1) else None
        if record is not None:  # an unreadable document still has an owner
            holders.append((record.spec.queue, record.spec.owner))
    if not holders:
        message = (
            f"there is no Job/{change.name} here, and its document can't be read, so nobody knows "
            "who may change it. To fix: correct the document, or change it by a commit"
        )
        return access.Decision(allowed=False, why=message)
    queues, owners = zip(*holders, strict=True)
    parents = {name: queue.parent for name, queue in structure.queues.items()}
    whose = access.JobOwners(after=owners) if change.verb == "submit" else access.JobOwners(owners)
    said = (change.priority,) if change.verb == "submit" and change.priority.is_said else ()
    return access.of_job(known, who, access.JobChange(queues, whose, said), parents)


def _of_node_without_pool(
    reader: AuthorizationContext, known: access.Access, who: str, node: str
) -> access.Decision:
    """Return the decision on draining a node that no pool in force declares.

    Its pool was deleted, or is held or refused in git. Nobody can tell whose node it is, so the
    right to all pools is required.
    """
    decision = access.of_kind(known, who, "drain", "NodePool")
    if decision.allowed:
        return decision
    which = f"; there is no Node/{node}" if reader.node(node) is None else ""
    return access.Decision(
        allowed=False,
        why=f"Node/{node} is in no pool in force, so draining it needs the right to drain every "
        f"pool: {decision.why}{which}",
    )
