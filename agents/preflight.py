"""``muster agent --check``: what this host offers a node, what is missing, and what to do about it.

It leaves nothing behind. Every line is one finding: ``ok``, ``note`` for what a node can do
without, ``failed`` for what keeps a node from running here.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agents import settings
from agents.data import secret_store
from agents.exporter import listeners
from agents.gpus import gpu_selection, mps, nvml_client, process_owners, samples
from agents.host import disk_space, host_info, token_file
from agents.isolation import cgroups, mount_namespace
from agents.link import controller_address
from agents.link.http_client import ControllerTarget, LinkError
from agents.node import agent_identity
from agents.supervisor import client
from reconciler.model.observed import devices
from reconciler.model.observed.host_facts import Host
from reconciler.model.values import addresses
from reconciler.model.values.quantities import counted

OK, NOTE, FAILED = "ok", "note", "failed"
PYTHON_MIN = (3, 11)
CONNECT_S = 5.0
#: Below this a task that writes anything is soon in trouble.
FREE_BYTES_MIN = 2**30
#: Data loaders of several processes hand batches over through it.
SHARED_MEMORY_BYTES_MIN = 2**30
RUNTIMES = ("podman", "apptainer", "singularity")
CDI_FOLDERS = ("etc/cdi", "var/run/cdi", "run/cdi")
#: Controllers that a task is held by where they are to be had.
WANTED = ("memory", "cpu", "cpuset", "pids")
#: Of what the tests of this project only see what would be asked of the system.
NOT_EXERCISED = "not exercised here: tested only as what is asked of the system"

#: The most secrets that are told of by name.
PROBLEMS_MAX = 20
#: What the tests have of GPUs is a stand-in for the driver's library.
NO_REAL_GPU = "real GPUs are not exercised here: tested only against a stand-in of NVML"


class PreflightFinding(msgspec.Struct, frozen=True):
    """One line: what was looked at, how it stands, what was found, and what to do."""

    name: str
    level: str
    found: str
    do: str = ""


class PreflightReport(msgspec.Struct, frozen=True):
    """All findings; ``ok`` when a node can run here."""

    ok: bool
    findings: list[PreflightFinding]


def main(given: argparse.Namespace) -> int:
    """Print the findings; 0 when a node can run here, else 1."""
    for name, value in vars(given).items():
        if isinstance(value, Path):  # trying out what isolates leaves this process elsewhere
            setattr(given, name, value.absolute())
    source = nvml_client.NvmlClient()
    sample = None if given.gpus == "none" else source.sample(usage=False)
    source.close()
    found = list(findings(given, sample))
    report = PreflightReport(all(one.level != FAILED for one in found), found)
    if given.output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        for one in found:
            do = f"; {one.do}" if one.do else ""
            sys.stdout.write(f"{one.level:<8}{one.name:<14}{one.found}{do}\n")
        verdict = "a node can run here" if report.ok else "no node can run here yet: see `failed`"
        sys.stdout.write(f"{verdict}\n")
    return 0 if report.ok else 1


def findings(
    given: argparse.Namespace, sample: samples.Sample | None, top: Path = Path("/")
) -> Iterator[PreflightFinding]:
    """Everything that is looked at; ``top`` is where ``/proc``, ``/sys`` and the rest stand."""
    yield from system(top)
    yield user(os.geteuid())
    yield from options(given)
    yield from folder(given.root)
    yield from gpus(sample, top, simulated=given.simulated_gpus)
    if sample is not None:
        yield from _unknown_gpus(sample, settings.chosen_gpus(given))
    yield from isolation(top)
    yield from runtimes(os.environ.get("PATH", os.defpath))
    if sample is not None and sample.devices:
        yield from sharing()
    yield data()
    yield from machine(host_info.read(top))
    yield from shared_memory(top)
    yield from link(given)
    yield from address(given)
    yield from metrics_port(given)
    yield from secrets(given.secrets)


def options(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Values on the command line with which an agent does not start."""
    for problem in settings.problems(given):
        yield PreflightFinding("options", FAILED, problem, "start the agent with other values")


def secrets(folder: Path | None) -> Iterator[PreflightFinding]:
    """Whether the secrets of jobs are kept as they have to be."""
    if folder is None:
        return
    found = list(itertools.islice(secret_store.problems(folder), PROBLEMS_MAX + 1))
    for problem in found[:PROBLEMS_MAX]:
        yield PreflightFinding(
            "secrets", FAILED, problem, "jobs that name it end as StartFailed till then"
        )
    if len(found) > PROBLEMS_MAX:
        yield PreflightFinding("secrets", FAILED, "and more", "mend these first")
    if not found:
        yield PreflightFinding("secrets", OK, f"{folder}: kept as they have to be")


def _unknown_gpus(
    sample: samples.Sample, chosen: frozenset[str] | None
) -> Iterator[PreflightFinding]:
    """What the node is to offer and does not have, or has twice; what it has parts of."""
    for said in gpu_selection.lacking(chosen, sample.devices):
        yield PreflightFinding(
            "gpus", FAILED, said, "name those that it has, by UUID, or use --gpus all"
        )
    both = list(gpu_selection.conflicts(chosen, sample.devices))
    for said in both:
        yield PreflightFinding(
            "gpus", FAILED, said, "name the GPU, or the instances that it is to offer"
        )
    parted = [
        one for one in sample.devices if gpu_selection.is_parted(one, gpu_selection.parts(chosen))
    ]
    for one in parted if not both else ():
        mine = sum(part.uuid in (chosen or ()) for part in one.mig)
        found = f"{mine} of {len(one.mig)} MIG instances of {one.uuid} are this node's"
        do = "its layout is never changed from here, nor is it reset: do that by hand"
        yield PreflightFinding("gpus", NOTE, found, do)


def system(top: Path) -> Iterator[PreflightFinding]:
    """Python, the kernel, and what the supervisor needs of it."""
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= PYTHON_MIN
    wanted = ".".join(map(str, PYTHON_MIN))
    yield PreflightFinding(
        "python", OK if good else FAILED, version, "" if good else f"use {wanted} or newer"
    )
    if sys.platform != "linux":
        yield PreflightFinding("kernel", FAILED, platform.system(), "nodes run on Linux only")
        return
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        yield PreflightFinding(
            "kernel", FAILED, platform.release(), "use Linux 5.3 or newer (pidfd_open)"
        )
    else:
        yield PreflightFinding("kernel", OK, platform.release())
    boot = top / "proc/sys/kernel/random/boot_id"
    if not boot.exists():
        yield PreflightFinding("boot id", FAILED, f"{boot} can't be read", "mount /proc")


def user(uid: int) -> PreflightFinding:
    """As whom tasks can run."""
    name = process_owners.user_name(uid)
    if uid == 0:
        return PreflightFinding("user", OK, f"{name}: tasks run as the Unix users of their owners")
    return PreflightFinding(
        "user", NOTE, f"{name}: every task runs as {name}",
        "start the agent as root to run tasks as their owners",
    )  # fmt: skip


def folder(root: Path | None) -> Iterator[PreflightFinding]:
    """Whether the node's own folder can be made, or used as it is."""
    if root is None:
        yield PreflightFinding("folder", NOTE, "not looked at", "give --root to check it")
        return
    there = next(path for path in (root, *root.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there) as made:
            link = socket.socket(socket.AF_UNIX)
            with contextlib.closing(link):
                link.bind(os.path.relpath(f"{made}/s"))
            Path(made, "f").touch(0o700)
        free = shutil.disk_usage(there).free
    except OSError as problem:
        full = problem.errno in disk_space.EXPLAINED
        do = (
            disk_space.lacking(there, problem.errno)
            if full
            else "choose another --root, or mend it"
        )
        yield PreflightFinding("folder", FAILED, f"{root}: {problem.strerror or problem}", do)
        return
    short = free < FREE_BYTES_MIN
    yield PreflightFinding(
        "folder", NOTE if short else OK, f"{root}: {_gib(free)} free",
        "logs and scratch files of tasks go there: make room" if short else "",
    )  # fmt: skip


def gpus(
    sample: samples.Sample | None, top: Path, *, simulated: int = 0
) -> Iterator[PreflightFinding]:
    """The driver and each GPU; of ``simulated`` ones how many there are to be."""
    if simulated:
        yield PreflightFinding(
            "gpus", NOTE, f"{simulated} simulated, as asked for; they compute nothing"
        )
        return
    if sample is None:
        yield PreflightFinding("gpus", NOTE, "not looked at, as --gpus none says")
        return
    if sample.driver == "absent":
        hardware = list(_nvidia_on_bus(top))
        if hardware:
            found = f"{counted(len(hardware), 'NVIDIA GPU')} on the bus, but {sample.message}"
            yield PreflightFinding(
                "driver", FAILED, found, "install the NVIDIA driver, or say --gpus none"
            )
        else:
            yield PreflightFinding(
                "driver", NOTE, f"none: {sample.message}", "this node offers no GPUs"
            )
        return
    if sample.driver != devices.OK:
        do = "mend the driver, or say --gpus none"
        yield PreflightFinding("driver", FAILED, sample.message, do)
        return
    version = f"{sample.driver_version}, CUDA {sample.cuda_version}"
    yield PreflightFinding(
        "driver", OK, f"{version}, {counted(len(sample.devices), 'GPU')}; {NO_REAL_GPU}"
    )
    for device in sample.devices:
        name = f"gpu {device.index}"
        what = f"{device.uuid} {device.name} {_gib(device.memory_total_bytes or 0)}"
        if device.state != devices.OK:
            yield PreflightFinding(
                name, FAILED, f"{device.state}: {device.message}", "reset or replace it"
            )
        elif device.compute_mode == devices.PROHIBITED:
            found = f"{what}: in compute mode {devices.PROHIBITED} no program may use it"
            yield PreflightFinding(name, FAILED, found, "`nvidia-smi --compute-mode=0` ends that")
        elif device.fabric_problem and device.links:
            do = "see `systemctl status nvidia-fabricmanager`: till then nothing computes on it"
            yield PreflightFinding(name, FAILED, f"{what}: it {device.fabric_problem}", do)
        elif device.mig_enabled:
            yield PreflightFinding(name, OK, f"{what}, {counted(len(device.mig), 'MIG instance')}")
        else:
            yield PreflightFinding(name, OK, what)
    yield _mig(sample)
    if not any((top / place).is_dir() and any((top / place).iterdir()) for place in CDI_FOLDERS):
        do = "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` makes one"
        yield PreflightFinding("cdi", NOTE, "no description of GPUs for containers", do)
    else:
        yield PreflightFinding("cdi", OK, f"containers find GPUs; {NOT_EXERCISED}")


def _mig(sample: samples.Sample) -> PreflightFinding:
    """Whether GPUs could be cut as a pool declares."""
    able = [device for device in sample.devices if device.mig_able]
    if not able:
        return PreflightFinding(
            "mig", NOTE, "no GPU here has it", "keep `mig` out of this node's pool"
        )
    found = f"{len(able)} of {counted(len(sample.devices), 'GPU')} can be cut in instances"
    if os.geteuid() != 0:
        return PreflightFinding(
            "mig", NOTE, found, "start the agent as root: nobody else may cut them"
        )
    return PreflightFinding("mig", OK, f"{found}; {NOT_EXERCISED}")


def _nvidia_on_bus(top: Path) -> Iterator[str]:
    """PCI addresses of NVIDIA's display and 3D controllers."""
    with contextlib.suppress(OSError):
        for device in (top / "sys/bus/pci/devices").iterdir():
            with contextlib.suppress(OSError):
                vendor = (device / "vendor").read_text(encoding="ascii").strip()
                kind = (device / "class").read_text(encoding="ascii").strip()
                if vendor == "0x10de" and kind.startswith("0x03"):
                    yield device.name


def isolation(top: Path) -> Iterator[PreflightFinding]:
    """How tasks would be held here, and what of it this project has never seen at work."""
    found = cgroups.discover("" if top == Path("/") else str(top))
    kind, controllers = cgroups.offers(found)
    if kind == "process-group":
        yield PreflightFinding(
            "isolation", NOTE, "process groups: no control groups can be made here",
            "start the agent as root, or under systemd with Delegate=yes: without them no limit of "
            "memory or CPU holds, and a task that hides can stay",
        )  # fmt: skip
    else:
        enforced = [one for one in controllers if one != "freezer"]
        missing = [one for one in WANTED if one not in enforced]
        yield PreflightFinding(
            "isolation", NOTE if missing else OK,
            f"{kind.replace('-', ' ')}: {', '.join(enforced) or 'only killing as one'}",
            f"not held to: {', '.join(missing)}" if missing else "",
        )  # fmt: skip
    if kind == "cgroup-v2" and controllers:
        yield PreflightFinding(
            "cgroup v2", NOTE, NOT_EXERCISED, "try a job that takes too much memory"
        )
    wrapped = client.scope("auto", "/", top)
    yield PreflightFinding(
        "systemd", OK if wrapped else NOTE,
        "a delegated scope holds the supervisor" if wrapped
        else "no scopes: it does not run this machine",
    )  # fmt: skip
    if os.geteuid() == 0:
        view = mount_namespace.Sandbox()
        yield PreflightFinding(
            "views", OK if view.usable else NOTE,
            "tasks get their own /tmp, /var/tmp, /dev/shm" if view.usable else view.problem,
        )  # fmt: skip
    else:
        yield PreflightFinding(
            "views", NOTE, "tasks share /tmp and /dev/shm", "start the agent as root"
        )


def runtimes(path: str) -> Iterator[PreflightFinding]:
    """What could run containers."""
    found = {name: shutil.which(name, path=path) for name in RUNTIMES}
    there = [f"{name} ({where})" for name, where in found.items() if where]
    yield PreflightFinding("runtimes", OK, ", ".join(["process", *there]))
    if not there:
        yield PreflightFinding("containers", NOTE, f"none of {', '.join(RUNTIMES)} is installed",
                      "install one to have jobs with images run here later")  # fmt: skip
    if any(found[name] for name in RUNTIMES if name != "podman"):
        do = "try a job with an image, and `--nv` with GPUs"
        yield PreflightFinding("apptainer", NOTE, NOT_EXERCISED, do)


def machine(host: Host) -> Iterator[PreflightFinding]:
    """Processors, memory, networks."""
    sockets = f"{host.sockets} sockets, {max(1, len(host.numa))} NUMA nodes"
    yield PreflightFinding("cpus", OK, f"{host.cpus} in {sockets}")
    yield PreflightFinding("memory", OK, _gib(host.memory_bytes))
    links = [f"{link.name} {_speed(link.speed_bits_per_s)}" for link in host.links
             if link.state == "up"]  # fmt: skip
    yield PreflightFinding(
        "network", OK if links else NOTE, ", ".join(links) or "no interface tells of itself"
    )
    active = [port for port in host.rdma if port.state == "ACTIVE"]
    if host.rdma:
        count = f"{len(active)} of {len(host.rdma)} ports are active"
        level = OK if len(active) == len(host.rdma) else NOTE
        do = "" if level == OK else "look at cables and switches"
        yield PreflightFinding("rdma", level, f"{count}; {NOT_EXERCISED}", do)
    else:
        yield PreflightFinding("rdma", NOTE, "none")


def shared_memory(top: Path) -> Iterator[PreflightFinding]:
    """How much tasks may share in ``/dev/shm``."""
    try:
        size = shutil.disk_usage(top / "dev/shm").total
    except OSError:
        yield PreflightFinding(
            "shared memory", NOTE, "no /dev/shm", "mount one: many data loaders need it"
        )
        return
    short = size < SHARED_MEMORY_BYTES_MIN
    yield PreflightFinding(
        "shared memory", NOTE if short else OK, f"{_gib(size)} in /dev/shm",
        "data loaders of several processes may need more" if short else "",
    )  # fmt: skip


def link(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Token and controller, where they are named."""
    if given.token_file is not None:
        try:
            token_file.read_token(given.token_file)
        except (token_file.TokenFileError, OSError) as problem:
            yield PreflightFinding(
                "token", FAILED, str(problem), "mend it, or name another --token-file"
            )
        else:
            yield PreflightFinding("token", OK, str(given.token_file))
    if given.server is None:
        yield PreflightFinding(
            "controller", NOTE, "not looked at", "give --server to check the way to it"
        )
        return
    try:
        _, host, port, _ = ControllerTarget(given.server).parts()
        socket.create_connection((host, port), CONNECT_S).close()
    except (LinkError, OSError) as problem:
        yield PreflightFinding(
            "controller", FAILED, f"{given.server}: {problem}", "look at address and port"
        )
    else:
        yield PreflightFinding("controller", OK, f"{given.server} can be reached")


def address(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """By which address the tasks of other nodes would look for those here."""
    if given.virtual or given.server is None:
        return
    found = given.address
    if not found:
        asked = settings.AgentSettings(given.server, given.name or "", given.root or Path("/"))
        found = controller_address.address_of(asked)
    if addresses.is_loopback(found):
        said = f"{found}, which leads from each node to itself"
        do = "say --address, or no job finds its tasks that are on other nodes"
        yield PreflightFinding("address", NOTE, said, do)
    else:
        yield PreflightFinding("address", OK, f"other nodes reach this one at {found}")


def metrics_port(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Whether the node's page can be shown at a port of its own, where that is asked for."""
    name = "metrics port"
    try:
        listen = settings.listen_of(given)
        if listen is None:
            return
        if listen.token_file is not None:
            token_file.read_token(listen.token_file)
        listeners.bind(listen).close()
    except listeners.TakenError as problem:
        if problem.pid is not None and listeners.has_open(
            problem.pid, agent_identity.lock_of(given.root)
        ):
            own = f"{given.metrics_listen} is held by the agent of {given.root} itself"
            yield PreflightFinding(name, OK, own)
            return
        do = "an agent works without it and tries again, but whoever has it hears the token of "
        do += "those who ask there: end it first"
        yield PreflightFinding(name, NOTE, str(problem), do)
        return
    except (ValueError, token_file.TokenFileError, OSError) as problem:
        do = "mend that, or leave --metrics-listen out"
        yield PreflightFinding(name, FAILED, str(problem), do)
        return
    if addresses.is_loopback(listen.host):
        yield PreflightFinding(name, OK, f"{listen.shown} is free")
        return
    yield PreflightFinding(
        name, OK, f"{listen.shown} is free; pages and token go over the network in clear",
        "keep it to a network that only its own people reach, or listen on 127.0.0.1 behind a "
        "proxy that speaks TLS",
    )  # fmt: skip


def data() -> PreflightFinding:
    """Whether jobs can copy data from and to buckets here."""
    barred = _out_of_reach(Path(sys.executable).resolve()) if os.geteuid() == 0 else None
    if barred is not None:
        return PreflightFinding(
            "data", NOTE, f"only root gets at {sys.executable}: {barred} is its own",
                       "install the agent where every user can reach it: data is copied by it as "
                       "the job's user")  # fmt: skip
    if importlib.util.find_spec("obstore") is None:
        return PreflightFinding("data", NOTE, "folders only: no library for buckets",
                       "install muster-cluster[agent,data] for volumes of type s3")  # fmt: skip
    return PreflightFinding("data", OK, "jobs can copy from and to folders and buckets")


def _out_of_reach(program: Path) -> Path | None:
    """The folder on the way to a program that others than its owner may not pass."""
    return next((path for path in program.parents if not path.stat().st_mode & 0o001), None)


def sharing() -> Iterator[PreflightFinding]:
    """What a shared GPU can be held to here."""
    if shutil.which(mps.PROGRAM) is None:
        found = f"no {mps.PROGRAM}: tasks that share a GPU take turns on it; shares are counted"
        yield PreflightFinding(
            "gpu-sharing", NOTE, found, "install it for pools with `sharing: mps`"
        )
        return
    yield PreflightFinding(
        "gpu-sharing", OK, "MPS for tasks of one user; threads and memory of a share are arranged, "
        f"not enforced; {NOT_EXERCISED}"
    )  # fmt: skip


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.4g} GiB"


def _speed(bits_per_s: int | None) -> str:
    return "of unknown speed" if bits_per_s is None else f"{bits_per_s / 10**9:g} Gb/s"
