"""What the process that talks to NVML says to the agent: readings as they are, not yet judged.

None stands for what the driver does not tell. Units are the driver's own, named in the fields.
"""

import msgspec

from reconciler.model.observed.devices import MigInstance, MigUsage

#: The most of what has no limit of its own in the driver.
PROCESSES_MAX = 1024
EVENTS_MAX = 1024


class LinkReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """One NVLink that is active. ``kind``: gpu, switch or other."""

    link: int
    kind: str
    pci_address: str


class ProcessReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that has a context on a device. ``mps``: through an MPS server. ``instance``: ids
    of the GPU and the compute instance that it is on; None: the driver tells none."""

    pid: int
    memory_bytes: int | None = None
    mps: bool = False
    instance: tuple[int, int] | None = None


class EventReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """An XID event of the device ``uuid``, by the wall clock of when it was heard."""

    uuid: str
    number: int
    at: float


class DeviceReading(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device. ``state`` is one of ``reconciler.model.observed.devices``; ``errors`` maps
    functions that failed for another reason than not being supported to NVML's error code.
    ``parted``: the node was given MIG instances of it alone, and ``mig`` are those."""

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
    """Everything at one moment. ``driver`` is as in ``GpuDriver``; without one no devices."""

    at: float
    driver: str
    message: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    nvml_version: str = ""
    devices: tuple[DeviceReading, ...] = ()
    events: tuple[EventReading, ...] = ()


class SampleProgress(msgspec.Struct, frozen=True, tag="progress"):
    """What is about to be read, so that a driver that hangs can be told where."""

    what: str


class MigOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device is to have these instances, (profile, number) pairs; none: it is to be whole.

    ``mine`` are GPU instances that Muster has made; with ``all_mine`` all that are there but
    ``others`` are, as after an agent died while it made them. ``mode_mine``: it has switched MIG
    mode on. ``take_over``: what others made may go as well.
    """

    uuid: str
    wanted: tuple[tuple[str, int], ...] = ()
    mine: tuple[int, ...] = ()
    all_mine: bool = False
    others: tuple[int, ...] = ()
    mode_mine: bool = False
    take_over: bool = False


class MigOutcome(msgspec.Struct, frozen=True, tag="mig"):
    """What came of an order: ``state`` as in ``devices.MigCut``, and what is Muster's own now.

    ``switched``: a change of mode was asked for, and the device may be another to the driver.
    ``unknown``: there was no answer, so that more may have been made than is said.
    """

    state: str
    message: str
    mine: tuple[int, ...]
    mode_mine: bool
    switched: bool = False
    unknown: bool = False
