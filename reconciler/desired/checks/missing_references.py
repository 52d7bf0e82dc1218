"""Finds every unknown name in jobs, also in jobs refused for another reason.

A loader judges a job by the structure in force, and no job that its schema refuses. Authors need
all problems, and of a faulty structure what will exist once it is repaired. Bytes of files and the
loader's problems come in; the problems for people go out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.desired.checks import job_names
from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.documents.faults import Fault
from reconciler.model import desired
from reconciler.model.values import found_values

#: The queue that is there though nobody writes it.
_ALWAYS = {"Queue": frozenset({"default"})}


def complete(
    files: Mapping[str, bytes], problems: tuple[desired.Problem, ...]
) -> tuple[desired.Problem, ...]:
    """Return the problems with all unknown names in jobs, without those that are written after all.

    Args:
        files: path to bytes, all that were read.
        problems: problems of the loader.
    """
    read = {path: document_reader.read(data) for path, data in files.items()}
    written: dict[str, set[str]] = {kind: set(names) for kind, names in _ALWAYS.items()}
    for file in read.values():
        for document in file.documents:
            if document.name:
                written.setdefault(document.kind, set()).add(document.name)
    remaining = [one for one in problems if not _is_written(one, written)]
    if any(file.opaque for file in read.values()):
        return tuple(remaining)  # it may be written where nobody can read it
    places = {(one.path, one.line, one.column) for one in remaining}
    for path, file in read.items():
        jobs = [one for one in file.documents if one.kind == "Job"]
        values = yaml_reader.read(files[path]) if jobs else ()
        for document in jobs:
            for fault in _unknown(values[document.index].value, written):
                found = document_reader.problem(
                    fault, data=files[path], path=path, document=document
                )
                if (path, found.line, found.column) not in places:
                    remaining.append(found)
    return tuple(sorted(remaining, key=lambda one: (one.path, one.line, one.column, one.rule)))


def _is_written(problem: desired.Problem, written: Mapping[str, set[str]]) -> bool:
    """Return True if a name reported as unknown is written and only not in force."""
    kind = job_names.KIND_OF_RULE.get(problem.rule)
    if kind is None or not problem.object.startswith("Job/"):
        return False
    return problem.found in map(found_values.quote, written.get(kind, ()))


def _unknown(value: Any, written: Mapping[str, set[str]]) -> Iterator[Fault]:
    """Return the names in a job's document that are written nowhere."""
    spec = value.get("spec") if isinstance(value, dict) else None
    if not isinstance(spec, dict):
        return
    yield from job_names.unknown(job_names.of_value(spec), written)
    pools = [one for one in job_names.listed(spec, "pools") if isinstance(one, str)]
    missing = job_names.missing_pools(pools, written.get("NodePool", set()))
    if missing is not None:
        yield missing
    for index, one in enumerate(job_names.listed(spec, "dependsOn")):
        name = one.get("job") if isinstance(one, dict) else None
        if isinstance(name, str) and name and name not in written.get("Job", ()):
            yield job_names.missing_dependency(name, index)
