"""Which GPUs of its machine a node was given by ``--gpus``, and of which MIG instances alone. Pure.

Several agents may share a machine, and by MIG a device. A device of which a node has instances is
parted: its layout, a reset of it, and whatever runs on its other instances are not the node's.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

import msgspec

from agents.gpus import samples
from reconciler.model.observed import devices
from reconciler.model.state import records

#: How NVML begins the UUIDs of MIG instances.
MIG_PREFIX = "MIG-"


class Device(Protocol):
    """A reading of a device, or what is known of it."""

    @property
    def uuid(self) -> str:
        """Its own."""

    @property
    def mig(self) -> tuple[devices.MigInstance, ...]:
        """Its instances."""


def parts(uuids: Collection[str] | None) -> frozenset[str]:
    """Those UUIDs that are of MIG instances."""
    return frozenset(uuid for uuid in uuids or () if uuid.startswith(MIG_PREFIX))


def is_parted(device: Device, uuids: Collection[str]) -> bool:
    """Whether ``uuids`` has instances of the device."""
    return any(one.uuid in uuids for one in device.mig)


def chosen(
    sample: samples.Sample, uuids: frozenset[str] | None, known: Iterable[records.Gpu] = ()
) -> samples.Sample:
    """The sample with only what the node is to offer; None: all.

    Devices have numbers from 0 on then, as pools declare them. ``known`` are the node's devices so
    far: one that lacks an instance which it had is missing for the node.
    """
    if uuids is None:
        return sample
    given = parts(uuids)
    had = {gpu.uuid: [one.uuid for one in gpu.mig if one.uuid in given] for gpu in known}
    kept: list[samples.DeviceReading] = []
    for device in sample.devices:
        if had.get(device.uuid) or is_parted(device, given):
            kept.append(_part(device, uuids, had.get(device.uuid, [])))
        # one that does not say who it is may be one of ours: it counts while one of ours is not
        # seen
        elif device.uuid in uuids or not device.uuid:
            kept.append(device)
    numbers = {uuid: at for at, uuid in enumerate(one.uuid for one in kept if one.uuid)}
    numbered = [
        msgspec.structs.replace(one, index=numbers.get(one.uuid, one.index)) for one in kept
    ]
    return msgspec.structs.replace(sample, devices=tuple(numbered))


def _part(
    device: samples.DeviceReading, uuids: frozenset[str], had: list[str]
) -> samples.DeviceReading:
    """A device as a node sees it that was given instances of it."""
    mine = tuple(one for one in device.mig if one.uuid in uuids)
    places = {(one.gpu_instance, one.compute_instance) for one in mine}
    state, message = device.state, device.message
    gone = sorted(set(had).difference(one.uuid for one in mine))
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
        instances=tuple(one for one in device.instances if one.uuid in uuids),
        processes=tuple(
            one for one in device.processes if one.instance is None or one.instance in places
        ),
    )


def only(known: tuple[records.Gpu, ...], uuids: frozenset[str] | None) -> tuple[records.Gpu, ...]:
    """Those GPUs that the node is to offer, parted ones with its own instances; None: all."""
    if uuids is None:
        return known
    given = parts(uuids)
    return tuple(
        msgspec.structs.replace(gpu, mig=tuple(one for one in gpu.mig if one.uuid in given))
        if is_parted(gpu, given)
        else gpu
        for gpu in known
        if gpu.uuid in uuids or is_parted(gpu, given)
    )


def lacking(uuids: frozenset[str] | None, there: Collection[Device]) -> Iterator[str]:
    """What a node is to offer and its machine does not have, in words."""
    whole = sorted(device.uuid for device in there if device.uuid)
    split = sorted(one.uuid for device in there for one in device.mig)
    for uuid in sorted((uuids or frozenset()).difference(whole, split)):
        kind, has = ("MIG instance", split) if uuid.startswith(MIG_PREFIX) else ("GPU", whole)
        yield f"--gpus {uuid}: there is no such {kind} here, of {', '.join(has) or 'none'}"


def conflicts(uuids: frozenset[str] | None, there: Iterable[Device]) -> Iterator[str]:
    """Devices that are named whole and by their instances as well, in words."""
    for device in there:
        inside = sorted(one.uuid for one in device.mig if one.uuid in (uuids or ()))
        if inside and device.uuid in (uuids or ()):
            yield f"--gpus names {device.uuid}, and {', '.join(inside)} of it: name either"
