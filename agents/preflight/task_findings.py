"""Checks of what tasks get on this host: isolation, containers, and copies of data."""

import importlib.util
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from agents.isolation import cgroups, mount_namespace, task_privileges
from agents.preflight import rootless_findings
from agents.preflight.finding import NOT_EXERCISED, PreflightFinding, note, ok
from agents.supervisor import client

RUNTIMES = ("podman", "apptainer", "singularity")
#: Control group controllers that limit tasks, if the host has them.
LIMITING_CONTROLLERS = ("memory", "cpu", "cpuset", "pids")

SHARED = "shared"
#: What the folder that nodes share has to be for tasks of several users.
SHARED_MODE = 0o755
#: How long it may take to answer.
SHARED_ANSWER_S = 10.0
_OTHERS_WRITE = 0o022
#: Added to a mode so that others pass a folder.
_PASSES = 0o011


def isolation(top: Path) -> Iterator[PreflightFinding]:
    """Check how tasks would be isolated and limited here."""
    kind, controllers = cgroups.offers(cgroups.discover("" if top == Path("/") else str(top)))
    if kind == "process-group":
        yield note(
            "isolation",
            "process groups only: no control groups can be created here",
            "No limit of memory or CPU holds, and a task that hides can survive. To fix: start the "
            "agent as root, or under systemd with Delegate=yes",
        )
    else:
        limits = [controller for controller in controllers if controller != "freezer"]
        missing = [controller for controller in LIMITING_CONTROLLERS if controller not in limits]
        found = f"{kind.replace('-', ' ')}: {', '.join(limits) or 'tasks are only killed as one'}"
        if missing:
            yield note("isolation", found, f"Not limited: {', '.join(missing)}")
        else:
            yield ok("isolation", found)
    if kind == "cgroup-v2" and controllers:
        do = "To try it: run a job that uses too much memory"
        yield note("cgroup v2", NOT_EXERCISED, do)
    if client.scope("auto", "/", top):
        yield ok("systemd", "the supervisor runs in a delegated scope")
    else:
        yield note("systemd", "no scopes: systemd does not run this machine")
    if os.geteuid() != 0:
        do = "To give each task its own: start the agent as root"
        yield note("views", "tasks share /tmp and /dev/shm", do)
        return
    sandbox = mount_namespace.Sandbox()
    if sandbox.usable:
        yield ok("views", "tasks get their own /tmp, /var/tmp and /dev/shm")
    else:
        yield note("views", sandbox.problem)


def privileges(top: Path) -> Iterator[PreflightFinding]:
    """Check what can be taken here from tasks that are restricted."""
    name, found = "privileges", task_privileges.tried()
    taken = ", ".join(found.restricts) or "nothing"
    if found.problems:
        do = f"Not taken: {'; '.join(found.problems)}"
        yield note(name, f"taken from restricted tasks: {taken}", do)
    else:
        yield ok(name, f"taken from restricted tasks: {taken}")
    if (top / "dev/nvidia0").exists() and not (top / "dev/nvidia-uvm").exists():
        yield note(
            "nvidia-uvm",
            "/dev/nvidia-uvm is missing, and a restricted task can't have it made by the setuid "
            "program nvidia-modprobe",
            "To fix: run nvidia-modprobe -u -c=0 as root at each boot",
        )


def runtimes(path: str, top: Path) -> Iterator[PreflightFinding]:
    """Check which container runtimes are installed, and if users can use podman."""
    programs = {name: shutil.which(name, path=path) for name in RUNTIMES}
    installed = [f"{name} ({where})" for name, where in programs.items() if where]
    yield ok("runtimes", ", ".join(["process", *installed]))
    if not installed:
        do = "To run jobs with images: install one"
        yield note("containers", f"none of {', '.join(RUNTIMES)} is installed", do)
    if programs["podman"]:
        yield rootless_findings.podman(path, top, os.geteuid())
    if any(programs[name] for name in RUNTIMES if name != "podman"):
        do = "To try it: run a job with an image, and one with `--nv` and GPUs"
        yield note("apptainer", NOT_EXERCISED, do)


def data() -> PreflightFinding:
    """Check if jobs can copy data from and to buckets here."""
    barrier = unreachable_folder(Path(sys.executable).resolve()) if os.geteuid() == 0 else None
    if barrier is not None:
        return note(
            "data",
            f"only root can run {sys.executable}, because {barrier} is closed to others",
            "Data is copied as the job's user. To fix: install the agent where all users reach it",
        )
    if importlib.util.find_spec("obstore") is None:
        do = "To use volumes of type s3: install muster-cluster[agent,data]"
        return note("data", "folders only: the library for buckets is missing", do)
    return ok("data", "jobs can copy from and to folders and buckets")


def unreachable_folder(program: Path) -> Path | None:
    """Return the folder above a program that users other than its owner cannot pass, if any."""
    return next((path for path in program.parents if not path.stat().st_mode & 0o001), None)


def folders(root: Path | None, shared: Path | None) -> Iterator[PreflightFinding]:
    """Check that tasks of all users get to the folders that agents of root make for them."""
    if os.geteuid() != 0:
        return  # all tasks have the agent's own user
    if root is not None:
        barrier = closed_folder(root)
        if barrier is not None:
            yield _closed("work folders", root, barrier)
    place = shared or (root / "shared" if root is not None else None)
    if place is not None:
        yield _shared(place)


def _shared(place: Path) -> PreflightFinding:
    """Check the modes of the shared folder, which may be on a server that does not answer."""
    found: list[PreflightFinding] = []
    looks = threading.Thread(target=lambda: found.append(_modes_of_shared(place)), daemon=True)
    looks.start()
    looks.join(SHARED_ANSWER_S)
    do = "To fix: check if ls returns there, and what is mounted"
    return found[0] if found else note(SHARED, f"{place} does not answer", do)


def _modes_of_shared(place: Path) -> PreflightFinding:
    try:
        barrier = closed_folder(place)
        mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else SHARED_MODE
    except OSError as problem:
        return note(SHARED, f"{place}: {problem.strerror}", "To fix: make it usable")
    if barrier is not None:
        return _closed(SHARED, place, barrier)
    if mode & _OTHERS_WRITE:
        return note(
            SHARED,
            f"{place} has mode {mode:04o}: others than root may write there",
            "Whoever comes first can take the name of another user's checkpoint folder, whose jobs "
            f"then fail. To fix: chmod {SHARED_MODE:04o} {place}",
        )
    return ok(SHARED, f"all users get to their folders below {place}")


def _closed(name: str, place: Path, barrier: Path) -> PreflightFinding:
    mode = stat.S_IMODE(barrier.stat().st_mode)
    return note(
        name,
        f"users can't get to {place}, because {barrier} has mode {mode:04o}",
        f"Their tasks can't use it. To fix: chmod {mode | _PASSES:04o} {barrier}",
    )


def closed_folder(place: Path) -> Path | None:
    """Return the first folder, of a place and those above it, that other users can't pass."""
    way = [path for path in (place, *place.parents) if path.exists()]
    closed = [path for path in way if not path.stat().st_mode & 0o001]
    return closed[-1] if closed else None
