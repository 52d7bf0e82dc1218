"""MIG calls of NVML: reads instances, and changes layouts.

Runs in the process of :mod:`agents.gpus.nvml`, where a driver that hangs affects nobody else. An
order brings one GPU as near to its layout as the driver allows; a
:class:`agents.gpus.samples.MigOutcome` reports the result. A change of mode may reset the GPU, so
the client then starts a new process.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

from agents.gpus import mig_layout, samples
from agents.gpus.nvml_calls import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    NvmlCaller,
    call,
)
from reconciler.model.observed import devices

MIG_MAX = 16
NO_PERMISSION, IN_USE, INSUFFICIENT_RESOURCES = 4, 19, 23
OFF, ON = 0, 1
#: Numbers of profiles in the binding; newer drivers may have more.
GPU_PROFILES, COMPUTE_PROFILES, SHARED_ENGINES = 18, 9, 0
WORDS = {
    NO_PERMISSION: "only root may change it: start the agent as root",
    NOT_SUPPORTED: "the device has no MIG",
    FUNCTION_NOT_FOUND: "the driver is too old to say what its MIG profiles are called",
    IN_USE: "the driver reports that it is in use. To fix: find what uses it, for example "
    "monitoring or MPS",
    INSUFFICIENT_RESOURCES: "the driver has no room for it",
    RESET_REQUIRED: "the mode changes with a reset: `nvidia-smi --gpu-reset`, or boot the machine",
}


class _CallError(Exception):
    """A call that failed."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {WORDS.get(code, f'NVML error {code}')}")
        self.code = code

    @property
    def state(self) -> str:
        """Resulting state of the GPU's layout."""
        known = {IN_USE: devices.WAITING, RESET_REQUIRED: devices.NEEDS_RESET}
        return known.get(self.code, devices.CUT_FAILED)


def read_mig(ask: NvmlCaller) -> Iterator[devices.MigInstance]:
    """Return MIG devices of a GPU. They may disappear meanwhile."""
    for part, uuid in _parts(ask):
        shape = part("nvmlDeviceGetAttributes")
        yield devices.MigInstance(
            uuid=uuid,
            profile=str(part("nvmlDeviceGetName") or "").rpartition(" ")[2],
            gpu_instance=part("nvmlDeviceGetGpuInstanceId") or 0,
            compute_instance=part("nvmlDeviceGetComputeInstanceId") or 0,
            slices=shape.computeInstanceSliceCount if shape else 0,
            memory_bytes=shape.memorySizeMB * 2**20 if shape else 0,
        )


def read_usage(ask: NvmlCaller) -> Iterator[devices.MigUsage]:
    """Return the memory that each MIG device uses; NVML reports nothing else about them."""
    for part, uuid in _parts(ask):
        memory = part("nvmlDeviceGetMemoryInfo")
        yield devices.MigUsage(uuid, None if memory is None else memory.used)


def _parts(ask: NvmlCaller) -> Iterator[tuple[NvmlCaller, str]]:
    for index in range(min(MIG_MAX, ask("nvmlDeviceGetMaxMigDeviceCount") or 0)):
        code, handle = call(ask.library, "nvmlDeviceGetMigDeviceHandleByIndex", ask.device, index)
        if code:
            continue
        part = NvmlCaller(ask.library, handle)
        uuid = part("nvmlDeviceGetUUID")
        if uuid:
            yield part, str(uuid)


def cut(library: Any, order: samples.MigOrder) -> samples.MigOutcome:
    """Carry out an order. In any case report which instances are Muster's."""
    cutter = _Cutter(library, order)
    try:
        state, message = cutter.work()
    except _CallError as failure:
        state, message = failure.state, str(failure)
    except mig_layout.LayoutError as problem:
        state = devices.BLOCKED if problem.blocked else devices.CUT_FAILED
        message = str(problem)
    return samples.MigOutcome(
        state, message, tuple(sorted(cutter.mine)), cutter.mode_mine, switched=cutter.switched
    )


class _Cutter:
    """An order that is being carried out."""

    def __init__(self, library: Any, order: samples.MigOrder) -> None:
        self.library = library
        self.order = order
        self.mine = set(order.mine)
        self.mode_mine = order.mode_mine
        self.switched = False
        self._device: Any = None
        self._handles: dict[int, Any] = {}

    def work(self) -> tuple[str, str]:
        """Bring the GPU to its layout. Return the resulting state and a message."""
        order = self.order
        self._device = self._do(f"GPU {order.uuid}", "nvmlDeviceGetHandleByUUID", order.uuid)
        current, pending = self._do("MIG mode", "nvmlDeviceGetMigMode", self._device)
        if order.wanted and current == OFF:
            self.mine.clear()
            self.mode_mine = True  # even if it changes only with the next reset
            self._switch(ON)
            return devices.WAITING, "MIG mode was switched on; its instances are created next"
        if current == OFF:
            self.mine.clear()
            if pending != OFF:
                self._switch(OFF)
            self.mode_mine = False
            return devices.FITS, ""
        profiles = {profile.name: profile for profile in self._profiles()}
        there = list(self._instances(profiles))
        self.mine = {instance.id for instance in there if self._is_made(instance.id)}
        if not order.wanted:
            return self._undo(there)
        steps = mig_layout.plan(order.wanted, there, profiles)
        for instance in steps.destroy:
            self._destroy(instance.id)
        for instance in steps.complete:
            self._complete(self._handles[instance.id], profiles[instance.profile])
        for profile, where in steps.create:
            self._create(profile, where)
        return devices.FITS, ""

    def _undo(self, there: list[mig_layout.GpuInstance]) -> tuple[str, str]:
        """Make the GPU whole again, as far as Muster may."""
        for instance in there:
            if instance.mine:
                self._destroy(instance.id)
        foreign = [instance for instance in there if not instance.mine]
        if foreign:
            said = f"{len(foreign)} MIG instances on it were created by others"
            return devices.BLOCKED, said
        if not (self.mode_mine or self.order.take_over):
            return devices.BLOCKED, "its MIG mode was switched on by others"
        self._switch(OFF)
        self.mode_mine = False
        return devices.FITS, ""

    def _do(self, what: str, function: str, *arguments: Any) -> Any:
        code, value = call(self.library, function, *arguments)
        if code:
            raise _CallError(what, code)
        return value

    def _switch(self, mode: int) -> None:
        what = f"switching MIG {'on' if mode else 'off'}"
        self.switched = True
        status = self._do(what, "nvmlDeviceSetMigMode", self._device, mode)
        if status:
            raise _CallError(what, int(status))

    def _profiles(self) -> Iterator[mig_layout.MigProfile]:
        """Return profiles that the driver offers, with their possible places."""
        for number in range(GPU_PROFILES):
            code, info = call(
                self.library, "nvmlDeviceGetGpuInstanceProfileInfo", self._device, number
            )
            if code == FUNCTION_NOT_FOUND:
                raise _CallError("MIG profiles", code)
            if code:
                continue  # this device has no profile of that number
            room = ctypes.c_uint(64)
            places = (self.library.c_nvmlGpuInstancePlacement_t * room.value)()
            self._do(
                "places of MIG instances", "nvmlDeviceGetGpuInstancePossiblePlacements",
                self._device, info.id, ctypes.byref(places), ctypes.byref(room),
            )  # fmt: skip
            yield mig_layout.MigProfile(
                _text(info.name).rpartition(" ")[2],
                info.id,
                info.sliceCount,
                tuple(
                    mig_layout.MemorySlices(place.start, place.size)
                    for place in places[: room.value]
                ),
            )

    def _instances(
        self, profiles: dict[str, mig_layout.MigProfile]
    ) -> Iterator[mig_layout.GpuInstance]:
        """Return the GPU instances by id."""
        found = []
        for profile in profiles.values():
            for handle in self._listed(
                "nvmlDeviceGetGpuInstances", self.library.c_nvmlGpuInstance_t,
                self._device, profile.id,
            ):  # fmt: skip
                info = self._do("a MIG instance", "nvmlGpuInstanceGetInfo", handle)
                self._handles[info.id] = handle
                slices = [size for size, _ in self._computes(handle)]
                found.append(
                    mig_layout.GpuInstance(
                        id=info.id,
                        profile=profile.name,
                        place=mig_layout.MemorySlices(info.placement.start, info.placement.size),
                        whole=slices == [profile.slices],
                        empty=not slices,
                        mine=self.order.take_over or self._is_made(info.id),
                    )
                )
        yield from sorted(found, key=lambda instance: instance.id)

    def _is_made(self, number: int) -> bool:
        """Return True if Muster created an instance."""
        order = self.order
        return number in order.mine or (order.all_mine and number not in order.others)

    def _listed(self, function: str, kind: Any, of: Any, profile: int) -> list[Any]:
        count = ctypes.c_uint(MIG_MAX)
        handles = (kind * count.value)()
        self._do("MIG instances", function, of, profile, handles, ctypes.byref(count))
        return list(handles[: count.value])

    def _compute_profiles(self, handle: Any) -> Iterator[tuple[int, int]]:
        """Return (compute slices, id) of what a GPU instance can have."""
        for number in range(COMPUTE_PROFILES):
            code, info = call(
                self.library, "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                handle, number, SHARED_ENGINES,
            )  # fmt: skip
            if code == 0:
                yield info.sliceCount, info.id

    def _computes(self, handle: Any) -> Iterator[tuple[int, Any]]:
        """Return (compute slices, handle) of each compute instance in a GPU instance."""
        seen = set()
        for slices, profile in self._compute_profiles(handle):
            if profile in seen:
                continue
            seen.add(profile)
            kind = self.library.c_nvmlComputeInstance_t
            for instance in self._listed(
                "nvmlGpuInstanceGetComputeInstances", kind, handle, profile
            ):
                yield slices, instance

    def _destroy(self, number: int) -> None:
        handle = self._handles[number]
        what = f"undoing MIG instance {number}"
        for _, compute in list(self._computes(handle)):
            self._do(what, "nvmlComputeInstanceDestroy", compute)
        self._do(what, "nvmlGpuInstanceDestroy", handle)
        self.mine.discard(number)

    def _complete(self, handle: Any, profile: mig_layout.MigProfile) -> None:
        """Give all compute of a GPU instance to one compute instance."""
        what = f"the compute of a {profile.name}"
        whole = [id_ for slices, id_ in self._compute_profiles(handle) if slices == profile.slices]
        if not whole:
            raise _CallError(what, NOT_SUPPORTED)
        self._do(what, "nvmlGpuInstanceCreateComputeInstance", handle, whole[0])

    def _create(self, profile: mig_layout.MigProfile, where: mig_layout.MemorySlices) -> None:
        what = f"making a {profile.name} at {where.start}"
        wanted = self.library.c_nvmlGpuInstancePlacement_t(where.start, where.size)
        handle = self._do(
            what, "nvmlDeviceCreateGpuInstanceWithPlacement",
            self._device, profile.id, ctypes.byref(wanted),
        )  # fmt: skip
        number = self._do(what, "nvmlGpuInstanceGetInfo", handle).id
        self._handles[number] = handle
        self.mine.add(number)
        try:
            self._complete(handle, profile)
        except _CallError:
            self._destroy(number)
            raise


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
