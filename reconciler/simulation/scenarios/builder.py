"""Builds records, jobs and fates from a scenario's document.

The situation is taken as it is, without admission or cross-checks. Settings that this build does
not know are collected in ``missing`` instead of being dropped silently.
"""

import collections
import math
from collections.abc import Container

import msgspec

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import identifiers, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, EndReason, JobState, NodeState
from reconciler.model.values import found_values, run_set
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import simulated_nodes
from reconciler.simulation.scenarios import (
    initial_devices,
    scenario_validation,
    schema,
    structure_builder,
)

#: Second 0 of a scenario; anything but 0, which stands for "never" in records.
BEGIN = 1_000_000.0

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
    made = ScenarioStart(structure=structure_builder.build_structure(scenario, missing))
    attempts: dict[str, records.AttemptRecord] = {}
    jobs: dict[str, records.JobRecord] = {}
    devices = initial_devices.of_running(scenario)
    order = 1
    for number, entry in enumerate(scenario.jobs):
        where = f"jobs[{number}]"
        spec = _job(entry, where, made)
        if entry.queue not in made.structure.queues:
            raise schema.ScenarioError(f"there is no Queue/{entry.queue}", f"{where}.queue")
        if entry.name in made.runs_s:
            raise schema.ScenarioError(
                f"a second job {found_values.quote(entry.name)}", f"{where}.name"
            )
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
        priority=access.DEFAULT_PRIORITY if entry.priority is None else entry.priority,
        preemptible=entry.preemptible,
        time_limit_s=entry.time_limit,
        grace_s=0,
        checkpoint=desired.Checkpoint(grace_s=0),
        pools=tuple(entry.pools),
        exclusive=entry.exclusive,
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
