"""Assigns devices to the tasks that run when a scenario begins.

A document comes in; the devices of each running task go out, by the task's place in the document.
Equal labels mean the same device, and a label that is a number means that device. A task without
labels gets free devices. A node on which more GPUs are taken than it has is refused.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reconciler.model.values import found_values, quantities
from reconciler.simulation.scenarios import schema

_WHOLE = 1000
#: What adding up parts of a share may be off by, in milli-GPUs.
_NEARLY = 1e-6


class _Running(NamedTuple):
    """A running task, its place in the document, and its request."""

    where: str
    task: schema.ScenarioTask
    gpu_milli: int


def of_running(scenario: schema.Scenario) -> dict[str, tuple[int, ...]]:
    """Return the devices of each running task, ascending, by its place: ``jobs[0].tasks[1]``.

    Tasks on unknown nodes are left out.

    Raises:
        ScenarioError: devices are taken that the node does not have.
    """
    by_node: dict[str, list[_Running]] = {name: [] for name in scenario.nodes}
    for one in _running(scenario):
        by_node.get(one.task.node or "", []).append(one)
    found: dict[str, tuple[int, ...]] = {}
    for name, tasks in by_node.items():
        gpu_milli = schema.amount("gpu", scenario.nodes[name].gpu, f"nodes.{name}")
        found |= _Node(name, gpu_milli).devices(tasks)
    return found


def _running(scenario: schema.Scenario) -> Iterator[_Running]:
    for number, job in enumerate(scenario.jobs):
        for index, task in enumerate(job.tasks):
            if task.state == "running":
                where = f"jobs[{number}].tasks[{index}]"
                yield _Running(where, task, schema.amount("gpu", task.gpu, where))


class _Node:
    """The devices of one node, and the amount taken of each."""

    def __init__(self, name: str, gpu_milli: int) -> None:
        self._gpu_milli = gpu_milli
        self._count = math.ceil(gpu_milli / _WHOLE)
        self._has = f"node {name} has {gpu_milli / _WHOLE:g} of them"
        self._labels: dict[str, int] = {}
        self._used: dict[int, float] = {}

    def devices(self, tasks: list[_Running]) -> dict[str, tuple[int, ...]]:
        """Return the devices of all tasks on the node."""
        self._check_sum(tasks)
        naming = [one for one in tasks if one.task.devices]
        for one in naming:
            self._labels.update((str(x), int(x)) for x in one.task.devices if str(x).isdecimal())
        for one in naming:
            for label in map(str, one.task.devices):
                if label not in self._labels:
                    self._labels[label] = _free(self._labels.values())
        found = {one.where: self._named(one) for one in naming}
        others = [one for one in tasks if not one.task.devices]
        return found | (self._apart(others) or self._close(others))

    def _check_sum(self, tasks: list[_Running]) -> None:
        taken = 0
        for one in tasks:
            taken += one.gpu_milli
            if taken > self._gpu_milli:
                found = quantities.counted(taken / _WHOLE, "GPU")
                message = (
                    f"found {found} taken by what runs there, up to this task; "
                    f"expected no more than there are: {self._has}"
                )
                raise schema.ScenarioError(message, f"{one.where}.gpu")

    def _named(self, one: _Running) -> tuple[int, ...]:
        """Return the devices that a task names."""
        where = f"{one.where}.devices"
        by_index = {self._labels[str(label)]: str(label) for label in one.task.devices}
        for index, label in by_index.items():
            if index >= self._count:
                message = f"found device {found_values.quote(label)}; expected one that is "
                f"there: {self._has}"
                raise schema.ScenarioError(message, where)
        if len(by_index) * _WHOLE < one.gpu_milli:
            message = (
                f"found {len(by_index)} of them; expected {one.gpu_milli // _WHOLE}, as many as "
                "the task has GPUs"
            )
            raise schema.ScenarioError(message, where)
        for index, label in by_index.items():
            used = self._used.get(index, 0.0) + one.gpu_milli / len(by_index)
            if used > _WHOLE + _NEARLY:
                message = (
                    f"found {used / _WHOLE:g} of device {found_values.quote(label)} taken, up "
                    "to this task; expected "
                    "at most 1"
                )
                raise schema.ScenarioError(message, where)
            self._used[index] = used
        return tuple(sorted(by_index))

    def _apart(self, tasks: list[_Running]) -> dict[str, tuple[int, ...]] | None:
        """Return devices of their own for all tasks, also for shares; None if there are too few."""
        taken = set(self._used)
        found: dict[str, tuple[int, ...]] = {}
        for one in tasks:
            own = [_take(taken) for _ in range(math.ceil(one.gpu_milli / _WHOLE))]
            if any(index >= self._count for index in own):
                return None
            found[one.where] = tuple(own)
        return found

    def _close(self, tasks: list[_Running]) -> dict[str, tuple[int, ...]]:
        """Return devices of their own for whole GPUs, and shared ones for shares, larger first.

        Raises:
            ScenarioError: there are too few.
        """
        taken = set(self._used)
        found: dict[str, tuple[int, ...]] = {}
        for one in sorted(tasks, key=lambda each: -each.gpu_milli):
            if one.gpu_milli >= _WHOLE:
                own = [_take(taken) for _ in range(one.gpu_milli // _WHOLE)]
                self._used.update(dict.fromkeys(own, float(_WHOLE)))
            else:
                own = [self._with_room(one.gpu_milli)] if one.gpu_milli else []
                taken.update(own)
            if any(index >= self._count for index in own):
                asked = quantities.counted(one.gpu_milli / _WHOLE, "GPU")
                message = (
                    f"found no device left for {asked}; expected room "
                    f"beside what else runs there ({self._has}): say `devices` of its tasks"
                )
                raise schema.ScenarioError(message, f"{one.where}.gpu")
            found[one.where] = tuple(own)
        return found

    def _with_room(self, share: int) -> int:
        """Take a share of the first device that has this much left; past the last if none has."""
        room = (
            index
            for index in range(self._count)
            if self._used.get(index, 0.0) + share <= _WHOLE + _NEARLY
        )
        index = next(room, self._count)
        self._used[index] = self._used.get(index, 0.0) + share
        return index


def _free(taken: Iterable[int]) -> int:
    """Return the first free device."""
    used = set(taken)
    return next(index for index in range(len(used) + 1) if index not in used)


def _take(taken: set[int]) -> int:
    index = _free(taken)
    taken.add(index)
    return index
