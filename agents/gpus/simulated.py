"""Simulated GPUs, to try things out without hardware.

The file ``devices.json`` in the node's folder says which of them are not healthy, and which
processes use them. The agent reads it with every look and treats it like the driver's answer.
Without the file all GPUs are healthy.
"""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from agents.gpus import samples
from reconciler.model.observed import devices
from reconciler.model.protocol import decoders
from reconciler.model.state import records

FILE_NAME = "devices.json"
FILE_BYTES_MAX = 2**20
#: A profile's compute slices and memory.
_PROFILE = re.compile(r"([1-7])g\.([0-9]{1,4})gb")


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process that holds a GPU."""

    pid: int
    gpu: int = 0
    memory_bytes: int | None = None


class SimulatedXid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An XID, which is reported once for each ``sequence``."""

    gpu: int
    number: int
    sequence: int = 1


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the file.

    Attributes:
        gpus: by number, the fields of ``samples.DeviceReading`` that differ; None if the driver
            does not list the GPU.
        driver: as in ``samples.Sample``.
    """

    driver: str = devices.OK
    message: str = ""
    driver_version: str = "550.54.15"
    gpus: dict[int, dict[str, Any] | None] = {}
    processes: tuple[Process, ...] = ()
    xids: tuple[SimulatedXid, ...] = ()


_DECODE_SCENE = msgspec.json.Decoder(Scene).decode
_convert_reading = decoders.converter(samples.DeviceReading)


def instances(
    gpu: records.Gpu, layout: Iterable[tuple[str, int]]
) -> tuple[devices.MigInstance, ...]:
    """Return the MIG instances of a simulated GPU, which exist as soon as they are declared.

    Otherwise the GPU stays as it is and is not in MIG mode: its capacity is counted from the pool's
    declaration.
    """
    profiles = [profile for profile, count in layout for _ in range(count)]
    return tuple(
        _instance(f"MIG-{gpu.uuid.removeprefix('GPU-')}-{number}", profile, number)
        for number, profile in enumerate(profiles, 1)
    )


def _instance(uuid: str, profile: str, number: int) -> devices.MigInstance:
    amounts = _PROFILE.match(profile)
    slices, gib = map(int, amounts.groups()) if amounts else (0, 0)
    return devices.MigInstance(uuid, profile, number, 0, slices, gib * 2**30)


class SimulatedSamples:
    """A source of samples of simulated GPUs for ``agents.gpus.gpu_watcher.GpuWatch``."""

    def __init__(self, path: Path, gpus: tuple[records.Gpu, ...]) -> None:
        self._path = path
        self._gpus = gpus
        self._told: set[tuple[int, int, int]] = set()

    @property
    def pid(self) -> int:
        """Always 0, because there is no process."""
        return 0

    def exists(self) -> bool:
        """Return True if the file exists."""
        return self._path.exists()

    def sample(self, *, usage: bool) -> samples.Sample:  # noqa: ARG002 - there is nothing to use
        """Return the GPUs as the file describes them. An invalid file is a driver that fails."""
        try:
            scene = self._read()
            readings = tuple(self._readings(scene))
        except (OSError, ValueError) as problem:
            return samples.Sample(time.time(), devices.FAILED, f"{self._path}: {problem}")
        if scene.driver != devices.OK:
            return samples.Sample(time.time(), scene.driver, scene.message)
        return samples.Sample(
            time.time(),
            devices.OK,
            driver_version=scene.driver_version,
            devices=readings,
            events=tuple(self._events(scene)),
        )

    def cut(self, order: samples.MigOrder) -> samples.MigOutcome:
        """Change nothing: simulated GPUs have the instances that their pool declares."""
        return samples.MigOutcome(devices.FITS, "", order.mine, order.mode_mine)

    def close(self) -> None:
        """Do nothing."""

    def _read(self) -> Scene:
        try:
            with self._path.open("rb") as stream:
                text = stream.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            # no driver version is declared: a pool may require any
            return Scene(driver_version="")
        return _DECODE_SCENE(text)

    def _readings(self, scene: Scene) -> "list[samples.DeviceReading]":
        found = []
        for gpu in self._gpus:
            changes = scene.gpus.get(gpu.index, {})
            if changes is None:
                continue
            on_it = tuple(
                samples.ProcessReading(process.pid, process.memory_bytes)
                for process in scene.processes
                if process.gpu == gpu.index
            )
            values = {
                "index": gpu.index,
                "state": devices.OK,
                "uuid": gpu.uuid,
                "name": gpu.model,
                "memory_total_bytes": gpu.memory_bytes,
                "simulated": True,
                **changes,
            }
            reading = _convert_reading(values)
            found.append(msgspec.structs.replace(reading, processes=on_it))
        return found

    def _events(self, scene: Scene) -> "list[samples.EventReading]":
        uuids = {gpu.index: gpu.uuid for gpu in self._gpus}
        found = []
        for event in scene.xids[: samples.EVENTS_MAX]:
            key = (event.gpu, event.number, event.sequence)
            if key not in self._told and event.gpu in uuids:
                self._told.add(key)
                found.append(samples.EventReading(uuids[event.gpu], event.number, time.time()))
        return found
