"""Builds structure, records and fates from a scenario's document.

The situation is taken as it is, without admission or cross-checks. Settings that this build does
not know are collected in ``missing`` instead of being dropped silently.
"""

import collections
import math
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from reconciler.model import desired
from reconciler.model.documents import cluster_spec
from reconciler.model.state import identifiers, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, EndReason, JobState, NodeState
from reconciler.model.values import quantities, run_set
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import simulated_nodes
from reconciler.simulation.scenarios import initial_devices, scenario_validation, schema

#: Second 0 of a scenario; anything but 0, which stands for "never" in records.
BEGIN = 1_000_000.0
#: What a node has that does not say how much; and a guarantee without a bound.
PLENTY, UNBOUNDED = 2**50, 2**62

_HASH = "0" * 16


class ScenarioStart(msgspec.Struct):
    """Start of a scenario.

    Attributes:
        structure, observed: as of second 0; jobs that come later are in ``later`` only.
        jobs: jobs of second 0.
        later: (second, job) of the others, in order.
        runs_s: seconds that each task of a job runs, by job.
        tasks: (group, index) of each task of a job, by job, in the document's order.
        missing: features of the document that this build does not have.
    """

    structure: desired.Structure = desired.Structure()
    observed: records.Observed = records.Observed()
    jobs: dict[str, desired.Job] = {}
    later: list[tuple[float, desired.Job]] = []
    runs_s: dict[str, float] = {}
    tasks: dict[str, list[tuple[str, int]]] = {}
    missing: list[str] = []


def build(scenario: schema.Scenario) -> ScenarioStart:
    """Return the start of a document.

    Raises:
        schema.ScenarioError: an amount is invalid, a name is unknown, or no cluster could be in
        this
            situation.
    """
    scenario_validation.check(scenario)
    missing: dict[str, None] = {}
    made = ScenarioStart(structure=_structure(scenario, missing))
    attempts: dict[str, records.AttemptRecord] = {}
    jobs: dict[str, records.JobRecord] = {}
    devices = initial_devices.of_running(scenario)
    order = 1
    for number, entry in enumerate(scenario.jobs):
        where = f"jobs[{number}]"
        spec = _job(entry, where, made)
        if entry.queue not in made.structure.queues:
            raise schema.ScenarioError(f"there is no queue {entry.queue!r}", f"{where}.queue")
        if entry.name in made.runs_s:
            raise schema.ScenarioError(f"a second job {entry.name!r}", f"{where}.name")
        made.runs_s[entry.name] = math.inf if entry.duration is None else entry.duration
        if entry.submit:
            made.later.append((BEGIN + entry.submit, spec))
            continue
        made.jobs[spec.name] = spec
        held = _attempts(
            entry, spec, made.tasks[spec.name], devices=devices, nodes=scenario.nodes, where=where
        )
        attempts.update((attempt.id, attempt) for attempt in held)
        jobs[spec.name] = _record(spec, order, running=bool(held))
        order += 1
    made.later.sort(key=lambda pair: pair[0])
    made.missing = list(missing)
    made.observed = records.Observed(
        desired_generation=0,
        jobs=jobs,
        active=frozenset(jobs),
        past_runs=run_set.RunSet.of(record.key for record in jobs.values()),
        attempts=attempts,
        nodes=_nodes(made.structure),
        leader_since=BEGIN,
        next_order=order,
    )
    return made


# -- structure


def _structure(scenario: schema.Scenario, missing: dict[str, None]) -> desired.Structure:
    pools: dict[str, desired.Pool] = {}
    for name, node in scenario.nodes.items():
        where = f"nodes.{name}"
        own = node.pool or name
        made = desired.Pool(
            name=own,
            nodes=(name,),
            node_resources=Resources(
                PLENTY if node.cpu is None else schema.amount("cpu", node.cpu, where),
                PLENTY if node.memory is None else schema.amount("memory", node.memory, where),
                schema.amount("gpu", node.gpu, where),
            ),
            labels={key: str(value) for key, value in node.labels.items()},
            allow_root=True,
            grace_s=0,
        )
        known = pools.get(own)
        if known is not None:
            if msgspec.structs.replace(known, nodes=made.nodes) != made:
                raise schema.ScenarioError(f"nodes of pool {own} have to be alike", where)
            made = msgspec.structs.replace(known, nodes=(*known.nodes, name))
        pools[own] = made
    queues = {
        queue.name: _queue(queue, f"queues[{number}]")
        for number, queue in enumerate(scenario.queues)
    }
    for number, queue in enumerate(scenario.queues):
        if queue.parent is not None and queue.parent not in queues:
            where = f"queues[{number}].parent"
            raise schema.ScenarioError(f"there is no queue {queue.parent!r}", where)
    return desired.Structure(
        settings=_policy(scenario, missing),
        pools=pools,
        queues=_parents_first(queues),
    )


def _policy(scenario: schema.Scenario, missing: dict[str, None]) -> desired.ClusterSettings:
    """Return the policy of a document, with the format's defaults."""
    try:
        return settings_of(_WITHOUT_WAITS | scenario.policy, missing)
    except schema.ScenarioError as error:
        raise schema.ScenarioError(error.message, f"policy.{error.where}") from error


def settings_of(
    policy: dict[str, Any],
    missing: dict[str, None],
    base: desired.ClusterSettings | None = None,
) -> desired.ClusterSettings:
    """Return the policy as part of the settings; unknown names are missing.

    Names, values and bounds are those of ``Cluster.spec.scheduling``; a name of ``fairness`` and
    ``learnedRunTimes`` may be written with a dot: ``learnedRunTimes.quantile``.

    Args:
        missing: collects unknown names.
        base: settings that the policy does not name; None: the defaults.

    Raises:
        schema.ScenarioError: a value is invalid, or given twice; its place begins with the name.
    """
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in policy.items():
        name, _, part = key.partition(".")
        if name not in SCHEDULING or bool(part) != (part in SCHEDULING[name]):
            missing[f"policy {key}"] = None
        elif part:
            parts.setdefault(name, {})[part] = value
        else:
            whole[name] = value
    for name in sorted(whole.keys() & parts.keys()):
        beside = ", ".join(f"{name}.{part}" for part in parts[name])
        told = f"found {name} beside {beside}, expected one of the two: say all of it in {name}"
        raise schema.ScenarioError(told, name)
    written = whole | parts
    try:
        spec = msgspec.convert(written, cluster_spec.SchedulingSpec)
    except msgspec.ValidationError as error:
        raise _refused(str(error), written) from error
    scheduling = _scheduling(spec)
    named = {
        setting: getattr(scheduling, setting)
        for name, setting in _SETTINGS.items()
        if name in policy or name.partition(".")[0] in policy
    }
    base = base or desired.ClusterSettings()
    return msgspec.structs.replace(
        base, scheduling=msgspec.structs.replace(base.scheduling, **named)
    )


def _scheduling(spec: cluster_spec.SchedulingSpec) -> desired.Scheduling:
    fairness, learned = spec.fairness, spec.learned_run_times
    window = fairness.window
    return desired.Scheduling(
        backfill=spec.backfill,
        depth=spec.depth,
        consolidation=spec.consolidation,
        usage_half_life_s=_some_seconds(fairness.half_life, "fairness.halfLife"),
        usage_strength=float(fairness.strength),
        placement=spec.placement,
        order=spec.order,
        learned_quantile=None if learned is None else learned.quantile,
        overdue_after=float(spec.overdue_after),
        min_runtime_s=_seconds(spec.min_runtime, "minRuntime"),
        stale_gang_s=_seconds(spec.stale_gang_grace, "staleGangGrace"),
        usage_window_s=None if window is None else _some_seconds(window, "fairness.window"),
    )


def _seconds(written: str | int, where: str) -> int:
    try:
        return quantities.parse_duration(written)
    except quantities.QuantityError as error:
        raise schema.ScenarioError(str(error), where) from error


def _some_seconds(written: str | int, where: str) -> int:
    """Return a duration that is not zero."""
    found = _seconds(written, where)
    if found == 0:
        told = "a duration above 0s; say strength: 0 where past use is not to count"
        raise schema.ScenarioError(f"found {written}, expected {told}", where)
    return found


def _value(written: dict[str, Any], place: Iterable[str]) -> Any:
    """Return the value at a place; None: there is none."""
    value: Any = written
    for step in place:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _refused(told: str, written: dict[str, Any]) -> schema.ScenarioError:
    """Return what is wrong with a value, with the allowed words if there are any."""
    error = schema.explained(told, written)
    value = _value(written, error.where.split("."))
    if " matching regex " in error.message:  # all texts that are not of some words are durations
        _seconds(value, error.where)
    if error.message.startswith("Expected "):
        expected = error.message.removeprefix("Expected ").partition(", got ")[0]
        return schema.ScenarioError(f"found {value!r}, expected {expected}", error.where)
    words = _WORDS.get(error.where)
    if words is None:
        return error
    return schema.ScenarioError(f"found {value!r}, expected one of {words}", error.where)


def _without(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a type without its constraints and without None."""
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    if isinstance(kind, msgspec.inspect.UnionType):
        return next((_without(one) for one in kind.types if _is_struct(_without(one))), kind)
    return kind


def _is_struct(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.StructType)


def _fields(kind: msgspec.inspect.Type) -> dict[str, msgspec.inspect.Type]:
    """Return the names in a part of a document, each with its type; none if it is a plain value."""
    if not isinstance(kind, msgspec.inspect.StructType):
        return {}
    return {field.encode_name: _without(field.type) for field in kind.fields}


#: Names of ``Cluster.spec.scheduling``, each with the names that it holds.
SCHEDULING: dict[str, tuple[str, ...]] = {
    name: tuple(_fields(kind))
    for name, kind in _fields(msgspec.inspect.type_info(cluster_spec.SchedulingSpec)).items()
}
#: Which setting each of them is, those that hold others by what they hold.
_SETTINGS = {
    "backfill": "backfill",
    "depth": "depth",
    "consolidation": "consolidation",
    "fairness.halfLife": "usage_half_life_s",
    "fairness.strength": "usage_strength",
    "fairness.window": "usage_window_s",
    "placement": "placement",
    "order": "order",
    "learnedRunTimes.quantile": "learned_quantile",
    "overdueAfter": "overdue_after",
    "minRuntime": "min_runtime_s",
    "staleGangGrace": "stale_gang_s",
}
#: The words of those that take some.
_WORDS = {
    name: ", ".join(sorted(map(str, kind.values)))
    for name, kind in _fields(msgspec.inspect.type_info(cluster_spec.SchedulingSpec)).items()
    if isinstance(kind, msgspec.inspect.LiteralType)
}
#: What the format has of these where a document does not name them.
_WITHOUT_WAITS = {"minRuntime": 0, "staleGangGrace": 0}


def _parents_first(queues: dict[str, desired.Queue]) -> dict[str, desired.Queue]:
    found: dict[str, desired.Queue] = {}
    for _ in range(len(queues) + 1):
        for name, queue in queues.items():
            if name not in found and (queue.parent is None or queue.parent in found):
                found[name] = queue
        if len(found) == len(queues):
            return found
    loop = next(name for name in queues if name not in found)
    raise schema.ScenarioError(f"queue {loop} is its own ancestor", "queues")


def _amounts(written: schema.ScenarioAmounts, where: str) -> desired.QuotaAmounts:
    return desired.QuotaAmounts(
        cpu_milli=None if written.cpu is None else schema.amount("cpu", written.cpu, where),
        memory_bytes=None
        if written.memory is None
        else schema.amount("memory", written.memory, where),
        gpu_milli=None if written.gpu is None else schema.amount("gpu", written.gpu, where),
    )


def _queue(queue: schema.ScenarioQueue, where: str) -> desired.Queue:
    unbounded = desired.QuotaAmounts(UNBOUNDED, UNBOUNDED, UNBOUNDED)
    values: dict[str, Any] = {
        "name": queue.name,
        "parent": queue.parent,
        "guaranteed": unbounded
        if queue.guaranteed is None
        else _amounts(queue.guaranteed, f"{where}.guaranteed"),
        "limit": desired.QuotaAmounts()
        if queue.limit is None
        else _amounts(queue.limit, f"{where}.limit"),
    }
    optional = {
        "weight": queue.weight,
        "priority": queue.priority,
        "lending_limit": None
        if queue.lending_limit is None
        else _amounts(queue.lending_limit, f"{where}.lendingLimit"),
    }
    values.update({field: value for field, value in optional.items() if value is not None})
    values["flavors"] = tuple(
        _flavor(flavor, f"{where}.flavors[{number}]") for number, flavor in enumerate(queue.flavors)
    )
    return desired.Queue(**values)


def _flavor(flavor: schema.ScenarioFlavor, where: str) -> desired.QueueFlavor:
    owed, most, lent = (
        desired.QuotaAmounts() if one is None else _amounts(one, where)
        for one in (flavor.guaranteed, flavor.limit, flavor.lending_limit)
    )
    return desired.QueueFlavor(flavor.pool, owed, most, lent, flavor.weight)


def _nodes(structure: desired.Structure) -> dict[str, records.NodeRecord]:
    return {
        node: records.NodeRecord(
            name=node,
            state=NodeState.READY,
            pool=pool.name,
            boot_id=f"{node}-boot-1",
            inventory=records.Inventory(hostname=node, capacity=pool.node_resources),
            first_seen_at=BEGIN,
            last_report_at=BEGIN,
        )
        for pool in structure.pools.values()
        for node in pool.nodes
    }


# -- jobs


def _job(entry: schema.ScenarioJob, where: str, made: ScenarioStart) -> desired.Job:
    asked = [_asked(task, f"{where}.tasks[{i}]") for i, task in enumerate(entry.tasks)]
    least = len(entry.tasks) if entry.min is None else entry.min
    if not 1 <= least <= len(entry.tasks):
        message = f"min is {least}; expected 1 to the number of tasks, {len(entry.tasks)}"
        raise schema.ScenarioError(message, f"{where}.min")
    ranked = _ranked(entry.tasks, asked)
    # Of a gang with a minimum those that run already are among those that start together.
    first = sorted(ranked, key=lambda number: entry.tasks[number].state != "running")[:least]
    minima = collections.Counter(asked[number] for number in first)
    sizes = collections.Counter(asked[number] for number in ranked)
    names = {resources: f"g{number}" for number, resources in enumerate(sizes)}
    groups = [
        desired.TaskGroup(
            name=names[resources],
            count=count,
            resources=resources,
            minimum=None if least == len(entry.tasks) else minima[resources],
        )
        for resources, count in sizes.items()
    ]
    made.tasks[entry.name] = _places(ranked, [names[resources] for resources in asked])
    return desired.Job(
        name=entry.name,
        run=1,
        hash=_HASH,
        queue=entry.queue,
        groups=tuple(groups),
        priority=desired.DEFAULT_PRIORITY if entry.priority is None else entry.priority,
        preemptible=entry.preemptible,
        time_limit_s=entry.time_limit,
        grace_s=0,
        checkpoint=desired.Checkpoint(grace_s=0),
        pools=tuple(entry.pools),
    )


def _ranked(tasks: list[schema.ScenarioTask], asked: list[Resources]) -> list[int]:
    """Return the tasks of a job in order: higher priority, then smaller ones.

    Their order in the document only matters among equal tasks: running ones come first.
    """
    return sorted(
        range(len(tasks)),
        key=lambda number: (
            -tasks[number].priority,
            asked[number].gpu_milli,
            asked[number].as_vector(),
            tasks[number].state != "running",
            number,
        ),
    )


def _places(ranked: list[int], groups: list[str]) -> list[tuple[str, int]]:
    """Return group and index of each task; earlier tasks of a group have lower indexes."""
    sizes: dict[str, int] = {}
    places: dict[int, tuple[str, int]] = {}
    for number in ranked:
        group = groups[number]
        places[number] = (group, sizes.get(group, 0))
        sizes[group] = places[number][1] + 1
    return [places[number] for number in range(len(ranked))]


def _asked(task: schema.ScenarioTask, where: str) -> Resources:
    return Resources(
        schema.amount("cpu", task.cpu, where),
        schema.amount("memory", task.memory, where),
        schema.amount("gpu", task.gpu, where),
    )


def _record(spec: desired.Job, order: int, *, running: bool) -> records.JobRecord:
    state = JobState.RUNNING if running else JobState.PENDING
    return records.JobRecord(
        spec=spec,
        state=state,
        elements=bytes([ELEMENT_CODE[state]]),
        submitted_at=BEGIN - 1 / order,  # in order of submission, oldest first
        order=order,
        notes={0: records.ElementNote(tries=1)} if running else {},
        started_at=BEGIN if running else None,
    )


def _attempts(
    entry: schema.ScenarioJob,
    spec: desired.Job,
    places: list[tuple[str, int]],
    *,
    devices: dict[str, tuple[int, ...]],
    nodes: Container[str],
    where: str,
) -> list[records.AttemptRecord]:
    """Return attempts for the running tasks.

    The missing tasks of a gang with less than its minimum were lost to a node: a real gang gets
    into this state like that.
    """
    running = {number for number, task in enumerate(entry.tasks) if task.state == "running"}
    short = 0 < len(running) < (len(entry.tasks) if entry.min is None else entry.min)
    resources = {group.name: group.resources for group in spec.groups}
    somewhere = next((entry.tasks[number].node for number in sorted(running)), None)
    found = []
    for number, (task, (group, index)) in enumerate(zip(entry.tasks, places, strict=True)):
        if number not in running and not short:
            continue
        runs = number in running
        node = task.node if runs else somewhere
        if node is None or node not in nodes:
            message = f"it runs, on a node that is not there: {node}"
            if node is None:
                message = "it runs, and names no node: say on which it does"
            raise schema.ScenarioError(message, f"{where}.tasks[{number}].node")
        found.append(
            records.AttemptRecord(
                id=identifiers.attempt_id(spec, 0, group, index, 1),
                job=spec.name,
                run=spec.run,
                job_key=spec.key,
                element=0,
                group=group,
                index=index,
                try_number=1,
                node=node,
                boot_id=f"{node}-boot-1",
                resources=resources[group],
                state=AttemptState.RUNNING if runs else AttemptState.ENDED,
                assigned_at=BEGIN,
                started_at=BEGIN,
                ended_at=None if runs else BEGIN,
                end_reason=None if runs else EndReason.NODE_LOST,
                devices=devices[f"{where}.tasks[{number}]"] if runs else (),
                grace_s=0,
            )
        )
    return found


def fate_of(
    situation: ScenarioStart, attempt: records.AttemptRecord
) -> simulated_nodes.TaskOutcome:
    """Return the fate of a task of the situation; moving it loses no work."""
    return simulated_nodes.TaskOutcome(runs_s=situation.runs_s[attempt.job])
