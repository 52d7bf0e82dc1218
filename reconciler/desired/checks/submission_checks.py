"""Checks jobs before they are submitted, against the structure in force.

A job with an unknown queue, priority class, volume or level, or one that a policy forbids, would be
refused after its commit; the submitter hears it before. Text and structure come in, problems with
places go out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from reconciler.desired.checks import job_names, job_validator, mutations
from reconciler.desired.documents import document_reader
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.values import found_values, times

#: Of the names that the jobs of a text depend on, the most that are looked up: slips are few.
DEPENDENCIES_MAX = 20
#: Those of some names that are names of jobs.
Known = Callable[[Sequence[str]], Collection[str]]


class SubmissionValidator:
    """A validator of submissions for one structure in force; reusable as long as that stays."""

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
        """Return problems of the jobs of a text, each job by itself.

        A job that no pool could ever hold, or that no limit lets start, is a warning, as is a
        waived policy.

        Args:
            path: name of the text for messages.
            data: YAML of one or several documents.
            file: its parsed documents.
            now: seconds since the epoch, for waivers.
            owner: owner of jobs that name none; empty: nobody.
            known: returns those of some names that are jobs; None: unknown.
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

    def jobs(self, data: bytes, now: float) -> list[desired.Job]:
        """Return the jobs of a text that has no problems, as they come into force.

        Args:
            data: YAML of one or several documents.
            now: seconds since the epoch, for waivers.
        """
        found = []
        for document in document_reader.read(data).documents:
            if isinstance(document.part, job_spec.JobDocument):
                normalised, _, _ = self._judge.job(document.part, document.hash, "", now)
                if normalised is not None:
                    found.append(normalised)
        return found

    def _faults(
        self, document: document_reader.Document, part: job_spec.JobDocument, path: str, now: float
    ) -> Sequence[Fault]:
        normalised, faults, warnings = self._judge.job(part, document.hash, path, now)
        if normalised is not None:
            told = [
                Fault(f"policy/{one.policy}", mutations.described(one), severity="warning")
                for one in normalised.mutations
            ]
            warnings = [*told, *warnings]
        if normalised is not None and normalised.deadline is not None:
            late = _late(normalised, normalised.deadline, now)
            place, found = ("spec", "deadline"), found_values.quote(part.spec.deadline)
            if late:
                fault = Fault("deadline-over", late, place, found=found, severity="warning")
                warnings = [*warnings, fault]
        return [*faults, *warnings]


def _late(job: desired.Job, deadline: float, now: float) -> str:
    """Return why a job cannot end by its deadline; empty if it may."""
    if deadline <= now:
        return "its deadline has passed: it will be TimedOut at once"
    latest = deadline - (job.time_limit_s or 0.0)
    if latest >= max(now, job.not_before or 0.0):
        return ""
    return (
        "its deadline can't be met by its time limit: it would have had to start by "
        f"{times.format_time(latest)} at the latest"
    )


def _unknown(file: document_reader.File, known: Known) -> set[str]:
    """Return dependencies of the jobs of a text that no known job has, up to a maximum."""
    here = {document.name for document in file.documents if document.kind == "Job"}
    named: dict[str, None] = {}
    for document in file.documents:
        if isinstance(document.part, job_spec.JobDocument):
            named.update((one.job, None) for one in document.part.spec.depends_on or ())
    unknown = [name for name in named if name not in here][:DEPENDENCIES_MAX]
    return set(unknown).difference(known(unknown)) if unknown else set()


def _missing(part: job_spec.JobDocument, untold: set[str]) -> Iterator[Fault]:
    """Return one warning for each unknown dependency of a job."""
    if untold:
        for index, dependency in enumerate(part.spec.depends_on or ()):
            if dependency.job in untold:
                untold.discard(dependency.job)
                yield job_names.missing_dependency(dependency.job, index)


def _of(part: job_spec.JobDocument, owner: str) -> job_spec.JobDocument:
    """Return a job as it will be committed, with its owner."""
    if part.spec.owner or not owner:
        return part
    return msgspec.structs.replace(part, spec=msgspec.structs.replace(part.spec, owner=owner))
