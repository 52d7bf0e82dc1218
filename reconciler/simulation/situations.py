"""From a scenario's document to the project's own types: structure, records, fates.

The situation is taken as it is, without admission or cross-checks. A policy that this build does
not know is collected in ``missing`` instead of being dropped in silence.
"""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from reconciler.model import desired, identifiers, quantities, records, runs
from reconciler.model.documents import cluster as documents
from reconciler.model.resources import Resources
from reconciler.model.states import ELEMENT_CODE, AttemptState, EndReason, JobState, NodeState
from reconciler.simulation import forms, machines

#: Second 0 of a scenario; anything but 0, which stands for "never" in records.
BEGIN = 1_000_000.0
#: What a node has that does not say how much; and a guarantee without a bound.
PLENTY, UNBOUNDED = 2**50, 2**62

_HASH = "0" * 16


class Situation(msgspec.Struct):
    """What a scenario begins with.

    Attributes:
        structure, observed: as of second 0; jobs that come later are in ``later`` only.
        jobs: those that are there at second 0.
        later: (second, job) of the others, in order.
        runs_s: name of a job to the seconds that each of its tasks runs.
        tasks: name of a job to the (group, index) of each of its tasks, in the document's order.
        missing: what the document needs and this build has not.
    """

    structure: desired.Structure = desired.Structure()
    observed: records.Observed = records.Observed()
    jobs: dict[str, desired.Job] = {}
    later: list[tuple[float, desired.Job]] = []
    runs_s: dict[str, float] = {}
    tasks: dict[str, list[tuple[str, int]]] = {}
    missing: list[str] = []


def build(scenario: forms.Scenario) -> Situation:
    """The situation of a document.

    Raises:
        forms.ScenarioError: an amount can't be read, or a name leads nowhere.
    """
    missing: dict[str, None] = {}
    made = Situation(structure=_structure(scenario, missing))
    attempts: dict[str, records.AttemptRecord] = {}
    jobs: dict[str, records.JobRecord] = {}
    devices = _Devices(scenario)
    order = 1
    for number, entry in enumerate(scenario.jobs):
        where = f"jobs[{number}]"
        spec = _job(entry, where, made)
        if entry.queue not in made.structure.queues:
            raise forms.ScenarioError(f"there is no queue {entry.queue!r}", f"{where}.queue")
        if entry.name in made.runs_s:
            raise forms.ScenarioError(f"a second job {entry.name!r}", f"{where}.name")
        made.runs_s[entry.name] = math.inf if entry.duration is None else entry.duration
        if entry.submit:
            made.later.append((BEGIN + entry.submit, spec))
            continue
        made.jobs[spec.name] = spec
        held = _attempts(entry, spec, made.tasks[spec.name], devices, where)
        attempts.update((attempt.id, attempt) for attempt in held)
        jobs[spec.name] = _record(spec, order, running=bool(held))
        order += 1
    made.later.sort(key=lambda pair: pair[0])
    made.missing = list(missing)
    made.observed = records.Observed(
        desired_generation=0,
        jobs=jobs,
        active=frozenset(jobs),
        past_runs=runs.RunSet.of(record.key for record in jobs.values()),
        attempts=attempts,
        nodes=_nodes(made.structure),
        leader_since=BEGIN,
        next_order=order,
    )
    return made


# -- structure


def _amount(kind: str, written: Any, where: str) -> int:
    parse = {
        "cpu": quantities.parse_cpu,
        "memory": quantities.parse_memory,
        "gpu": quantities.parse_gpu,
    }[kind]
    try:
        return parse(written)
    except quantities.QuantityError as error:
        raise forms.ScenarioError(str(error), f"{where}.{kind}") from error


def _structure(scenario: forms.Scenario, missing: dict[str, None]) -> desired.Structure:
    pools: dict[str, desired.Pool] = {}
    for name, node in scenario.nodes.items():
        where = f"nodes.{name}"
        own = node.pool or name
        made = desired.Pool(
            name=own,
            nodes=(name,),
            node_resources=Resources(
                PLENTY if node.cpu is None else _amount("cpu", node.cpu, where),
                PLENTY if node.memory is None else _amount("memory", node.memory, where),
                _amount("gpu", node.gpu, where),
            ),
            labels={key: str(value) for key, value in node.labels.items()},
            allow_root=True,
            grace_s=0,
        )
        known = pools.get(own)
        if known is not None:
            if msgspec.structs.replace(known, nodes=made.nodes) != made:
                raise forms.ScenarioError(f"nodes of pool {own} have to be alike", where)
            made = msgspec.structs.replace(known, nodes=(*known.nodes, name))
        pools[own] = made
    queues = {
        queue.name: _queue(queue, f"queues[{number}]")
        for number, queue in enumerate(scenario.queues)
    }
    for number, queue in enumerate(scenario.queues):
        if queue.parent is not None and queue.parent not in queues:
            where = f"queues[{number}].parent"
            raise forms.ScenarioError(f"there is no queue {queue.parent!r}", where)
    return desired.Structure(
        settings=_without_waits(settings_of(scenario.policy, missing)),
        pools=pools,
        queues=_parents_first(queues),
    )


def settings_of(policy: dict[str, Any], missing: dict[str, None]) -> desired.Settings:
    """The policy as part of the settings; names that they do not have are missing.

    Names and values are those of ``Cluster.spec.scheduling``; ``fairness`` and
    ``learnedRunTimes`` may be written with a dot: ``learnedRunTimes.quantile``.

    Raises:
        forms.ScenarioError: a value is not what its name takes.
    """
    settings = desired.Settings()
    written: dict[str, Any] = {}
    for key, value in policy.items():
        name, _, part = key.partition(".")
        if name not in SCHEDULING or bool(part) != (part in SCHEDULING[name]):
            missing[f"policy {key}"] = None
        elif part:
            written.setdefault(name, {})[part] = value
        else:
            written[name] = value
    try:
        for name in ("minRuntime", "staleGangGrace"):
            if name in written:
                written[name] = f"{quantities.parse_duration(written[name])}s"
        spec = msgspec.convert(written, documents.SchedulingSpec)
        changes = {name: value for name, value in _normalised(spec).items() if name in written}
    except (msgspec.ValidationError, quantities.QuantityError) as error:
        raise _wrong(error, written) from error
    named = {field: value for fields in changes.values() for field, value in fields.items()}
    changed = msgspec.structs.replace(settings.scheduling, **named)
    return msgspec.structs.replace(settings, scheduling=changed)


def _wrong(error: Exception, written: dict[str, Any]) -> forms.ScenarioError:
    """What is wrong with a value, with the words that its name takes where it takes some."""
    name = str(error).partition("$.")[2].rstrip("`")
    spec = msgspec.inspect.type_info(documents.SchedulingSpec)
    for field in spec.fields if isinstance(spec, msgspec.inspect.StructType) else ():
        words = field.type
        while isinstance(words, msgspec.inspect.Metadata):
            words = words.type
        if field.encode_name == name and isinstance(words, msgspec.inspect.LiteralType):
            allowed = ", ".join(sorted(map(str, words.values)))
            told = f"found {written[name]!r}, expected one of {allowed}"
            return forms.ScenarioError(told, name)
    return forms.ScenarioError(str(error), "policy")


#: Names of ``Cluster.spec.scheduling``, each with the names that it holds.
SCHEDULING: dict[str, tuple[str, ...]] = {
    field.encode_name: {"fairness": ("halfLife", "strength"), "learnedRunTimes": ("quantile",)}.get(
        field.encode_name, ()
    )
    for field in msgspec.structs.fields(documents.SchedulingSpec)
}


def _normalised(spec: documents.SchedulingSpec) -> dict[str, dict[str, Any]]:
    """Each name of a document with the fields of the settings that it stands for."""
    learned = spec.learned_run_times
    duration = quantities.parse_duration
    return {
        "backfill": {"backfill": spec.backfill},
        "depth": {"depth": spec.depth},
        "consolidation": {"consolidation": spec.consolidation},
        "fairness": {
            "usage_half_life_s": duration(spec.fairness.half_life),
            "usage_strength": float(spec.fairness.strength),
            "usage_window_s": None
            if spec.fairness.window is None
            else duration(spec.fairness.window),
        },
        "placement": {"placement": spec.placement},
        "order": {"order": spec.order},
        "overdueAfter": {"overdue_after": float(spec.overdue_after)},
        "learnedRunTimes": {"learned_quantile": None if learned is None else learned.quantile},
        "minRuntime": {"min_runtime_s": duration(spec.min_runtime)},
        "staleGangGrace": {"stale_gang_s": duration(spec.stale_gang_grace)},
    }


def _without_waits(settings: desired.Settings) -> desired.Settings:
    """The settings with minimum run times and graces of zero, as a scenario has them."""
    changed = msgspec.structs.replace(settings.scheduling, min_runtime_s=0, stale_gang_s=0)
    return msgspec.structs.replace(settings, scheduling=changed)


def _parents_first(queues: dict[str, desired.Queue]) -> dict[str, desired.Queue]:
    found: dict[str, desired.Queue] = {}
    for _ in range(len(queues) + 1):
        for name, queue in queues.items():
            if name not in found and (queue.parent is None or queue.parent in found):
                found[name] = queue
        if len(found) == len(queues):
            return found
    loop = next(name for name in queues if name not in found)
    raise forms.ScenarioError(f"queue {loop} is its own ancestor", "queues")


def _amounts(written: forms.Amounts, where: str) -> desired.Amounts:
    given = {
        "cpu_milli": ("cpu", written.cpu),
        "memory_bytes": ("memory", written.memory),
        "gpu_milli": ("gpu", written.gpu),
    }
    return desired.Amounts(
        **{f: _amount(kind, v, where) for f, (kind, v) in given.items() if v is not None}
    )


def _queue(queue: forms.Queue, where: str) -> desired.Queue:
    unbounded = desired.Amounts(UNBOUNDED, UNBOUNDED, UNBOUNDED)
    values: dict[str, Any] = {
        "name": queue.name,
        "parent": queue.parent,
        "guaranteed": unbounded
        if queue.guaranteed is None
        else _amounts(queue.guaranteed, f"{where}.guaranteed"),
        "limit": desired.Amounts()
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


def _flavor(flavor: forms.Flavor, where: str) -> desired.Flavor:
    owed, most, lent = (
        desired.Amounts() if one is None else _amounts(one, where)
        for one in (flavor.guaranteed, flavor.limit, flavor.lending_limit)
    )
    return desired.Flavor(flavor.pool, owed, most, lent, flavor.weight)


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


def _job(entry: forms.Job, where: str, made: Situation) -> desired.Job:
    groups: list[desired.TaskGroup] = []
    asked = [_asked(task, f"{where}.tasks[{i}]") for i, task in enumerate(entry.tasks)]
    sizes: dict[Resources, int] = {}
    for resources in asked:
        sizes[resources] = sizes.get(resources, 0) + 1
    names = {resources: f"g{number}" for number, resources in enumerate(sizes)}
    least = len(entry.tasks) if entry.min is None else entry.min
    if not 1 <= least <= len(entry.tasks):
        message = f"min is {least}; expected 1 to the number of tasks, {len(entry.tasks)}"
        raise forms.ScenarioError(message, f"{where}.min")
    left = least
    for resources, count in sizes.items():
        values: dict[str, Any] = {"name": names[resources], "count": count, "resources": resources}
        minimum = min(count, left)
        left -= minimum
        if least < len(entry.tasks):
            values["minimum"] = minimum
        groups.append(desired.TaskGroup(**values))
    made.tasks[entry.name] = _places(entry.tasks, [names[resources] for resources in asked])
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


def _places(tasks: list[forms.Task], groups: list[str]) -> list[tuple[str, int]]:
    """Group and index of each task: of a group, those of higher priority come first."""
    by_priority = sorted(range(len(tasks)), key=lambda number: (-tasks[number].priority, number))
    sizes: dict[str, int] = {}
    places: dict[int, tuple[str, int]] = {}
    for number in by_priority:
        group = groups[number]
        places[number] = (group, sizes.get(group, 0))
        sizes[group] = places[number][1] + 1
    return [places[number] for number in range(len(tasks))]


def _asked(task: forms.Task, where: str) -> Resources:
    return Resources(
        _amount("cpu", task.cpu, where),
        _amount("memory", task.memory, where),
        _amount("gpu", task.gpu, where),
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
    entry: forms.Job,
    spec: desired.Job,
    places: list[tuple[str, int]],
    devices: "_Devices",
    where: str,
) -> list[records.AttemptRecord]:
    """Attempts for the tasks that run already.

    Of a gang that is there in part, with less than its minimum, the others were lost to a node:
    that is how a real one comes to be so.
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
        if node is None or node not in devices.labels:
            message = f"it runs, on a node that is not there: {node}"
            raise forms.ScenarioError(message, f"{where}.tasks[{number}].node")
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
                devices=devices.of(task, resources[group].gpu_milli) if runs else (),
                grace_s=0,
            )
        )
    return found


class _Devices:
    """Which devices the running tasks of each node have: those they name, else the next ones."""

    def __init__(self, scenario: forms.Scenario) -> None:
        self.labels: dict[str, dict[str, int]] = {name: {} for name in scenario.nodes}
        for task in _running(scenario):
            known = self.labels.get(task.node or "", {})
            for label in task.devices:
                if str(label).isdecimal():
                    known[str(label)] = int(label)
        for task in _running(scenario):
            known = self.labels.get(task.node or "", {})
            for label in task.devices:
                if str(label) not in known:
                    known[str(label)] = self._next(known.values())
        self._taken = {name: set(known.values()) for name, known in self.labels.items()}

    @staticmethod
    def _next(taken: Iterable[int]) -> int:
        used = set(taken)
        return next(index for index in range(len(used) + 1) if index not in used)

    def of(self, task: forms.Task, gpu_milli: int) -> tuple[int, ...]:
        """The devices of a running task, ascending."""
        node = task.node or ""
        if task.devices:
            return tuple(sorted(self.labels[node][str(label)] for label in task.devices))
        found = []
        for _ in range(math.ceil(gpu_milli / 1000)):
            found.append(self._next(self._taken[node]))
            self._taken[node].add(found[-1])
        return tuple(found)


def _running(scenario: forms.Scenario) -> list[forms.Task]:
    return [task for job in scenario.jobs for task in job.tasks if task.state == "running"]


def fate_of(situation: Situation, attempt: records.AttemptRecord) -> machines.Fate:
    """What becomes of a task of the situation; its work is not lost by moving it."""
    return machines.Fate(runs_s=situation.runs_s[attempt.job])
