"""The GPUs and MIG instances that ``--gpus`` gives to this node. Pure.

Several agents may share a machine and, by MIG, a GPU. If a node has only instances of a GPU, then
its layout, its reset and its other instances are not the node's.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

import msgspec

from agents.gpus import samples
from reconciler.model.observed import devices
from reconciler.model.state import records

#: Prefix of UUIDs of MIG instances.
MIG_PREFIX = "MIG-"


class Device(Protocol):
    """A GPU, from a sample or from the inventory."""

    @property
    def uuid(self) -> str:
        """UUID of the GPU."""

    @property
    def mig(self) -> tuple[devices.MigInstance, ...]:
        """MIG instances of the GPU."""


def parts(uuids: Collection[str] | None) -> frozenset[str]:
    """Return those UUIDs that name MIG instances."""
    return frozenset(uuid for uuid in uuids or () if uuid.startswith(MIG_PREFIX))


def is_parted(device: Device, uuids: Collection[str]) -> bool:
    """Return True if ``uuids`` names instances of a GPU."""
    return any(instance.uuid in uuids for instance in device.mig)


def chosen(
    sample: samples.Sample, uuids: frozenset[str] | None, known: Iterable[records.Gpu] = ()
) -> samples.Sample:
    """Return a sample with only what the node offers, or with everything if that is None.

    GPUs are then numbered from 0, as pools declare them. A known GPU that lacks an instance which
    it had is missing for the node.
    """
    if uuids is None:
        return sample
    given = parts(uuids)
    had = {
        gpu.uuid: [instance.uuid for instance in gpu.mig if instance.uuid in given] for gpu in known
    }
    chosen: list[samples.DeviceReading] = []
    for device in sample.devices:
        if had.get(device.uuid) or is_parted(device, given):
            chosen.append(_part(device, uuids, had.get(device.uuid, [])))
        # A device without an identity may be one of ours: it counts while one of ours is missing.
        elif device.uuid in uuids or not device.uuid:
            chosen.append(device)
    numbers = {uuid: at for at, uuid in enumerate(gpu.uuid for gpu in chosen if gpu.uuid)}
    numbered = [
        msgspec.structs.replace(gpu, index=numbers.get(gpu.uuid, gpu.index)) for gpu in chosen
    ]
    return msgspec.structs.replace(sample, devices=tuple(numbered))


def _part(
    device: samples.DeviceReading, uuids: frozenset[str], had: list[str]
) -> samples.DeviceReading:
    """Return a GPU as a node sees it that has only some of its instances."""
    mine = tuple(instance for instance in device.mig if instance.uuid in uuids)
    places = {(instance.gpu_instance, instance.compute_instance) for instance in mine}
    state, message = device.state, device.message
    gone = sorted(set(had).difference(instance.uuid for instance in mine))
    both = list(conflicts(uuids, [device]))
    if state == devices.OK and both:
        state, message = devices.FAILED, both[0]
    elif state == devices.OK and gone:
        state = devices.MISSING
        message = f"{', '.join(gone)}, which --gpus names, is not there any more"
    return msgspec.structs.replace(
        device,
        state=state,
        message=message,
        mig=mine,
        parted=True,
        instances=tuple(instance for instance in device.instances if instance.uuid in uuids),
        processes=tuple(
            process
            for process in device.processes
            if process.instance is None or process.instance in places
        ),
    )


def only(known: tuple[records.Gpu, ...], uuids: frozenset[str] | None) -> tuple[records.Gpu, ...]:
    """Return the GPUs that the node offers, with only its own instances.

    If ``uuids`` is None, the node offers everything.
    """
    if uuids is None:
        return known
    given = parts(uuids)
    return tuple(
        msgspec.structs.replace(
            gpu, mig=tuple(instance for instance in gpu.mig if instance.uuid in given)
        )
        if is_parted(gpu, given)
        else gpu
        for gpu in known
        if gpu.uuid in uuids or is_parted(gpu, given)
    )


def lacking(uuids: frozenset[str] | None, there: Collection[Device]) -> Iterator[str]:
    """Yield messages about UUIDs that this machine does not have."""
    whole = sorted(device.uuid for device in there if device.uuid)
    split = sorted(instance.uuid for device in there for instance in device.mig)
    for uuid in sorted((uuids or frozenset()).difference(whole, split)):
        kind, has = ("MIG instance", split) if uuid.startswith(MIG_PREFIX) else ("GPU", whole)
        yield f"--gpus {uuid}: there is no such {kind} here, of {', '.join(has) or 'none'}"


def conflicts(uuids: frozenset[str] | None, there: Iterable[Device]) -> Iterator[str]:
    """Yield messages about GPUs that are named both as a whole and by their instances."""
    for device in there:
        inside = sorted(instance.uuid for instance in device.mig if instance.uuid in (uuids or ()))
        if inside and device.uuid in (uuids or ()):
            yield f"--gpus names {device.uuid}, and {', '.join(inside)} of it: name either"
