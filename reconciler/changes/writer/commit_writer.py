"""Writes to the desired repository: batches of requests become commits, without a work tree.

Requests that come in at once share one write. Their commits (one an author, in order) are made by
``git fast-import`` and become the branch's head by compare-and-swap, or by a push. If somebody else
was faster, the batch is built again on top. An accepted request is in the branch; each other one
says why.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from reconciler.changes import push_result, requests
from reconciler.changes.clone import clone_lock, worktrees
from reconciler.changes.requests import MUSTER, Person, Request, RequestResult
from reconciler.changes.writer import (
    fast_import,
    object_index,
    refused_copies,
    signing,
    stale_refs,
    submission_history,
)
from reconciler.changes.writer.batch import Batch
from reconciler.desired.git import git_commands, source
from reconciler.desired.git.git_commands import GitError

_LOG = logging.getLogger(__name__)

#: How often a batch is built again because somebody else's push came first.
ATTEMPTS_MAX = 8
#: How long a person's turn in it is waited for.
TURN_S = 30.0
#: The most requests of one batch; more are done in several.
BATCH_MAX = 1_000
#: How many refused pushes are worth finding out which requests of a batch the remote refuses.
REFUSALS_MAX = 32


class CommitWriter:
    """A writer to one branch, for one thread at a time.

    Args:
        repository: a local one is written in place, others by push.
        committer: committer of the commits; authors are those of the requests.
        attempts_max: how often to build on top of what others pushed.
        signing_key: file with the SSH key that signs commits; None: they are not signed.
        refused: tells of jobs with documents that the controller has refused.
    """

    def __init__(
        self,
        repository: source.GitSource,
        *,
        committer: Person = MUSTER,
        attempts_max: int = ATTEMPTS_MAX,
        signing_key: Path | None = None,
        refused: refused_copies.RefusedJobs = refused_copies.none_refused,
    ) -> None:
        self._refused = refused
        self._signing_key = signing_key
        self._source = repository
        self._committer = committer
        self._attempts_max = attempts_max
        self._index = object_index.Index(repository)
        self._tidied = False
        if repository.local:
            try:
                worktrees.finish(repository)
            except (GitError, OSError) as error:
                _LOG.warning(
                    "%s can't be looked at before the first change: %s", repository.address, error
                )

    def close(self) -> None:
        """Stop its processes."""
        self._source.close()

    def write(
        self, batch: Sequence[Request | requests.RequestGroup], *, now: int, dry_run: bool = False
    ) -> list[RequestResult]:
        """Put requests into the branch; return one result each, in their order.

        Errors of git are not raised: such requests are ``failed``. What the remote does not let in
        is ``rejected``, alone.

        Args:
            now: seconds since the epoch, for the commits.
            dry_run: only judge; accepted requests have no commit.
        """
        results: list[RequestResult] = []
        for start in range(0, len(batch), BATCH_MAX):
            part = batch[start : start + BATCH_MAX]
            results += self._written_apart(part, now, dry_run=dry_run)
        return results

    def _written_apart(
        self, part: Sequence[Request | requests.RequestGroup], now: int, *, dry_run: bool
    ) -> list[RequestResult]:
        """Put requests into the branch: those that the remote refuses, found by halves, cost the
        others nothing.
        """
        results: list[RequestResult] = []
        refusals, left = 0, [part]
        while left:
            some = left.pop()
            try:
                results += self._write(some, now, dry_run=dry_run)
            except push_result.RefusedPushError as error:
                self._index.head = None
                refusals += 1
                if len(some) == 1:
                    results += [RequestResult("rejected", message=str(error))] * _count(some[0])
                elif refusals < REFUSALS_MAX:
                    half = len(some) // 2
                    left += [some[half:], some[:half]]
                else:
                    told = (
                        f"it refuses {refusals} pushes in a row; what is left is tried again later"
                    )
                    results += _failed((some, *reversed(left)), told)
                    break
            except (GitError, OSError) as error:
                self._index.head = None
                results += _failed((some, *reversed(left)), str(error))
                break
        return results

    def _write(
        self, part: Sequence[Request | requests.RequestGroup], now: int, *, dry_run: bool
    ) -> list[RequestResult]:
        why = ""
        for _ in range(self._attempts_max):
            self._source.fetch()
            if self._source.local:
                with clone_lock.taken(self._source.folder, wait_s=TURN_S):
                    worktrees.finish(self._source)
            if not self._tidied:
                stale_refs.tidy(self._source.folder)
                self._tidied = True
            try:
                head = self._source.head()
            except source.MissingBranchError:
                if not self._is_new():
                    raise
                head = self._first_commit(now)
            self._index.advance(head)
            judged = Batch(
                *(self._index, self._source.sub_path, self._trees(), self._refused),
                committer=self._committer,
                committed=submission_history.find(self._source.folder, head, part),
            )
            for request in part:
                judged.judge(request)
            if dry_run or not judged.steps:
                return judged.results
            commit = self._commit(head, judged, now)
            why = self._publish(head, commit)
            if not why:
                self._index.take(commit, judged.files)
                return [
                    RequestResult("accepted", result.path, commit)
                    if result.status == "accepted"
                    else result
                    for result in judged.results
                ]
        raise GitError(f"others pushed {self._attempts_max} times in between; last: {why}")

    def _trees(self) -> list[Path]:
        """Return work trees of other people whose files follow the branch."""
        if not self._source.local:
            return []
        try:
            return worktrees.of(self._source, self._full_reference())
        except GitError:  # no branch is checked out: whoever writes one says so
            return []

    def _is_new(self) -> bool:
        """Return True if the repository has no branch at all yet: then one may be created."""
        if self._source.branch is None or not self._source.local:
            return False
        return not git_commands.run(self._source.folder, "for-each-ref", "refs/heads/").stdout

    def _first_commit(self, now: int) -> str:
        """Return an empty commit for an empty repository, so that later code has one case only."""
        tree = git_commands.run(self._source.folder, "mktree").stdout.decode().strip()
        who = self._committer
        stamp = f"{now} +0000"
        identity = {
            "GIT_AUTHOR_NAME": who.name,
            "GIT_AUTHOR_EMAIL": who.email,
            "GIT_AUTHOR_DATE": stamp,
            "GIT_COMMITTER_NAME": who.name,
            "GIT_COMMITTER_EMAIL": who.email,
            "GIT_COMMITTER_DATE": stamp,
        }
        made = git_commands.run(
            self._source.folder, "commit-tree", tree, "-m", "Begin", extra=identity
        )
        commit = made.stdout.decode().strip()
        git_commands.run(
            self._source.folder, "update-ref", self._source.reference, commit, "0" * len(commit)
        )
        return commit

    def _commit(self, head: str, judged: Batch, now: int) -> str:
        """Make the commits, one for each run of requests of one author; return the id of
        the last.
        """
        groups = fast_import.by_author(judged.steps)
        commit = fast_import.commits(self._source.folder, head, groups, self._committer, now)
        if self._signing_key is not None:
            commit = signing.sign(self._source, head, commit, self._signing_key)
        return commit

    # --- making it the head -----------------------------------------------------------------

    def _publish(self, head: str, commit: str) -> str:
        """Make ``commit`` the branch's head; return git's message if somebody else was faster."""
        if not self._source.local:
            return self._push(head, commit)
        with clone_lock.taken(self._source.folder, wait_s=TURN_S):
            found = self._source.head()
            return f"it is at {found}" if found != head else self._advance(head, commit)

    def _advance(self, head: str, commit: str) -> str:
        """Move the local branch, and the files of its work trees with it."""
        reference = self._full_reference()
        trees = worktrees.prepare(self._source, reference, head, commit)
        done = git_commands.run(
            self._source.folder,
            *("update-ref", "-m", "muster", reference, commit, head),
            good=(0, 1, 128),
        )
        if done.returncode:
            worktrees.withdraw(self._source, trees)
            said = done.stderr.decode("utf-8", "replace").strip()
            if self._source.head() == head:
                raise GitError(f"the branch can't be written: {said}")
            return said
        worktrees.follow(self._source, trees, head, commit)
        return ""

    def _full_reference(self) -> str:
        if self._source.branch is not None:
            return self._source.reference
        found = git_commands.run(self._source.folder, "symbolic-ref", "HEAD")
        return found.stdout.decode().strip()

    def _push(self, head: str, commit: str) -> str:
        """Push to the origin of the mirror."""
        branch = self._source.branch
        if branch is None:
            raise GitError("name the branch to push to")
        folder = self._source.folder
        why = push_result.push(folder, self._source.address, commit, f"refs/heads/{branch}")
        if not why:
            git_commands.run(folder, "update-ref", self._source.reference, commit, head)
        return why


def _failed(
    parts: Iterable[Sequence[Request | requests.RequestGroup]], why: str
) -> list[RequestResult]:
    """Return the results of requests that are to be tried again later."""
    failed = RequestResult("failed", message=why)
    return [failed] * sum(_count(request) for part in parts for request in part)


def _count(request: Request | requests.RequestGroup) -> int:
    """Return the number of results of a request."""
    return len(request.requests) if isinstance(request, requests.RequestGroup) else 1
