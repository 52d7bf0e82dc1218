"""Virtual nodes: what really runs, which the controller knows from reports only.

A node gets its whole set of assignments and makes its tasks match it, as an agent does.
It keeps ended attempts until they are acknowledged, refuses those of another boot, and
stops tasks whose lease has ended. It sends nothing by itself: the cluster asks for its report and
delivers it.
"""

import math
from collections.abc import Container, Iterable, Mapping

import msgspec

from reconciler.core.nodes import mismatches
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.model.values.resources import Resources

#: The number of SIGTERM.
_SIGTERM = 15


class TaskOutcome(msgspec.Struct, frozen=True):
    """Fate of an attempt that is left alone, and how it leaves when it is stopped.

    Attributes:
        runs_s: seconds from its start to its own end; infinite: it never ends.
        exit_code: exit status of that end.
        leaves_s: seconds that it takes to leave when stopped, at most its grace.
        fetch_s: seconds until what it needs is on its node; 0: it is there already.
        fetches_again: that is lost if the agent restarts before the start.
        looks_s: time for which a restarted agent does not know how far the attempt is.
    """

    runs_s: float = math.inf
    exit_code: int = 0
    leaves_s: float = 0.0
    fetch_s: float = 0.0
    fetches_again: bool = False
    looks_s: float = 0.0


#: How far a device is with its layout where that is made in time.
_IN_TIME = (devices.FITS, devices.WAITING)


def as_cut(
    inventory: records.Inventory,
    wanted: Mapping[int, tuple[tuple[str, int], ...]],
    attempts: Iterable[records.AttemptRecord] = (),
) -> records.Inventory:
    """Return the inventory of a node after MIG layouts were applied to its idle GPUs.

    A device stays as it is while one of ``attempts``, or a foreign process, is on it, and if its
    node has reported that its layout cannot be made.

    Args:
        inventory: its last report.
        wanted: declared instances, by number of the device.
        attempts: attempts that have not ended there.
    """
    held = {one.gpu for one in inventory.foreign_gpu_processes}
    for attempt in attempts:
        held.update(attempt.devices, _cut_for(attempt, inventory))
    gpus: list[records.Gpu] = []
    split = 0
    for gpu in inventory.gpus:
        stays = gpu.index in held or (gpu.cut is not None and gpu.cut.state not in _IN_TIME)
        if gpu.simulated or (stays and mismatches.unmade(gpu, wanted)):
            gpus.append(gpu)
            continue
        split += gpu.mig_enabled and gpu.state == devices.OK
        gpus.append(
            msgspec.structs.replace(gpu, simulated=True, mig_enabled=False, mig=(), cut=None)
        )
    capacity = msgspec.structs.replace(
        inventory.capacity, gpu_milli=inventory.capacity.gpu_milli + 1000 * split
    )
    return msgspec.structs.replace(inventory, gpus=tuple(gpus), capacity=capacity)


def _cut_for(attempt: records.AttemptRecord, inventory: records.Inventory) -> Iterable[int]:
    """Return the devices whose instances an attempt has, by the node's numbering."""
    if not attempt.instances:
        return ()
    there = [
        gpu.index for gpu in inventory.gpus for one in gpu.mig if one.profile == attempt.mig_profile
    ]
    return {there[number] for number in attempt.instances if number < len(there)}


class SimulatedTask(msgspec.Struct):
    """A process that runs or is about to start.

    Attributes:
        starts_at: when it is up; infinite while it waits for something.
        ends_at: when it ends, by itself or because it was stopped.
        why: reason of that end.
        told: it was told to stop.
        fetched_at: when what it needs is there. known_at: when its agent knows that.
        held: it must then wait for the rest of its gang.
    """

    attempt: records.AttemptRecord
    fate: TaskOutcome
    starts_at: float
    ends_at: float
    why: EndReason = EndReason.EXITED
    told: bool = False
    fetched_at: float = -math.inf
    known_at: float = -math.inf
    held: bool = False

    @property
    def waits(self) -> bool:
        """True while it must not start because it, or its gang, lacks something."""
        return self.starts_at == math.inf

    def go(self, starts_at: float) -> None:
        """Let it start: it waits for nothing any more."""
        self.starts_at = starts_at
        if not self.told:
            self.ends_at = starts_at + self.fate.runs_s

    def stage(self, now: float) -> AttemptState:
        """The stage of its start."""
        if not self.waits or now < self.known_at:
            return AttemptState.STARTING
        return AttemptState.FETCHING if now < self.fetched_at else AttemptState.READY


class SimulatedNode:
    """A machine with its agent, and the truth about what runs there."""

    def __init__(
        self,
        name: str,
        capacity: Resources,
        first_boot_id: str = "",
        inventory: records.Inventory | None = None,
    ) -> None:
        """Create a node that is up; ``inventory`` is its report, None: as declared."""
        self.name = name
        self._first_boot_id = first_boot_id or f"{name}-boot-1"
        self._inventory = inventory or records.Inventory(
            hostname=name, capacity=capacity, virtual=True
        )
        self._layouts: dict[int, tuple[tuple[str, int], ...]] = {}
        #: Whether a device may have to be cut before it is as its pool declares.
        self._cuts = False
        self.clock_offset_s = 0.0
        self.connected = True
        self.up = True
        self.boot = self.agent = 1
        self.sequence = 0
        #: The newest leader that it knows, and the newest set that it has.
        self.epoch = 0
        self.set_number = (0, 0)
        #: What it was assigned last, and the proofs of that and of what it still has.
        self.assigned: dict[str, records.AttemptRecord] = {}
        self.proofs: dict[str, str] = {}
        #: Whether its next report says what it holds for what is alive here.
        self.tells_held = True
        self.renewed_at = -math.inf
        self.tasks: dict[str, SimulatedTask] = {}
        self.ended: dict[str, records.AttemptReport] = {}
        self.news: dict[str, None] = {}
        #: Acknowledged ends, until no set contains them.
        self._forgotten: set[str] = set()

    @property
    def boot_id(self) -> str:
        """Its current boot."""
        return self._first_boot_id if self.boot == 1 else f"{self.name}-boot-{self.boot}"

    @property
    def incarnation(self) -> str:
        """Its current agent process."""
        return f"{self.name}-agent-{self.agent}"

    @property
    def reachable(self) -> bool:
        """True if messages reach it and come from it."""
        return self.up and self.connected

    def list_gpus(self, memory_bytes: int) -> None:
        """Let its inventory list its GPUs, as agents do."""
        count = self._inventory.capacity.gpu_milli // 1000
        gpus = tuple(
            records.Gpu(n, f"{self.name}-gpu-{n}", "", memory_bytes, simulated=True)
            for n in range(count)
        )
        self._inventory = msgspec.structs.replace(self._inventory, gpus=gpus)

    # -- what the controller asks for

    def follow(self, layouts: Iterable[desired.MigLayout]) -> None:
        """Set the MIG layouts of its devices; each is applied as soon as the device is idle."""
        self._layouts = {one.device: one.instances for one in layouts}
        self._cuts = any(not gpu.simulated for gpu in self._inventory.gpus)

    def take(self, assignments: Iterable[records.AttemptRecord], proofs: Mapping[str, str]) -> None:
        """Keep what it was assigned, and the proofs of that and of what it still has."""
        self.assigned = {one.id: one for one in assignments}
        self._forgotten &= self.assigned.keys()
        kept = {
            name: proof
            for name, proof in self.proofs.items()
            if name in self.tasks or name in self.ended
        }
        self.proofs = {**kept, **proofs}

    def _turn(self) -> bool:
        """Apply layouts to idle devices; return True if its devices changed."""
        if not self._cuts:
            return False
        before = self._inventory
        attempts = (task.attempt for task in self.tasks.values())
        self._inventory = as_cut(before, self._layouts, attempts)
        self._cuts = any(not gpu.simulated for gpu in self._inventory.gpus)
        return self._inventory != before

    def acknowledge(self, attempts: Iterable[str]) -> None:
        """Forget ends that are durable elsewhere."""
        for attempt in attempts:
            if self.ended.pop(attempt, None) is not None and attempt in self.assigned:
                self._forgotten.add(attempt)

    def to_start(
        self, assignments: Iterable[records.AttemptRecord], now: float
    ) -> list[records.AttemptRecord]:
        """Return attempts of its set that it does not have yet; those that it may not start end
        here.
        """
        wanted = []
        for attempt in assignments:
            known = attempt.id in self.tasks or attempt.id in self.ended
            if known or attempt.id in self._forgotten:
                continue
            if attempt.stop is not None:
                self._told_end(attempt, None, now, attempt.stop.reason)
            elif attempt.boot_id not in ("", self.boot_id):
                self._told_end(attempt, None, now, EndReason.REFUSED)
            else:
                wanted.append(attempt)
        return wanted

    def start(
        self, attempt: records.AttemptRecord, fate: TaskOutcome, starts_at: float
    ) -> SimulatedTask:
        """Start a task."""
        task = SimulatedTask(attempt, fate, starts_at, starts_at + fate.runs_s)
        self.tasks[attempt.id] = task
        self.news[attempt.id] = None
        return task

    def fetch(
        self, attempt: records.AttemptRecord, fate: TaskOutcome, now: float, *, held: bool
    ) -> SimulatedTask:
        """Start to fetch what a task needs; the task starts when that is there and it is
        not held.
        """
        task = self.start(attempt, fate, math.inf)
        task.fetched_at, task.held = now + fate.fetch_s, held
        return task

    def fetch_again(self, now: float) -> list[SimulatedTask]:
        """Return the attempts that a new agent must fetch for again."""
        found = [task for task in self.tasks.values() if task.waits and not task.told]
        for task in found:
            task.known_at = now + task.fate.looks_s
            if task.fate.fetches_again:
                task.fetched_at = task.known_at + task.fate.fetch_s
        return found

    def to_go(self, held: Container[str], now: float) -> list[str]:
        """Return attempts that are no longer held and have what they need."""
        found = []
        for name, task in self.tasks.items():
            if task.waits and not task.told:
                task.held = name in held
                if not task.held and task.fetched_at <= now:
                    found.append(name)
        return found

    def to_stop(
        self, assignments: Iterable[records.AttemptRecord], now: float
    ) -> list[tuple[str, SimulatedTask]]:
        """Stop tasks with a stop order, or without a place in the set; return those just
        stopped.
        """
        listed = {attempt.id: attempt for attempt in assignments}
        told = []
        for name, task in self.tasks.items():
            attempt = listed.get(name)
            if attempt is None:
                self.tell_to_leave(task, EndReason.CANCELLED, now, task.attempt.grace_s)
            elif attempt.stop is not None:
                order = attempt.stop
                self.tell_to_leave(task, order.reason, now, order.grace_s)
            else:
                continue
            told.append((name, task))
        return told

    def tell_to_leave(
        self, task: SimulatedTask, why: EndReason, now: float, grace_s: float
    ) -> None:
        """Stop a task; it leaves in its own time, at most its grace."""
        if not task.told:
            task.told, task.why = True, why
            task.ends_at = now + min(grace_s, task.fate.leaves_s)
        else:
            task.ends_at = min(task.ends_at, now + grace_s)

    # -- what happens by itself

    def end(self, name: str, now: float) -> bool:
        """End a task whose time has come; return True if there was one."""
        task = self.tasks.get(name)
        if task is None or task.ends_at > now:
            return False
        self._told_end(task.attempt, task, now, task.why)
        return True

    def lose_everything(self) -> None:
        """Cut the power: every task is lost; ends on disk remain."""
        self.up = False
        self.tasks.clear()
        self.news.clear()

    def boot_again(self) -> None:
        """Boot again, with another boot id."""
        self.up = True
        self.boot += 1
        self.restart_agent()

    def restart_agent(self) -> None:
        """Start another agent process; its tasks outlive that."""
        self.agent += 1
        self.sequence = 0
        self.assigned = {}  # only proofs are on disk
        self.tells_held = True

    def _told_end(
        self, attempt: records.AttemptRecord, task: SimulatedTask | None, now: float, why: EndReason
    ) -> None:
        started = task is not None and task.starts_at <= now
        by_itself = why is EndReason.EXITED
        self.tasks.pop(attempt.id, None)
        self.news[attempt.id] = None
        self.ended[attempt.id] = records.AttemptReport(
            id=attempt.id,
            state=AttemptState.ENDED,
            started_at=self._clock(task.starts_at) if task is not None and started else None,
            ended_at=self._clock(now),
            exit_code=task.fate.exit_code if task is not None and by_itself else None,
            signal=_SIGTERM if started and not by_itself else None,
            end_reason=why,
        )

    # -- what it tells

    def report(self, now: float, *, complete: bool) -> records.NodeReport:
        """Return everything it knows, or only what is new since its last report."""
        self.sequence += 1
        is_news = self._turn()
        if complete:
            told = [self._of_task(name, task, now) for name, task in self.tasks.items()]
            told += self.ended.values()
        else:
            told = []
            for name in self.news:
                if name in self.ended:
                    told.append(self.ended[name])
                elif name in self.tasks:
                    told.append(self._of_task(name, self.tasks[name], now))
        self.news.clear()
        held, self.tells_held = (self._held() if self.tells_held else None), False
        return records.NodeReport(
            node=self.name,
            boot_id=self.boot_id,
            incarnation=self.incarnation,
            sequence=self.sequence,
            received_at=now,
            attempts=tuple(told),
            complete=complete,
            inventory=self._inventory if complete or is_news or self.sequence == 1 else None,
            held=held,
        )

    def _held(self) -> tuple[records.HeldAttempt, ...]:
        """Return what it holds for each attempt that is alive here."""
        found = []
        for name in self.tasks:
            given = self.assigned.get(name)
            if given is None:
                found.append(records.HeldAttempt(name, assigned=False))
                continue
            found.append(
                records.HeldAttempt(
                    name,
                    boot_id=given.boot_id,
                    devices=given.devices,
                    rank=given.rank,
                    lease_s=None if given.lease_s is None else float(given.lease_s),
                    grace_s=given.grace_s,
                    mig_profile=given.mig_profile,
                    instances=given.instances,
                    saves_every_s=given.saves_every_s,
                    stop=given.stop,
                )
            )
        return tuple(found)

    def _of_task(self, name: str, task: SimulatedTask, now: float) -> records.AttemptReport:
        state = AttemptState.STOPPING if task.told else AttemptState.RUNNING
        if task.starts_at > now:
            return records.AttemptReport(name, task.stage(now))
        return records.AttemptReport(name, state, started_at=self._clock(task.starts_at))

    def _clock(self, at: float) -> float:
        return at + self.clock_offset_s
