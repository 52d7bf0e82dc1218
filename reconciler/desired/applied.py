"""What is in force, and how a revision changes it: the rules of DESIGN section 3, without git.

The files that a revision changed come in; afterwards ``jobs`` and ``basis`` are what applies, and
the problems say what does not. Structure is refused as a whole, jobs one by one; what was in
force stays where its newest version is refused or can't be read. The work grows with the change:
only what it touches, what depends on that, and what was wrong before is judged again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from reconciler.desired import (
    checks,
    dependencies,
    dependents,
    documents,
    filed,
    firsts,
    holding,
    judging,
    normalise,
    policies,
    reading,
    structure,
    undecided,
)
from reconciler.desired.faults import Fault
from reconciler.desired.incumbents import Incumbents
from reconciler.desired.structure import Placed
from reconciler.model import desired, judgement
from reconciler.model.documents import job as job_documents

Problems = tuple[desired.Problem, ...]
_NOTHING_DENIED: Mapping[str, desired.Problem] = {}


def _is_job(label: str) -> bool:
    return label.startswith("Job/")


class _Earlier(msgspec.Struct, frozen=True):
    """What was in force before a revision."""

    basis: normalise.Basis
    jobs: dict[str, desired.Job]
    revision: str | None
    origins: dict[str, str]


class Applied:
    """The state that revisions are applied to. One thread at a time."""

    def __init__(
        self,
        incumbents: Incumbents,
        read_blob: Callable[[str], bytes],
        gate: judgement.Gate | None = None,
        first: firsts.Look | None = None,
    ) -> None:
        self._gate = gate
        self._denied: dict[str, desired.Problem] = {}
        #: Jobs that are left as they are in force while they are written so, by name.
        self.undecided = undecided.Left()
        self._left: dict[str, desired.Problem] = {}
        self._holds = holding.Holds(dict(incumbents.held_jobs))
        self.basis = incumbents.basis or normalise.EMPTY
        self.structure_revision = incumbents.structure_revision
        self.structure_refused = False
        self.jobs: dict[str, desired.Job] = dict(incumbents.jobs)
        self.refused: dict[str, str] = {}
        self._origins = dict(incumbents.origins)
        #: Jobs because of which a queue may not be taken away.
        self._queue_users: set[str] = set()
        self._firsts = firsts.Firsts(incumbents.preferred, first)
        self.filed = filed.Filed(read_blob)
        self._interrupted = False
        self._dependents = dependents.Dependents()
        self._bad: set[str] = set(self.jobs)
        self._judging = judging.Judge(self.basis)
        #: Seconds since the epoch, for waivers that end.
        self.now = 0.0
        self._structure_waived_until = math.inf
        self._structure_problems: Problems = ()
        self._job_problems: dict[str, Problems] = {}
        for job in self.jobs.values():
            self._dependents.renew(job.name, None, job)

    # --- what others read -------------------------------------------------------------------

    @property
    def paths(self) -> Iterable[str]:
        """The files of the revision in force."""
        return self.filed.entries.keys()

    def problems(self) -> Problems:
        """Everything that is wrong, in order of place."""
        found = [*self._structure_problems, *self._holds.problems]
        found += [
            problem
            for label, problem in self._denied.items()
            if _is_job(label) or problem.severity == "warning"
        ]
        for group in (self.filed.problems, self._job_problems):
            for some in group.values():
                found.extend(some)
        found += [*self.filed.ignored.values(), *self._left.values()]
        found.sort(key=lambda item: (item.path, item.line, item.column, item.rule))
        return tuple(found)

    def incumbents(self) -> Incumbents:
        """What a restarted controller can't read from the last head alone."""
        return Incumbents(
            basis=self.basis if self.structure_revision is not None else None,
            structure_revision=self.structure_revision,
            origins=self._origins,
            jobs={
                name: self.jobs[name]
                for name in sorted(self._bad | self._queue_users)
                if name in self.jobs
            },
            preferred=self._firsts.structural()
            | {
                name: self.jobs[name].path if name in self.jobs else self._firsts.get(name) or ""
                for name in sorted(self._bad)
                if len(self.filed.candidates.get(name, ())) > 1
            },
            held_jobs=self._holds.jobs,
        )

    @property
    def held(self) -> tuple[desired.Held, ...]:
        """What waits for approval or for its time."""
        return self._holds.shown

    @property
    def judge_again_at(self) -> float | None:
        """When what is held may apply although nothing has changed."""
        return self._holds.until

    # --- applying ---------------------------------------------------------------------------

    def expire(self) -> bool:
        """Whether a waiver has ended that lets something off: then all is to be judged again."""
        if min(self._judging.until, self._structure_waived_until) > self.now:
            return False
        self._judging.renew()
        self._interrupted = True
        return True

    def apply(
        self,
        revision: str,
        changes: Sequence[filed.FileChange],
        ignored: dict[str, desired.Problem | None],
        *,
        approvals: frozenset[str] = frozenset(),
        denied: Mapping[str, desired.Problem] = _NOTHING_DENIED,
        left: undecided.Left = undecided.NOTHING,
        accepted: bool = False,
    ) -> bool:
        """Apply a revision; False, and nothing has changed, where it would leave nothing in force.

        ``approvals``: digests of changes that people approved. ``denied``: by label, objects that
        nobody answers for who may: they stay. ``left``: jobs not decided. ``accepted``: all may go.
        """
        present = iter(reading.files([one.data for one in changes if one.data is not None]))
        files = [
            (change, documents.File() if change.data is None else next(present))
            for change in changes
        ]
        if self.filed.empties(files, accepted=accepted):
            return False
        touched = set(self._bad)
        structural = self.structure_refused or not self.filed.entries
        structural |= self.structure_revision is None
        if self._interrupted:
            # An earlier try ended half-way, as git could not be read: judge everything again.
            structural = True
            touched.update(self.filed.candidates, self.jobs)
        self._interrupted = True
        of_jobs = {label[len("Job/") :] for label in {*denied, *self._denied} if _is_job(label)}
        touched |= of_jobs | left.known.keys() | self.undecided.known.keys()
        self.undecided = left
        structural |= len({*denied, *self._denied}) > len(of_jobs)
        self._denied = dict(denied)
        for change, file in files:
            structural |= self.filed.replace(change, file, touched)
        for path, problem in ignored.items():
            self.filed.ignored.pop(path, None)
            if problem is not None:
                self.filed.ignored[path] = problem
        earlier = _Earlier(self.basis, self.jobs, self.structure_revision, self._origins)
        if structural:
            self._apply_structure(revision)
        elif not self.structure_refused:
            self.structure_revision = revision
        if self.basis is not earlier.basis and not self.basis.same_for_jobs(earlier.basis):
            self._judging = judging.Judge(self.basis)
            touched.update(self.filed.candidates, self.jobs)
        self._apply_jobs(touched)
        if self.basis is not earlier.basis:
            self._keep_queues_in_use(earlier)
        if self._gate is not None:
            self._pass_gate(self._gate, earlier, approvals)
        self._interrupted = False
        return True

    # --- structure --------------------------------------------------------------------------

    def _apply_structure(self, revision: str) -> None:
        placed = [
            Placed(path, document)
            for path in sorted(self.filed.structural)
            for document in documents.structural(self.filed.entries[path].file)
        ]
        basis, noted = structure.build(placed, self._origins | self._counting(placed))
        # What is wrong with a document by itself is among the problems of its file already.
        found = [self.filed.problem(one) for one in noted if one[0].document.part is not None]
        unreadable = self.filed.unreadable(self._origins, {item.document.label for item in placed})
        found += unreadable
        if basis is not None:
            rules = policies.Rules(basis.structure.policies)
            violated = structure.violations(placed, rules, self.now)
            found += [self.filed.problem(item) for item in violated]
            self._structure_waived_until = rules.until
        found += [
            problem
            for label, problem in self._denied.items()
            if problem.severity == "error" and not _is_job(label)
        ]
        if basis is None or any(problem.severity == "error" for problem in found):
            self.structure_refused = True
        else:
            self.structure_refused = False
            self.structure_revision = revision
            self._origins = {item.document.label: item.path for item in placed}
            if basis != self.basis:
                self.basis = basis
        self._structure_problems = tuple(found)

    def _counting(self, placed: Sequence[Placed]) -> dict[str, str]:
        """By label of what is written more than once: the file that counts."""
        found: dict[str, list[str]] = {}
        for item in placed:
            found.setdefault(item.document.label, []).append(item.path)
        twice = {label: paths for label, paths in found.items() if len(paths) > 1}
        self._firsts.keep(twice)
        return {
            label: self._firsts.of(label, label, paths, self._origins.get(label))
            for label, paths in twice.items()
        }

    def _keep_queues_in_use(self, earlier: "_Earlier", *, judged: bool = False) -> None:
        """Refuse the new structure where jobs in force would be left without their queue.

        By the structure before, to which that goes back, jobs may be as they are written now, and
        in other queues: it is judged by them once more. Whoever comes back to this revision finds
        them so, and has to decide alike. ``judged``: safety has said which jobs stay although they
        are written nowhere any more; they are in their queues as the others are.
        """
        taken_away = self._queues_taken_away(earlier)
        if not taken_away:
            return
        new, fine = (self.basis, self.structure_revision, self._origins), self._structure_problems
        self._revert_structure(earlier, taken_away)
        if judged:
            self._restore(earlier)
        if self.jobs == earlier.jobs:
            return
        reverted = _Earlier(self.basis, self.jobs, self.structure_revision, self._origins)
        self.basis, self.structure_revision, self._origins = new
        self.structure_refused, self._structure_problems = False, fine
        self._judge_by_structure()
        if judged:
            self._restore(earlier)
        taken_away = self._queues_taken_away(reverted)
        if taken_away:
            self._revert_structure(reverted, taken_away)

    def _queues_taken_away(self, earlier: "_Earlier") -> list[desired.Problem]:
        """Queues that jobs in force are in and that the structure does not have."""
        users = dependents.users_of_missing_queues(self.jobs, self.basis.structure)
        self._queue_users = {name for names in users.values() for name in names}
        return [
            dependents.queue_in_use(queue, names, earlier.origins.get(f"Queue/{queue}", ""))
            for queue, names in sorted(users.items())
        ]

    def _judge_by_structure(self) -> None:
        """Judge all jobs by the structure there is."""
        self._judging = judging.Judge(self.basis)
        self._apply_jobs({*self.filed.candidates, *self.jobs})

    def _revert_structure(self, earlier: "_Earlier", problems: Sequence[desired.Problem]) -> None:
        """Go on with the structure before, and judge the jobs by it."""
        self._go_back(earlier)
        self.structure_refused = True
        self._structure_problems = tuple(problems)
        self._apply_jobs({*self.filed.candidates, *self.jobs})

    def _go_back(self, earlier: "_Earlier") -> None:
        """What is in force is what it was before the revision."""
        for name in earlier.jobs.keys() | self.jobs.keys():
            self._dependents.renew(name, self.jobs.get(name), earlier.jobs.get(name))
        self.basis, self.jobs = earlier.basis, earlier.jobs
        self.structure_revision, self._origins = earlier.revision, earlier.origins
        self._judging = judging.Judge(self.basis)

    # --- holding ----------------------------------------------------------------------------

    def _pass_gate(
        self, gate: judgement.Gate, earlier: "_Earlier", approvals: frozenset[str]
    ) -> None:
        """Let safety judge what this revision changes, and hold what it says no to."""
        removed = self._removed(earlier)
        same_structure = self.basis is earlier.basis
        if not removed and same_structure:
            self._holds.clear()
            return
        try:
            found = self._holds.judge(
                gate,
                before=desired.Desired(structure=earlier.basis.structure, jobs=earlier.jobs),
                after=desired.Desired(
                    structure=self.basis.structure, jobs=self.jobs, refused=self.refused
                ),
                removed=removed,
                approvals=approvals,
            )
        except Exception:
            # What nobody has judged does not apply; the next try judges all of it again.
            self._go_back(earlier)
            self.structure_refused = True
            raise
        if found.holds("structure"):
            self._revert_structure(earlier, self._holds.structure_problems)
        self._restore(earlier)
        if not found.holds("structure") and not same_structure:
            self._keep_queues_in_use(earlier, judged=True)
            self._restore(earlier)

    def _removed(self, earlier: "_Earlier") -> list[str]:
        """Jobs that were in force and are written nowhere any more."""
        if earlier.jobs is self.jobs:
            return []
        return [name for name in earlier.jobs if name not in self.jobs and name not in self.refused]

    def _restore(self, earlier: "_Earlier") -> None:
        """Put the jobs back whose removal is held."""
        back = {
            name: earlier.jobs[name]
            for name in self._holds.jobs
            if name in earlier.jobs and name not in self.jobs
        }
        for name, job in back.items():
            self._dependents.renew(name, None, job)
        if back:
            self.jobs = {**self.jobs, **back}
        self._bad.update(self._holds.jobs)

    # --- jobs -------------------------------------------------------------------------------

    def _is_held(self, name: str) -> bool:
        """Whether a job in force may still be written in its file, which nobody can tell."""
        current = self.jobs.get(name)
        if current is None or current.path not in self.filed.entries:
            return False
        if any(path == current.path for path, _ in self.filed.candidates.get(name, ())):
            return False
        return self.filed.entries[current.path].file.opaque

    def _choose(self, name: str) -> tuple[Placed | None, list[filed.Noted]]:
        """The document that stands for a name, and the refusals of others of that name."""
        references = self.filed.candidates.get(name, ())
        if len(references) < 2:
            self._firsts.forget(name)
        if len(references) == 1:
            only = self.filed.placed(references[0])
            if name not in self.jobs or not self._is_held(name):
                return only, []
        if not references:
            return None, []
        ordered = sorted(references)
        current = self.jobs.get(name)
        if current is not None and self._is_held(name):
            fault = checks.duplicate(current.path, 0, ", a file that can't be read now")
            return None, [(self.filed.placed(reference), fault) for reference in ordered]
        home = current.path if current is not None else None
        counts = self._firsts.of(name, f"Job/{name}", [path for path, _ in ordered], home)
        first = next(r for r in ordered if r[0] == counts)
        winner = self.filed.placed(first)
        fault = checks.duplicate(winner.path, winner.document.line)
        return winner, [(self.filed.placed(r), fault) for r in ordered if r != first]

    def _apply_jobs(self, touched: set[str]) -> None:
        """Judge ``touched`` jobs and those that depend on them, and put the good ones in force."""
        names = set(touched)
        for name in touched:
            names |= self._dependents.of(name)
        proposed = dict(self.jobs)
        notes: dict[str, list[filed.Noted]] = {}
        bad: set[str] = set()
        for name in sorted(names):
            self._left.pop(name, None)
            if self._judge(name, proposed, notes):
                bad.add(name)
        waiting = [n for n in sorted(names) if n in proposed and proposed[n].depends_on]
        self._judge_dependencies(waiting, proposed, notes, bad)
        names |= notes.keys()
        for name in names:
            before, after = self.jobs.get(name), proposed.get(name)
            if before is not after:
                self._dependents.renew(name, before, after)
            self._job_problems.pop(name, None)
            if name in notes:
                self._job_problems[name] = tuple(self.filed.problem(item) for item in notes[name])
        self.jobs = proposed
        self._bad = bad
        self.refused = {
            name: self._why_refused(name, notes.get(name, ()))
            for name in sorted(bad)
            if name not in proposed
        }

    def _judge(
        self, name: str, proposed: dict[str, desired.Job], notes: dict[str, list[filed.Noted]]
    ) -> bool:
        """Propose what a name stands for now; True where something is wrong with it."""
        if self._is_denied(name):
            return True
        left = self.undecided
        winner, noted = self._choose(name)
        wrong = bool(noted)
        if winner is None:
            if noted or self._is_held(name):
                wrong = True
            elif left.faults(name, None, self.jobs.get(name)) and (one := left.of(name, None)):
                wrong = True
                self._left[name] = one.problem(self.jobs[name].path)
            else:
                proposed.pop(name, None)
        elif isinstance(winner.document.part, job_documents.Job):
            made, faults, warnings = self._judging.job(winner, winner.document.part, self.now)
            noted.extend((winner, warning) for warning in warnings)
            if made is not None:
                known = self.jobs.get(name)
                undecidable = left.faults(name, made, known)
                stays = undecidable and (known is not None or name not in left.aside)
                if not (faults or stays) and made != known:
                    proposed[name] = made
                faults += undecidable
            if faults:
                wrong = True
                noted.extend((winner, fault) for fault in faults)
        else:
            wrong = True
        if noted:
            notes[name] = noted
        return wrong

    def _judge_dependencies(
        self,
        waiting: Sequence[str],
        proposed: dict[str, desired.Job],
        notes: dict[str, list[filed.Noted]],
        bad: set[str],
    ) -> None:
        """Take those back whose dependencies don't add up, and note why."""

        def note(name: str, fault: Fault) -> None:
            winner, _ = self._choose(name)
            if winner is not None:
                notes.setdefault(name, []).append((winner, fault))

        for name in self.undecided.take_back(waiting, proposed, self.jobs):
            note(name, Fault(undecided.RULE, undecided.BLOCKED))
            bad.add(name)
        waiting = [name for name in waiting if name in proposed]
        bad |= dependencies.judge(
            waiting, proposed, self.jobs, is_written=self.filed.candidates.__contains__, note=note
        )

    def _why_refused(self, name: str, noted: Sequence[filed.Noted]) -> str:
        if self._is_denied(name):
            return self._denied[f"Job/{name}"].message
        for placed, fault in noted:
            if fault.severity == "error":
                return fault.told(self.filed.problem((placed, fault)).place)
        winner, _ = self._choose(name)
        if winner is not None and winner.document.faults:
            return winner.document.faults[0].told(f"{winner.path}:{winner.document.line}")
        return "the job can't be read"

    def _is_denied(self, name: str) -> bool:
        """Whether nobody answers for how a job is written who may."""
        problem = self._denied.get(f"Job/{name}")
        return problem is not None and problem.severity == "error"
