"""Judges jobs that somebody wants to add, beside the structure in force.

A job that names a queue, a priority class, a volume or a level that is not there would be refused
as soon as it is committed; whoever submits it hears that before. Text and structure come in,
problems with their places go out.
"""

from reconciler.desired import checks, documents, normalise
from reconciler.desired.faults import Fault
from reconciler.model import desired
from reconciler.model.documents import job as job_documents


def problems(path: str, data: bytes, structure: desired.Structure) -> tuple[desired.Problem, ...]:
    """What would refuse the jobs of a text, each by itself: with the document, and with the rest.

    Args:
        path: what to call the text.
        data: YAML of one or several documents.
        structure: what is in force.
    """
    file = documents.read(data)
    found = list(documents.problems(path, data, file))
    classes = {
        name: normalise.PriorityClass(value) for name, value in structure.priority_classes.items()
    }
    basis = normalise.Basis(structure, classes)
    for document in file.documents:
        if isinstance(document.part, job_documents.Job):
            found += [
                documents.problem(fault, data=data, path=path, document=document)
                for fault in _faults(document.part, document.hash, basis, path)
            ]
    return tuple(found)


def _faults(part: job_documents.Job, digest: str, basis: normalise.Basis, path: str) -> list[Fault]:
    made, faults = normalise.job(part, digest, basis, path)
    if made is None:
        return faults
    unknown = checks.of_job(made, basis.structure)
    return [unknown] if unknown is not None else faults
