"""Messages from the process that talks to NVML: raw readings, not yet judged.

None means that the driver does not report a value. Units are the driver's, named in the fields.
"""

import msgspec

from reconciler.model.observed.devices import MigInstance, MigUsage

#: Maximum for values that have no limit in the driver.
PROCESSES_MAX = 1024
EVENTS_MAX = 1024


class LinkReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """An active NVLink. ``kind``: gpu, switch or other."""

    link: int
    kind: str
    pci_address: str


class ProcessReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process with a context on a GPU.

    Attributes:
        mps: True if it uses an MPS server.
        instance: ids of its GPU and compute instance; None if the driver reports none.
    """

    pid: int
    memory_bytes: int | None = None
    mps: bool = False
    instance: tuple[int, int] | None = None


class EventReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """An XID event of a GPU, with the wall clock time at which it was noticed."""

    uuid: str
    number: int
    at: float


class DeviceReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU.

    Attributes:
        state: one of ``reconciler.model.observed.devices``.
        errors: NVML error codes by function, except for unsupported functions.
        parted: True if the node has only the instances in ``mig``.
    """

    index: int
    state: str
    message: str = ""
    simulated: bool = False
    parted: bool = False
    errors: dict[str, int] = {}
    uuid: str = ""
    name: str = ""
    pci_address: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    compute_mode: str = ""
    mig_able: bool = False
    mig_enabled: bool = False
    mig: tuple[MigInstance, ...] = ()
    instances: tuple[MigUsage, ...] = ()
    links: tuple[LinkReading, ...] = ()
    fabric: str = ""
    fabric_problem: str = ""
    processes: tuple[ProcessReading, ...] = ()
    gpu_percent: int | None = None
    memory_percent: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    energy_mj: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    clock_reasons: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_transmitted_kb_per_s: int | None = None
    pcie_received_kb_per_s: int | None = None
    pcie_replays: int | None = None
    nvlink_transmitted_kib: int | None = None
    nvlink_received_kib: int | None = None
    ecc_volatile: tuple[int | None, int | None] | None = None
    ecc_aggregate: tuple[int | None, int | None] | None = None
    retired_pages: tuple[int | None, int | None] | None = None
    retired_pending: bool | None = None
    remapped_rows: tuple[int, int, bool, bool] | None = None


class Sample(msgspec.Struct, frozen=True, omit_defaults=True, tag="sample"):
    """Everything at one moment. ``driver`` is as in ``GpuDriver``; without a driver there are no
    devices.
    """

    at: float
    driver: str
    message: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    nvml_version: str = ""
    devices: tuple[DeviceReading, ...] = ()
    events: tuple[EventReading, ...] = ()


class SampleProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The call that is about to be made, to name it if the driver hangs there."""

    what: str


class MigOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """An order that a GPU shall have these instances.

    Attributes:
        wanted: (profile, number) pairs; empty if the GPU shall be whole.
        mine: GPU instances that Muster created.
        all_mine: True if all instances but ``others`` are Muster's, as after a crash.
        mode_mine: True if Muster switched MIG mode on.
        take_over: True if instances that others created may be destroyed.
    """

    uuid: str
    wanted: tuple[tuple[str, int], ...] = ()
    mine: tuple[int, ...] = ()
    all_mine: bool = False
    others: tuple[int, ...] = ()
    mode_mine: bool = False
    take_over: bool = False


class MigOutcome(msgspec.Struct, frozen=True, tag="mig"):
    """Result of an order.

    Attributes:
        state: as in ``devices.MigCut``.
        mine: GPU instances that are Muster's now.
        switched: True if a change of mode was requested, so that the driver may see another device.
        unknown: True if there was no answer, so that more may have been created.
    """

    state: str
    message: str
    mine: tuple[int, ...]
    mode_mine: bool
    switched: bool = False
    unknown: bool = False
