"""The parts of a machine, as its agent finds them: processors, memory, disks, mounts, networks.

These values are shown and compared, never scheduled by: tasks may take ``Inventory.capacity``.
Speeds are in bits per second, as networks are named by them; everything else is in bytes.
"""

import msgspec


class NumaNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the machine with memory of its own; ``cpus`` as Linux writes them, ``0-15,32``."""

    id: int
    cpus: str
    memory_bytes: int = 0


class Disk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block device that is not a partition, loop device or RAM disk."""

    name: str
    size_bytes: int
    rotational: bool = False
    model: str = ""


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file system that holds data."""

    path: str
    kind: str
    device: str = ""
    read_only: bool = False


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """A network interface of real hardware. ``speed_bits_per_s`` None: unknown."""

    name: str
    state: str = ""
    speed_bits_per_s: int | None = None
    mtu: int = 0
    numa_node: int | None = None


class RdmaPort(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of an RDMA device; ``layer`` is InfiniBand or Ethernet."""

    device: str
    port: int
    state: str = ""
    layer: str = ""
    rate_bits_per_s: int | None = None
    numa_node: int | None = None


class Host(msgspec.Struct, frozen=True, omit_defaults=True):
    """One machine. ``cpus`` are logical; ``os`` is how the distribution names itself."""

    os: str = ""
    kernel: str = ""
    cpu_model: str = ""
    cpus: int = 0
    cores: int = 0
    sockets: int = 0
    memory_bytes: int = 0
    numa: tuple[NumaNode, ...] = ()
    disks: tuple[Disk, ...] = ()
    mounts: tuple[Mount, ...] = ()
    links: tuple[Link, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
