"""The revision in force, and what is remembered of it over a restart.

Revisions of a git source come in and are applied one after the other. Which revision may follow,
and by whom, is decided before.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from reconciler.desired.apply import applied, file_index, job_quarantine
from reconciler.desired.apply.last_good import LastGood
from reconciler.desired.authorize import authority, commit_walk, history, provenance, trust_state
from reconciler.desired.documents import revision_limits
from reconciler.desired.git import git_commands, source
from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.model.values import index_ranges

#: From how many changed files on the garbage collector is paused while they are read.
_MANY_FILES = 100
#: The most approvals that are remembered while something is held.
APPROVALS_MAX = 100
#: The most removals of jobs and elements that are remembered of earlier revisions, and the most
#: characters of their names.
REMOVALS_MAX, REMOVALS_CHARACTERS_MAX = 1000, 2**20


class RevisionView(msgspec.Struct, frozen=True):
    """The parts of the state in force that people are shown.

    Attributes:
        revision: the last revision applied; None: none since the start.
        jobs_revision: that, or the one that was in force before a restart.
        suspended: start of suspension of the cluster and of queues, by label.
        removals: of jobs that left lately, by name, as far as it is known who took them out.
    """

    revision: str | None
    jobs_revision: str | None
    structure: desired.Structure
    structure_revision: str | None
    structure_refused: bool
    jobs: Mapping[str, desired.Job]
    refused: Mapping[str, str]
    quarantined: Mapping[str, str]
    held: tuple[desired.HeldPart, ...]
    problems: tuple[desired.Problem, ...]
    suspended: dict[str, float]
    removals: Mapping[str, desired.Removal]


class RevisionInForce:
    """The state of the last applied revision.

    Args:
        repository: source of revisions.
        lineage: commits of the last new head.
        timers: waits of quarantined jobs.
        clock: seconds since the epoch.
        begin: returns the state to which revisions are applied from a last good one on.
        start: the last good state.

    Attributes:
        head: the revision; None until one is applied.
        trust: state by which commits are authorized.
    """

    def __init__(
        self,
        repository: source.GitSource,
        lineage: history.Lineage,
        timers: job_quarantine.QuarantineTimers,
        clock: Callable[[], float],
        *,
        begin: Callable[[LastGood], applied.Applied],
        start: LastGood,
    ) -> None:
        self._source = repository
        self._lineage = lineage
        self._timers = timers
        self._clock = clock
        self._begin = begin
        self.begin_from(start)

    def begin_from(self, start: LastGood) -> None:
        """Return to a last good state."""
        self._start = start
        self.head: str | None = None
        self._state = self._begin(start)
        self.trust = start.trust or trust_state.Trust()
        self._suspended = start.suspended
        self._approvals = start.approvals
        #: A revision was applied in part only: which files it left is not known.
        self._half_way = False
        self._removals: dict[str, desired.Removal] = {}

    def incumbents(self, generation: int) -> LastGood:
        """Return the state to remember over a restart."""
        if self.head is None:
            return self._start
        return msgspec.structs.replace(
            self._state.incumbents(),
            head=self.head,
            generation=generation,
            approvals=self._approvals,
            trust=self.trust,
            suspended=self._suspended,
            accepted=self._lineage.taken,
        )

    @property
    def head_before(self) -> str | None:
        """The revision in force before the first one that is applied here."""
        return self._start.head

    @property
    def judge_again_at(self) -> float | None:
        """Time at which something held may apply although nothing has changed."""
        moments = [self._state.judge_again_at, self._timers.again_at(self._state.left.known)]
        return min((at for at in moments if at is not None), default=None)

    def view(self) -> RevisionView:
        """Return what people are shown."""
        state = self._state
        return RevisionView(
            revision=self.head,
            jobs_revision=self.head if self.head is not None else self._start.head,
            structure=state.basis.structure,
            structure_revision=state.structure_revision,
            structure_refused=state.structure_refused,
            jobs=state.jobs,
            refused=state.refused,
            quarantined=state.left.aside_of(state.jobs),
            held=state.held,
            problems=state.problems(),
            suspended=self._suspended,
            removals=self._removals,
        )

    def counts(self) -> Mapping[str, int]:
        """Return the number of objects of each kind in the revision, valid or not."""
        return self._state.filed.counts()

    def admit(self, jobs: Mapping[str, desired.Job]) -> None:
        """Treat these jobs as in force from before, by name."""
        self._state.admit(jobs)

    def set_time(self, now: float) -> None:
        """Set the time that waivers are compared with, in seconds since the epoch."""
        self._state.set_time(now)

    def authority(self) -> authority.Authority | None:
        """Return the authority in force, in addition to the written one."""
        if self._state.structure_revision is None:
            return None
        structure = self._state.basis.structure
        return authority.Authority(structure.settings.verification, structure.access)

    def walk_start(self) -> commit_walk.WalkStart:
        """Return the state in force, by which changes are judged."""
        structure = self._state.basis.structure
        return commit_walk.WalkStart(
            {name: q.parent for name, q in structure.queues.items()},
            self._state.jobs,
            self._state.places(trust_state.TRUSTED_KINDS),
            self.authority(),
            waits=bool(self._state.held),
            origins=self._state.origins,
            limits=structure.settings.revision,
        )

    def resume(self, now: float) -> None:
        """Continue after a restart with the last good revisions, if their objects are here.

        A mirror keeps them, so the remote need not be reachable. Anything that cannot be read from
        here stays as in the store.
        """
        if self.head is not None or self._start.head is None:
            return
        with contextlib.suppress(git_commands.GitError, OSError, history.HeldError):
            if self._source.has(self._start.head):
                self._source.require_folder(self._start.head)
                self.set_time(now)
                self.apply(self._start.head)

    def judge_again(self, judge: provenance.Provenance) -> None:
        """Judge the state in force again if time alone may change the result."""
        now, again_at = self._clock(), self._state.judge_again_at
        is_due = again_at is not None and again_at <= now
        is_due |= self._state.left.known != self._timers.resting(now)
        if self.head is None:
            return
        trust = self.trust
        if trust.due(now):
            trust = judge.again(self.head, trust, self.walk_start())
        if self._state.expire() or is_due or trust != self.trust:
            self.apply(self.head, trust)

    def apply_stops(self, walk: commit_walk.CommitWalk) -> None:
        """Take the approvals of a walk, and apply the revisions where it stopped."""
        self._approvals = (*self._approvals, *walk.approvals)[-APPROVALS_MAX:]
        for stop in walk.stops:
            with contextlib.suppress(history.HeldError):
                self.apply(stop.revision, stop.trust)

    def apply(
        self, head: str, trust: trust_state.Trust | None = None, *, as_written: bool = False
    ) -> None:
        """Bring the state in force to ``head``.

        Args:
            head: the revision.
            trust: as the walk left it; None: as remembered.
            as_written: take its people and keys as they are.

        Raises:
            HeldError: it would leave nothing in force, or is too large to be read.
            GitError: it cannot be read.
        """
        as_written |= trust is None and self._start.trust is None
        trust, before = trust or self.trust, self._state.jobs
        if not self._apply_files(head, trust):
            raise history.HeldError(
                review_findings.EMPTIED,
                f"{head} leaves nothing of what is in force, whatever it brings: this is always "
                "refused, and so is what follows it. "
                f"{self._lineage.how_to_restore(head, self.head or '')}; where all of it is meant "
                "to go, leave one object until the next commit",
            )
        self.head = head
        self._lineage.was_taken(head)
        in_force = self.authority()
        off = trust.mode == "off" and (in_force is None or in_force.mode == "off")
        if off or as_written:
            trust = trust_state.trusted(self._state.filed.written(trust_state.TRUSTED_KINDS))
        self.trust = trust
        self._note_removals(before)
        self._suspended = _suspended(self._state.basis.structure, self._suspended, self._clock())
        self._source.keep(head)
        # an approval that let something apply is used up
        held = self._state.held
        self._approvals = review_findings.unused(self._approvals, self._state.used) if held else ()

    def _note_removals(self, before: Mapping[str, desired.Job]) -> None:
        """Note who took out the jobs that a revision removed, and who cancelled elements. The
        latest are remembered, because the loop may not see each revision.
        """
        now, refused = self._state.jobs, self._state.refused
        if now is before:
            return
        gone = {
            f"Job/{name}": job.path
            for name, job in before.items()
            if name not in now and name not in refused
        }
        cancelled = {
            f"Job/{name}": (job.path, added)
            for name, job in now.items()
            if job.array_cancelled
            and (old := before.get(name)) is not None
            and old is not job
            and (added := job.newly_cancelled(old))
        }
        if not gone and not cancelled:
            return
        kept = {
            name: one
            for name, one in self._removals.items()
            if f"Job/{name}" not in gone and not _tells(name, cancelled)
        }
        with contextlib.suppress(git_commands.GitError, OSError):
            found = self._lineage.removals(dict(list(gone.items())[:REMOVALS_MAX]))
            found |= self._lineage.element_removals(dict(list(cancelled.items())[:REMOVALS_MAX]))
            kept |= {label.removeprefix("Job/"): one for label, one in found.items()}
        self._removals = latest(kept)

    def _apply_files(self, head: str, trust: trust_state.Trust) -> bool:
        """Apply the files that a revision changed; return False if that would leave nothing."""
        if self.head is not None and not self._half_way and self._source.has(self.head):
            changes = self._source.changes(self.head, head)
            gone: set[str] = set()
            kept = self._state.filed.kept(change.path for change in changes.files)
        else:
            changes = self._source.files(head)
            gone = set(self._state.paths) - {change.path for change in changes.files}
            kept = (0, 0)
        present = [change for change in changes.files if change.blob is not None]
        gone.update(change.path for change in changes.files if change.blob is None)
        with _collector_paused(len(present) >= _MANY_FILES):
            blobs = self._read(head, [change.blob or "" for change in present], kept)
            files = [
                file_index.FileChange(change.path, change.blob or "", data)
                for change, data in zip(present, blobs, strict=True)
            ]
            files += [file_index.FileChange(path, "", None) for path in sorted(gone)]
            self._half_way = True
            self._lineage.reach(head)
            taken = self._state.apply(
                head,
                files,
                changes.ignored,
                approvals=frozenset(self._approvals),
                denied={label: one.problem for label, one in trust.denied.items()},
                left=job_quarantine.JobsLeftAsBefore(self._timers.resting(self._clock())),
                accepted=self._lineage.is_accepted(head),
            )
        self._half_way = False
        return taken

    def _read(self, head: str, blobs: Sequence[str], kept: tuple[int, int]) -> list[bytes]:
        """Return the bytes of a revision's changed files.

        What was in force before a restart is read whatever its size, and so is what an operator
        accepted.

        Args:
            head: the revision.
            blobs: of its changed files.
            kept: documents and bytes of its other files.

        Raises:
            HeldError: the revision is larger than the limits in force allow.
        """
        is_known = head == self._start.head or head in self._lineage.taken
        limits = self._state.basis.structure.settings.revision
        if is_known or self._lineage.is_accepted(head):
            return self._source.blobs(blobs)
        try:
            return revision_limits.ReadingBudget(limits, *kept).read(self._source, blobs)
        except revision_limits.RevisionTooLargeError as error:
            raise self._lineage.too_large(head, error) from None


def latest(removals: Mapping[str, desired.Removal]) -> dict[str, desired.Removal]:
    """Return as many of the last removals as are remembered, in order.

    Names of elements may be long, and each cycle that changes some of them is journalled.
    """
    kept: list[tuple[str, desired.Removal]] = []
    left = REMOVALS_CHARACTERS_MAX
    for name, removal in reversed(list(removals.items())[-REMOVALS_MAX:]):
        left -= len(name)
        if left < 0:
            break
        kept.append((name, removal))
    return dict(reversed(kept))


def _tells(name: str, cancelled: Mapping[str, tuple[str, frozenset[int]]]) -> bool:
    """Return True if a removal tells of an element that was cancelled again."""
    job, _, elements = name.rstrip("]").partition("[")
    found = cancelled.get(f"Job/{job}")
    return found is not None and not found[1].isdisjoint(index_ranges.parse(elements))


def _suspended(
    structure: desired.Structure, before: dict[str, float], now: float
) -> dict[str, float]:
    """Return the start of each suspension, in the same mapping if nothing changed."""
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
