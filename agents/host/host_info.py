"""Reads facts about the machine from ``/proc`` and ``/sys`` below a given folder.

Any file may be missing, unreadable or odd; that fact is then left out. Lists are bounded, so that a
machine with thousands of mounts does not make its report large.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from reconciler.model.observed.host_facts import Disk, Host, Link, Mount, NumaNode, RdmaPort
from reconciler.model.values.text_lines import split_lines

DISKS_MAX = MOUNTS_MAX = LINKS_MAX = RDMA_MAX = NUMA_MAX = 128
SECTOR_BYTES = 512
#: Name prefixes of the kernel's block devices without data of their own.
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d")
#: File systems with data for tasks; others belong to the kernel and the system.
DATA_FILE_SYSTEMS = {
    "9p", "bcachefs", "beegfs", "btrfs", "ceph", "cifs", "exfat", "ext2", "ext3", "ext4", "f2fs",
    "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone",
    "fuse.s3fs", "fuse.weka", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
    "overlay", "smb3", "virtiofs", "wekafs", "xfs", "zfs",
}  # fmt: skip


def read(root: Path = Path("/")) -> Host:
    """Return the facts about the machine below ``root``."""
    model, cpus, cores, sockets = _cpus(root)
    return Host(
        os=_os_name(root),
        kernel=_text(root / "proc/sys/kernel/osrelease"),
        memory_bytes=_memory(root),
        numa=tuple(_numa(root)),
        disks=tuple(_disks(root))[:DISKS_MAX],
        mounts=tuple(_mounts(root))[:MOUNTS_MAX],
        links=tuple(_links(root))[:LINKS_MAX],
        rdma=tuple(_rdma(root))[:RDMA_MAX],
        cpu_model=model,
        cpus=cpus,
        cores=cores,
        sockets=sockets,
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _folders(path: Path) -> list[Path]:
    """Return the entries of a folder in natural order: eth10 comes after eth9."""
    try:
        found = list(path.iterdir())
    except OSError:
        return []
    return sorted(
        found, key=lambda interface: [int(p) if p.isdigit() else p for p in _parts(interface.name)]
    )


def _parts(name: str) -> list[str]:
    # text and digits alternate, starting with text, so that like is compared with like
    return re.split(r"(\d+)", name)


def numa_node(device: Path) -> int | None:
    """Return the NUMA node of a device's sysfs folder; None if the machine has only one."""
    found = _number(device / "numa_node")
    return None if found is None or found < 0 else found


def numa_of_pci(address: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of a PCI device."""
    if not re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", address):
        return None
    return numa_node(root / "sys/bus/pci/devices" / address)


def _os_name(root: Path) -> str:
    for line in split_lines(_text(root / "etc/os-release")):
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip("\"'")
    return ""


def _cpus(root: Path) -> tuple[str, int, int, int]:
    """Return model, logical processors, cores and sockets from ``/proc/cpuinfo``."""
    model, cpus, cores, sockets = "", 0, set(), set()
    for block in _text(root / "proc/cpuinfo").split("\n\n"):
        entry = {}
        for line in split_lines(block):
            key, _, value = line.partition(":")
            entry[key.strip()] = value.strip()
        if "processor" not in entry:
            continue
        cpus += 1
        model = model or entry.get("model name", "")
        socket = entry.get("physical id", "0")
        sockets.add(socket)
        cores.add((socket, entry.get("core id", entry["processor"])))
    return model, cpus, len(cores), len(sockets)


def _kib(text: str, key: str) -> int:
    """Return an amount of a file like ``/proc/meminfo``, in bytes."""
    found = re.search(rf"^.*\b{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _memory(root: Path) -> int:
    return _kib(_text(root / "proc/meminfo"), "MemTotal")


def memory_errors(root: Path = Path("/")) -> tuple[int, int]:
    """Return corrected and uncorrected memory errors since boot, if the kernel counts them
    (EDAC).
    """
    found = _folders(root / "sys/devices/system/edac/mc")
    corrected, uncorrected = (
        sum(_number(folder / name) or 0 for folder in found) for name in ("ce_count", "ue_count")
    )
    return corrected, uncorrected


def _numa(root: Path) -> Iterator[NumaNode]:
    for folder in _folders(root / "sys/devices/system/node")[: 4 * NUMA_MAX]:
        if re.fullmatch(r"node\d+", folder.name):
            yield NumaNode(
                id=int(folder.name[4:]),
                cpus=_text(folder / "cpulist"),
                memory_bytes=_kib(_text(folder / "meminfo"), "MemTotal"),
            )


def _disks(root: Path) -> Iterator[Disk]:
    for folder in _folders(root / "sys/block"):
        size = _number(folder / "size")
        if size and not _NO_DISK.match(folder.name):
            yield Disk(
                name=folder.name,
                size_bytes=size * SECTOR_BYTES,
                rotational=_text(folder / "queue/rotational") == "1",
                model=_text(folder / "device/model"),
            )


def _mounts(root: Path) -> Iterator[Mount]:
    """Yield the fields before `` - `` of each mount in ``mountinfo``, and its file system."""
    for line in split_lines(_text(root / "proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        fields, file_system = before.split(), after.split()
        if len(fields) < 6 or len(file_system) < 2 or file_system[0] not in DATA_FILE_SYSTEMS:
            continue
        path = _unescaped(fields[4])
        if file_system[0] == "overlay" and path != "/":
            continue  # of a container, which comes and goes with it
        yield Mount(
            path=path,
            kind=file_system[0],
            device=_unescaped(file_system[1]),
            read_only="ro" in fields[5].split(","),
        )


def _unescaped(text: str) -> str:
    """Return a path with the kernel's octal escapes of spaces and the like replaced."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _links(root: Path) -> Iterator[Link]:
    for folder in _folders(root / "sys/class/net"):
        if not (folder / "device").exists():
            continue  # loopback, bridges, and containers' interfaces
        speed = _number(folder / "speed")
        yield Link(
            name=folder.name,
            state=_text(folder / "operstate"),
            speed_bits_per_s=speed * 10**6 if speed is not None and speed > 0 else None,
            mtu=_number(folder / "mtu") or 0,
            numa_node=numa_node(folder / "device"),
        )


def _rdma(root: Path) -> Iterator[RdmaPort]:
    for folder in _folders(root / "sys/class/infiniband"):
        for port in _folders(folder / "ports"):
            rate = re.match(r"([\d.]+) Gb/sec", _text(port / "rate"))
            yield RdmaPort(
                device=folder.name,
                port=int(port.name) if port.name.isdigit() else 0,
                state=_text(port / "state").partition(": ")[2],
                layer=_text(port / "link_layer"),
                rate_bits_per_s=round(float(rate[1]) * 10**9) if rate else None,
                numa_node=numa_node(folder / "device"),
            )
