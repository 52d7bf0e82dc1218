"""The command line of ``muster-agent``: options, their help, and the settings they give.

Everything is checked before anything on the node is touched.
"""

import argparse
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from reconciler.model.state.records import Gpu
from reconciler.model.values import addresses, log_lines
from reconciler.model.values.quantities import parse_cpu, parse_memory

USAGE_ERROR = 64
NODE_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
GPUS_MAX = 1024
#: How tasks can be isolated.
ISOLATIONS = ("auto", "systemd", "cgroup", "process-group")
GPU_EVERY_S_MIN, GPU_EVERY_S_MAX = 0.05, 3600.0


class Listen(msgspec.Struct, frozen=True):
    """Where a node serves its metrics.

    Attributes:
        token_file: holds the token that clients must send; None, possible only on loopback, if
            they need none.
    """

    host: str
    port: int
    token_file: Path | None = None

    @property
    def shown(self) -> str:
        """``HOST:PORT``, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UserLimits(msgspec.Struct, frozen=True):
    """The users that tasks may run as, whatever the controller says. They bind root agents alone.

    Attributes:
        root: True if tasks may run as root where their pool allows it.
        uid_min: the lowest user id.
        names: the only users; None: any.
    """

    root: bool = True
    uid_min: int = 0
    names: frozenset[str] | None = None

    def refusal(self, name: str, uid: int) -> str:
        """Return the option that forbids a user, with what it says; empty if none does."""
        if uid == 0 and not self.root:
            return "--never-root"
        if uid < self.uid_min:
            return f"--min-uid {self.uid_min}"
        if self.names is not None and name not in self.names:
            return f"--users {','.join(sorted(self.names))}"
        return ""


class AgentSettings(msgspec.Struct, frozen=True):
    """Settings of one agent.

    Attributes:
        cpu_milli: CPUs to offer; 0 for all of the machine. ``memory_bytes`` likewise.
        gpus: simulated GPUs.
        watch_gpus: True to offer real GPUs.
        gpu_uuids: the only real GPUs and MIG instances to offer; None for all.
        interface: the network interface with the address; empty if the agent has to look for it.
        enter: prefix of the supervisor's command.
        task_pids_max: processes of one task, within a part of the machine's; 0 for no limit.
        cache_bytes_max: space for data that tasks copy; 0 for a fifth of the file system.
        metrics: the node's own port for Prometheus, if it has one.
    """

    server: str
    name: str
    root: Path
    token_file: Path | None = None
    ca_file: str = ""
    user_limits: UserLimits = UserLimits()
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
    interface: str = ""
    virtual: bool = False
    isolation: str = "auto"
    enter: tuple[str, ...] = ()
    pin_cpus: bool = False
    no_exec: bool = False
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
    cache_bytes_max: int = 0
    log_format: str = "readable"
    log_level: str = "info"
    metrics: Listen | None = None


class Parser(argparse.ArgumentParser):
    """A parser that exits with status 64 on wrong usage.

    Status 2, argparse's own, means "there are changes" for Muster's commands.
    """

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def parser(*, required: bool = True) -> Parser:
    """Return the parser of ``muster-agent``.

    Args:
        required: False for a check, which needs neither a controller nor a name nor a folder.
    """
    arguments = Parser(
        "muster-agent", description="Run the tasks of a Muster controller on this host."
    )
    node = arguments.add_argument_group("node")
    add = node.add_argument
    add("--server", required=required, metavar="URL", help="controller to work for, as "
        "http(s)://HOST:PORT")  # fmt: skip
    add("--name", required=required, metavar="NODE", help="name of this node in its pool")
    add("--root", required=required, type=Path, metavar="DIR", help="folder for everything that "
        "the agent stores on this node")  # fmt: skip
    add("--token-file", type=Path, metavar="FILE", help="file with the node's token; mode 0600")
    add("--ca", type=Path, metavar="FILE", help="CA of the controller's certificate, PEM. Default: "
        "those of this machine")  # fmt: skip
    add("--insecure", action="store_true", help="send the token to another machine although its "
        "address is http://, which is not encrypted")  # fmt: skip
    add("--label", action="append", default=[], metavar="KEY=VALUE", help="label of the node; can "
        "be repeated")  # fmt: skip
    add("--shared", type=Path, metavar="DIR", help="folder shared by all nodes. Default: "
        "ROOT/shared")  # fmt: skip
    add("--address", default="", help="address by which other nodes reach this one. Default: "
        "detected (see --check)")  # fmt: skip
    add("--interface", default="", metavar="NAME", help="network interface with that address, "
        "which NCCL and Gloo are told to use. Default: the one that has it")  # fmt: skip
    add("--virtual", action="store_true", help="this is one of several nodes on one machine")
    add("--boot-id", default="", help="boot id to report instead of the machine's")
    _add_check_options(arguments)
    _add_offer_options(arguments)
    _add_task_options(arguments)
    _add_user_options(arguments)
    _add_lifetime_options(arguments)
    _add_log_options(arguments)
    return arguments


def _add_check_options(made: Parser) -> None:
    add = made.add_argument_group("check").add_argument
    add("--check", action="store_true", help="report what this host can offer, what is missing and "
        "how to fix it, then exit: 0 if a node can run here, else 1")  # fmt: skip
    add("-o", "--output", choices=("table", "json"), default="table", help="format of --check. "
        "Default: table")  # fmt: skip


def _add_offer_options(made: Parser) -> None:
    add = made.add_argument_group("resources to offer").add_argument
    add("--cpus", metavar="N", help="number of CPUs. Default: all")
    add("--memory", metavar="AMOUNT", help="memory, like 4Gi. Default: all")
    add("--gpus", default="auto", metavar="WHICH", help="real GPUs: all, none, or UUIDs of GPUs or "
        "MIG instances separated by commas. Default: auto, which is all, but none on a virtual "
        "node or with simulated GPUs")  # fmt: skip
    add("--gpu-interval", type=float, default=15.0, metavar="SECONDS", help="time between two "
        "reads of the GPUs. Default: 15")  # fmt: skip
    add("--no-gpu-usage", action="store_true", help="do not report the usage of GPUs, for example "
        "because dcgm-exporter does. Inventory and processes are still reported")  # fmt: skip
    add("--simulated-gpus", type=int, default=0, metavar="N", help="offer N GPUs that do not exist")
    add("--gpu-model", default="simulated", metavar="NAME", help="model of the simulated GPUs")
    add("--gpu-memory", default="16Gi", metavar="AMOUNT", help="memory of each simulated GPU. "
        "Default: 16Gi")  # fmt: skip


def _add_task_options(made: Parser) -> None:
    add = made.add_argument_group("tasks").add_argument
    add("--isolation", choices=ISOLATIONS, default="auto", help="how tasks are isolated. Default: "
        "auto, the best that this host supports (see --check)")  # fmt: skip
    add("--pin-cpus", action="store_true", help="give each task cores of its own, near its GPUs, "
        "instead of a share of all cores")  # fmt: skip
    add("--no-exec", action="store_true", help="run no commands of people in tasks, and let nobody "
        "connect to their ports: muster exec, forward, cp and run --pty fail here")  # fmt: skip
    add("--task-pids", type=int, default=32_768, metavar="N", help="processes and threads that a "
        "task may have, at most a quarter of the machine's (4096 at least); 0 for no limit. "
        "Default: 32768")  # fmt: skip
    add("--podman", default="podman", metavar="COMMAND", help="command that runs podman, with any "
        "options that this host needs")  # fmt: skip
    add("--image-timeout", type=float, default=1800.0, metavar="SECONDS", help="time limit for "
        "pulling an image. Default: 1800")  # fmt: skip
    add("--data-cache", metavar="AMOUNT", help="disk space for data that jobs copy to this node. "
        "Default: a fifth of the file system of --root")  # fmt: skip
    add("--secrets", type=Path, metavar="DIR", help="folder with the secrets of jobs, as "
        "DIR/USER/NAME")  # fmt: skip
    add("--secret-command", default="", metavar="COMMAND", help="command that prints a secret that "
        "is not a file; it gets user and name as arguments")  # fmt: skip
    add("--enter", default="", metavar="COMMAND", help="prefix for the supervisor's command, like "
        "nsenter: all tasks then run inside it")  # fmt: skip


def _add_user_options(made: Parser) -> None:
    group = made.add_argument_group(
        "users of tasks, if the agent is root; no controller can lift these limits"
    )
    add = group.add_argument
    add("--never-root", action="store_true", help="run no task as root, whatever pools allow")
    add("--min-uid", type=int, default=0, metavar="UID", help="run no task as a user with a lower "
        "id, such as those of services. Default: 0")  # fmt: skip
    add("--users", metavar="NAMES", help="run tasks as these users alone, separated by commas. "
        "Default: any user of this machine")  # fmt: skip


def _add_lifetime_options(made: Parser) -> None:
    add = made.add_argument_group("stopping the agent").add_argument
    add("--stop-tasks-on-exit", action="store_true", help="stop all tasks when the agent is asked "
        "to stop. Default: they keep running")  # fmt: skip
    add("--stop-grace", type=float, default=5.0, metavar="SECONDS", help="time that they have to "
        "stop before they are killed. Default: 5")  # fmt: skip
    add("--die-with-parent", nargs="?", type=int, const=0, metavar="PID", help="stop, with all "
        "tasks, when the process ends that started the agent")  # fmt: skip


def _add_log_options(made: Parser) -> None:
    add = made.add_argument_group("logs and metrics").add_argument
    add("--log-format", choices=log_lines.FORMS, default="readable", help="format of the agent's "
        "own log, one event per line. Use json for log collectors")  # fmt: skip
    add("--log-level", choices=log_lines.LEVELS, default="info", help="lowest level to log; info "
        "includes the connection to the controller, and starts and ends of tasks")  # fmt: skip
    add("--log-limit", default="64Mi", metavar="AMOUNT", help="size at which the log of a task is "
        "rotated. Default: 64Mi")  # fmt: skip
    add("--logs-total", default="4Gi", metavar="AMOUNT", help="disk space for the logs of all "
        "tasks; the oldest logs of ended tasks are deleted first. Default: 4Gi")  # fmt: skip
    add("--metrics-listen", metavar="HOST:PORT", help="serve this node's /metrics for Prometheus "
        "here. Default: only the controller serves metrics")  # fmt: skip
    add("--metrics-token-file", type=Path, metavar="FILE", help="file with the token that clients "
        "of --metrics-listen must send; mode 0600. Required unless HOST is loopback")  # fmt: skip


def parse(arguments: list[str] | None = None) -> AgentSettings:
    """Return the settings of a command line. Exit with status 64 if it is wrong."""
    made = parser()
    given = made.parse_args(arguments)
    for problem in problems(given):
        made.error(problem)
    try:
        return _settings(given)
    except ValueError as problem:
        made.error(str(problem))


def problems(given: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with options that are given: invalid, out of range, or contradictory."""
    if given.name is not None and not NODE_PATTERN.fullmatch(given.name):
        yield (
            f"--name {given.name!r}: a node's name has letters, digits, '.', '_' and '-', begins "
            "and ends with a letter or digit, and has at most 253 characters"
        )
    if not 0 <= given.simulated_gpus <= GPUS_MAX:
        yield f"--simulated-gpus {given.simulated_gpus}: expected 0 to {GPUS_MAX}"
    if not GPU_EVERY_S_MIN <= given.gpu_interval <= GPU_EVERY_S_MAX:
        yield (
            f"--gpu-interval {given.gpu_interval:g}: expected {GPU_EVERY_S_MIN} to "
            f"{GPU_EVERY_S_MAX} seconds"
        )
    if given.simulated_gpus and given.gpus not in {"auto", "none"}:
        yield "--gpus and --simulated-gpus: a node offers either real or simulated GPUs"
    if given.users is not None and not all(given.users.split(",")):
        yield f"--users {given.users!r}: a name is empty"
    if given.token_file is not None and not given.insecure and _is_exposed(given.server):
        yield (
            f"--server {given.server} is another machine and not encrypted: whoever is on the way "
            "could read the node's token. Use its https:// address (muster controller --tls-cert), "
            "or accept it with --insecure"
        )
    counts = Counter(given.gpus.split(","))
    repeated = [uuid for uuid, count in counts.items() if uuid and count > 1]
    if repeated:
        yield f"--gpus: {', '.join(repeated)} is named more than once; name it once"
    if any("=" not in label for label in given.label):
        yield f"--label {given.label}: each label must be KEY=VALUE"
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


def _is_exposed(server: str | None) -> bool:
    """Return True if what is sent to a URL leaves this machine without encryption."""
    parts = urlsplit(server or "")
    return parts.scheme == "http" and not addresses.is_loopback(parts.hostname or "")


def chosen_gpus(given: argparse.Namespace) -> frozenset[str] | None:
    """Return UUIDs of GPUs and MIG instances named by ``--gpus``; None if it names none."""
    if given.gpus in {"auto", "all", "none"}:
        return None
    return frozenset(filter(None, given.gpus.split(",")))


def _settings(given: argparse.Namespace) -> AgentSettings:
    """Return parsed options as settings.

    Raises:
        ValueError: the address of the metrics port is wrong, or it would be open to anybody.
    """
    offers_all = not given.virtual and not given.simulated_gpus
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
        ca_file=str(given.ca or ""),
        user_limits=UserLimits(
            root=not given.never_root,
            uid_min=given.min_uid,
            names=None if given.users is None else frozenset(given.users.split(",")),
        ),
        cpu_milli=parse_cpu(given.cpus) if given.cpus else 0,
        memory_bytes=parse_memory(given.memory) if given.memory else 0,
        gpus=gpus,
        watch_gpus=offers_all if given.gpus == "auto" else given.gpus != "none",
        gpu_uuids=chosen_gpus(given),
        gpu_usage=not given.no_gpu_usage,
        gpu_every_s=given.gpu_interval,
        labels=dict(label.partition("=")[::2] for label in given.label),
        shared=given.shared,
        address=given.address,
        interface=given.interface,
        virtual=given.virtual,
        isolation=given.isolation,
        enter=tuple(shlex.split(given.enter)),
        pin_cpus=given.pin_cpus,
        no_exec=given.no_exec,
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
    """Return where the node serves its metrics; None if it has no port of its own.

    Raises:
        ValueError: the address is wrong, or anybody could read there.
    """
    listen, token_file = given.metrics_listen, given.metrics_token_file
    if listen is None:
        if token_file is not None:
            raise ValueError("--metrics-token-file needs --metrics-listen")
        return None
    host, port = addresses.listening(
        listen,
        token_file,
        option="--metrics-listen",
        tokens="--metrics-token-file",
        risk="read what runs here, and whose it is",
    )
    return Listen(host, port, token_file)
