"""What an agent is told on its command line, checked before anything is touched."""

import argparse
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from reconciler.model.state.records import Gpu
from reconciler.model.values import addresses, log_lines
from reconciler.model.values.quantities import parse_cpu, parse_memory

USAGE_ERROR = 64
NODE_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
GPUS_MAX = 1024
#: Ways of holding tasks that can be asked for.
ISOLATIONS = ("auto", "systemd", "cgroup", "process-group")
GPU_EVERY_S_MIN, GPU_EVERY_S_MAX = 0.05, 3600.0


class Listen(msgspec.Struct, frozen=True):
    """Where the node's page can be read, and the file with the token that callers have to show:
    None, which is possible on loopback only, for none."""

    host: str
    port: int
    token_file: Path | None = None

    @property
    def shown(self) -> str:
        """HOST:PORT, as it is written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AgentSettings(msgspec.Struct, frozen=True):
    """One agent's settings. ``cpu_milli`` and ``memory_bytes`` 0: what the machine has.

    ``task_pids_max``: 0 for no limit.
    ``gpus`` are simulated ones. ``watch_gpus``: real ones are looked for, of them only
    ``gpu_uuids`` where that is not None, which may be of MIG instances.
    """

    server: str
    name: str
    root: Path
    token_file: Path | None = None
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: tuple[Gpu, ...] = ()
    watch_gpus: bool = False
    gpu_uuids: frozenset[str] | None = None
    gpu_usage: bool = True
    gpu_every_s: float = 15.0
    labels: dict[str, str] = {}
    shared: Path | None = None
    address: str = ""
    virtual: bool = False
    isolation: str = "auto"
    #: What the supervisor's command is preceded by, as for namespaces of its own.
    enter: tuple[str, ...] = ()
    pin_cpus: bool = False
    task_pids_max: int = 32_768
    podman: tuple[str, ...] = ("podman",)
    image_timeout_s: float = 1800.0
    secrets: Path | None = None
    secret_command: tuple[str, ...] = ()
    boot_id: str = ""
    stop_tasks_on_exit: bool = False
    stop_grace_s: float = 5.0
    die_with_parent: int | None = None
    log_bytes_max: int = 64 * 2**20
    logs_total_bytes_max: int = 4 * 2**30
    logs_age_s_max: float = 7 * 86_400.0
    #: Data that tasks have copied to the node; 0: a fifth of the file system.
    cache_bytes_max: int = 0
    #: Form of what the agent itself tells on its standard error.
    log_format: str = "readable"
    log_level: str = "info"
    #: A port of the node's own for Prometheus; None: there is none.
    metrics: Listen | None = None


class Parser(argparse.ArgumentParser):
    """Wrong usage exits with 64: 2 means "changes are there" for Muster's commands."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def parser(*, required: bool = True) -> Parser:
    """The command line of ``muster-agent``; not ``required``: a check needs no server nor name."""
    made = Parser("muster-agent", description="Runs a node's tasks for a Muster controller.")
    add = made.add_argument
    add("--server", required=required, metavar="URL", help="the controller, http(s)://host:port")
    add("--name", required=required, metavar="NODE", help="the node's name in its pool")
    add("--root", required=required, type=Path, metavar="DIR", help="the node's own folder")
    add("--check", action="store_true", help="say what this host offers and what is missing, and "
        "leave: 0 when a node can run here, else 1")  # fmt: skip
    add("-o", "--output", choices=("table", "json"), default="table", help="form of --check")
    add("--token-file", type=Path, help="file with the node's token, mode 0600")
    add("--cpus", metavar="N", help="CPUs to offer instead of all")
    add("--memory", metavar="AMOUNT", help="memory to offer instead of all, like 4Gi")
    add("--gpus", default="auto", metavar="WHICH", help="real GPUs to offer: all, none, or UUIDs "
        "of GPUs or of MIG instances, with commas; auto: all, but none on a virtual node or beside "
        "simulated ones")  # fmt: skip
    add("--no-gpu-usage", action="store_true", help="report no usage of GPUs, as where "
        "dcgm-exporter does; what they are, and who is on them, is reported")  # fmt: skip
    add("--gpu-interval", type=float, default=15.0, metavar="S", help="time between looks at GPUs")
    add("--simulated-gpus", type=int, default=0, metavar="N", help="offer GPUs that aren't there")
    add("--gpu-model", default="simulated", metavar="NAME", help="model of the simulated GPUs")
    add("--gpu-memory", default="16Gi", metavar="AMOUNT", help="memory of each simulated GPU")
    add("--label", action="append", default=[], metavar="K=V", help="a label; repeatable")
    add("--shared", type=Path, metavar="DIR", help="folder that all nodes share (ROOT/shared)")
    add("--address", default="", help="where other nodes reach this one")
    add("--virtual", action="store_true", help="one of several nodes of one machine")
    add("--isolation", choices=ISOLATIONS, default="auto", help="how tasks are held: auto: as "
        "well as this host allows; see --check")  # fmt: skip
    add("--enter", default="", metavar="COMMAND", help="what the command of the supervisor is "
        "preceded by, as nsenter: all tasks start there")  # fmt: skip
    add("--pin-cpus", action="store_true", help="give tasks cores of their own, near their GPUs, "
        "instead of shares of all")  # fmt: skip
    add("--task-pids", type=int, default=32_768, metavar="N", help="processes and threads that one "
        "task may have; 0: any number")  # fmt: skip
    add("--podman", default="podman", metavar="COMMAND", help="how podman is called here, options "
        "that it needs on this host included")  # fmt: skip
    add("--image-timeout", type=float, default=1800.0, metavar="S", help="how long the pull of an "
        "image may take")  # fmt: skip
    add("--secrets", type=Path, metavar="DIR", help="folder with secrets of jobs, DIR/USER/NAME")
    add("--secret-command", default="", metavar="COMMAND", help="what prints a secret that is no "
        "file, called with user and name")  # fmt: skip
    add("--boot-id", default="", help="present this boot instead of the machine's")
    add("--stop-tasks-on-exit", action="store_true", help="end all tasks when told to leave")
    add("--stop-grace", type=float, default=5.0, metavar="S", help="how long they may take")
    add("--die-with-parent", nargs="?", type=int, const=0, metavar="PID",
        help="leave, with all tasks, when the process that started this one ends")  # fmt: skip
    add("--log-format", choices=log_lines.FORMS, default="readable", help="form of what the agent "
        "itself says, one event a line; json is for programs that collect logs")  # fmt: skip
    add("--log-level", choices=log_lines.LEVELS, default="info", help="what is told at least: info "
        "has the session with the controller, and tasks that begin and end")  # fmt: skip
    add("--log-limit", default="64Mi", metavar="AMOUNT", help="size at which a log is turned over")
    add("--logs-total", default="4Gi", metavar="AMOUNT", help="size that all logs may have: "
        "the oldest of tasks that have ended go")  # fmt: skip
    add("--data-cache", metavar="AMOUNT", help="size that data may have which jobs copy to this "
        "node; left out: a fifth of the file system of --root")  # fmt: skip
    add("--metrics-listen", metavar="HOST:PORT", help="open a port where Prometheus reads this "
        "node's page, /metrics; left out: it is on the controller alone")  # fmt: skip
    add("--metrics-token-file", type=Path, metavar="FILE", help="file, mode 0600, with the token "
        "that callers of --metrics-listen have to show; needed beyond loopback")  # fmt: skip
    return made


def parse(arguments: list[str] | None = None) -> AgentSettings:
    """Settings from a command line; leaves with 64 where it makes no sense."""
    made = parser()
    given = made.parse_args(arguments)
    for problem in problems(given):
        made.error(problem)
    try:
        return _settings(given)
    except ValueError as problem:
        made.error(str(problem))


def problems(given: argparse.Namespace) -> Iterator[str]:
    """What is out of its range, can't be read, or contradicts each other; no name is none of it."""
    if given.name is not None and not NODE_PATTERN.fullmatch(given.name):
        yield (
            f"--name {given.name!r}: a node's name has letters, digits, '.', '_' and '-', begins "
            "and ends with a letter or digit, and has 253 characters at the most"
        )
    if not 0 <= given.simulated_gpus <= GPUS_MAX:
        yield f"--simulated-gpus {given.simulated_gpus}: 0 to {GPUS_MAX} are possible"
    if not GPU_EVERY_S_MIN <= given.gpu_interval <= GPU_EVERY_S_MAX:
        yield (
            f"--gpu-interval {given.gpu_interval:g}: {GPU_EVERY_S_MIN} to {GPU_EVERY_S_MAX} "
            "seconds are possible"
        )
    if given.simulated_gpus and given.gpus not in {"auto", "none"}:
        yield "--gpus and --simulated-gpus: a node offers real GPUs or simulated ones"
    twice = [one for one, count in Counter(given.gpus.split(",")).items() if one and count > 1]
    if twice:
        yield f"--gpus: {', '.join(twice)} is named more than once: name each once"
    if any("=" not in label for label in given.label):
        yield f"--label {given.label}: each has to be KEY=VALUE"
    amounts: tuple[tuple[str, str | None, Callable[[str], int]], ...] = (
        ("--cpus", given.cpus, parse_cpu),
        ("--memory", given.memory, parse_memory),
        ("--gpu-memory", given.gpu_memory, parse_memory),
        ("--log-limit", given.log_limit, parse_memory),
        ("--logs-total", given.logs_total, parse_memory),
        ("--data-cache", given.data_cache, parse_memory),
    )
    for option, value, read in amounts:
        try:
            if value:
                read(value)
        except ValueError as problem:
            yield f"{option} {value}: {problem}"


def chosen_gpus(given: argparse.Namespace) -> frozenset[str] | None:
    """UUIDs of the GPUs and MIG instances that a node is to offer; None: it names none."""
    if given.gpus in {"auto", "all", "none"}:
        return None
    return frozenset(filter(None, given.gpus.split(",")))


def _settings(given: argparse.Namespace) -> AgentSettings:
    """The values in units of their own.

    Raises:
        ValueError: an amount can't be read.
    """
    alone = not given.virtual and not given.simulated_gpus
    gpu_memory = parse_memory(given.gpu_memory)
    gpus = tuple(
        Gpu(i, f"GPU-sim-{given.name}-{i}", given.gpu_model, gpu_memory, simulated=True)
        for i in range(given.simulated_gpus)
    )
    return AgentSettings(
        server=given.server,
        name=given.name,
        root=Path(os.path.realpath(given.root)),
        token_file=given.token_file,
        cpu_milli=parse_cpu(given.cpus) if given.cpus else 0,
        memory_bytes=parse_memory(given.memory) if given.memory else 0,
        gpus=gpus,
        watch_gpus=alone if given.gpus == "auto" else given.gpus != "none",
        gpu_uuids=chosen_gpus(given),
        gpu_usage=not given.no_gpu_usage,
        gpu_every_s=given.gpu_interval,
        labels=dict(label.partition("=")[::2] for label in given.label),
        shared=given.shared,
        address=given.address,
        virtual=given.virtual,
        isolation=given.isolation,
        enter=tuple(shlex.split(given.enter)),
        pin_cpus=given.pin_cpus,
        task_pids_max=max(0, given.task_pids),
        podman=tuple(shlex.split(given.podman)),
        secrets=given.secrets,
        secret_command=tuple(shlex.split(given.secret_command)),
        image_timeout_s=max(1.0, given.image_timeout),
        boot_id=given.boot_id,
        stop_tasks_on_exit=given.stop_tasks_on_exit,
        stop_grace_s=given.stop_grace,
        die_with_parent=given.die_with_parent,
        log_bytes_max=max(2**12, parse_memory(given.log_limit)),
        logs_total_bytes_max=parse_memory(given.logs_total),
        cache_bytes_max=parse_memory(given.data_cache) if given.data_cache else 0,
        log_format=given.log_format,
        log_level=given.log_level,
        metrics=listen_of(given),
    )


def listen_of(given: argparse.Namespace) -> Listen | None:
    """Where the node's page is to be read; None: at no port of its own.

    Raises:
        ValueError: that is no address, or anybody could read there.
    """
    listen, token_file = given.metrics_listen, given.metrics_token_file
    if listen is None:
        if token_file is not None:
            raise ValueError("--metrics-token-file: there is no --metrics-listen to ask for it at")
        return None
    host, port = addresses.listening(
        listen,
        token_file,
        option="--metrics-listen",
        tokens="--metrics-token-file",
        risk="read what runs here, and whose it is",
    )
    return Listen(host, port, token_file)
