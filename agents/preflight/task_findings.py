"""Checks of what tasks get on this host: isolation, containers, and copies of data."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from agents.isolation import cgroups, mount_namespace, task_privileges
from agents.preflight.finding import NOT_EXERCISED, PreflightFinding, note, ok
from agents.supervisor import client

RUNTIMES = ("podman", "apptainer", "singularity")
#: Control group controllers that limit tasks, if the host has them.
LIMITING_CONTROLLERS = ("memory", "cpu", "cpuset", "pids")


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


def runtimes(path: str) -> Iterator[PreflightFinding]:
    """Check which container runtimes are installed."""
    programs = {name: shutil.which(name, path=path) for name in RUNTIMES}
    installed = [f"{name} ({where})" for name, where in programs.items() if where]
    yield ok("runtimes", ", ".join(["process", *installed]))
    if not installed:
        do = "To run jobs with images: install one"
        yield note("containers", f"none of {', '.join(RUNTIMES)} is installed", do)
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
