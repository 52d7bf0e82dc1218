"""What must hold of a cluster at rest, told by trying every set of victims.

A document and where its tasks are go in; what should have happened and did not comes out, as
sentences. Nothing of the scheduler is used. Documents are of one kind: nodes have GPUs alone,
queues guarantees and limits of GPUs, jobs tasks that are alike. GPUs are counted in thousandths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WHOLE = 1000
UNLIMITED = 10**9
#: Sets of victims are no larger, and no more of them are looked at for one job.
UNITS_MAX = 4
SETS_MAX = 3000

#: By node what of each device is in use.
Devices = Mapping[str, Sequence[int]]
#: By queue what it and all below it have.
Used = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Queue:
    """``path``: names from itself up to its root."""

    path: tuple[str, ...]
    guaranteed: int
    limit: int


@dataclass(frozen=True, slots=True)
class Job:
    """``gpu``: of each task. ``least``: tasks that start together."""

    queue: str
    priority: int
    preemptible: bool
    gpu: int
    tasks: int
    least: int


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """One that runs."""

    index: int
    node: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Tasks that leave together: one beyond what starts together, or those that do."""

    job: str
    tasks: tuple[Task, ...]
    whole: bool


class Rest:
    """A cluster at one moment.

    Attributes:
        queues, jobs: by name.
        running: by job, the tasks by index.
        devices, used: what they have together.
    """

    def __init__(self, document: Mapping[str, Any], running: Mapping[str, Sequence[Task]]) -> None:
        """``document``: as ``muster scenario`` reads it; ``running``: where its tasks are."""
        self.queues = _queues(document["queues"])
        self.jobs = {job["name"]: _job(job) for job in document["jobs"]}
        self.running = {name: tuple(sorted(tasks)) for name, tasks in running.items() if tasks}
        devices = {name: [0] * node["gpu"] for name, node in document["nodes"].items()}
        used = dict.fromkeys(self.queues, 0)
        for name, tasks in self.running.items():
            job = self.jobs[name]
            for task in tasks:
                for device in task.devices:
                    devices[task.node][device] += min(job.gpu, WHOLE)
            for queue in self.queues[job.queue].path:
                used[queue] += job.gpu * len(tasks)
        self.devices: Devices = devices
        self.used: Used = used

    def firm(self, queue: str) -> int:
        """What work that may not borrow has in a queue and below it."""
        return sum(
            job.gpu * min(len(self.running[name]), job.least)
            for name, job in self.jobs.items()
            if name in self.running and not job.preemptible and queue in self.queues[job.queue].path
        )

    def units(self) -> list[Unit]:
        """All that could leave."""
        found = []
        for name, tasks in self.running.items():
            job = self.jobs[name]
            found += [Unit(name, (task,), whole=False) for task in tasks[job.least :]]
            if job.preemptible:
                found.append(Unit(name, tasks[: job.least], whole=True))
        return found


def _queues(documents: Sequence[Mapping[str, Any]]) -> dict[str, Queue]:
    parents = {one["name"]: one.get("parent") for one in documents}
    found = {}
    for one in documents:
        path = [one["name"]]
        while (above := parents[path[-1]]) is not None:
            path.append(above)
        limit = round(one["limit"]["gpu"] * WHOLE) if "limit" in one else UNLIMITED
        found[one["name"]] = Queue(tuple(path), round(one["guaranteed"]["gpu"] * WHOLE), limit)
    return found


def _job(document: Mapping[str, Any]) -> Job:
    tasks = document["tasks"]
    return Job(
        document["queue"],
        document["priority"],
        document.get("preemptible", True),
        round(tasks[0]["gpu"] * WHOLE),
        len(tasks),
        document.get("min", len(tasks)),
    )


def broken(rest: Rest) -> list[str]:
    """What does not hold: one sentence for each device, gang or job that waits in vain."""
    found = [
        f"device {device} of {node} gives {used / WHOLE:g} GPUs"
        for node, devices in rest.devices.items()
        for device, used in enumerate(devices)
        if used > WHOLE
    ]
    for name, job in rest.jobs.items():
        running = len(rest.running.get(name, ()))
        if 0 < running < job.least:
            found.append(f"{name} runs with {running} of {job.least} tasks")
        elif running < job.tasks:
            told = _denied(rest, name, grows=running > 0)
            found += [told] if told else []
    return found


def _denied(rest: Rest, name: str, *, grows: bool) -> str:
    """What a job is denied that waits, or that runs with fewer tasks than it would like to."""
    job = rest.jobs[name]
    count = 1 if grows else job.least
    path, amount = rest.queues[job.queue].path, job.gpu * count
    borrows = any(rest.firm(queue) + amount > rest.queues[queue].guaranteed for queue in path)
    if borrows and not grows and not job.preemptible:
        return ""
    if _fits(rest.devices, job.gpu, count) and _within_limits(rest, rest.used, path, amount):
        return f"{name} could {'grow' if grows else 'start'} in what is free"
    if grows:
        return ""
    victims = _reclaimed(rest, job, amount)
    if victims:
        return f"{name} is owed the GPUs of {_names(victims)}"
    victims = _preempted(rest, job, amount)
    return f"{name} has priority over {_names(victims)}" if victims else ""


def _names(units: Sequence[Unit]) -> str:
    return ", ".join(f"{u.job}[{','.join(str(t.index) for t in u.tasks)}]" for u in units)


def _reclaimed(rest: Rest, job: Job, amount: int) -> list[Unit]:
    """Whom a job within its guarantee could take from queues above theirs."""
    own = rest.queues[job.queue].path

    def may(unit: Unit, used: Used) -> bool:
        theirs = rest.queues[rest.jobs[unit.job].queue].path
        losing = [queue for queue in theirs if queue not in own]
        taking = [queue for queue in own if queue not in theirs]
        return (
            bool(losing and taking)
            and all(used[queue] + amount <= rest.queues[queue].guaranteed for queue in taking)
            and all(used[queue] > rest.queues[queue].guaranteed for queue in losing)
        )

    units = [unit for unit in rest.units() if rest.jobs[unit.job].queue != job.queue]
    covered = rest.used[job.queue] + amount <= rest.queues[job.queue].guaranteed
    return _victims(rest, job, units, may, lambda _: True) if covered else []


def _preempted(rest: Rest, job: Job, amount: int) -> list[Unit]:
    """Whom of a lower priority in its own queue a job could replace, with no more than they had."""
    units = [
        unit
        for unit in rest.units()
        if rest.jobs[unit.job].queue == job.queue and rest.jobs[unit.job].priority < job.priority
    ]

    def enough(used: Used) -> bool:
        return rest.used[job.queue] - used[job.queue] >= amount

    return _victims(rest, job, units, lambda _unit, _used: True, enough)


def _victims(
    rest: Rest,
    job: Job,
    units: Sequence[Unit],
    may: Callable[[Unit, Used], bool],
    enough: Callable[[Used], bool],
) -> list[Unit]:
    """Units that could leave in some order so that a job starts; none where no set does.

    ``may``: whether one may leave at the moment. ``enough``: whether those that left suffice.
    """
    path, seen = rest.queues[job.queue].path, set[frozenset[int]]()

    def search(gone: frozenset[int], devices: Devices, used: Used) -> frozenset[int] | None:
        if gone in seen or len(seen) > SETS_MAX:
            return None
        seen.add(gone)
        fits = _fits(devices, job.gpu, job.least)
        if gone and fits and enough(used) and _within_limits(rest, used, path, job.gpu * job.least):
            return gone
        for number, unit in enumerate(units if len(gone) < UNITS_MAX else ()):
            if number in gone or not may(unit, used) or _keeps_spare(units, gone, unit):
                continue
            found = search(gone | {number}, *_without(rest, unit, devices, used))
            if found is not None:
                return found
        return None

    found = search(frozenset(), rest.devices, rest.used)
    return [units[number] for number in sorted(found or ())]


def _keeps_spare(units: Sequence[Unit], gone: frozenset[int], unit: Unit) -> bool:
    """Whether tasks beyond the gang would stay without it."""
    others = (n for n, other in enumerate(units) if other.job == unit.job and not other.whole)
    return unit.whole and any(number not in gone for number in others)


def _without(rest: Rest, unit: Unit, devices: Devices, used: Used) -> tuple[Devices, Used]:
    job = rest.jobs[unit.job]
    freed = {node: list(there) for node, there in devices.items()}
    for task in unit.tasks:
        for device in task.devices:
            freed[task.node][device] -= min(job.gpu, WHOLE)
    left = dict(used)
    for queue in rest.queues[job.queue].path:
        left[queue] -= job.gpu * len(unit.tasks)
    return freed, left


def _fits(devices: Devices, gpu: int, count: int) -> bool:
    """Whether tasks of so much each have room; those of several devices need them on one node."""
    if gpu < WHOLE:
        held = sum((WHOLE - used) // gpu for there in devices.values() for used in there)
    else:
        held = sum(list(there).count(0) // (gpu // WHOLE) for there in devices.values())
    return held >= count


def _within_limits(rest: Rest, used: Used, path: Sequence[str], amount: int) -> bool:
    return all(used[queue] + amount <= rest.queues[queue].limit for queue in path)
