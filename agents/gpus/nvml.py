"""The process that talks to NVML: ``python -m agents.gpus.nvml``, requests in, samples out.

A sick driver can hold a call in the kernel for ever; only this process then waits. A line ``usage``
or ``nothing`` on stdin requests a :class:`agents.gpus.samples.Sample` on stdout, a line ``cut``
with a JSON :class:`agents.gpus.samples.MigOrder` requests a ``MigOutcome``; answers are a four-byte
length and msgpack. Every call is guarded, so one device's trouble costs the others nothing.
"""

import contextlib
import ctypes
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agents.gpus import nvml_mig, samples
from agents.gpus.nvml_calls import (
    DEVICE_GONE,
    DRIVER_GONE,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIBRARY_NOT_FOUND,
    VERSION_MISMATCH,
    Code,
    DriverError,
    NvmlCaller,
    call,
)
from reconciler.model.observed import devices

MISMATCH = (
    "the driver's library and its kernel module have different versions, as after an upgrade: "
    "reboot, or unload and load the module"
)
COMPUTE_MODES = ("default", "exclusive-thread", devices.PROHIBITED, "exclusive-process")
LINK_KINDS = {0: "gpu", 2: "switch"}
LINKS_MAX = 36
FIELD_MEMORY_TEMPERATURE, FIELD_NVLINK_SENT, FIELD_NVLINK_RECEIVED = 82, 138, 139
ALL_LINKS = 2**32 - 1
#: NVML's value for a process on no MIG instance, or if it may not report one.
NO_INSTANCE = 2**32 - 1
#: States of a GPU in its NVSwitch fabric; others have none.
FABRIC_NONE, FABRIC_COMPLETED = 0, 3
FABRIC_STATES = {1: "has not begun to", 2: "is about to"}
EVENT_XID = 8
EVENT_WAIT_MS = 5000
#: NVLinks and fabric are read only with every n-th sample, because it takes dozens of calls.
WIRING_EVERY = 20
PR_SET_PDEATHSIG = 1


def version_text(cuda: int | None) -> str:
    """Format a version: ``12.4`` for 12040."""
    return "" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"


def pci_text(info: Any) -> str:
    """Format a PCI address as Linux does: ``0000:3b:00.0``."""
    address = str(getattr(info, "busId", "")).lower()
    domain, colon, rest = address.partition(":")
    return f"{domain[-4:]}:{rest}" if colon else ""


class Nvml:
    """The library, its devices, and the events since the last sample."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.events: list[samples.EventReading] = []
        self.lock = threading.Lock()
        self.rounds = 0
        self.wiring: dict[str, tuple[tuple[samples.LinkReading, ...], tuple[str, str]]] = {}

    def read(self, progress: Callable[[str], None], *, usage: bool) -> samples.Sample:
        """Return a sample. Without ``usage`` it has only what the inventory needs."""
        system = {
            "driver_version": self._system("nvmlSystemGetDriverVersion"),
            "nvml_version": self._system("nvmlSystemGetNVMLVersion"),
        }
        cuda = call(self.library, "nvmlSystemGetCudaDriverVersion")[1]
        code, count = call(self.library, "nvmlDeviceGetCount")
        if code:
            raise DriverError(code)
        readings = []
        for index in range(count):
            progress(f"GPU {index}")
            readings.append(self._device(index, usage=usage))
        self.rounds += 1
        with self.lock:
            events, self.events = self.events, []
        return samples.Sample(
            at=time.time(),
            driver=devices.OK,
            cuda_version=version_text(cuda),
            devices=tuple(readings),
            events=tuple(events),
            **system,
        )

    def _system(self, function: str) -> str:
        return str(call(self.library, function)[1] or "")

    def _device(self, index: int, *, usage: bool) -> samples.DeviceReading:
        code, handle = call(self.library, "nvmlDeviceGetHandleByIndex", index)
        if code in DRIVER_GONE:
            raise DriverError(code)
        if code:
            state, message = DEVICE_GONE.get(code, (devices.FAILED, f"NVML error {code}"))
            return samples.DeviceReading(index, state, message)
        ask = NvmlCaller(self.library, handle)
        values = self._facts(ask)
        if usage and ask.state == devices.OK:
            values |= read_usage(ask)
            if values["mig_enabled"]:
                values["instances"] = tuple(nvml_mig.read_usage(ask))
        if ask.state == devices.OK and not (values["uuid"] and values["memory_total_bytes"]):
            error = ask.errors.get("nvmlDeviceGetUUID") or ask.errors.get("nvmlDeviceGetMemoryInfo")
            ask.state, ask.message = (
                devices.FAILED,
                f"it does not say what it is (NVML error {error})",
            )
        return samples.DeviceReading(index, ask.state, ask.message, errors=ask.errors, **values)

    def _facts(self, ask: NvmlCaller) -> dict[str, Any]:
        uuid = str(ask("nvmlDeviceGetUUID") or "")
        mode = ask("nvmlDeviceGetComputeMode")
        mig_mode = ask("nvmlDeviceGetMigMode")
        mig_enabled = bool(mig_mode and mig_mode[0])
        known = self.wiring.get(uuid)
        # a GPU that is joining its fabric is read each time: it accepts no work until then
        if uuid and (self.rounds % WIRING_EVERY == 0 or known is None or known[1][1]):
            self.wiring[uuid] = read_links(ask), read_fabric(ask)
        links, (fabric, fabric_problem) = self.wiring.get(uuid, ((), ("", "")))
        return {
            "uuid": uuid,
            "name": str(ask("nvmlDeviceGetName") or ""),
            "pci_address": pci_text(ask("nvmlDeviceGetPciInfo")),
            "compute_mode": COMPUTE_MODES[mode] if mode in range(len(COMPUTE_MODES)) else "",
            "mig_able": mig_mode is not None,
            "mig_enabled": mig_enabled,
            "mig": tuple(nvml_mig.read_mig(ask)) if mig_enabled else (),
            "links": links,
            "fabric": fabric,
            "fabric_problem": fabric_problem,
            "processes": read_processes(ask),
            "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
            **read_memory(ask),
        }

    # Events ----------------------------------------------------------------------------------

    def listen(self) -> None:
        """Collect XID events for as long as the process lives.

        NVML keeps only the newest XID until it is asked, so a thread must wait for them all the
        time.
        """
        code, waiting = call(self.library, "nvmlEventSetCreate")
        if code:
            return
        uuids: dict[int, str] = {}
        _, count = call(self.library, "nvmlDeviceGetCount")
        for index in range(count or 0):
            _, handle = call(self.library, "nvmlDeviceGetHandleByIndex", index)
            ask = NvmlCaller(self.library, handle)
            supported = ask("nvmlDeviceGetSupportedEventTypes") or 0
            if supported & EVENT_XID:
                ask("nvmlDeviceRegisterEvents", EVENT_XID, waiting)
                uuids[address_of(handle)] = str(ask("nvmlDeviceGetUUID") or "")
        while uuids:
            began = time.monotonic()
            code, event = call(self.library, "nvmlEventSetWait", waiting, EVENT_WAIT_MS)
            if code == FUNCTION_NOT_FOUND or code in DRIVER_GONE:
                return
            if code == 0 and event.eventType == EVENT_XID:
                self._heard(uuids.get(address_of(event.device), ""), int(event.eventData))
            elif time.monotonic() - began < 0.1:
                time.sleep(1.0)  # repeated immediate errors would spin

    def _heard(self, uuid: str, number: int) -> None:
        with self.lock:
            if len(self.events) < samples.EVENTS_MAX:
                self.events.append(samples.EventReading(uuid, number, time.time()))


def address_of(handle: Any) -> int:
    """Return what distinguishes a device handle from others."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def read_memory(ask: NvmlCaller) -> dict[str, int | None]:
    """Return memory in bytes. Memory that the driver reserves is included only if it reports it."""
    found = ask.first(
        ("nvmlDeviceGetMemoryInfo", getattr(ask.library, "nvmlMemory_v2", 0x2000028)),
        ("nvmlDeviceGetMemoryInfo",),
    )
    if found is None:
        return {"memory_total_bytes": None}
    return {
        "memory_total_bytes": found.total,
        "memory_used_bytes": found.used,
        "memory_free_bytes": found.free,
        "memory_reserved_bytes": getattr(found, "reserved", None),
    }


def read_processes(ask: NvmlCaller) -> tuple[samples.ProcessReading, ...]:
    """Return processes with a compute context, with a mark on those that use MPS."""
    found: dict[int, samples.ProcessReading] = {}
    for mps, name in ((False, "Compute"), (True, "MPSCompute")):
        listed = ask.first(
            (f"nvmlDeviceGet{name}RunningProcesses_v3",),
            (f"nvmlDeviceGet{name}RunningProcesses_v2",),
        )
        for process in (listed or [])[: samples.PROCESSES_MAX]:
            found[process.pid] = samples.ProcessReading(
                process.pid, process.usedGpuMemory, mps=mps, instance=instance_of(process)
            )
    return tuple(found[pid] for pid in sorted(found))


def instance_of(process: Any) -> tuple[int, int] | None:
    """Return ids of the GPU and compute instance of a process; None if the driver reports none."""
    ids = process.gpuInstanceId, process.computeInstanceId
    return None if NO_INSTANCE in ids else ids


def read_links(ask: NvmlCaller) -> tuple[samples.LinkReading, ...]:
    """Return active NVLinks, with what is at their other end."""
    found = []
    for link in range(LINKS_MAX):
        code, active = call(ask.library, "nvmlDeviceGetNvLinkState", ask.device, link)
        if code:
            break  # there are no more links, or none at all
        if active:
            kind = LINK_KINDS.get(ask("nvmlDeviceGetNvLinkRemoteDeviceType", link), "other")
            address = pci_text(ask("nvmlDeviceGetNvLinkRemotePciInfo", link))
            found.append(samples.LinkReading(link, kind, address))
    return tuple(found)


def read_fabric(ask: NvmlCaller) -> tuple[str, str]:
    """Return the NVSwitch domain of a GPU as ``CLUSTER.CLIQUE``, and why it has not joined its
    domain.

    The second is empty if it has joined, or belongs to none.
    """
    for name in ("c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_t"):
        kind = getattr(ask.library, name, None)
        if kind is None:
            continue
        info = kind()
        function = f"nvmlDeviceGetGpuFabricInfo{'V' if '_v2_' in name else ''}"
        if ask(function, ctypes.byref(info)) is None:
            continue
        if info.state == FABRIC_NONE:
            return "", ""
        if info.state != FABRIC_COMPLETED:
            return "", f"{FABRIC_STATES.get(info.state, 'may never')} join its NVSwitch fabric"
        if info.status:
            return "", f"could not join its NVSwitch fabric (NVML error {info.status})"
        return f"{bytes(info.clusterUuid).hex()}.{info.cliqueId}", ""
    return "", ""


def read_usage(ask: NvmlCaller) -> dict[str, Any]:
    """Return what a GPU does now, and its error counters."""
    rates = ask("nvmlDeviceGetUtilizationRates")
    fields = read_fields(ask)
    remapped = ask("nvmlDeviceGetRemappedRows")
    pending = ask("nvmlDeviceGetRetiredPagesPendingStatus")
    return {
        "gpu_percent": rates.gpu if rates else None,
        "memory_percent": rates.memory if rates else None,
        "power_mw": ask("nvmlDeviceGetPowerUsage"),
        "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit"),
        "energy_mj": ask("nvmlDeviceGetTotalEnergyConsumption"),
        "temperature_c": ask.first(
            ("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0)
        ),
        "memory_temperature_c": fields.get(FIELD_MEMORY_TEMPERATURE),
        "sm_mhz": ask("nvmlDeviceGetClockInfo", 1),
        "memory_mhz": ask("nvmlDeviceGetClockInfo", 2),
        "clock_reasons": ask.first(
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        ),
        "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_transmitted_kb_per_s": ask("nvmlDeviceGetPcieThroughput", 0),
        "pcie_received_kb_per_s": ask("nvmlDeviceGetPcieThroughput", 1),
        "pcie_replays": ask("nvmlDeviceGetPcieReplayCounter"),
        "nvlink_transmitted_kib": fields.get(FIELD_NVLINK_SENT),
        "nvlink_received_kib": fields.get(FIELD_NVLINK_RECEIVED),
        "ecc_volatile": read_ecc(ask, 0),
        "ecc_aggregate": read_ecc(ask, 1),
        "retired_pages": read_retired(ask),
        "retired_pending": None if pending is None else bool(pending),
        "remapped_rows": None
        if remapped is None
        else (remapped[0], remapped[1], bool(remapped[2]), bool(remapped[3])),
    }


def read_fields(ask: NvmlCaller) -> dict[int, int]:
    """Return values that NVML reports by number, each with its own return code."""
    wanted = [
        (FIELD_MEMORY_TEMPERATURE, 0),
        (FIELD_NVLINK_SENT, ALL_LINKS),
        (FIELD_NVLINK_RECEIVED, ALL_LINKS),
    ]
    found = {}
    for field in ask("nvmlDeviceGetFieldValues", wanted) or ():
        if field.nvmlReturn == 0:
            kind = "uiVal" if field.valueType == 1 else "ullVal"
            found[int(field.fieldId)] = int(getattr(field.value, kind))
    return found


def read_ecc(ask: NvmlCaller, counter: int) -> tuple[int | None, int | None] | None:
    """Return (corrected, uncorrected) errors; None if ECC is off or missing."""
    both = (
        ask("nvmlDeviceGetTotalEccErrors", 0, counter),
        ask("nvmlDeviceGetTotalEccErrors", 1, counter),
    )
    return None if both == (None, None) else both


def read_retired(ask: NvmlCaller) -> tuple[int | None, int | None] | None:
    """Return pages retired because of (several single-bit errors, a double-bit error)."""
    both = [ask("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1)]
    if both == [None, None]:
        return None
    single, double = (None if pages is None else len(pages) for pages in both)
    return single, double


# The process -------------------------------------------------------------------------------------


def say(message: samples.Sample | samples.SampleProgress | samples.MigOutcome) -> None:
    """Send a frame to the agent."""
    body = msgspec.msgpack.encode(message)
    os.write(1, struct.pack(">I", len(body)) + body)


decode_order = msgspec.json.Decoder(samples.MigOrder).decode


def failure(code: Code) -> samples.Sample:
    """Return the sample of a driver that cannot be asked at all."""
    if code == LIBRARY_NOT_FOUND:
        return samples.Sample(time.time(), "absent", "libnvidia-ml.so.1 is not installed")
    known = {
        DRIVER_NOT_LOADED: "the driver's kernel module is not loaded",
        VERSION_MISMATCH: MISMATCH,
    }
    return samples.Sample(time.time(), "failed", known.get(code, f"NVML error {code}"))


def start() -> Nvml:
    """Return the library, loaded and initialised.

    Raises:
        DriverError: it is not installed or does not work.
    """
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # before the binding, which takes much longer to import
    except OSError:
        raise DriverError(LIBRARY_NOT_FOUND) from None
    import pynvml  # noqa: PLC0415

    code, _ = call(pynvml, "nvmlInit")
    if code:
        raise DriverError(code)
    return Nvml(pynvml)


def main() -> int:
    """Answer requests until stdin ends or the driver cannot be asked any more."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if len(sys.argv) > 1 and os.getppid() != int(sys.argv[1]):
        return 0  # the agent died before the previous line
    try:
        say(samples.SampleProgress("nvmlInit"))
        nvml = start()
    except DriverError as error:
        say(failure(error.code))
        return 1
    threading.Thread(target=nvml.listen, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin:
            try:
                if line.startswith("cut "):
                    say(samples.SampleProgress("a change of MIG"))
                    say(nvml_mig.cut(nvml.library, decode_order(line[4:])))
                    continue
                say(
                    nvml.read(lambda what: say(samples.SampleProgress(what)), usage="usage" in line)
                )
            except DriverError as error:
                say(failure(error.code))
                return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the thread that waits for events would keep the process alive
