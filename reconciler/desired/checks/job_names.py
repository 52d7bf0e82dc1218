"""Decides which names in a job's document nothing has; every check of a job asks here.

The names come in as a document writes them, with the names that exist, by kind. Faults go out: an
error for what a job can't do without, a warning for what it may wait for.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from reconciler.desired.documents import faults, yaml_reader
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.values import found_values

#: The names that exist, by kind.
Known = Mapping[str, Collection[str]]
#: How many of the names that exist a warning lists.
NAMES_SHOWN = 10
#: What refuses a job if it is not there: the kind, with its words and its rule.
_REFUSING = {
    "Queue": ("queue", "unknown-queue"),
    "Volume": ("volume", "unknown-volume"),
    "Reservation": ("reservation", "unknown-reservation"),
    "PriorityClass": ("PriorityClass", "unknown-priority-class"),
}
#: The kind that each of these rules is about.
KIND_OF_RULE = {rule: kind for kind, (_, rule) in _REFUSING.items()}


class NamedObject(NamedTuple):
    """A name in a job's document, of an object that the job can't do without."""

    kind: str
    name: str
    place: yaml_reader.Path


def of_structure(structure: desired.Structure) -> Known:
    """Return the names that exist in a structure."""
    return {
        "Queue": structure.queues,
        "Volume": structure.volumes,
        "Reservation": structure.reservations,
        "PriorityClass": structure.priority_classes,
        "NodePool": structure.pools,
    }


def of_spec(spec: job_spec.JobSpec) -> Iterator[NamedObject]:
    """Return the objects that a valid document names."""
    yield NamedObject("Queue", spec.queue, ("spec", "queue"))
    if spec.priority_class is not None:
        yield NamedObject("PriorityClass", spec.priority_class, ("spec", "priorityClass"))
    for index, name in enumerate(spec.volumes or ()):
        yield NamedObject("Volume", name, ("spec", "volumes", index))
    if spec.stage is not None:
        for index, into in enumerate(spec.stage.inputs):
            place = ("spec", "stage", "inputs", index, "volume")
            yield NamedObject("Volume", into.volume, place)
        for index, out in enumerate(spec.stage.outputs):
            place = ("spec", "stage", "outputs", index, "volume")
            yield NamedObject("Volume", out.volume, place)
    if spec.reservation:
        yield NamedObject("Reservation", spec.reservation, ("spec", "reservation"))


def of_value(spec: Mapping[str, Any]) -> Iterator[NamedObject]:
    """Return the objects that a document names which may be invalid in any way."""
    stage = spec.get("stage")
    staged = stage if isinstance(stage, dict) else {}
    places: list[tuple[str, yaml_reader.Path, Any]] = [
        ("Queue", ("queue",), spec.get("queue")),
        ("PriorityClass", ("priorityClass",), spec.get("priorityClass")),
        *(("Volume", ("volumes", n), name) for n, name in enumerate(listed(spec, "volumes"))),
        *(
            ("Volume", ("stage", field, n, "volume"), one.get("volume"))
            for field in ("inputs", "outputs")
            for n, one in enumerate(listed(staged, field))
            if isinstance(one, dict)
        ),
        ("Reservation", ("reservation",), spec.get("reservation")),
    ]
    for kind, place, name in places:
        if isinstance(name, str) and name:
            yield NamedObject(kind, name, ("spec", *place))


def listed(value: Mapping[str, Any], field: str) -> list[Any]:
    """Return the list in a field of a document, empty if there is no list."""
    found = value.get(field)
    return found if isinstance(found, list) else []


def unknown(named: Iterator[NamedObject], known: Known) -> list[faults.Fault]:
    """Return the faults about objects that do not exist."""
    return [
        faults.unknown_name(what, one.name, one.place, known.get(one.kind, ()), rule)
        for one in named
        if one.name not in known.get(one.kind, ())
        for what, rule in (_REFUSING[one.kind],)
    ]


def missing_dependency(
    name: str, index: int, what: str = "is not there", until: str = "it is"
) -> faults.Fault:
    """Return a warning about a dependency that does not exist yet."""
    return faults.Fault(
        "unknown-dependency",
        f"the job {name} {what}: this one waits until {until}",
        ("spec", "dependsOn", index, "job"),
        found=found_values.quote(name),
        severity="warning",
    )


def missing_pools(names: Sequence[str], known: Collection[str]) -> faults.Fault | None:
    """Return a warning if none of the pools that a job names exists yet."""
    if not names or any(name in known for name in names):
        return None
    there = found_values.few(sorted(known), NAMES_SHOWN) or "none"
    return faults.unknown_name(
        "NodePool",
        names[0],
        ("spec", "pools", 0),
        known,
        "unknown-pool",
        message=f"there is no NodePool {found_values.few(names)}: the job waits until there is; "
        f"known: {there}",
        severity="warning",
    )


def missing_hosts(
    job: desired.Job, declared: Sequence[tuple[frozenset[str], str]]
) -> Iterator[faults.Fault]:
    """Return warnings of the nodes that a job names and no pool declares.

    Args:
        job: as it is normalised.
        declared: the nodes of each pool, and the same as a host list.
    """
    for field, names in (("hosts", job.hosts), ("excludeHosts", job.exclude_hosts)):
        missing = [one for one in names if not any(one in nodes for nodes, _ in declared)]
        if missing:
            known = [text for _, text in declared]
            yield faults.Fault(
                "unknown-host",
                f"{field}: no pool has a node {found_values.few(missing)}; known: "
                f"{found_values.few(known, NAMES_SHOWN) or 'none'}",
                ("spec", field),
                found=found_values.quote(missing[0]),
                severity="warning",
            )
