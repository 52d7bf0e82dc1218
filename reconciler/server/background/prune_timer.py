"""Removes files of jobs that ended long ago from the repository, if the ``Cluster`` asks for it.

Files are chosen as by ``muster prune`` and removed like any change: with the rights of the identity
that the ``Cluster`` names, in a commit with the controller's key, and only below the jobs' folder
if signatures are required. The store has the last time, so that one controller of several does it,
and a time that passed while none ran is made up for, once. A killed one leaves the rest to the next
time.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from reconciler.model import desired
from reconciler.model.rules import recurrence
from reconciler.model.values import times
from reconciler.operations import job_pruning
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import stored_views
from reconciler.server.auth import authorization, tokens
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.repository_hints import RepositoryHints
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreError, periodic, statements

_LOG = logging.getLogger("muster.housekeeping")

#: How often it is looked whether the time has come.
LOOK_EVERY_S = 20.0
#: How long after a failure it is tried again.
AGAIN_S = 600.0
#: The most files that leave at once; more leave the next time.
FILES_MAX = 5000
#: What the store calls it.
CHORE = "prune-files"
_PAGE = 1000


class PruneResult(msgspec.Struct, frozen=True):
    """Result of one pruning: deleted files, their commits, and jobs that may not be changed."""

    left: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class Housekeeping:
    """Looks at the schedule now and then.

    Args:
        store: has the jobs, the schedule and the last time.
        submitter: pushes.
        hints: have the loop look at what was pushed.
        facts: say which commits count.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        store: ServerStore,
        submitter: remote_changes.Submitter,
        hints: RepositoryHints,
        facts: RepositoryFacts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._submitter = submitter
        self._hints = hints
        self._facts = facts
        self._clock = clock
        self._not_before = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                _LOG.warning("files of jobs that are over stay for now: %s", error)
            except Exception:
                _LOG.exception("an internal error kept files of jobs that are over where they are")
                self._not_before = self._clock() + AGAIN_S
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> PruneResult | None:
        """Do it if it is due; None: it was not.

        Raises:
            StoreError: the store can't be read now.
        """
        now = self._clock()
        if now < self._not_before:
            return None
        body = await asyncio.to_thread(self._store.reader.view, stored_views.STRUCTURE)
        structure = stored_views.stored_structure(body)
        said = structure.settings.retain_files if structure is not None else None
        if said is None:
            # from the moment of the request on, not for missed times before
            if await asyncio.to_thread(periodic.last, self._store.reader, CHORE) is not None:
                await asyncio.to_thread(periodic.forget, self._store.reader, CHORE)
            return None
        return await self._once(said, now)

    async def _once(self, said: desired.FileRetention, now: float) -> PruneResult | None:
        """Do it if it is due and no other controller does; what fails is left as not done."""
        reader = self._store.reader
        last = await asyncio.to_thread(periodic.last, reader, CHORE)
        if last is not None and recurrence.newest_start(said.schedule, last, now) is None:
            return None
        mine = await asyncio.to_thread(periodic.move, reader, CHORE, last, now)
        if last is None or not mine:
            return None
        done = None
        try:
            done = await self._prune(said, now)
        finally:
            if done is None:
                self._not_before = now + AGAIN_S
                periodic.move(reader, CHORE, now, last)
        return done

    async def _prune(self, said: desired.FileRetention, now: float) -> PruneResult | None:
        """Have the files leave; None: git could not be reached, and it is to be tried again."""
        changes, refused = await asyncio.to_thread(self._chosen, said, now)
        if refused:
            name, why = next(iter(refused.items()))
            _LOG.warning(
                "files of %d jobs stay, since %s may not change them; %s: %s",
                *(len(refused), said.identity, name, why),
            )
        results: list[remote_changes.RemoteChangeResult] = []
        for begin in range(0, len(changes), job_pruning.COMMIT_MAX):
            part = changes[begin : begin + job_pruning.COMMIT_MAX]
            results += await self._submitter.submit(part)
        failed = [one for one in results if one.status >= 400]
        left = tuple(one.name for one in results if one.status < 400 and one.commit is not None)
        commits = tuple(dict.fromkeys(one.commit for one in results if one.commit is not None))
        if left:
            self._hints.pushed()
            _LOG.info("files of jobs that are over left in %s: %d", ", ".join(commits), len(left))
        if failed:
            _LOG.warning(
                "files of %d jobs that are over stay; %s: %s",
                *(len(failed), failed[0].name, failed[0].message),
            )
        if any(one.status >= 500 for one in failed):
            return None
        return PruneResult(left, commits, tuple(refused))

    def _chosen(
        self, said: desired.FileRetention, now: float
    ) -> tuple[list[remote_changes.SubmittedDocument], dict[str, str]]:
        """Return the changes to request, and jobs that may not be changed, with the rule."""
        reader = self._store.reader
        seen: list[job_pruning.PrunableJob] = []
        after: str | None = None
        while True:
            page = reader.jobs(limit=_PAGE, after=after)
            seen += map(job_pruning.of_record, page)
            if len(page) < _PAGE:
                break
            after = statements.cursor(page[-1])
        names = job_pruning.choose(seen, now - said.after_s).names[:FILES_MAX]
        why = f"ended before {times.format_time(now - said.after_s)[:10]}"
        changes = [
            remote_changes.SubmittedDocument("prune", said.identity, name, reason=why)
            for name in names
        ]
        caller = tokens.Caller(said.identity, "user")
        folder = self._facts.jobs_folder
        refused = authorization.elsewhere(reader, changes, jobs_folder=folder)
        refused |= authorization.uncommittable(
            reader, changes, key=self._facts.signing_key, now=now
        ) | authorization.refusals(reader, caller, changes)
        wanted = [one for position, one in enumerate(changes) if position not in refused]
        wanted = authorization.confined(reader, wanted, jobs_folder=folder)
        return wanted, {changes[position].name: told for position, told in refused.items()}
