"""Finds every unknown name in jobs, also in jobs refused for another reason.

A loader judges a job by the structure in force and stops at the first refusal. Authors need all
problems, and of a faulty structure what will exist once it is repaired. Bytes of files and the
loader's problems come in; the problems for people go out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.desired.checks import cross_references
from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.documents.faults import Fault
from reconciler.model import desired

#: What a job must not name where it isn't there: what it is called, the kind, and the field that
#: names one of it or a list. What it may wait for is told as a warning, by :func:`_awaited`.
_NAMED = (
    ("queue", "Queue", "queue"),
    ("volume", "Volume", "volumes"),
    ("reservation", "Reservation", "reservation"),
    ("PriorityClass", "PriorityClass", "priorityClass"),
)
#: The queue that is there though nobody writes it.
_ALWAYS = {"Queue": frozenset({"default"})}
_OF_KIND = {
    "unknown-queue": "Queue",
    "unknown-volume": "Volume",
    "unknown-reservation": "Reservation",
    "unknown-priority-class": "PriorityClass",
}


#: The rule of each kind.
_RULES = {kind: rule for rule, kind in _OF_KIND.items()}


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
    kind = _OF_KIND.get(problem.rule)
    if kind is None or not problem.object.startswith("Job/"):
        return False
    return problem.found in written.get(kind, ())


def _unknown(value: Any, written: Mapping[str, set[str]]) -> Iterator[Fault]:
    """Return the names in a job's document that are written nowhere."""
    spec = value.get("spec") if isinstance(value, dict) else None
    if not isinstance(spec, dict):
        return
    for what, kind, field in _NAMED:
        known = written.get(kind, set())
        names = spec.get(field)
        several = isinstance(names, list)
        for index, name in enumerate(names if isinstance(names, list) else [names]):
            if isinstance(name, str) and name and name not in known:
                place: tuple[str | int, ...] = ("spec", field)
                place = (*place, index) if several else place
                yield cross_references.unknown(what, name, place, known, _RULES[kind])
    yield from _awaited(spec, written)


def _awaited(spec: Mapping[str, Any], written: Mapping[str, set[str]]) -> Iterator[Fault]:
    """Return unknown jobs and pools that a job would wait for."""
    pools = [one for one in _listed(spec, "pools") if isinstance(one, str)]
    missing = cross_references.missing_pools(pools, written.get("NodePool", set()))
    if missing is not None:
        yield missing
    for index, one in enumerate(_listed(spec, "dependsOn")):
        name = one.get("job") if isinstance(one, dict) else None
        if isinstance(name, str) and name and name not in written.get("Job", ()):
            yield cross_references.missing_dependency(name, index)


def _listed(spec: Mapping[str, Any], field: str) -> list[Any]:
    found = spec.get(field)
    return found if isinstance(found, list) else []
