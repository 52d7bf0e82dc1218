"""Trying out whether tasks fit on nodes, one after the other: slow, and obvious.

Nodes with what they have left and what tasks take come in; whether all of them fit goes out. Only
``reconciler.model`` is imported: this is for checkers of the scheduler, which are to share nothing
with it.
"""

import dataclasses
from collections import defaultdict

from reconciler.model import desired

#: Milli-GPUs of one device.
WHOLE = 1000
#: Tries to place one gang of several kinds of tasks; past them it is open whether it fits.
TRIES_MAX = 20_000


@dataclasses.dataclass
class Host:
    """What one node has left: CPUs, memory, and thousandths of each device."""

    name: str
    pool: desired.Pool
    cpu: int
    memory: int
    devices: list[int]
    tenants: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    closed: bool = False

    def copy(self) -> "Host":
        """One of its own."""
        return dataclasses.replace(self, devices=list(self.devices), tenants=set(self.tenants))

    def take(self, task: "Task", who: tuple[str, int], *, alone: bool) -> bool:
        """Place one task here if it fits."""
        share = task.share_on(self.pool)
        if share is None or self.closed or (alone and self.tenants - {who}):
            return False
        if task.cpu > self.cpu or task.memory > self.memory:
            return False
        fitting = [n for n, left in enumerate(self.devices) if left >= share]
        if task.near and task.devices > 1:
            declared = {"numa": self.pool.numa, "nvlink": self.pool.nvlink}[task.near]
            there = [[n for n in fitting if n in members] for members in declared]
            fitting = min((one for one in there if len(one) >= task.devices), key=len, default=[])
        if len(fitting) < task.devices:
            return False
        # The fullest that will do: of devices alike in what they give, that leaves most for others.
        fitting.sort(key=lambda n: self.devices[n])
        for number in fitting[: task.devices]:
            self.devices[number] -= share
        self.cpu -= task.cpu
        self.memory -= task.memory
        self.tenants.add(who)
        return True

    @property
    def state(self) -> tuple[object, ...]:
        """What two nodes have in common that are alike for all that is placed."""
        return (
            self.pool.name,
            self.cpu,
            self.memory,
            tuple(self.devices if self.pool.numa or self.pool.nvlink else sorted(self.devices)),
            bool(self.tenants),
            self.closed,
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """What one task takes: ``share`` thousandths, or bytes of memory, of each of its devices.

    ``near``: level within a node at which its devices have to be near each other, as the pool says.
    """

    cpu: int
    memory: int
    devices: int
    share: int
    device_memory: int = 0
    near: str = ""

    @classmethod
    def of(cls, group: desired.TaskGroup) -> "Task":
        """Of a group; MIG instances are not known here."""
        gpu = group.resources.gpu_milli
        devices, share = group.devices, WHOLE
        if not devices:
            devices, share = (1, gpu) if 0 < gpu < WHOLE else (gpu // WHOLE, WHOLE)
        asked = group.resources
        return cls(
            *(asked.cpu_milli, asked.memory_bytes, devices, share, group.gpu_memory_bytes),
            near=group.inner_required,
        )

    def share_on(self, pool: desired.Pool) -> int | None:
        """Thousandths of each device there; None: it can't be had there."""
        share = self.share
        if self.device_memory:
            has = pool.gpu_memory_bytes or 0
            if self.device_memory > has:
                return None
            share = -(-self.device_memory * WHOLE // has)
        if self.devices and share < WHOLE and not pool.shareable:
            return None
        return share


def domains(hosts: list[Host], level: str) -> list[list[Host]]:
    """Nodes by their domain at a level; all of them where none is named."""
    if not level:
        return [hosts]
    found: defaultdict[tuple[str, ...], list[Host]] = defaultdict(list)
    for host in hosts:
        if level in host.pool.levels:
            depth = host.pool.levels.index(level) + 1
            path = host.pool.domains.get(host.name, ())[:depth]
            if len(path) == depth:
                found[path].append(host)
    return list(found.values())


def place(spec: desired.Job, hosts: list[Host]) -> bool | None:
    """Whether the minimum of one element fits on nodes; None: too many ways to try."""
    tasks = [Task.of(group) for group in spec.groups for _ in range(group.least)]
    who = (spec.name, -1)
    each = {group.tasks_per_node for group in spec.groups if group.least}
    if len(set(tasks)) <= 1 and len(each) <= 1:
        # Alike tasks: as many as each node takes, one after the other.
        left, asked = len(tasks), next(iter(each), None)
        for host in hosts:
            trial, taken, most = host.copy(), 0, min(asked or left, left)
            while taken < most and trial.take(tasks[0], who, alone=spec.exclusive):
                taken += 1
            left -= taken if asked in {None, taken} else 0
        return not left
    if each != {None}:
        return None
    search = _Search(who, alone=spec.exclusive)
    found = search.run(tasks, [host.copy() for host in hosts])
    return None if not found and search.tries <= 0 else found


@dataclasses.dataclass
class _Search:
    """Every way to place tasks on nodes, of alike nodes the first only."""

    who: tuple[str, int]
    _: dataclasses.KW_ONLY
    alone: bool
    tries: int = TRIES_MAX

    def run(self, tasks: list[Task], hosts: list[Host]) -> bool:
        """Whether one was found."""
        if not tasks:
            return True
        seen = set()
        for number, host in enumerate(hosts):
            self.tries -= 1
            if self.tries <= 0:
                return False
            if host.state in seen:
                continue
            seen.add(host.state)
            trial = host.copy()
            if trial.take(tasks[0], self.who, alone=self.alone):
                rest = [*hosts[:number], trial, *hosts[number + 1 :]]
                if self.run(tasks[1:], rest):
                    return True
        return False
