"""Review of a requested change, before git is asked and after it is committed.

Before: its documents are checked against the structure in force, and the caller's permission is
checked. After: the answer says if the commit applies by itself. Changes that come at the same time
are reviewed together, with one read of the store.
"""

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from reconciler.model import desired
from reconciler.operations.changes import held_changes, remote_changes
from reconciler.operations.views import job_views, stored_views
from reconciler.server.auth import authentication, authorization, tokens
from reconciler.server.changes import text_worker
from reconciler.server.process import batching
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.server_store import ServerStore

#: A larger text is reviewed by itself, so that other callers do not wait for it.
SHARED_BYTES_MAX = 16 * 2**10
#: A larger text is read in a process of its own: one document holds the interpreter meanwhile.
APART_BYTES_MAX = 32 * 2**10
#: More changes of existing objects are reviewed alone too: each is looked up.
SHARED_CHANGES_MAX = 50
PENDING = (
    "committed, but not in force until the structure in git is corrected (`muster status` shows "
    "what is wrong)"
)
STRUCTURE_HELD = (
    "committed, but not in force until the held structure is approved or reverted (`muster status` "
    "shows what it waits for)"
)
HELD = (
    "committed, but not in force until the newest revision may apply (`muster status` shows what "
    "it waits for)"
)
#: Verbs that change structure, which is held and refused by itself.
STRUCTURAL = frozenset({"drain", "undrain", "suspend", "resume"})


class ChangesUnderReview(NamedTuple):
    """Changes that go together, or the text that they are to be read from.

    Attributes:
        caller: the authenticated caller.
        changes: empty if there is a ``text``.
        owner: of the jobs of the text that name none.
        ephemeral: whether the jobs of the text begin without a file in git.
    """

    caller: tokens.Caller
    changes: Sequence[remote_changes.SubmittedDocument] = ()
    text: str = ""
    owner: str = ""
    dry_run: bool = False
    ephemeral: Literal["no", "preferred", "required"] = "no"


class Weighed(NamedTuple):
    """Changes as they were read, and why some may not be made, by position.

    Attributes:
        wanted: the other changes, limited to files in which the controller's key counts.
    """

    changes: Sequence[remote_changes.SubmittedDocument]
    refused: dict[int, str]
    wanted: list[remote_changes.SubmittedDocument]


class ChangeReview:
    """Reviewer of changes that come at the same time.

    Args:
        store: has the structure in force.
        facts: say which commits count.
    """

    def __init__(self, store: ServerStore, facts: RepositoryFacts) -> None:
        self._store = store
        self._facts = facts
        self._judge: tuple[desired.Structure, remote_changes.SubmissionValidator] | None = None
        caller = authentication.CALLER.get
        self._before = batching.StoreReadBatcher(self._weigh, caller)
        self._large = batching.StoreReadBatcher(self._weigh, caller, call_max=1)
        self._apart = batching.StoreReadBatcher(self._weigh, caller, call_max=1)
        self._after = batching.StoreReadBatcher(self._told, caller)

    async def weigh(self, asked: ChangesUnderReview) -> Weighed:
        """Return the review of a change before git is asked.

        Raises:
            Failure: too many wait.
            InvalidError: the text holds no jobs that could run.
            StoreError: the store can't be read.
        """
        is_large = len(asked.text) > SHARED_BYTES_MAX or len(asked.changes) > SHARED_CHANGES_MAX
        if len(asked.text) > APART_BYTES_MAX:
            return await self._apart.ask(asked)
        return await (self._large if is_large else self._before).ask(asked)

    def normalised(
        self, documents: Sequence[remote_changes.SubmittedDocument], now: float
    ) -> list[desired.Job]:
        """Return reviewed jobs as they come into force, in order.

        Raises:
            UnavailableError: one can't be judged now.
            StoreError: the store can't be read.
        """
        judge = self._judge_of(self._store.reader.view(stored_views.STRUCTURE))
        jobs = [
            job
            for one in documents
            for job in (judge.jobs(one.text.encode(), now) if judge is not None else ())
        ]
        if [job.name for job in jobs] != [one.name for one in documents]:
            raise remote_changes.UnavailableError(
                "the structure in force has changed, so that the jobs have to be checked again"
            )
        return jobs

    async def told(self, verb: remote_changes.Verb) -> str:
        """Return why a commit does not apply by itself; empty if it does.

        Raises:
            Failure: too many wait.
            StoreError: the store can't be read.
        """
        return await self._after.ask(verb)

    def _weigh(self, asked: Sequence[ChangesUnderReview]) -> list[Weighed | Exception]:
        known = authorization.Once(self._store.reader)
        return [self._weighed(one, known) for one in asked]

    def _weighed(self, asked: ChangesUnderReview, known: authorization.Once) -> Weighed | Exception:
        try:
            changes = asked.changes or self._read(asked, known)
            refused = authorization.uncommittable(
                known,
                changes,
                key=self._facts.signing_key,
                now=time.time(),
            ) | authorization.early_refusals(known, asked.caller, changes)
            above = asked.caller.role == authorization.ADMIN
            left = [
                msgspec.structs.replace(one, above=above)
                for position, one in enumerate(changes)
                if position not in refused
            ]
            wanted = authorization.confined(known, left, jobs_folder=self._facts.jobs_folder)
        except Exception as error:  # it is one person's, and costs the others nothing
            return error
        return Weighed(changes, refused, wanted)

    def _read(
        self, asked: ChangesUnderReview, known: authorization.Once
    ) -> list[remote_changes.SubmittedDocument]:
        """Return the jobs of a text, checked against the structure in force if there is one."""
        view = known.view(stored_views.STRUCTURE)
        basis = _basis(stored_views.stored_sync(known.view(stored_views.SYNC)))
        now = time.time()
        if len(asked.text) > APART_BYTES_MAX:
            request = text_worker.TextRequest(
                asked.text, asked.caller.name, now, asked.owner, basis, view or b""
            )
            found = text_worker.read(request, self._known_jobs)
        else:
            found = self._read_here(asked, view, now, basis)
        return (
            [msgspec.structs.replace(one, dry_run=True) for one in found]
            if asked.dry_run
            else found
        )

    def _read_here(
        self, asked: ChangesUnderReview, view: bytes | None, now: float, basis: str
    ) -> list[remote_changes.SubmittedDocument]:
        """Return the jobs of a small text, read in this process."""
        return remote_changes.read(
            asked.text,
            asked.caller.name,
            self._judge_of(view),
            now,
            owner=asked.owner,
            known=self._known_jobs,
            basis=basis,
        )

    def _judge_of(self, view: bytes | None) -> remote_changes.SubmissionValidator | None:
        """Return the validator by the structure in force; None: there is none yet."""
        structure = stored_views.stored_structure(view)
        if structure is None or not structure.queues:
            return None
        if self._judge is None or self._judge[0] is not structure:
            self._judge = structure, remote_changes.SubmissionValidator(structure)
        return self._judge[1]

    def _known_jobs(self, names: Sequence[str]) -> set[str]:
        """Return which of some names are jobs, those that wait for git included."""
        reader = self._store.reader
        found = set(reader.newest_states(names))
        if len(found) < len(names):
            waiting = {one.subject for one in reader.overrides() if one.waiting is not None}
            found |= waiting.intersection(names)
        return found

    def _told(self, verbs: Sequence[remote_changes.Verb]) -> list[str]:
        sync = stored_views.stored_sync(self._store.reader.view(stored_views.SYNC))
        sync_view = msgspec.to_builtins(
            job_views.sync_view(sync, self._facts.folder, self._facts.branch)
        )
        if held_changes.revision(sync_view) or held_changes.emptied(sync_view):
            return [HELD] * len(verbs)
        structural = ""
        if sync.sync == "OutOfSync":
            held = any(one["part"] == "structure" for one in sync_view.get("held") or ())
            none = PENDING if sync.structure_revision is None else ""
            structural = STRUCTURE_HELD if held else none
        return [structural if verb in STRUCTURAL else "" for verb in verbs]


def _basis(sync: desired.SyncStatus) -> str:
    """Return which structure jobs are checked against, if it is not the newest in git."""
    if sync.sync != "OutOfSync" or sync.structure_revision == sync.attempted_revision:
        return ""
    of = f", of {sync.structure_revision[:12]}" if sync.structure_revision else ""
    return (
        f"it was checked by the structure in force{of}: the newest one in git is not in force "
        "(`muster status` says why)"
    )
