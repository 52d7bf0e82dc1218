"""Makes ``Desired`` from a git source: the only place where git meets the state in force.

Each :meth:`Loader.load` looks at the branch once, applies the changes of its head, and returns the
sync status. It never raises for what it finds: an unreadable repository makes the status Unknown
and keeps everything; a head that does not descend from the last one, or has become empty, is held.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from reconciler.desired.apply import (
    applied,
    file_index,
    job_quarantine,
    jobs_in_force,
    parallel_reader,
    sync_holds,
)
from reconciler.desired.apply.last_good import LastGood
from reconciler.desired.authorize import authority, commit_walk, history, provenance, trust_state
from reconciler.desired.git import commit_log, git_commands, source, tree_diff
from reconciler.model import desired
from reconciler.model.rules import review_findings

#: From how many changed files on the garbage collector is paused while they are read.
_MANY_FILES = 100
#: The most approvals that are remembered while something is held.
APPROVALS_MAX = 100
_NONE = LastGood()


class _Undecided(NamedTuple):
    """An accepted revision with which no cycle passed, and the wait before it is tried again."""

    head: str | None
    problem: desired.Problem
    again_at: float
    wait_s: float

    def rests(self, now: float) -> bool:
        """Return True during the quarantine; setting the clock back ends it."""
        return self.again_at - self.wait_s <= now < self.again_at


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
        read: cache of parsed blobs, for callers that read many revisions; it is filled.
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
        self._begun, self._read = begun, read
        self._start = incumbents
        self._clock = clock
        self._head: str | None = None
        self._gate = gate
        self._lineage = history.Lineage(repository, accept_revision, incumbents.accepted)
        self._applied = self._applied_to(incumbents)
        self._undecided: _Undecided | None = None
        self._resting = job_quarantine.QuarantineTimers()
        self._approvals: tuple[str, ...] = incumbents.approvals
        self._trust = incumbents.trust or trust_state.Trust()
        self._provenance = provenance.Provenance(repository, clock)
        #: Digests that the commits of the last new head approve, as far as that counts.
        self.approved: tuple[str, ...] = ()
        self._suspended = incumbents.suspended
        self._generation = incumbents.generation
        #: A revision was taken up in part only: which files it left is not known.
        self._half_way = False
        self._desired = desired.Desired()

    def close(self) -> None:
        """Stop its processes."""
        self._provenance.close()
        self._source.close()

    @property
    def last(self) -> desired.Desired:
        """The last result of :meth:`load`."""
        return self._desired

    @property
    def line(self) -> tuple[commit_log.Commit, ...]:
        """Commits that the last new head brought, the oldest first."""
        return self._lineage.line

    @property
    def signers(self) -> Mapping[str, str]:
        """Identity of each commit whose signature was checked; empty: nobody."""
        return self._lineage.signers

    def counts(self) -> Mapping[str, int]:
        """Return the number of objects of each kind in the revision, valid or not."""
        return self._applied.filed.counts()

    @property
    def judge_again_at(self) -> float | None:
        """Time at which something held may apply although nothing has changed."""
        moments = [
            self._applied.judge_again_at,
            self._resting.again_at(self._applied.left.known),
        ]
        if self._undecided is not None and self._undecided.head != self._head:
            moments.append(self._undecided.again_at)
        return min((at for at in moments if at is not None), default=None)

    def admit(self, jobs: Mapping[str, desired.Job]) -> None:
        """Treat these as in force before the next revision, by name.

        If a job is wrong there, this version stays, as it would for a controller that had it in
        force. Jobs that are not written any more leave with that revision.
        """
        self._applied.admit(jobs)

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
        known, wait_s = self._undecided, job_quarantine.WAIT_S
        if known is not None and known.head == self._head:
            wait_s = min(2 * known.wait_s, job_quarantine.WAIT_S_MAX)
        self._undecided = _Undecided(self._head, problem, self._clock() + wait_s, wait_s)
        self._begin_from(before)

    def leave(self, before: LastGood, jobs: Iterable[job_quarantine.QuarantinedJob]) -> None:
        """Return to the state before, with some jobs in quarantine: a cycle passed without them
        only.
        """
        self._resting.put(jobs, self._clock())
        self._begin_from(before)

    def _applied_to(self, before: LastGood) -> applied.Applied:
        """Return the state that revisions are applied to from now on."""
        look = self._lineage.first
        return applied.Applied(before, self._blob, self._gate, look, self._begun, read=self._read)

    def _begin_from(self, before: LastGood) -> None:
        self._start, self._head, self._half_way = before, None, False
        self._applied = self._applied_to(before)
        self._approvals = before.approvals
        self._trust = before.trust or trust_state.Trust()
        self._suspended = before.suspended
        self._lineage.taken = before.accepted
        self._desired = desired.Desired()

    def judge_by(self, merge: str, branch: str) -> None:
        """Authorize ``merge``, which nobody has made yet, by the commits of ``branch``."""
        self._lineage.judge_by(merge, branch)

    def incumbents(self) -> LastGood:
        """Return the state to remember over a restart."""
        if self._head is None:
            return self._start
        return msgspec.structs.replace(
            self._applied.incumbents(),
            head=self._head,
            generation=self._generation,
            approvals=self._approvals,
            trust=self._trust,
            suspended=self._suspended,
            accepted=self._lineage.taken,
        )

    def load(self, *, fetch: bool = True) -> desired.Desired:
        """Look at the branch and apply its head.

        Returns:
            The last value with a fresh status if nothing changed, else a value of the next
            generation.
        """
        now = self._clock()
        attempted = self._desired.status.attempted_revision
        try:
            if fetch:
                self._source.fetch()
            head, before = self._source.head(), attempted
            attempted = head
            if head != before:
                self._lineage.forget()
            self._applied.now = now
            self._catch_up(attempted)
        except tree_diff.BrokenTreeError as error:
            return self._held(now, attempted, history.broken(attempted or "", error))
        except history.HeldError as held:
            return self._held(now, attempted, held)
        except (git_commands.GitError, OSError) as error:
            self._go_on(now)
            return self._update(now, "Unknown", attempted, str(error))
        problems = self._applied.problems()
        errors = sum(problem.severity == "error" for problem in problems)
        if not errors:
            return self._update(now, "Synced", attempted, "")
        return self._update(now, "OutOfSync", attempted, self._summary(errors))

    def _held(self, now: float, attempted: str | None, held: history.HeldError) -> desired.Desired:
        """Return a status with the head held; the state in force stays."""
        self._go_on(now)
        with contextlib.suppress(git_commands.GitError, OSError, history.HeldError):
            self._judge_again()
        problem = desired.Problem(held.rule, "error", "", str(held))
        return self._update(now, "OutOfSync", attempted, str(held), (problem,))

    def _go_on(self, now: float) -> None:
        """Continue after a restart with the last good revisions, if their objects are here.

        A mirror keeps them, so the remote need not be reachable. Anything that cannot be read from
        here stays as in the store.
        """
        if self._head is not None or self._start.head is None:
            return
        with contextlib.suppress(git_commands.GitError, OSError, history.HeldError):
            if self._source.has(self._start.head):
                self._source.require_folder(self._start.head)
                self._applied.now = now
                self._apply(self._start.head)

    def _summary(self, errors: int) -> str:
        held = self._applied.held
        if held:
            others = errors - sum(p.rule in review_findings.RULES for p in self._applied.problems())
            more = f"; and {others} error{'s' if others > 1 else ''} besides" if others > 0 else ""
            return held[0].message + more
        message = f"{errors} error{'s' if errors > 1 else ''}"
        if self._applied.structure_refused:
            kept = self._applied.structure_revision
            message += "; its structure is refused, and " + (
                f"that of {kept[:12]} stays in force" if kept else "none was accepted before"
            )
        return message

    def _catch_up(self, head: str) -> None:
        """Bring the state in force to ``head``."""
        if self._head is None:
            self._source.require_folder(head)
        undecided = self._undecided
        if undecided is not None and undecided.head != head:
            undecided = self._undecided = None
        if undecided is not None and self._head != head and undecided.rests(self._clock()):
            if self._start.head != head:
                self._go_on(self._clock())
            raise history.HeldError(undecided.problem.rule, undecided.problem.message)
        if self._head is None and self._start.head is not None:
            if self._source.has(self._start.head):
                self._apply(self._start.head)
            elif not self._lineage.is_accepted(head):
                self._lineage.take_alone(head, self._provenance, self._trust)
                raise history.HeldError(
                    "history-rewritten",
                    f"the revision applied last, {self._start.head}, is not in the repository any "
                    "more, so nothing is known of what changed since: "
                    f"{history.how_to_accept(head)}",
                )
        if self._head == head:
            self._judge_again()
            return
        if (
            self._head is not None
            and not self._source.log.descends(head, self._head)
            and not self._lineage.is_accepted(head)
        ):
            self._lineage.take_alone(head, self._provenance, self._trust)
            raise history.HeldError(
                "not-a-fast-forward",
                f"{head[:12]} does not follow {self._head[:12]}, which is in force: the branch was "
                "rewritten or reset. Push a commit that follows it, or "
                f"{history.how_to_accept(head)}",
            )
        walk = self._walk(head)
        self.approved = ()
        while walk.until:
            self._take_stops(walk)
            with contextlib.suppress(history.HeldError):
                self._apply(walk.until, walk.trust)
            trust = self._trust if self._head == walk.until else walk.trust
            walk = self._lineage.walk_on(walk.until, self._provenance, trust, self._before())
        if self._lineage.is_merge(head):
            walk = msgspec.structs.replace(walk, stops=())
        self._take_stops(walk)
        self._apply(head, walk.trust, as_written=walk.as_written)

    def _take_stops(self, walk: commit_walk.CommitWalk) -> None:
        """Bring the state in force to the revisions where a walk stopped."""
        self.approved += walk.approvals
        self._approvals = (*self._approvals, *walk.approvals)[-APPROVALS_MAX:]
        for stop in walk.stops:
            with contextlib.suppress(history.HeldError):
                self._apply(stop.revision, stop.trust)

    def _judge_again(self) -> None:
        """Judge the state in force again if time alone may change the result."""
        now, again_at = self._clock(), self._applied.judge_again_at
        is_due = again_at is not None and again_at <= now
        is_due |= self._applied.left.known != self._resting.resting(now)
        if self._head is None:
            return
        trust = self._trust
        if trust.due(now):
            trust = self._provenance.again(self._head, trust, self._before())
        if self._applied.expire() or is_due or trust != self._trust:
            self._apply(self._head, trust)

    def _walk(self, head: str) -> commit_walk.CommitWalk:
        """Authorize the commits that lead to ``head``."""
        return self._lineage.walk(head, self._head, self._provenance, self._trust, self._before)

    def _before(self) -> commit_walk.WalkStart:
        """Return the state in force, by which changes are judged."""
        structure = self._applied.basis.structure
        return commit_walk.WalkStart(
            {name: q.parent for name, q in structure.queues.items()},
            self._applied.jobs,
            self._applied.places(trust_state.TRUSTED_KINDS),
            self._in_force(),
            waits=bool(self._applied.held),
            origins=self._applied.origins,
        )

    def _in_force(self) -> authority.Authority | None:
        """Return the authority in force, in addition to the written one."""
        if self._applied.structure_revision is None:
            return None
        structure = self._applied.basis.structure
        return authority.Authority(structure.settings.verification, structure.access)

    def _apply(
        self, head: str, trust: trust_state.Trust | None = None, *, as_written: bool = False
    ) -> None:
        """Bring the state in force to ``head``.

        ``trust``: as the walk left it, None: as remembered. ``as_written``: take its people and
        keys as they are.
        """
        as_written |= trust is None and self._start.trust is None
        trust = trust or self._trust
        if self._head is not None and not self._half_way and self._source.has(self._head):
            changes = self._source.changes(self._head, head)
            gone: set[str] = set()
        else:
            changes = self._source.files(head)
            gone = set(self._applied.paths) - {change.path for change in changes.files}
        present = [change for change in changes.files if change.blob is not None]
        gone.update(change.path for change in changes.files if change.blob is None)
        with _collector_paused(len(present) >= _MANY_FILES):
            blobs = self._source.blobs([change.blob or "" for change in present])
            files = [
                file_index.FileChange(change.path, change.blob or "", data)
                for change, data in zip(present, blobs, strict=True)
            ]
            files += [file_index.FileChange(path, "", None) for path in sorted(gone)]
            self._half_way = True
            self._lineage.at = head
            taken = self._applied.apply(
                head,
                files,
                changes.ignored,
                approvals=frozenset(self._approvals),
                denied={label: one.problem for label, one in trust.denied.items()},
                left=job_quarantine.JobsLeftAsBefore(self._resting.resting(self._clock())),
                accepted=self._lineage.is_accepted(head),
            )
        self._half_way = False
        if not taken:
            raise history.HeldError(
                review_findings.EMPTIED,
                f"{head} leaves nothing of what is in force, whatever it brings: this is always "
                "refused, and so is what follows it. "
                f"{self._lineage.how_to_restore(head, self._head or '')}; where all of it is meant "
                "to go, leave one object until the next commit",
            )
        self._head = head
        self._lineage.was_taken(head)
        in_force = self._in_force()
        off = trust.mode == "off" and (in_force is None or in_force.mode == "off")
        if off or as_written:
            trust = trust_state.trusted(self._applied.filed.written(trust_state.TRUSTED_KINDS))
        self._trust = trust
        self._suspended = _suspended(self._applied.basis.structure, self._suspended, self._clock())
        self._source.keep(head)
        self._approvals = self._left_of_approvals()

    def _left_of_approvals(self) -> tuple[str, ...]:
        """Return the approvals of what is still held; an approval that let something apply is used
        up.
        """
        if not self._applied.held:
            return ()
        return review_findings.unused(self._approvals, self._applied.used)

    def _blob(self, blob: str) -> bytes:
        return self._source.blobs([blob])[0]

    def _update(
        self,
        now: float,
        sync: Literal["Synced", "OutOfSync", "Unknown"],
        attempted: str | None,
        message: str,
        extra: tuple[desired.Problem, ...] = (),
    ) -> desired.Desired:
        before = self._desired
        state = self._applied
        held, problems = state.held, state.problems()
        if any(one.rule in {*review_findings.WHOLE, review_findings.EMPTIED} for one in extra):
            held, problems = sync_holds.beyond_approval(held, problems)
        status = desired.SyncStatus(
            sync=sync,
            attempted_revision=attempted,
            structure_revision=state.structure_revision,
            jobs_revision=self._head if self._head is not None else self._start.head,
            message=message,
            checked_at=now,
            problems=extra + problems,
            held=held,
            suspended=self._suspended,
        )
        if self._head is None:
            self._desired = msgspec.structs.replace(before, status=status)
            return self._desired
        aside = state.left.aside_of(state.jobs)
        same = (
            before.generation > 0
            and before.structure is state.basis.structure
            and (before.jobs is state.jobs or before.jobs == state.jobs)
            and before.refused == state.refused
            and before.aside == aside
        )
        if same:
            self._desired = msgspec.structs.replace(before, status=status)
        else:
            self._generation += 1
            self._desired = desired.Desired(
                generation=self._generation,
                structure=state.basis.structure,
                jobs=state.jobs,
                refused=state.refused,
                status=status,
                aside=aside,
            )
        return self._desired


def _suspended(
    structure: desired.Structure, before: dict[str, float], now: float
) -> dict[str, float]:
    """Return the start of each suspension; the same mapping if nothing changed."""
    labels = ["Cluster"] if structure.settings.suspend else []
    labels += [f"Queue/{name}" for name, queue in structure.queues.items() if queue.suspend]
    found = {label: before.get(label, now) for label in labels}
    return before if found == before else found


@contextlib.contextmanager
def _collector_paused(wanted: bool) -> Iterator[None]:  # noqa: FBT001 - one reader, right above
    """Pause the garbage collector: a hundred thousand new objects, none of them garbage."""
    if not wanted or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
