"""The jobs in force, each judged by itself.

Of several documents of one name the one counts that held it first. It is judged by the structure
and by the jobs it depends on. If it is refused, unreadable, quarantined or not authorized, the
version in force stays. Only what a revision touches, its dependents, and what was wrong before are
judged again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from reconciler.desired.apply import file_index, job_quarantine
from reconciler.desired.apply.structure import Placed
from reconciler.desired.checks import (
    cross_references,
    dependencies,
    dependents,
    feasibility,
    job_names,
    job_validator,
)
from reconciler.desired.documents import name_owners
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.rules import redaction

#: Of jobs, those whose newest run has begun or ended, with its key.
Begun = Callable[[Collection[str]], Mapping[str, str]]
#: How rules begin by which structure that came later can refuse a job as it was admitted.
_OF_STRUCTURE = ("unknown-", "policy/")


def nothing_begun(names: Collection[str]) -> Mapping[str, str]:
    """Return what is known of runs without a controller: nothing."""
    del names
    return {}


def _let_be(fault: Fault) -> Fault:
    """Return a problem of a job whose run has begun as a warning that changes nothing."""
    message = f"{fault.message}; its run was admitted before and stays as it is"
    return msgspec.structs.replace(fault, severity="warning", message=message)


def _is_later(fault: Fault) -> bool:
    """Return True if structure refuses a job, not the way the job itself is written."""
    return fault.rule.startswith(_OF_STRUCTURE)


class JobsInForce:
    """The jobs that apply, by name, and the problems of written ones.

    Args:
        files: index of the revision.
        first: owner of each name that several files use.
        basis: structure that jobs are judged by.
        jobs: jobs in force before a restart; all are judged again.
        begun: returns runs that have begun: these were admitted by an earlier structure.
    """

    def __init__(
        self,
        files: file_index.FileIndex,
        first: name_owners.NameOwners,
        basis: job_defaults.JobDefaults,
        jobs: Mapping[str, desired.Job],
        begun: Begun = nothing_begun,
    ) -> None:
        self._filed = files
        self._begun = begun
        self._firsts = first
        self._dependents = dependents.Dependents()
        self._left: dict[str, desired.Problem] = {}
        self._problems: dict[str, tuple[desired.Problem, ...]] = {}
        self.jobs: dict[str, desired.Job] = dict(jobs)
        #: Why jobs of which no version is in force are refused.
        self.refused: dict[str, str] = {}
        #: Those with which something is wrong: what was in force of them stays known.
        self.bad: set[str] = set(self.jobs)
        #: Those of them of which only their document and the structure say so, and whether their
        #: runs have begun.
        self._settled: dict[str, bool] = {}
        #: Those that are left as they are in force while they are written so.
        self.undecided = job_quarantine.JobsLeftAsBefore()
        #: By label, objects that nobody answers for who may.
        self.denied: dict[str, desired.Problem] = {}
        self.judging = job_validator.JobValidator(basis)
        for job in self.jobs.values():
            self._dependents.renew(job.name, None, job)

    def admit(self, jobs: Mapping[str, desired.Job]) -> None:
        """Treat these as in force from before: the next revision judges them."""
        for name, job in jobs.items():
            self._dependents.renew(name, self.jobs.get(name), job)
        self.jobs = {**self.jobs, **jobs}
        self.bad |= jobs.keys()
        self._settled = {n: begun for n, begun in self._settled.items() if n not in jobs}

    def problems(self) -> Iterable[desired.Problem]:
        """Return the problems of jobs, in no order."""
        for some in self._problems.values():
            yield from some
        yield from self._left.values()

    def judge_by(self, basis: job_defaults.JobDefaults) -> None:
        """Use another structure from now on; nothing is judged yet."""
        self.judging = self.judging.by(basis)
        self._settled = {}

    def judge_queues_by(self, basis: job_defaults.JobDefaults, queues: Collection[str]) -> set[str]:
        """Use a structure that differs for jobs of some queues only; return the jobs to judge
        again.

        Jobs with any problem are included, because their document may name such a queue.
        """
        faulty = self.bad | self._settled.keys() | self._problems.keys()
        self.judge_by(basis)
        return faulty | {name for name, job in self.jobs.items() if job.queue in queues}

    def to_judge(self) -> set[str]:
        """Return jobs with a problem that may be gone by now."""
        waiting = [name for name, has_begun in self._settled.items() if not has_begun]
        begun = self._begun(waiting) if waiting else {}
        return (self.bad - self._settled.keys()) | begun.keys()

    def go_back(self, jobs: dict[str, desired.Job], basis: job_defaults.JobDefaults) -> None:
        """Restore the jobs and the structure of before a revision."""
        for name in jobs.keys() | self.jobs.keys():
            self._dependents.renew(name, self.jobs.get(name), jobs.get(name))
        self.jobs = jobs
        self.judge_by(basis)

    def restore(self, held: Iterable[str], earlier: Mapping[str, desired.Job]) -> None:
        """Restore the jobs whose removal is held, as they were in ``earlier``."""
        names = tuple(held)
        back = {name: earlier[name] for name in names if name in earlier and name not in self.jobs}
        for name, job in back.items():
            self._dependents.renew(name, None, job)
        if back:
            self.jobs = {**self.jobs, **back}
        self.bad.update(names)

    def _is_held(self, name: str) -> bool:
        """Return True if a job in force may still be written in its unreadable file."""
        current = self.jobs.get(name)
        if current is None or current.path not in self._filed.entries:
            return False
        if any(path == current.path for path, _ in self._filed.candidates.get(name, ())):
            return False
        return self._filed.entries[current.path].file.opaque

    def _choose(self, name: str) -> tuple[Placed | None, list[file_index.Noted]]:
        """Return the document that counts for a name, and refusals of the others."""
        references = self._filed.candidates.get(name, ())
        if len(references) < 2:
            self._firsts.forget(name)
        if len(references) == 1:
            only = self._filed.placed(references[0])
            if name not in self.jobs or not self._is_held(name):
                return only, []
        if not references:
            return None, []
        ordered = sorted(references)
        current = self.jobs.get(name)
        if current is not None and self._is_held(name):
            fault = cross_references.duplicate(current.path, 0, ", a file that can't be read now")
            return None, [(self._filed.placed(reference), fault) for reference in ordered]
        home = current.path if current is not None else None
        counts = self._firsts.of(name, f"Job/{name}", [path for path, _ in ordered], home)
        first = next(r for r in ordered if r[0] == counts)
        winner = self._filed.placed(first)
        fault = cross_references.duplicate(winner.path, winner.document.line)
        return winner, [(self._filed.placed(r), fault) for r in ordered if r != first]

    def apply(self, touched: set[str], now: float) -> None:
        """Judge ``touched`` jobs and their dependents, and put the valid ones in force.

        ``now``: seconds since the epoch, for waivers that end.
        """
        names = set(touched)
        for name in touched:
            names |= self._dependents.of(name)
        proposed = dict(self.jobs)
        notes: dict[str, list[file_index.Noted]] = {}
        unjudged = self._settled.keys() - names
        refused = {name: self.refused[name] for name in unjudged & self.refused.keys()}
        bad: set[str] = set()
        for name in sorted(names):
            self._left.pop(name, None)
            self._settled.pop(name, None)
            if self._judge(name, proposed, notes, now):
                bad.add(name)
        self._leave_out_idle(notes, proposed)
        waiting = [n for n in sorted(names) if n in proposed and proposed[n].depends_on]
        self._judge_dependencies(waiting, proposed, notes, bad)
        names |= notes.keys()
        for name in names:
            before, after = self.jobs.get(name), proposed.get(name)
            if before is not after:
                self._dependents.renew(name, before, after)
            self._problems.pop(name, None)
            if name in notes:
                self._problems[name] = tuple(self._filed.problem(item) for item in notes[name])
        self.jobs = proposed
        self.bad = bad | unjudged
        refused |= {
            name: self._why_refused(name, notes.get(name, ()))
            for name in bad
            if name not in proposed
        }
        self.refused = dict(sorted(refused.items()))

    def _judge(
        self,
        name: str,
        proposed: dict[str, desired.Job],
        notes: dict[str, list[file_index.Noted]],
        now: float,
    ) -> bool:
        """Propose the current document of a name; return True if it has a problem."""
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
        elif isinstance(winner.document.part, job_spec.JobDocument):
            part = winner.document.part
            wrong = self._judge_document(part, winner, proposed, noted, now) or wrong
        else:
            wrong = True
        if noted:
            notes[name] = noted
        return wrong

    def _judge_document(
        self,
        part: job_spec.JobDocument,
        winner: Placed,
        proposed: dict[str, desired.Job],
        noted: list[file_index.Noted],
        now: float,
    ) -> bool:
        """Propose the job of a document; return True if it has a problem."""
        name = part.metadata.name
        known, left = self.jobs.get(name), self.undecided
        is_alone = not noted and (known is None or known.path == winner.path)
        written, faults, warnings = self.judging.job(part, winner.document.hash, winner.path, now)
        noted.extend((winner, warning) for warning in warnings)
        undecidable: list[Fault] = []
        if written is not None:
            undecidable = left.faults(name, written, known)
            stays = undecidable and (known is not None or name not in left.aside)
            if not (faults or stays) and written != known:
                proposed[name] = written
            faults += undecidable
        if not faults:
            return False
        has_begun = self._has_begun(name, winner)
        if is_alone and not undecidable and not part.spec.depends_on:
            self._settled[name] = has_begun
        noted.extend(
            (winner, _let_be(one) if has_begun and _is_later(one) else one) for one in faults
        )
        noted.extend((winner, one) for one in self._missing_dependencies(part.spec))
        return True

    def _missing_dependencies(self, spec: job_spec.JobSpec) -> Iterator[Fault]:
        """Return warnings about dependencies of a refused job that are written nowhere."""
        for index, one in enumerate(spec.depends_on or ()):
            if one.job not in self._filed.candidates and one.job not in self.jobs:
                yield job_names.missing_dependency(one.job, index)

    def _leave_out_idle(
        self, notes: dict[str, list[file_index.Noted]], proposed: Mapping[str, desired.Job]
    ) -> None:
        """Drop "could not start" warnings about runs that have begun or ended."""

        def is_idle(one: file_index.Noted) -> bool:
            return one[1].severity == "warning" and one[1].rule in feasibility.RULES

        warned = [name for name in notes if name in proposed and any(map(is_idle, notes[name]))]
        begun = self._begun(warned) if warned else {}
        for name in warned:
            if begun.get(name) == proposed[name].key:
                notes[name] = [one for one in notes[name] if not is_idle(one)]
                if not notes[name]:
                    del notes[name]

    def _has_begun(self, name: str, winner: Placed) -> bool:
        """Return True if a job is in force as written, and that run has begun or ended."""
        known, part = self.jobs.get(name), winner.document.part
        if known is None or not isinstance(part, job_spec.JobDocument):
            return False
        spec = part.spec
        of_document = (spec.run, winner.document.hash, spec.queue or known.queue)
        of_run = (known.run, known.hash, known.queue)
        return (
            of_document == of_run
            and (spec.reservation or "") == known.reservation
            and self._begun((name,)).get(name) == known.key
        )

    def _judge_dependencies(
        self,
        waiting: Sequence[str],
        proposed: dict[str, desired.Job],
        notes: dict[str, list[file_index.Noted]],
        bad: set[str],
    ) -> None:
        """Withdraw jobs whose dependencies are invalid, with the reason."""

        def note(name: str, fault: Fault) -> None:
            winner, _ = self._choose(name)
            if winner is not None:
                notes.setdefault(name, []).append((winner, fault))

        for name in self.undecided.take_back(waiting, proposed, self.jobs):
            note(name, Fault(job_quarantine.RULE, job_quarantine.BLOCKED))
            bad.add(name)
        waiting = [name for name in waiting if name in proposed]
        bad |= dependencies.judge(
            waiting, proposed, self.jobs, is_written=self._filed.candidates.__contains__, note=note
        )

    def _why_refused(self, name: str, noted: Sequence[file_index.Noted]) -> str:
        if self._is_denied(name):
            return self.denied[f"Job/{name}"].message
        for placed, fault in noted:
            if fault.severity == "error":
                return redaction.unquoted(self._filed.problem((placed, fault))).told()
        winner, _ = self._choose(name)
        if winner is not None and winner.document.faults:
            problem = self._filed.problem((winner, winner.document.faults[0]))
            return redaction.unquoted(problem).told()
        return "the job can't be read"

    def _is_denied(self, name: str) -> bool:
        """Return True if nobody with the right signed the way a job is written."""
        problem = self.denied.get(f"Job/{name}")
        return problem is not None and problem.severity == "error"
