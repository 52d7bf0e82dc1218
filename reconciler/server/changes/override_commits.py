"""Commits that are tried before there is an override: what git takes needs none."""

import asyncio
import time
from collections.abc import Sequence

from litestar.concurrency import sync_to_thread

from reconciler.model.state import records
from reconciler.operations.changes import remote_changes
from reconciler.server import errors
from reconciler.server.api import queries
from reconciler.server.auth import authorization, tokens
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.repository_hints import RepositoryHints
from reconciler.server.server_store import ServerStore

#: How long git may take before an override is made instead.
GIT_PATIENCE_S = 10.0


class OverrideCommits:
    """Tries requests for overrides as commits.

    Args:
        store: has the structure in force.
        submitter: pushes; None if the server was started without a repository.
        hints: have the loop look at what was pushed.
        facts: say which commits count.
    """

    def __init__(
        self,
        store: ServerStore,
        submitter: remote_changes.Submitter | None,
        hints: RepositoryHints,
        facts: RepositoryFacts,
    ) -> None:
        self._store = store
        self._submitter = submitter
        self._hints = hints
        self._facts = facts

    def is_in_vain(self, changes: Sequence[remote_changes.SubmittedDocument]) -> bool:
        """Return True if some of the changes have no effect when the controller commits them.

        Raises:
            StoreError: the store can't be read.
        """
        found = authorization.uncommittable(
            self._store.reader, changes, key=self._facts.signing_key, now=time.time()
        )
        return bool(found)

    async def commit(
        self,
        verb: records.OverrideVerb,
        names: Sequence[str],
        reason: str,
        caller: tokens.Caller,
    ) -> dict[str, str | None]:
        """Return the names that git took, with their commits, without those that it could not take.

        Raises:
            Failure: git could be asked, and what was asked for makes no sense.
            StoreError: the store can't be read.
        """
        if self._submitter is None:
            return {}
        documents = [
            remote_changes.SubmittedDocument(
                verb,
                caller.name,
                name,
                reason=reason,
                above=caller.role == authorization.ADMIN,
            )
            for name in names
        ]
        documents = await sync_to_thread(
            authorization.confined,
            self._store.reader,
            documents,
            jobs_folder=self._facts.jobs_folder,
        )
        pushing = asyncio.ensure_future(self._submitter.submit(documents, together=True))
        try:
            results = await asyncio.wait_for(asyncio.shield(pushing), GIT_PATIENCE_S)
        except TimeoutError:
            # a push that has begun may go through: then git agrees, and the override ends by itself
            self._submitter.drop(documents)
            return {}
        self._hints.pushed()
        wrong = [
            result
            for result in results
            if 400 <= result.status < 500 and result.status != remote_changes.WITHDRAWN
        ]
        if wrong and all(result.status == 403 for result in wrong):
            return {}
        missing = verb != "cancel" and wrong and all(result.status == 404 for result in wrong)
        if missing and await sync_to_thread(queries.is_structure_otherwise, self._store.reader):
            return {}  # it may have left git by a change that is held, and still be in force
        if wrong:
            raise errors.Failure(
                max(result.status for result in wrong),
                "; ".join(f"{result.name}: {result.message}" for result in wrong[:20]),
            )
        return {result.name: result.commit for result in results if result.status < 400}
