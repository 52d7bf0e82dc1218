"""Applies revisions to the state in force, without git.

The files that a revision changed come in; ``jobs``, ``basis`` and problems come out. Of the
structure all applies that is right, jobs one by one by the resulting structure, then safety judges
both. If it refuses, the earlier state comes back. The work grows with the change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from reconciler.desired.apply import (
    file_index,
    job_quarantine,
    jobs_in_force,
    parallel_reader,
    structure_in_force,
    sync_holds,
)
from reconciler.desired.apply.last_good import LastGood
from reconciler.desired.checks import dependents
from reconciler.desired.documents import name_owners
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.rules import review_findings

Problems = tuple[desired.Problem, ...]
_NOTHING_DENIED: Mapping[str, desired.Problem] = {}


def _is_job(label: str) -> bool:
    return label.startswith("Job/")


class _Earlier(msgspec.Struct, frozen=True):
    """The state in force before a revision."""

    structure: structure_in_force.StructureVersion
    jobs: dict[str, desired.Job]


def _removed(earlier: _Earlier, now: jobs_in_force.JobsInForce) -> list[str]:
    """Return jobs that were in force and are no longer written."""
    if earlier.jobs is now.jobs:
        return []
    return [name for name in earlier.jobs if name not in now.jobs and name not in now.refused]


def _preferred(
    now: jobs_in_force.JobsInForce, filed: file_index.FileIndex, firsts: name_owners.NameOwners
) -> dict[str, str]:
    """Return the file that counts of each job with a problem that is written twice."""
    # not the file of what is in force, which may be gone: who reads anew goes by that first
    # wherever it is still there
    return {
        name: firsts.get(name) or (now.jobs[name].path if name in now.jobs else "")
        for name in sorted(now.bad)
        if len(filed.candidates.get(name, ())) > 1
    }


def _of_structure(denied: Mapping[str, desired.Problem]) -> list[desired.Problem]:
    """Return errors about structural objects whose change nobody with the right signed."""
    return [
        problem
        for label, problem in denied.items()
        if problem.severity == "error" and not _is_job(label)
    ]


class Applied:
    """The state that revisions are applied to. For one thread at a time."""

    def __init__(
        self,
        incumbents: LastGood,
        read_blob: Callable[[str], bytes],
        gate: review_findings.ChangeGate | None = None,
        first: name_owners.Look | None = None,
        begun: jobs_in_force.Begun = jobs_in_force.nothing_begun,
        *,
        read: parallel_reader.Read | None = None,
    ) -> None:
        self._gate = gate
        self._read = read
        self._denied: dict[str, desired.Problem] = {}
        self._holds = sync_holds.Holds(dict(incumbents.held_jobs))
        #: Jobs because of which a queue may not be taken away.
        self._queue_users: set[str] = set()
        self._firsts = name_owners.NameOwners(incumbents.preferred, first)
        self.filed = file_index.FileIndex(read_blob)
        self._structure = structure_in_force.StructureInForce(self.filed, self._firsts, incumbents)
        self._interrupted = False
        self._revision = ""
        self._jobs = jobs_in_force.JobsInForce(
            self.filed, self._firsts, self.basis, incumbents.jobs, begun
        )
        self._now = 0.0

    @property
    def paths(self) -> Iterable[str]:
        """The files of the revision in force."""
        return self.filed.entries.keys()

    @property
    def basis(self) -> job_defaults.JobDefaults:
        """The structure in force, which jobs are judged by."""
        return self._structure.version.basis

    @property
    def structure_revision(self) -> str | None:
        """The last revision of which all structure was in force; None: none was ever accepted."""
        return self._structure.version.revision

    @property
    def structure_refused(self) -> bool:
        """True if the written structure is not in force as a whole."""
        return self._structure.refused

    @property
    def jobs(self) -> dict[str, desired.Job]:
        """The jobs in force, by name."""
        return self._jobs.jobs

    @property
    def refused(self) -> dict[str, str]:
        """Problems of jobs without any version in force, by name."""
        return self._jobs.refused

    @property
    def origins(self) -> Mapping[str, str]:
        """The file of each structural object in force, by label."""
        return self._structure.version.origins

    def places(self, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the files, with their blobs, that objects of some kinds are written in, by label.

        Objects in force count too if they may be in a file that cannot be read.
        """
        return self._structure.places(kinds)

    @property
    def left(self) -> job_quarantine.JobsLeftAsBefore:
        """Jobs that keep their version in force as long as the written one is unchanged."""
        return self._jobs.undecided

    def problems(self) -> Problems:
        """All problems, in order of place."""
        found = [*self._structure.problems, *self._holds.problems]
        found += [
            problem
            for label, problem in self._denied.items()
            if _is_job(label) or problem.severity == "warning"
        ]
        for some in self.filed.problems.values():
            found.extend(some)
        found += [*self._jobs.problems(), *self.filed.ignored.values()]
        found.sort(key=lambda item: (item.path, item.line, item.column, item.rule))
        return tuple(found)

    def incumbents(self) -> LastGood:
        """State that a restarted controller cannot read from the last head alone."""
        return LastGood(
            basis=self.basis if self.structure_revision is not None else None,
            structure_revision=self.structure_revision,
            origins=self._structure.version.origins,
            documents=self._structure.documents(),
            jobs={
                name: self.jobs[name]
                for name in sorted(self._jobs.bad | self._queue_users)
                if name in self.jobs
            },
            preferred=self._firsts.structural() | _preferred(self._jobs, self.filed, self._firsts),
            held_jobs=self._holds.jobs,
        )

    @property
    def used(self) -> tuple[review_findings.Used, ...]:
        """Approvals that let something of the last revision apply."""
        return self._holds.used

    @property
    def held(self) -> tuple[desired.HeldPart, ...]:
        """Parts that wait for approval or for their time."""
        return self._holds.shown

    @property
    def judge_again_at(self) -> float | None:
        """Time at which something held may apply although nothing has changed."""
        return self._holds.until

    # --- applying ---------------------------------------------------------------------------

    def set_time(self, now: float) -> None:
        """Set the time that waivers are compared with, in seconds since the epoch."""
        self._now = now

    def admit(self, jobs: Mapping[str, desired.Job]) -> None:
        """Treat these jobs as in force from before, by name."""
        self._jobs.admit(jobs)

    def expire(self) -> bool:
        """Return True if a waiver has ended: then everything must be judged again."""
        if min(self._jobs.judging.until, self._structure.waived_until) > self._now:
            return False
        self._jobs.judging.renew()
        self._interrupted = True
        return True

    def apply(
        self,
        revision: str,
        changes: Sequence[file_index.FileChange],
        ignored: Mapping[str, desired.Problem | None],
        *,
        approvals: frozenset[str] = frozenset(),
        denied: Mapping[str, desired.Problem] = _NOTHING_DENIED,
        left: job_quarantine.JobsLeftAsBefore = job_quarantine.NOTHING,
        accepted: bool = False,
    ) -> bool:
        """Apply a revision; return False and change nothing if it would leave nothing in force.

        ``approvals``: digests of approved changes. ``denied``: objects, by label, whose change
        nobody with the right has signed: they stay. ``left``: quarantined jobs. ``accepted``:
        everything may be removed.
        """
        files = parallel_reader.changed(changes, self._read)
        if self.filed.empties(files, accepted=accepted):
            return False
        touched = self._jobs.to_judge()
        structural = self.structure_refused or not self.filed.entries
        structural |= self.structure_revision is None
        if self._interrupted:
            # An earlier try ended half-way, as git could not be read: judge everything again.
            structural = True
            touched.update(self.filed.candidates, self.jobs)
        self._interrupted = True
        self._revision = revision
        of_jobs = {label[len("Job/") :] for label in {*denied, *self._denied} if _is_job(label)}
        touched |= of_jobs | left.known.keys() | self._jobs.undecided.known.keys()
        self._jobs.undecided = left
        structural |= len({*denied, *self._denied}) > len(of_jobs)
        self._denied = self._jobs.denied = dict(denied)
        structural |= self.filed.apply(files, ignored, touched)
        earlier = _Earlier(self._structure.version, self.jobs)
        if structural:
            self._structure.apply(revision, _of_structure(self._denied), self._now)
        elif not self.structure_refused:
            self._structure.advance(revision)
        touched |= self._otherwise(earlier)
        self._jobs.apply(touched, self._now)
        if self.basis is not earlier.structure.basis:
            self._keep_queues_in_use(earlier)
        if self._gate is not None:
            self._pass_gate(self._gate, earlier, approvals)
            if self.basis is not earlier.structure.basis:
                self._holds.look_again(self._now)
        self._interrupted = False
        return True

    def _otherwise(self, earlier: _Earlier) -> set[str]:
        """Return jobs that the new structure may normalise differently."""
        if self.basis is earlier.structure.basis:
            return set()
        queues = self.basis.queues_otherwise(earlier.structure.basis)
        if queues is None:
            self._jobs.judge_by(self.basis)
            return {*self.filed.candidates, *self.jobs}
        return self._jobs.judge_queues_by(self.basis, queues) if queues else set()

    # --- structure --------------------------------------------------------------------------

    def _keep_queues_in_use(self, earlier: _Earlier, *, judged: bool = False) -> None:
        """Keep the queues of jobs in force, and what needs them, as they were.

        Keeping them may change jobs and their queues, so the new structure is judged once more. A
        restart on this revision must decide alike. ``judged``: safety has decided which removed
        jobs stay; they are in their queues like the others.
        """
        taken_away = self._queues_taken_away(earlier)
        if not taken_away:
            return
        new = self._structure.verdict()
        held_of = earlier if judged else None
        self._keep_queues(earlier, earlier, taken_away, held_of)
        if self.jobs == earlier.jobs:
            return
        kept = _Earlier(self._structure.version, self.jobs)
        self._structure.accept(new)
        self._jobs.judge_by(self.basis)
        self._judge_all(held_of)
        taken_away = self._queues_taken_away(kept)
        if taken_away:
            self._keep_queues(earlier, kept, taken_away, None)

    def _keep_queues(
        self,
        earlier: _Earlier,
        jobs_of: _Earlier,
        taken_away: Sequence[desired.Problem],
        held_of: _Earlier | None,
    ) -> None:
        """Put in force what leaves these queues as they were; all stays if that takes others."""
        self._structure.refuse(earlier.structure, ())
        self._structure.apply(
            self._revision, [*_of_structure(self._denied), *taken_away], self._now
        )
        self._jobs.go_back(jobs_of.jobs, self.basis)
        self._judge_all(held_of)
        if dependents.users_of_missing_queues(self.jobs, self.basis.structure):
            self._revert_structure(jobs_of, taken_away)
            if held_of is not None:
                self._restore(held_of)

    def _queues_taken_away(self, earlier: _Earlier) -> list[desired.Problem]:
        """Return queues of jobs in force that the structure does not have."""
        users = dependents.users_of_missing_queues(self.jobs, self.basis.structure)
        self._queue_users = {name for names in users.values() for name in names}
        return dependents.queues_in_use(users, earlier.structure.origins)

    def _judge_all(self, earlier: _Earlier | None = None) -> None:
        """Judge all jobs by the current structure, and restore held ones of ``earlier``."""
        self._jobs.apply({*self.filed.candidates, *self.jobs}, self._now)
        if earlier is not None:
            self._restore(earlier)

    def _revert_structure(self, earlier: _Earlier, problems: Sequence[desired.Problem]) -> None:
        """Return to the structure before, and judge the jobs by it."""
        self._structure.refuse(earlier.structure, problems)
        self._jobs.go_back(earlier.jobs, earlier.structure.basis)
        self._judge_all()

    # --- holding ----------------------------------------------------------------------------

    def _pass_gate(
        self, gate: review_findings.ChangeGate, earlier: _Earlier, approvals: frozenset[str]
    ) -> None:
        """Let safety judge the changes of this revision, and hold what it refuses."""
        removed = _removed(earlier, self._jobs)
        same_structure = self.basis is earlier.structure.basis
        if not removed and same_structure:
            self._holds.clear()
            return
        try:
            found = self._holds.judge(
                gate,
                before=desired.Desired(
                    structure=earlier.structure.basis.structure, jobs=earlier.jobs
                ),
                after=desired.Desired(
                    structure=self.basis.structure, jobs=self.jobs, refused=self.refused
                ),
                removed=removed,
                approvals=approvals,
            )
        except Exception:
            # What nobody has judged does not apply; the next try judges all of it again.
            self._structure.refuse(earlier.structure, self._structure.problems)
            self._jobs.go_back(earlier.jobs, earlier.structure.basis)
            raise
        if found.holds("structure"):
            self._revert_structure(earlier, self._holds.structure_problems)
        self._restore(earlier)
        if not found.holds("structure") and not same_structure:
            self._keep_queues_in_use(earlier, judged=True)
            self._restore(earlier)

    def _restore(self, earlier: _Earlier) -> None:
        """Restore the jobs whose removal is held."""
        self._jobs.restore(self._holds.jobs, earlier.jobs)
