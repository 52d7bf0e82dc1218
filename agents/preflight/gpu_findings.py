"""Checks of GPUs: the driver, each device, MIG, containers, and how GPUs can be shared."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agents.gpus import gpu_selection, mps, samples
from agents.preflight.finding import (
    NOT_EXERCISED,
    PreflightFinding,
    failed,
    gib,
    note,
    ok,
)
from reconciler.model.observed import devices
from reconciler.model.values.quantities import counted

CDI_FOLDERS = ("etc/cdi", "var/run/cdi", "run/cdi")
#: The tests use a stand-in for the driver's library.
NO_REAL_GPU = "this project's tests use a stand-in for NVML, no real GPUs"


def gpus(
    sample: samples.Sample | None, top: Path, *, simulated: int = 0
) -> Iterator[PreflightFinding]:
    """Check the driver and each GPU. ``simulated`` is the number of simulated GPUs."""
    if simulated:
        yield note("gpus", f"{simulated} simulated, as requested; they compute nothing")
        return
    if sample is None:
        yield note("gpus", "not checked because of --gpus none")
        return
    if sample.driver == "absent":
        yield _no_driver(sample, top)
        return
    if sample.driver != devices.OK:
        yield failed("driver", sample.message, "To fix: repair the driver, or use --gpus none")
        return
    version = f"{sample.driver_version}, CUDA {sample.cuda_version}"
    yield ok("driver", f"{version}, {counted(len(sample.devices), 'GPU')}; {NO_REAL_GPU}")
    for device in sample.devices:
        yield _gpu(device)
    yield _mig(sample)
    if any((top / path).is_dir() and any((top / path).iterdir()) for path in CDI_FOLDERS):
        yield ok("cdi", f"containers can use GPUs; {NOT_EXERCISED}")
    else:
        do = "To create one: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
        yield note("cdi", "no description of GPUs for containers", do)


def _no_driver(sample: samples.Sample, top: Path) -> PreflightFinding:
    hardware = list(_nvidia_on_bus(top))
    if not hardware:
        return note("driver", f"none: {sample.message}", "This node offers no GPUs")
    return failed(
        "driver",
        f"{counted(len(hardware), 'NVIDIA GPU')} on the bus, but {sample.message}",
        "To fix: install the NVIDIA driver, or use --gpus none",
    )


def _gpu(device: samples.DeviceReading) -> PreflightFinding:
    name = f"gpu {device.index}"
    shown = f"{device.uuid} {device.name} {gib(device.memory_total_bytes or 0)}"
    if device.state != devices.OK:
        do = "To fix: reset or replace this GPU"
        return failed(name, f"{device.state}: {device.message}", do)
    if device.compute_mode == devices.PROHIBITED:
        found = f"{shown}: in compute mode {devices.PROHIBITED} no program may use it"
        return failed(name, found, "To fix: `nvidia-smi --compute-mode=0`")
    if device.fabric_problem and device.links:
        do = "Nothing can compute on it. To fix: see `systemctl status nvidia-fabricmanager`"
        return failed(name, f"{shown}: it {device.fabric_problem}", do)
    if device.mig_enabled:
        return ok(name, f"{shown}, {counted(len(device.mig), 'MIG instance')}")
    return ok(name, shown)


def _mig(sample: samples.Sample) -> PreflightFinding:
    """Check if GPUs could be split as a pool declares."""
    able = sum(device.mig_able for device in sample.devices)
    if not able:
        return note("mig", "no GPU here supports MIG", "Do not put this node in a pool with `mig`")
    found = f"{able} of {counted(len(sample.devices), 'GPU')} can be split into instances"
    if os.geteuid() != 0:
        return note("mig", found, "Only root may split GPUs. To fix: start the agent as root")
    return ok("mig", f"{found}; {NOT_EXERCISED}")


def chosen(sample: samples.Sample, uuids: frozenset[str] | None) -> Iterator[PreflightFinding]:
    """Check the UUIDs that ``--gpus`` names, if any."""
    for problem in gpu_selection.lacking(uuids, sample.devices):
        yield failed("gpus", problem, "To fix: name GPUs of this host, or use --gpus all")
    conflicts = list(gpu_selection.conflicts(uuids, sample.devices))
    for problem in conflicts:
        yield failed("gpus", problem, "To fix: name either the GPU or its instances")
    if conflicts:
        return
    instances = gpu_selection.parts(uuids)
    for device in sample.devices:
        if gpu_selection.is_parted(device, instances):
            own = sum(part.uuid in (uuids or ()) for part in device.mig)
            found = f"{own} of {len(device.mig)} MIG instances of {device.uuid} are this node's"
            do = "The agent neither changes its layout nor resets it: do that by hand"
            yield note("gpus", found, do)


def sharing() -> PreflightFinding:
    """Check what limits tasks that share a GPU."""
    if shutil.which(mps.PROGRAM) is None:
        found = f"no {mps.PROGRAM}: tasks that share a GPU take turns; nothing limits their share"
        return note("gpu-sharing", found, "For pools with `sharing: mps`: install it")
    return ok(
        "gpu-sharing",
        "MPS for tasks of one user; threads and memory of a share are set up, but not enforced; "
        f"{NOT_EXERCISED}",
    )


def _nvidia_on_bus(top: Path) -> Iterator[str]:
    """Yield PCI addresses of NVIDIA's display and 3D controllers."""
    with contextlib.suppress(OSError):
        for device in (top / "sys/bus/pci/devices").iterdir():
            with contextlib.suppress(OSError):
                vendor = (device / "vendor").read_text(encoding="ascii").strip()
                pci_class = (device / "class").read_text(encoding="ascii").strip()
                if vendor == "0x10de" and pci_class.startswith("0x03"):
                    yield device.name
