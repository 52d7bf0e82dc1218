"""Makes ``Desired`` from a git source: the only place where git meets the state in force.

Each :meth:`Loader.load` looks at the branch once, applies the changes of its head, and returns the
sync status. It never raises for what it finds: an unreadable repository makes the status Unknown
and keeps everything; a head that does not descend from the last one, or has become empty, is held.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from reconciler.desired.apply import (
    applied,
    head_quarantine,
    job_quarantine,
    jobs_in_force,
    parallel_reader,
    revision_in_force,
    sync_report,
)
from reconciler.desired.apply.last_good import LastGood
from reconciler.desired.authorize import commit_walk, history, provenance
from reconciler.desired.documents import revision_limits
from reconciler.desired.git import commit_log, git_commands, source, tree_diff
from reconciler.model import desired
from reconciler.model.rules import review_findings

_NONE = LastGood()


class Loader:
    """A reader of desired state, for one thread at a time.

    ``Desired.generation`` is 0 until the repository has been read once; conclude nothing from such
    a value.

    Args:
        repository: source to read from.
        incumbents: last good state before a restart.
        accept_revision: revision to accept once although it does not follow the last one.
        gate: judges the changes of a revision before they apply; None: all apply.
        clock: seconds since the epoch.
        begun: returns those jobs whose newest run has begun or ended, with its key. A later
            structure does not make an error of them.
        read: cache of parsed blobs, for callers that read many revisions; it is filled. None: one
            that remembers a bounded number of documents.
    """

    def __init__(
        self,
        repository: source.GitSource,
        incumbents: LastGood = _NONE,
        *,
        accept_revision: str | None = None,
        gate: review_findings.ChangeGate | None = None,
        clock: Callable[[], float] = time.time,
        begun: jobs_in_force.Begun = jobs_in_force.nothing_begun,
        read: parallel_reader.Read | None = None,
    ) -> None:
        self._source = repository
        self._clock = clock
        parsed = revision_limits.ParsedBlobs() if read is None else read
        self._lineage = lineage = history.Lineage(
            repository, accept_revision, incumbents.accepted, parsed
        )
        self._provenance = provenance.Provenance(repository, clock, parsed)
        self._resting = job_quarantine.QuarantineTimers()
        self._quarantine = head_quarantine.HeadQuarantine()
        self._report = sync_report.SyncReport(incumbents.generation)

        def begin(before: LastGood) -> applied.Applied:
            return applied.Applied(before, self._blob, gate, lineage.first, begun, read=parsed)

        self._in_force = revision_in_force.RevisionInForce(
            repository, lineage, self._resting, clock, begin=begin, start=incumbents
        )
        #: A head that was too large behind a revision in force, and why: it is not read again.
        self._too_large: tuple[str, str | None, history.HeldError] | None = None
        #: Called with each new head before anything of it is read.
        self.on_head: Callable[[str], None] = lambda _: None
        #: Digests that the commits of the last new head approve, as far as that counts.
        self.approved: tuple[str, ...] = ()

    def close(self) -> None:
        """Stop its processes."""
        self._provenance.close()
        self._source.close()

    @property
    def last(self) -> desired.Desired:
        """The last result of :meth:`load`."""
        return self._report.last

    @property
    def line(self) -> tuple[commit_log.Commit, ...]:
        """Commits that the last new head brought, the oldest first."""
        return self._lineage.line

    @property
    def signers(self) -> Mapping[str, str]:
        """Identity of each commit whose signature was checked, empty if nobody signed."""
        return self._lineage.signers

    def counts(self) -> Mapping[str, int]:
        """Return the number of objects of each kind in the revision, valid or not."""
        return self._in_force.counts()

    @property
    def judge_again_at(self) -> float | None:
        """Time at which something held may apply although nothing has changed."""
        in_force = self._in_force
        moments = [in_force.judge_again_at, self._quarantine.again_at(in_force.head)]
        moments += [self._clock()] if self._is_partway else []
        return min((at for at in moments if at is not None), default=None)

    @property
    def _is_partway(self) -> bool:
        """True if only a portion of what leads to the head is judged: the next look goes on."""
        return self._lineage.is_portion(self._in_force.head)

    def admit(self, jobs: Mapping[str, desired.Job]) -> None:
        """Treat these as in force before the next revision, by name.

        If a job is wrong there, this version stays, as it would for a controller that had it in
        force. Jobs that are not written any more leave with that revision.
        """
        self._in_force.admit(jobs)

    def accept(self, revision: str) -> None:
        """Let the next load accept ``revision``, or its prefix, although it is no successor."""
        self._lineage.accept(revision)

    def go_back(self, before: LastGood, problem: desired.Problem) -> None:
        """Return to the state before: no cycle passed with the head as it was applied.

        The head is quarantined for a while, twice as long each time, or until the branch has
        another head, because the cause may pass. It is then judged by what is really in force.

        Args:
            before: state accepted then.
            problem: message about the head.
        """
        self._quarantine.put(self._in_force.head, problem, self._clock())
        self._begin_from(before)

    def leave(self, before: LastGood, jobs: Iterable[job_quarantine.QuarantinedJob]) -> None:
        """Return to the state before, with some jobs in quarantine: a cycle passed without them
        only.
        """
        self._resting.put(jobs, self._clock())
        self._begin_from(before)

    def _begin_from(self, before: LastGood) -> None:
        self._in_force.begin_from(before)
        self._lineage.begin_from(before.accepted)
        self._report.forget()

    def judge_by(self, merge: str, branch: str) -> None:
        """Authorize ``merge``, which nobody has made yet, by the commits of ``branch``."""
        self._lineage.judge_by(merge, branch)

    def incumbents(self) -> LastGood:
        """Return the state to remember over a restart."""
        return self._in_force.incumbents(self._report.generation)

    def load_all(self) -> desired.Desired:
        """Look at the branch until all that leads to its head is judged; see :meth:`load`."""
        value = self.load()
        while self._is_partway:
            value = self.load(fetch=False)
        return value

    def load(self, *, fetch: bool = True) -> desired.Desired:
        """Look at the branch and apply its head.

        Returns:
            The last value with a fresh status if nothing changed, else a value of the next
            generation.
        """
        now, report = self._clock(), self._report
        attempted = report.last.status.attempted_revision
        try:
            if fetch:
                self._source.fetch()
            head, before = self._source.head(), attempted
            attempted = head
            if head != before:
                self._lineage.forget()
                self.on_head(head)
            self._in_force.set_time(now)
            self._catch_up(attempted)
        except tree_diff.BrokenTreeError as error:
            return self._held(now, attempted, history.broken(attempted or "", error))
        except history.HeldError as held:
            if held.rule == history.TOO_LARGE and attempted is not None:
                self._too_large = (attempted, self._in_force.head, held)
            return self._held(now, attempted, held)
        except (git_commands.GitError, OSError) as error:
            self._in_force.resume(now)
            look = sync_report.BranchLook(now, "Unknown", attempted, str(error))
            return report.update(self._in_force.view(), look)
        view = self._in_force.view()
        return report.update(view, sync_report.look_at_applied(view, now, attempted))

    def _held(self, now: float, attempted: str | None, held: history.HeldError) -> desired.Desired:
        """Return a status with the head held; the state in force stays."""
        self._in_force.resume(now)
        with contextlib.suppress(git_commands.GitError, OSError, history.HeldError):
            self._in_force.judge_again(self._provenance)
        problem = desired.Problem(held.rule, "error", "", str(held))
        look = sync_report.BranchLook(now, "OutOfSync", attempted, str(held), (problem,))
        return self._report.update(self._in_force.view(), look)

    def _catch_up(self, head: str) -> None:
        """Bring the state in force to ``head``.

        Raises:
            HeldError: the head is held.
            GitError: it cannot be read.
        """
        in_force = self._in_force
        if in_force.head is None:
            self._source.require_folder(head)
        problem = self._quarantine.problem_of(head, self._clock())
        if problem is not None and in_force.head != head:
            if in_force.head_before != head:
                in_force.resume(self._clock())
            raise history.HeldError(problem.rule, problem.message)
        if in_force.head is None and in_force.head_before is not None:
            self._begin_at(in_force.head_before, head)
        if in_force.head == head:
            in_force.judge_again(self._provenance)
            return
        known = self._too_large
        if known and known[:2] == (head, in_force.head) and not self._lineage.is_accepted(head):
            raise known[2]
        if in_force.head is not None:
            self._require_successor(in_force.head, head)
        walk = self._lineage.walk(
            head, in_force.head, self._provenance, in_force.trust, in_force.walk_start()
        )
        self.approved = ()
        while walk.until:
            walk = self._walk_on(walk, head)
        if self._lineage.is_merge(head):
            walk = msgspec.structs.replace(walk, stops=())
        self._take_stops(walk)
        in_force.apply(head, walk.trust, as_written=walk.as_written)

    def _walk_on(self, walk: commit_walk.CommitWalk, head: str) -> commit_walk.CommitWalk:
        """Bring the state in force to where a walk stopped, if it may be, and continue behind it.

        Raises:
            HeldError: the head is held, or the rest is left to the next look.
            GitError: it cannot be read.
        """
        in_force, lineage, trust = self._in_force, self._lineage, walk.trust
        self._take_stops(walk)
        if lineage.may_apply(head):
            with contextlib.suppress(history.HeldError):
                in_force.apply(walk.until, walk.trust)
            if in_force.head == walk.until:
                lineage.note_applied(walk.until, head)
                trust = in_force.trust
        return lineage.walk_on(walk.until, head, self._provenance, trust, in_force.walk_start())

    def _begin_at(self, last: str, head: str) -> None:
        """Apply the revision that was in force before a restart.

        Raises:
            HeldError: the repository does not have it, and nobody accepted ``head`` without it.
        """
        if self._source.has(last):
            self._in_force.apply(last)
        elif not self._lineage.is_accepted(head):
            self._lineage.take_alone(head, self._provenance, self._in_force.trust)
            raise history.HeldError(
                "history-rewritten",
                f"the revision applied last, {last}, is not in the repository any "
                "more, so nothing is known of what changed since: "
                f"{history.how_to_accept(head)}",
            )

    def _require_successor(self, last: str, head: str) -> None:
        """Raise HeldError if ``head`` does not follow ``last`` and nobody accepted it."""
        if self._source.log.descends(head, last) or self._lineage.is_accepted(head):
            return
        self._lineage.take_alone(head, self._provenance, self._in_force.trust)
        raise history.HeldError(
            "not-a-fast-forward",
            f"{head[:12]} does not follow {last[:12]}, which is in force: the branch was "
            "rewritten or reset. Push a commit that follows it, or "
            f"{history.how_to_accept(head)}",
        )

    def _take_stops(self, walk: commit_walk.CommitWalk) -> None:
        """Bring the state in force to the revisions where a walk stopped."""
        self.approved += walk.approvals
        self._in_force.apply_stops(walk)

    def _blob(self, blob: str) -> bytes:
        return self._source.blobs([blob])[0]
