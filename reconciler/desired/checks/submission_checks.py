"""Judges jobs that somebody wants to add, beside the structure in force.

A job that names a queue, a priority class, a volume or a level that is not there, or that a policy
forbids, would be refused as soon as it is committed; whoever submits it hears that before. Text and
structure come in, problems with their places go out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from reconciler.desired.checks import cross_references, job_validator
from reconciler.desired.documents import document_reader
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.values import times

#: Of the names that the jobs of a text depend on, the most that are looked up: slips are few.
DEPENDENCIES_MAX = 20
#: Those of some names that are names of jobs.
Known = Callable[[Sequence[str]], Collection[str]]


class SubmissionValidator:
    """Judges by one structure in force; made once, it serves as long as that one is."""

    def __init__(self, structure: desired.Structure) -> None:
        classes = {
            name: job_defaults.PriorityDefaults(value)
            for name, value in structure.priority_classes.items()
        }
        self._judge = job_validator.JobValidator(job_defaults.JobDefaults(structure, classes))

    def problems(
        self,
        path: str,
        data: bytes,
        file: document_reader.File,
        now: float,
        owner: str = "",
        *,
        known: Known | None = None,
    ) -> tuple[desired.Problem, ...]:
        """What would refuse the jobs of a text, each by itself: with the document, with the rest.

        What no pool could ever hold, or no limit lets start, is a warning, as is a waived policy.

        Args:
            path: what to call the text.
            data: YAML of one or several documents.
            file: what stands in it.
            now: seconds since the epoch, for waivers.
            owner: whose those will be that name nobody; empty: nobody's.
            known: tells of names those that are jobs'; None: nobody can tell.
        """
        found = list(document_reader.problems(path, data, file))
        missing = _unknown(file, known) if known is not None else set[str]()
        for document in file.documents:
            if isinstance(document.part, job_spec.JobDocument):
                found += [
                    document_reader.problem(fault, data=data, path=path, document=document)
                    for fault in (
                        *self._faults(document, _of(document.part, owner), path, now),
                        *_missing(document.part, missing),
                    )
                ]
        return tuple(found)

    def _faults(
        self, document: document_reader.Document, part: job_spec.JobDocument, path: str, now: float
    ) -> Sequence[Fault]:
        made, faults, warnings = self._judge.job(part, document.hash, path, now)
        if made is not None and made.deadline is not None:
            late = _late(made, made.deadline, now)
            place, found = ("spec", "deadline"), str(part.spec.deadline)
            if late:
                fault = Fault("deadline-over", late, place, found=found, severity="warning")
                warnings = [*warnings, fault]
        return [*faults, *warnings]


def _late(job: desired.Job, deadline: float, now: float) -> str:
    """Why a job can't end by its deadline, whatever becomes of it; empty: it may."""
    if deadline <= now:
        return "its deadline is over already: it is TimedOut at once"
    latest = deadline - (job.time_limit_s or 0.0)
    if latest >= now:
        return ""
    return (
        "its deadline can't be met by its time limit: it would have had to start by "
        f"{times.format_time(latest)} at the latest"
    )


def _unknown(file: document_reader.File, known: Known) -> set[str]:
    """Names that jobs of a text depend on, of which nobody knows a job: of the first so many."""
    here = {document.name for document in file.documents if document.kind == "Job"}
    named: dict[str, None] = {}
    for document in file.documents:
        if isinstance(document.part, job_spec.JobDocument):
            named.update((one.job, None) for one in document.part.spec.depends_on or ())
    asked = [name for name in named if name not in here][:DEPENDENCIES_MAX]
    return set(asked).difference(known(asked)) if asked else set()


def _missing(part: job_spec.JobDocument, untold: set[str]) -> Iterator[Fault]:
    """What a job waits for that nobody knows of, once each: a warning, since it may come."""
    if untold:
        for index, dependency in enumerate(part.spec.depends_on or ()):
            if dependency.job in untold:
                untold.discard(dependency.job)
                yield cross_references.missing_dependency(dependency.job, index, "is not known yet")


def _of(part: job_spec.JobDocument, owner: str) -> job_spec.JobDocument:
    """A job as it will be committed: with the owner that is written into it."""
    if part.spec.owner or not owner:
        return part
    return msgspec.structs.replace(part, spec=msgspec.structs.replace(part.spec, owner=owner))
