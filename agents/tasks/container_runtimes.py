"""Command lines of Podman and Apptainer, behind one interface. Pure.

A container is a task like any other: the runtime runs as the task's user in the task's control
group. The container sees the host's network, the attempt's folder, the shared folder and the job's
volumes at their own paths, and the task's environment except what the image defines. Values of
variables never appear in a command line.
"""

import os
import resource
from typing import Protocol

import msgspec

from agents.host import processes
from agents.isolation import cgroups, task_limits
from reconciler.model.state.records import Gpu

#: Variables that the image defines, not the node.
IMAGES_OWN = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG"})
#: Prefixes of variables for containers, of Apptainer and Singularity.
PREFIXES = ("APPTAINERENV_", "SINGULARITYENV_")
#: Variables of a command that joins a container: its session, and the kind of its terminal.
SESSIONS = ("MUSTER_SESSION", "TERM")
_SHM_BYTES = 2**30
#: Podman's own limit, so it cannot give more.
_NPROC_MAX = 32_768
_APPTAINER_SCHEMES = ("docker://", "oras://", "library://", "shub://")


class ContainerTask(msgspec.Struct, frozen=True):
    """A command to run in a container.

    Attributes:
        binds: (path, read-only) pairs.
        environment: the task's environment.
        cgroup: control group of the task; empty if it has none.
        cpus: cores to stay on, as the kernel lists them; empty for all.
        instances: UUIDs of MIG instances.
        temporary: the task's own temporary folder, if its environment names that.
    """

    attempt: str
    root: str
    image: str
    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    binds: tuple[tuple[str, bool], ...] = ()
    gpus: tuple[Gpu, ...] = ()
    instances: tuple[str, ...] = ()
    memory_bytes: int = 0
    pids_max: int = 0
    as_root: bool = False
    cgroup: str = ""
    cpus: str = ""
    limits: tuple[tuple[str, int, int], ...] = ()
    temporary: str = ""

    @property
    def name(self) -> str:
        """Name of the container, unique among the nodes of a machine."""
        return f"{cgroups.token_of(self.root)}-{self.attempt}"

    @property
    def told(self) -> dict[str, str]:
        """Environment without the variables that the image defines."""
        return {k: v for k, v in self.environment.items() if k not in IMAGES_OWN}

    @property
    def short_temporary(self) -> str:
        """Short path at which the container sees its temporary folder; empty for its own.

        It is a shared temporary folder of the container that no bind of the task is in.
        """
        needed = (*(path for path, _ in self.binds), self.cwd, self.argv[0])
        free = [
            shared for shared in task_limits.TEMPORARY if not task_limits.is_needed(shared, needed)
        ]
        return free[0] if self.temporary and free else ""


class Runtime(Protocol):
    """A container runtime, as command lines."""

    def present(self, image: str) -> list[str]:
        """Return a command that exits with 0 if the image need not be pulled."""

    def pull(self, image: str) -> list[str] | None:
        """Return the command that pulls the image; None if the image is a file."""

    def run(self, box: ContainerTask) -> list[str]:
        """Return the command that runs the task, and exits as it does."""

    def environment(self, box: ContainerTask) -> dict[str, str]:
        """Return the environment of the runtime itself."""

    def enter(self, box: ContainerTask, *, terminal: bool) -> list[str] | None:
        """Return the words before a command that joins a task's container; None if none can.

        With ``terminal`` the command gets one.
        """

    def remove(self, name: str) -> list[str] | None:
        """Return the command that removes a container; None if nothing can be left of it."""


class Podman(msgspec.Struct, frozen=True):
    """Podman, with GPUs by CDI. ``program`` is its command with the site's options."""

    program: tuple[str, ...] = ("podman",)

    def present(self, image: str) -> list[str]:
        """See :class:`Runtime`."""
        return [*self.program, "image", "exists", "--", image]

    def pull(self, image: str) -> list[str]:
        """See :class:`Runtime`."""
        return [*self.program, "pull", "--quiet", "--", image]

    def run(self, box: ContainerTask) -> list[str]:
        """See :class:`Runtime`."""
        held = [f"--cgroup-parent={box.cgroup}"] if box.as_root else ["--cgroups=disabled"]
        argv = [*self.program, *(["--cgroup-manager=cgroupfs"] if box.cgroup else [])]
        # no --rm: if killed while it removes, it leaves what nobody can name any more
        argv += ["run", f"--name={box.name}", "--pull=never", *(held if box.cgroup else [])]
        argv += ["--log-driver=none", "--network=host", f"--workdir={box.cwd}"]
        argv += [f"--shm-size={box.memory_bytes or _SHM_BYTES}"]
        argv += [f"--ulimit={name}={soft}:{hard}" for name, soft, hard in box.limits]
        if box.as_root:
            argv += [f"--memory={box.memory_bytes}"] if box.memory_bytes else []
            argv += [f"--cpuset-cpus={box.cpus}"] if box.cpus else []
            argv.append(f"--pids-limit={box.pids_max or -1}")
        else:
            argv.append("--userns=keep-id")
        real = [gpu.uuid for gpu in box.gpus if not gpu.simulated]
        argv += [f"--device=nvidia.com/gpu={uuid}" for uuid in (*real, *box.instances)]
        for path, read_only in box.binds:
            argv.append(f"--volume={path}:{path}:{'ro' if read_only else 'rw'}")
        argv += [f"--env={name}" for name in sorted(box.told)]
        if box.short_temporary:
            # the folder itself stays the image's, whose processes may be another user's; podman's
            # own files go to the task's folder outside
            short = f"{box.short_temporary}/muster"
            argv += [f"--volume={box.temporary}:{short}:rw", f"--env=TMPDIR={short}"]
        return [*argv, "--entrypoint=", "--", box.image, *box.argv]

    def environment(self, box: ContainerTask) -> dict[str, str]:
        """Return the environment with a mark: this process is asked to end before it is killed."""
        return box.environment | {processes.RUNTIME: "1"}

    def enter(self, box: ContainerTask, *, terminal: bool) -> list[str] | None:
        """See :class:`Runtime`."""
        words = ["--tty", *(f"--env={one}" for one in SESSIONS)] if terminal else []
        words = words or [f"--env={SESSIONS[0]}"]
        # as of run: systemd would move its helper out of the task's group
        manager = ["--cgroup-manager=cgroupfs"] if box.cgroup else []
        return [*self.program, *manager, "exec", "--interactive", *words, "--", box.name]

    def remove(self, name: str) -> list[str] | None:
        """See :class:`Runtime`."""
        return [*self.program, "rm", "--force", "--ignore", "--time=0", "--", name]


class Apptainer(msgspec.Struct, frozen=True):
    """Apptainer or its predecessor Singularity, with GPUs by ``--nv``."""

    program: tuple[str, ...] = ("apptainer",)

    def present(self, image: str) -> list[str]:
        """Return a command that checks the image as its user.

        The agent may have less access to a file server than the user, or hang there. Images of
        registries are pulled into the user's cache.
        """
        return ["false"] if image.startswith(_APPTAINER_SCHEMES) else ["test", "-r", image]

    def pull(self, image: str) -> list[str] | None:
        """Return a command that runs ``true`` in the image, which fetches and builds what is not
        cached.
        """
        if not image.startswith(_APPTAINER_SCHEMES):
            return None
        return [*self.program, "--quiet", "exec", "--contain", "--", image, "true"]

    def run(self, box: ContainerTask) -> list[str]:
        """See :class:`Runtime`."""
        argv = [*self.program, "--quiet", "exec", "--contain", "--cleanenv", f"--pwd={box.cwd}"]
        argv += ["--nv"] if box.instances or any(not gpu.simulated for gpu in box.gpus) else []
        for path, read_only in box.binds:
            argv.append(f"--bind={path}:{path}:{'ro' if read_only else 'rw'}")
        if box.short_temporary:
            # it can't make a folder in what it keeps there, which is empty anyway
            argv.append(f"--bind={box.temporary}:{box.short_temporary}:rw")
        return [*argv, "--", box.image, *box.argv]

    def environment(self, box: ContainerTask) -> dict[str, str]:
        """Return the environment, with the container's variables under a prefix."""
        prefix = PREFIXES[self.program[0].endswith("singularity")]
        told = box.told | ({"TMPDIR": box.short_temporary} if box.short_temporary else {})
        return box.environment | {f"{prefix}{k}": v for k, v in told.items()}

    def enter(self, box: ContainerTask, *, terminal: bool) -> list[str] | None:  # noqa: ARG002 - as above
        """Return None: it joins instances alone, which a task is not."""
        return None

    def remove(self, name: str) -> list[str] | None:  # noqa: ARG002 - it has no names
        """Return None: nothing can be left, because a container is only its processes."""
        return None


def limits_of_process() -> tuple[tuple[str, int, int], ...]:
    """Return the limits of this process for containers.

    Runtimes would otherwise set their own defaults, which a process that cannot raise its limits is
    refused.
    """
    limits = []
    for name, number, most in (
        ("nofile", resource.RLIMIT_NOFILE, None),
        ("nproc", resource.RLIMIT_NPROC, _NPROC_MAX),
    ):
        soft, hard = (value if value >= 0 else 2**20 for value in resource.getrlimit(number))
        limits.append((name, min(soft, most or soft), min(hard, most or hard)))
    return tuple(limits)


def find(kind: str, podman: tuple[str, ...], path: str) -> Runtime | None:
    """Return the runtime that a job asks for; None if it is not installed here."""

    def there(program: str) -> bool:
        return any(os.access(f"{folder}/{program}", os.X_OK) for folder in path.split(":")) or (
            "/" in program and os.access(program, os.X_OK)
        )

    if kind == "podman":
        return Podman(podman) if podman and there(podman[0]) else None
    for program in ("apptainer", "singularity"):
        if there(program):
            return Apptainer((program,))
    return None
