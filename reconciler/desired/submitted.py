"""Judges jobs that somebody wants to add, beside the structure in force.

A job that names a queue, a priority class, a volume or a level that is not there, or that a policy
forbids, would be refused as soon as it is committed; whoever submits it hears that before. Text and
structure come in, problems with their places go out.
"""

from reconciler.desired import checks, documents, fitting, normalise, policies
from reconciler.model import desired
from reconciler.model.documents import job as job_documents


def problems(
    path: str, data: bytes, structure: desired.Structure, now: float
) -> tuple[desired.Problem, ...]:
    """What would refuse the jobs of a text, each by itself: with the document, and with the rest.

    What no pool could ever hold, or no limit lets start, is a warning, as is a waived policy.

    Args:
        path: what to call the text.
        data: YAML of one or several documents.
        structure: what is in force.
        now: seconds since the epoch, for waivers.
    """
    file = documents.read(data)
    found = list(documents.problems(path, data, file))
    classes = {
        name: normalise.PriorityClass(value) for name, value in structure.priority_classes.items()
    }
    basis = normalise.Basis(structure, classes)
    pools = fitting.Fitting(structure)
    rules = policies.Rules(structure.policies)
    for document in file.documents:
        if isinstance(document.part, job_documents.Job):
            made, faults = normalise.job(document.part, document.hash, basis, path)
            unknown = None if made is None else checks.of_job(made, structure)
            if unknown is not None:
                faults = [unknown]
            elif made is not None:
                faults = [*rules.faults("Job", document.name, document.part, now, made)]
                never = (pools.warning(made), fitting.beyond_limit(made, structure.queues))
                faults += [one for one in never if one is not None]
            found += [
                documents.problem(fault, data=data, path=path, document=document)
                for fault in faults
            ]
    return tuple(found)
