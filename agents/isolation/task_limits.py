"""Limits of a task, and its view of the node: control groups, private folders, and denied GPUs.

Pure, except that it reads the driver's files for the device numbers of GPUs.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reconciler.model.observed.devices import MigInstance
from reconciler.model.state.records import Gpu
from reconciler.model.values.text_lines import split_lines

#: Folders shared by all processes of a machine, which a task gets for itself.
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - they are what is replaced
#: The folder of shared memory, which a task gets for itself, too.
MEMORY = "/dev/shm"  # noqa: S108 - it is what is replaced
#: The folder with sockets of users' own services. Through ``systemd-run --user`` a task would start
#: what outlives it, outside its limits.
USERS_SERVICES = "/run/user"
#: The device by which a process serves a file system, with the rule that denies it. One that waits
#: for a file system that it serves itself is not ended by SIGKILL.
FUSE = {"/dev/fuse": "c 10:229 rwm"}
_NVIDIA_MAJOR = 195
_PROC = Path("/proc")


class IsolationCapabilities(msgspec.Struct, frozen=True):
    """How a node's supervisor isolates tasks.

    Attributes:
        enforces: limits that it can enforce.
        views: True if it can give tasks private folders.
        restricts: what it can take from tasks that are restricted.
        pids_max: processes of one task; 0 for as many as the machine allows.
        path: path of the groups of attempts in their hierarchy; empty if there are none.
    """

    kind: str = "process-group"
    enforces: tuple[str, ...] = ()
    views: bool = False
    restricts: tuple[str, ...] = ()
    pids_max: int = 0
    path: str = ""


class ViewedPaths(NamedTuple):
    """The paths that decide what a task's view replaces.

    Attributes:
        attempt: folder of the attempt.
        node: folders of the node that must stay visible.
        program: the task's working directory and command, which must stay visible in ``/tmp``. No
            other folder stays visible for them.
    """

    attempt: str
    node: tuple[str, ...]
    program: tuple[str, ...]


def limits_of(
    holding: IsolationCapabilities,
    cpu_milli: int,
    memory_bytes: int,
    cpus: str,
    denied: dict[str, str],
) -> dict[str, Any]:
    """Return limits for the supervisor's order, without those that it cannot enforce."""
    wanted: dict[str, tuple[str, Any]] = {
        "memory_bytes": ("memory", memory_bytes),
        "cpu_milli": ("cpu", cpu_milli),
        "pids": ("pids", holding.pids_max),
        "cpus": ("cpuset", cpus),
        "deny_devices": ("devices", list(denied.values())),
    }
    return {key: value for key, (by, value) in wanted.items() if value and by in holding.enforces}


def view_of(
    holding: IsolationCapabilities, paths: ViewedPaths, *,
    memory_bytes: int, denied: list[str], alone: bool, gang: str | None, restricted: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the private folders for the supervisor's order; empty if it cannot create any.

    Args:
        paths: shared folders above one that must stay visible are not replaced.
        memory_bytes: what its shared memory may hold; 0 for the default.
        alone: True if the task sees only processes of its own user.
        gang: name of the tasks on this node that it shares memory with; empty for none; None to
            leave it in the host's IPC namespace.
        restricted: True if the services of its user are not for it.
    """
    if not holding.views:
        return {}

    own = f"{paths.attempt}/tmp"  # noqa: S108 - nobody else's folder
    binds = [(own, shared) for shared in replaced(paths)]
    view: dict[str, Any] = {"binds": binds, "masks": denied, "own_processes": alone}
    # nothing that a job chooses brings it back: it would leave its limits through it
    if restricted and not is_needed(USERS_SERVICES, paths.node):
        view["hides"] = [USERS_SERVICES]
    own_memory: dict[str, Any] = {} if gang is None else {"ipc": gang}
    # nothing that a job chooses has it use the host's, where files outlive it and its limit
    if not is_needed(MEMORY, paths.node):
        own_memory["shm_bytes"] = memory_bytes
    return {key: value for key, value in view.items() if value} | own_memory


def replaced(paths: ViewedPaths) -> tuple[str, ...]:
    """Return the shared temporary folders that a task can have to itself."""
    needed = paths.node + paths.program
    return tuple(shared for shared in TEMPORARY if not is_needed(shared, needed))


def is_needed(shared: str, needed: tuple[str, ...]) -> bool:
    """Return True if a shared folder is one of those that must stay visible, or above one."""
    return any(path == shared or path.startswith(f"{shared}/") for path in needed)


def short_temporary(
    view: Mapping[str, Any], paths: ViewedPaths, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the short name of a task's temporary folder, by the variables that name it.

    The path of a Unix socket holds 107 bytes, and programs such as PyTorch's data loaders and Ray
    make theirs some levels below ``TMPDIR``.
    """
    own = f"{paths.attempt}/tmp"  # noqa: S108 - nobody else's folder
    short = next((shown for folder, shown in view.get("binds", ()) if folder == own), own)
    return {"TMPDIR": short} if environment.get("TMPDIR") == own else {}


def hidden_path(view: Mapping[str, Any], paths: ViewedPaths) -> str:
    """Return the path of a task's program that its view hides; empty if there is none."""
    for path in paths.program:
        name = posixpath.normpath(path)
        for hidden in view.get("hides", ()):
            if name == hidden or name.startswith(f"{hidden}/"):
                return path
    return ""


def denied_gpus(
    gpus: tuple[Gpu, ...],
    given: tuple[int, ...],
    instances: tuple[MigInstance, ...] = (),
    system: Path | None = None,
) -> dict[str, str]:
    """Return device files that a task must not use, with the rule that denies each.

    They include GPUs that this node does not offer, because another node of the machine may. On a
    GPU of which the task has an instance, the capabilities of all other instances are denied.
    """
    system = system or _PROC
    found: dict[str, str] = {}
    mine = {instance.uuid for instance in instances}
    real = {gpu.pci_address.lower(): gpu for gpu in gpus if not gpu.simulated}
    for address in dict.fromkeys((*real, *_strangers(real, given, mine, system))):
        gpu = real.get(address)
        number = minor_of(address, system / "driver/nvidia/gpus")
        if number is None or (gpu is not None and gpu.index in given):
            continue
        parts = gpu.mig if gpu is not None else ()
        own = [one for one in parts if one.uuid in mine]
        if not own:
            found[f"/dev/nvidia{number}"] = f"c {_NVIDIA_MAJOR}:{number} rwm"
        else:
            found |= _denied_parts(number, parts, own, system)
    return found


def _strangers(
    real: Mapping[str, Gpu], given: tuple[int, ...], mine: set[str], system: Path
) -> list[str]:
    """Return PCI addresses of GPUs that the driver knows and the node does not offer.

    None if a GPU of the task is not in the driver's list, because it could be any of them.
    """
    try:
        listed = {path.name.lower() for path in (system / "driver/nvidia/gpus").iterdir()}
    except OSError:
        return []
    for address, gpu in real.items():
        has = gpu.index in given or any(instance.uuid in mine for instance in gpu.mig)
        if has and address not in listed:
            return []
    return sorted(listed - real.keys())


def _denied_parts(
    gpu: int, known: tuple[MigInstance, ...], own: list[MigInstance], system: Path
) -> dict[str, str]:
    """Return capabilities of all instances of a GPU but the task's own, known or listed by the
    driver.
    """
    try:
        text = (system / "driver/nvidia-caps/mig-minors").read_text(encoding="ascii")
        numbers = (system / "devices").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return {}
    major = re.search(r"^ *([0-9]+) nvidia-caps$", numbers, re.MULTILINE)
    if major is None:
        return {}
    minors = dict(line.split() for line in split_lines(text) if len(line.split()) == 2)
    listed = system / f"driver/nvidia/capabilities/gpu{gpu}/mig"
    there = {f"gpu{gpu}/{path.relative_to(listed)}" for path in listed.glob("gi*/**/access")}
    for one in known:
        there |= _capabilities(gpu, one)
    for one in own:
        there -= _capabilities(gpu, one)
    return {
        f"/dev/nvidia-caps/nvidia-cap{minors[name]}": f"c {major[1]}:{minors[name]} rwm"
        for name in sorted(there & minors.keys())
    }


def _capabilities(gpu: int, of: MigInstance) -> set[str]:
    """Return what opens an instance: the capabilities of its GPU instance and of itself."""
    part = f"gpu{gpu}/gi{of.gpu_instance}"
    return {f"{part}/access", f"{part}/ci{of.compute_instance}/access"}


def minor_of(pci_address: str, driver: Path = _PROC / "driver/nvidia/gpus") -> int | None:
    """Return the minor number of a GPU's device file, from the driver's files."""
    if not re.fullmatch(r"[0-9a-fA-F:.]+", pci_address):
        return None
    try:
        text = (driver / pci_address.lower() / "information").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None
