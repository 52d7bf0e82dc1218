"""The repository that users' changes are pushed to: what is known of it, and the submitter.

Options of the command line come in. The submitter asks the store, at each push, what may be pushed.
"""

import functools
import pathlib

import msgspec

from reconciler.model import desired
from reconciler.model.rules import past_runs
from reconciler.operations.changes import pusher, remote_changes, submission_repository
from reconciler.operations.views import stored_views
from reconciler.server.auth import authorization
from reconciler.server.repository_facts import LocalRepository, RepositoryFacts
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreError, StoreReader


class RepositoryOptions(msgspec.Struct, frozen=True):
    """Options of the command line about the repository.

    Attributes:
        url: the address to push to.
        branch: the branch to push to.
        path: the folder of the repository that is read; empty: all of it.
        state: the folder for a mirror of this process.
        signing_key: the file of the SSH key that signs commits; None: they are not signed.
    """

    url: str
    branch: str
    path: str
    state: pathlib.Path
    signing_key: pathlib.Path | None


def open_repository(
    options: RepositoryOptions, store: ServerStore
) -> tuple[RepositoryFacts, remote_changes.Submitter]:
    """Return what is known of a repository, and the submitter that pushes to it."""
    repository = submission_repository.open_mirror(
        options.url, branch=options.branch, sub_path=options.path, state=options.state
    )
    key, path = options.signing_key, submission_repository.local_folder(options.url)
    facts = RepositoryFacts(
        folder=repository.sub_path,
        branch=repository.branch or "",
        jobs_folder=f"{repository.sub_path}/jobs/".lstrip("/"),
        local=None if path is None else LocalRepository(path, options.path),
        signing_key=None if key is None else submission_repository.public_key(key),
    )
    reads = PushReads(store)
    push = pusher.GitPusher(
        repository,
        reads.pool_names,
        reads.last_run,
        pusher.StoreLookups(reads.held_at, reads.spent),
        reads.judge,
        signing_key=key,
        refused=reads.refused,
    )
    return facts, remote_changes.Batcher(push)


def why_spent(reader: StoreReader, key: str) -> str:
    """Return why the contents of a run would start nothing: it was before, or it is being stopped.

    Raises:
        StoreError: the store can't be read.
    """
    if not reader.has_begun(key):
        return ""
    found = reader.run(key)
    state = past_runs.OVER if found is None else found.state.value
    if not past_runs.is_spent(state, is_removed=found is not None and found.removed):
        return ""
    return past_runs.why_not_again(key, state, reader.highest_run(key.rsplit(".", 2)[0]))


class PushReads:
    """Reads from the store that a push needs."""

    def __init__(self, store: ServerStore) -> None:
        self._store = store
        #: The status that the following two are of.
        self._sync: bytes | None = None
        self._attempted = ""
        self._unanswered: frozenset[str] = frozenset()

    def pool_names(self) -> dict[str, tuple[str, ...]]:
        """Return the pools in force, with their nodes.

        Raises:
            UnavailableError: the store can't be read.
        """
        try:
            pools = stored_views.stored_pools(self._store.reader.view(stored_views.POOLS))
        except StoreError as error:
            raise remote_changes.UnavailableError(str(error)) from error
        return {pool.name: pool.nodes for pool in pools}

    def last_run(self, name: str) -> pusher.LastRun | None:
        """Return the newest run of a job in the store, if it can be read."""
        try:
            found = self._store.reader.job(name)
        except StoreError:
            return None
        if found is None:
            return None
        return pusher.LastRun(found.spec.run, found.state.value if found.finished else "")

    def spent(self, key: str) -> str:
        """Return why the contents of a run would start nothing; empty if they would.

        Raises:
            UnavailableError: the store can't be read.
        """
        try:
            return why_spent(self._store.reader, key)
        except StoreError as error:
            raise remote_changes.UnavailableError(str(error)) from error

    def refused(self, name: str) -> desired.RefusedJob | None:
        """Return what stands against a job with documents that nobody with the right signed."""
        try:
            reader = self._store.reader
            body = reader.view(stored_views.SYNC)
            if body != self._sync:  # a batch asks for thousands of jobs
                sync = stored_views.stored_sync(body)
                self._attempted = sync.attempted_revision or ""
                self._unanswered = authorization.unanswered_jobs(sync)
                self._sync = body
            if not self._attempted or name not in self._unanswered:
                return None
            if authorization.is_in_force(reader, name):
                found = reader.job(name)
                return desired.RefusedJob(self._attempted, found.spec.path) if found else None
            is_refused = name in stored_views.stored_refused(reader.view(stored_views.REFUSED))
        except StoreError:
            return None
        return desired.RefusedJob(self._attempted, "") if is_refused else None

    def held_at(self, digest: str) -> str:
        """Return the revision with which a change is still held, as far as the store knows."""
        try:
            sync = stored_views.stored_sync(self._store.reader.view(stored_views.SYNC))
        except StoreError:
            return ""
        is_held = any(held.digest == digest for held in sync.held)
        return (sync.attempted_revision or "") if is_held else ""

    def judge(self) -> pusher.Judge:
        """Return the check for the changes of one push, by what is in force now.

        Raises:
            UnavailableError: the store can't be read.
        """
        try:
            known = authorization.Once(self._store.reader)
        except StoreError as error:
            raise remote_changes.UnavailableError(str(error)) from error

        waiting = functools.cache(self._waiting)  # read once git has been fetched

        def judge(
            change: remote_changes.SubmittedDocument, written: remote_changes.Documents
        ) -> str:
            try:
                if change.waited_since and change.submission not in waiting():
                    return "it was withdrawn"
                return authorization.at_commit(known, change, written)
            except StoreError as error:
                raise remote_changes.UnavailableError(str(error)) from error

        return judge

    def _waiting(self) -> frozenset[str]:
        """Return the ids of the submissions that wait for git.

        Raises:
            StoreError: the store can't be read.
        """
        found = (one.waiting for one in self._store.reader.overrides())
        return frozenset(one.id for one in found if one is not None)
