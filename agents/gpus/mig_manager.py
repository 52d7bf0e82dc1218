"""Applies the MIG layouts that a pool declares to this node's GPUs, and gives tasks their
instances.

After each look at the GPUs, :meth:`MigManager.turn` changes at most one idle GPU. What Muster has
created, and which task has which instance, is saved in ``mig.json`` before anything is done, so
that a new agent never destroys what others created. Failed changes are retried later and later, and
finally given up with a reason.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from agents.gpus import gpu_selection, mig_layout, samples, simulated
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state import records
from reconciler.model.values.quantities import counted

#: Tries at one layout of one GPU, and the wait between them, doubled each time.
TRIES_MAX = 6
WAIT_S, WAIT_S_MAX = 30.0, 3600.0
_PIDS_TOLD = 3


class NotReadyError(Exception):
    """A GPU or instance of an assignment that is not available now."""


class Driver(Protocol):
    """A driver that changes GPUs, like :class:`agents.gpus.nvml_client.NvmlClient`."""

    def cut(self, order: samples.MigOrder) -> samples.MigOutcome:
        """Carry out an order within a limited time."""


class _Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes by Muster on a GPU: instances by id, and MIG mode.

    Attributes:
        open: True while a change runs; then all instances but ``others`` are Muster's.
    """

    instances: tuple[int, ...] = ()
    mode: bool = False
    open: bool = False
    others: tuple[int, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    """Contents of ``mig.json``: changes by GPU, and UUIDs of instances by attempt."""

    boot_id: str
    made: dict[str, _Made]
    held: dict[str, tuple[str, ...]]


class _Try(msgspec.Struct, frozen=True):
    """Result of the last try at a layout. ``of``: the layout and the state of the GPU at
    that time.
    """

    of: object
    cut: devices.MigCut
    count: int
    next_at: float


#: Returns attempts that have not ended with their assignments, None for lost ones. Called under the
#: agent's lock.
Holders = Callable[[], Mapping[str, Assignment | None]]
_DECODE_KEPT = msgspec.json.Decoder(_Kept).decode


class MigManager:
    """The MIG layouts of one node. Its file is written under the agent's lock.

    Args:
        given: UUIDs of instances that the node has on GPUs that are not its own, whose layout it
            does not change.
    """

    def __init__(
        self,
        root: Path,
        boot_id: str,
        holders: Holders,
        lock: threading.RLock,
        clock: Callable[[], float] = time.monotonic,
        *,
        gpus: tuple[records.Gpu, ...] = (),
        given: frozenset[str] = frozenset(),
    ) -> None:
        self._path = root / "mig.json"
        self._boot_id = boot_id
        self._holders = holders
        self._lock = lock
        self._clock = clock
        self._plan: desired.MigPlan | None = None
        self._gpus = gpus
        self._given = given
        self._tries: dict[str, _Try] = {}
        #: The GPU that is being changed, until it has been sampled again.
        self._claimed = ""
        stored = _load(self._path, boot_id)
        self._made, self._held = dict(stored.made), dict(stored.held)

    def follow(self, plan: desired.MigPlan | None) -> None:
        """Apply this plan from now on, or none if it is None. Called under the lock."""
        if plan != self._plan:
            self._plan = plan
            self._tries.clear()
            self._gpus = self._with_simulated(self._gpus)  # the next assignment may need them

    def know(self, gpus: tuple[records.Gpu, ...]) -> None:
        """Take over simulated GPUs as an earlier agent had them."""
        self._gpus = gpus

    @property
    def simulates(self) -> bool:
        """True if a simulated GPU has instances."""
        return any(gpu.simulated and gpu.mig for gpu in self._gpus)

    def _save(self) -> None:
        _save(self._path, _Kept(self._boot_id, self._made, self._held))

    # Tasks -----------------------------------------------------------------------------------

    def allot(self, assignment: Assignment) -> tuple[devices.MigInstance, ...]:
        """Return the instances of an attempt. Called under the lock.

        The controller counts and numbers instances. Which instance a number means changes with
        layouts, so it is decided here.

        Raises:
            NotReadyError: not enough instances are free, or a GPU that it needs as a whole is
                split.
        """
        real = {gpu.index: gpu for gpu in self._gpus if not gpu.simulated}
        for index in assignment.devices:
            gpu = real.get(index)
            if gpu is not None and (gpu.mig_enabled or gpu.uuid == self._claimed):
                raise NotReadyError(f"GPU {index} ({gpu.uuid}) is split by MIG, or about to be")
        if not assignment.instances or not self._gpus:
            return ()
        there = self._offered(assignment.mig_profile)
        known = {instance.uuid: instance for instance in there}
        held = self._held.get(assignment.attempt, ())
        if held and all(uuid in known for uuid in held):
            return tuple(known[uuid] for uuid in held)
        others = [uuids for name, uuids in self._held.items() if name != assignment.attempt]
        taken = {uuid for uuids in others for uuid in uuids}
        found: list[devices.MigInstance] = []
        for number in assignment.instances:
            first = there[number : number + 1]
            free = [instance for instance in (*first, *there) if instance.uuid not in taken]
            if not free:
                needed = counted(len(assignment.instances), "MIG instance")
                raise NotReadyError(
                    f"it needs {needed} of {assignment.mig_profile}, but none is free of the "
                    f"{len(there)} on this node"
                )
            taken.add(free[0].uuid)
            found.append(free[0])
        self._held[assignment.attempt] = tuple(instance.uuid for instance in found)
        self._save()
        return tuple(found)

    def keep(self, alive: Collection[str]) -> None:
        """Release instances of attempts that neither live nor are about to start. Called under the
        lock.
        """
        wanted = {*alive, *self._holders()}
        gone = [name for name in self._held if name not in wanted]
        for name in gone:
            del self._held[name]
        if gone:
            self._save()

    def leave(self, attempt: str) -> None:
        """Release the instances of an attempt that has ended. Called under the lock."""
        if self._held.pop(attempt, None) is not None:
            self._save()

    def with_attempts(self, usage: Iterable[devices.GpuUsage]) -> tuple[devices.GpuUsage, ...]:
        """Return usage with the attempts that hold instances, simulated ones included."""
        with self._lock:
            of = {uuid: name for name, uuids in self._held.items() for uuid in uuids}
            parts = {
                gpu.uuid: tuple(devices.MigUsage(part.uuid) for part in gpu.mig)
                for gpu in self._gpus
                if gpu.simulated
            }
        return tuple(
            msgspec.structs.replace(
                one,
                instances=tuple(
                    msgspec.structs.replace(part, attempt=of.get(part.uuid, ""))
                    for part in (one.instances or parts.get(one.uuid, ()))
                ),
            )
            for one in usage
        )

    def _offered(self, profile: str) -> list[devices.MigInstance]:
        """Return instances of a profile on GPUs that match their declaration, in a fixed order."""
        wanted = self._wanted()
        return [
            instance
            for gpu in self._gpus
            if gpu.state == devices.OK and gpu.uuid != self._claimed
            and gpu.index in wanted and fits(gpu, wanted[gpu.index])
            for instance in sorted(gpu.mig, key=_place_of)
            if instance.profile == profile
        ]  # fmt: skip

    def _wanted(self) -> dict[int, tuple[tuple[str, int], ...]]:
        """Return declared instances by GPU number."""
        plan = self._plan
        return (
            {layout.device: layout.instances for layout in plan.layouts} if plan is not None else {}
        )

    # Devices ---------------------------------------------------------------------------------

    def turn(
        self, sample: samples.Sample, known: tuple[records.Gpu, ...], driver: Driver
    ) -> tuple[tuple[records.Gpu, ...], bool]:
        """Change at most one GPU. Return the GPUs with their progress, and True if one was
        changed.
        """
        with self._lock:
            self._claimed = ""
            order, told = self._look(sample, self._with_simulated(known))
            if order is not None:
                self._claimed = order.uuid
                self._made[order.uuid] = _Made(
                    order.mine, order.mode_mine, open=True, others=order.others
                )
                self._save()
            self._gpus = told
        if order is None:
            return told, False
        outcome = driver.cut(order)
        with self._lock:
            self._take(order, outcome)
        return told, True

    def _look(
        self, sample: samples.Sample, known: tuple[records.Gpu, ...]
    ) -> tuple[samples.MigOrder | None, tuple[records.Gpu, ...]]:
        """Return the change to make now, if any, and the GPUs with their progress."""
        plan = self._plan
        if plan is None:
            return None, known
        wanted = self._wanted()
        on_it = {device.uuid: [p.pid for p in device.processes] for device in sample.devices}
        order: samples.MigOrder | None = None
        gpus: list[records.Gpu] = []
        for gpu in known:
            cut, due = self._judge(gpu, wanted.get(gpu.index, ()), on_it.get(gpu.uuid, []))
            gpus.append(msgspec.structs.replace(gpu, cut=cut))
            if due and order is None:
                order = self._order(gpu, wanted.get(gpu.index, ()), take_over=plan.take_over)
        return order, tuple(gpus)

    def _with_simulated(self, known: tuple[records.Gpu, ...]) -> tuple[records.Gpu, ...]:
        """Return GPUs, with declared instances on simulated ones.

        Without a plan simulated GPUs keep the instances that they had.
        """
        wanted = self._wanted()
        if self._plan is None:
            before = {gpu.uuid: gpu.mig for gpu in self._gpus}
            return tuple(
                msgspec.structs.replace(gpu, mig=before.get(gpu.uuid, gpu.mig))
                if gpu.simulated
                else gpu
                for gpu in known
            )
        return tuple(
            msgspec.structs.replace(gpu, mig=simulated.instances(gpu, wanted.get(gpu.index, ())))
            if gpu.simulated
            else gpu
            for gpu in known
        )

    def _order(
        self, gpu: records.Gpu, wanted: tuple[tuple[str, int], ...], *, take_over: bool
    ) -> samples.MigOrder:
        owned = self._made.get(gpu.uuid, _Made())
        others = {instance.gpu_instance for instance in gpu.mig} - {*owned.instances}
        return samples.MigOrder(
            gpu.uuid,
            wanted,
            owned.instances,
            all_mine=owned.open,
            others=owned.others if owned.open else tuple(sorted(others)),
            mode_mine=owned.mode,
            take_over=take_over,
        )

    def _judge(
        self, gpu: records.Gpu, wanted: tuple[tuple[str, int], ...], pids: list[int]
    ) -> tuple[devices.MigCut | None, bool]:
        """Return the progress of a GPU, and True if it is to be changed now."""
        pending = not wanted and not gpu.mig_enabled and self._made.get(gpu.uuid, _Made()).mode
        if gpu.simulated or gpu.state != devices.OK:
            return None, False
        if gpu_selection.is_parted(gpu, self._given):
            return _of_another(gpu, wanted), False
        if fits(gpu, wanted) and not pending:
            self._tries.pop(gpu.uuid, None)
            return (devices.MigCut(devices.FITS) if wanted else None), False
        busy = self._busy(gpu, pids)
        if busy:
            return devices.MigCut(devices.WAITING, f"waiting until it is idle: {busy}"), False
        last = self._tries.get(gpu.uuid)
        if last is not None and last.of == _state_of(gpu, wanted):
            if last.cut.state == devices.FITS:
                said = "all instances were created, but the driver shows others"
                return devices.MigCut(devices.CUT_FAILED, said), False
            return last.cut, last.count < TRIES_MAX and self._clock() >= last.next_at
        return devices.MigCut(devices.WAITING, "it is changed next"), True

    def _busy(self, gpu: records.Gpu, pids: list[int]) -> str:
        """Return what prevents a GPU from being changed; empty if nothing does."""
        instances = {instance.uuid for instance in gpu.mig}
        for name, given in self._holders().items():
            held = self._held.get(name)
            if not instances.isdisjoint(held or ()) or (given and gpu.index in given.devices):
                return f"{name} runs on it"
            if given is None or (given.instances and instances and held is None):
                return f"{name} may be on it"
        if pids:
            shown = ", ".join(map(str, pids[:_PIDS_TOLD]))
            return f"{len(pids)} processes are on it, as {shown}"
        return ""

    def _take(self, order: samples.MigOrder, outcome: samples.MigOutcome) -> None:
        """Note the result of a change."""
        owned = _Made(outcome.mine, outcome.mode_mine)
        if outcome.unknown:  # what it had begun to create is still Muster's
            owned = self._made[order.uuid]
        if owned == _Made():
            self._made.pop(order.uuid, None)
        else:
            self._made[order.uuid] = owned
        self._save()
        gpu = next(gpu for gpu in self._gpus if gpu.uuid == order.uuid)
        of = _state_of(gpu, order.wanted)
        before = self._tries.get(order.uuid)
        count = before.count + 1 if before is not None and before.of == of else 1
        if outcome.state in (devices.BLOCKED, devices.NEEDS_RESET):
            count = TRIES_MAX  # nothing changes until the GPU or its layout does
        if outcome.state == devices.WAITING:
            count = min(count, TRIES_MAX - 1)
        message = outcome.message
        if outcome.state == devices.CUT_FAILED and count >= TRIES_MAX:
            message += f"; gave up after {count} tries: change the layout, or restart the agent"
        wait_s = min(WAIT_S_MAX, WAIT_S * 2 ** (count - 1))
        cut = devices.MigCut(outcome.state, message)
        self._tries[order.uuid] = _Try(of, cut, count, self._clock() + wait_s)


def _load(path: Path, boot_id: str) -> _Kept:
    """Return what an earlier agent has saved."""
    try:
        stored = _DECODE_KEPT(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return _Kept(boot_id, {}, {})
    if stored.boot_id == boot_id:
        return stored
    # Instances do not survive a boot; the mode may.
    owned = {uuid: _Made(mode=True) for uuid, one in stored.made.items() if one.mode}
    return _Kept(boot_id, owned, {})


def _save(path: Path, kept: _Kept) -> None:
    """Save what Muster has created. If this is lost, it counts as created by others and is kept."""
    fresh = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        fresh.write_bytes(msgspec.json.encode(kept))
        fresh.replace(path)


def fits(gpu: records.Gpu, wanted: mig_layout.Wanted) -> bool:
    """Return True if a GPU has exactly these instances."""
    if not wanted:
        return not gpu.mig_enabled
    is_cut = gpu.mig_enabled or gpu.simulated
    return is_cut and Counter(instance.profile for instance in gpu.mig) == Counter(dict(wanted))


def _of_another(gpu: records.Gpu, wanted: mig_layout.Wanted) -> devices.MigCut:
    """Return the progress of a GPU of which the node has only instances."""
    if fits(gpu, wanted):
        return devices.MigCut(devices.FITS)
    has = mig_layout.told(Counter(instance.profile for instance in gpu.mig).items())
    said = f"--gpus gives this node {has} of it, and this node may not change its layout"
    return devices.MigCut(devices.BLOCKED, f"{said}: declare exactly these")


def _state_of(gpu: records.Gpu, wanted: tuple[tuple[str, int], ...]) -> object:
    """Return what a try depends on: another try makes sense when it changes."""
    return wanted, gpu.mig_enabled, tuple(sorted(instance.uuid for instance in gpu.mig))


def parents(
    gpus: Iterable[records.Gpu], given: Iterable[devices.MigInstance]
) -> tuple[records.Gpu, ...]:
    """Return the GPUs that instances belong to."""
    uuids = {instance.uuid for instance in given}
    return tuple(gpu for gpu in gpus if any(instance.uuid in uuids for instance in gpu.mig))


def _place_of(instance: devices.MigInstance) -> tuple[int, int]:
    """Return the numbers by which instances of a GPU are ordered."""
    return instance.gpu_instance, instance.compute_instance
