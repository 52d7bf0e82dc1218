"""Commands that run things: a local cluster, the demo, a controller, an agent."""

from __future__ import annotations

import os
import platform
import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

import reconciler
from reconciler import interpreter
from reconciler.cli import context, lazy_import, terminal
from reconciler.model.values import revision_names, suggestions
from reconciler.operations import local_git
from reconciler.operations.local import starter

if TYPE_CHECKING:
    from reconciler.operations.local import local_cluster
else:
    local_cluster = lazy_import.module("reconciler.operations.local.local_cluster")

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(up)
    app.command()(demo)
    app.command()(init)
    app.command(context_settings=PASS_ON)(controller)
    app.command(context_settings=PASS_ON)(agent)
    app.command()(version)


class _Stop:
    """A flag that Ctrl-C or SIGTERM sets."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


_Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=0,
        help="The most virtual nodes to start of those in the pools. Default: all.",
    ),
]
_Provisioners = Annotated[
    Path | None,
    typer.Option(
        "--provisioners",
        help="Folder of scripts for pools with `provisioner: exec`. Default: none.",
    ),
]
_Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate",
        help="Give each node its own network, host name and cores, if possible.",
    ),
]
_Accept = Annotated[
    str | None,
    typer.Option(
        "--accept-revision",
        metavar="COMMIT",
        help="Accept this revision once, although it does not follow the last one (rewritten "
        "history). Default: none.",
    ),
]
_Secrets = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="FOLDER",
        help="Folder with secrets of jobs, as FOLDER/USER/NAME. Default: none.",
    ),
]
_NotifySecrets = Annotated[
    Path | None,
    typer.Option(
        "--notify-secrets",
        metavar="FOLDER",
        help="Folder with keys and tokens of notifications. Default: .muster/notify.",
    ),
]


class LogFormat(StrEnum):
    """Formats of log lines."""

    READABLE = "readable"
    JSON = "json"


_LogFormat = Annotated[
    LogFormat,
    typer.Option("--log-format", help="Log format of the controller and the agents."),
]


def up(
    repo: Annotated[str, typer.Option("--repo", help="Path or URL of your repository.")] = ".",
    path: Annotated[
        str,
        typer.Option(
            "--path", help="Folder of the repository with the cluster's YAML. Default: all of it."
        ),
    ] = "",
    branch: Annotated[
        str | None, typer.Option("--branch", help="Branch to read. Default: the current one.")
    ] = None,
    nodes: _Nodes = None,
    listen: Annotated[str, typer.Option(help="Address and port of the API.")] = "127.0.0.1:7420",
    *,
    provisioners: _Provisioners = None,
    isolate: _Isolate = False,
    accept_revision: _Accept = None,
    secrets: _Secrets = None,
    notify_secrets: _NotifySecrets = None,
    log_format: _LogFormat = LogFormat.READABLE,
) -> None:
    """Run a cluster of virtual nodes on this machine.

    Reads the pools, queues and jobs of your repository. Logs are in .muster/controller.log and
    .muster/nodes. Ctrl-C stops the cluster.

    Example: muster up

    Example: muster up --repo ../cluster --path clusters/test --branch main
    """
    folders = {"--secrets": secrets, "--notify-secrets": notify_secrets}
    for option, folder in folders.items():
        if folder is not None and not folder.is_dir():
            terminal.fail(f"{option}: folder {folder} does not exist", terminal.USAGE)
    try:
        accept_revision = accept_revision and revision_names.accepted(accept_revision)
    except ValueError as error:
        terminal.fail(f"--accept-revision: {error}", terminal.USAGE)
    address = str(Path(repo).resolve()) if Path(repo).exists() else repo
    known = local_git.branches(address) if branch else []
    if known and branch not in known:
        hint = suggestions.hint(branch or "", known) or f"; branches: {', '.join(known)}"
        terminal.fail(f"there is no branch {branch} in {address}{hint}")
    cluster = local_cluster.LocalCluster(
        local_cluster.LocalClusterOptions(
            folder=Path.cwd(),
            repository=address,
            branch=branch or local_git.current_branch(address),
            sub_path=path,
            listen=listen,
            identity=context.identity() or f"{os.environ.get('USER', 'local')}@{platform.node()}",
            nodes=nodes,
            provisioners=provisioners,
            isolate=isolate,
            accept_revision=accept_revision,
            secrets=secrets and secrets.resolve(),
            notify_secrets=notify_secrets and notify_secrets.resolve(),
            log_format=log_format.value,
        )
    )
    try:
        local_cluster.parse_address(listen)
    except local_cluster.ClusterError as error:
        terminal.fail(str(error), terminal.USAGE)
    stop = _Stop()
    try:
        cluster.claim()
    except local_cluster.ClusterError as error:
        terminal.fail(str(error))
    terminal.note(f"starting a controller over {address} ({cluster.options.branch})")
    terminal.note(f"API at {cluster.url}")
    try:
        cluster.start(stop, terminal.note)
        _say_ready(cluster)
        cluster.keep(stop, terminal.note)
    except local_cluster.StartStoppedError:
        pass  # the user asked for it
    except local_cluster.ClusterError as error:
        terminal.fail(str(error))
    finally:
        terminal.note("stopping")
        cluster.stop()


def _say_ready(cluster: local_cluster.LocalCluster) -> None:
    """Print what runs now, and what to do next."""
    names = cluster.nodes.names() if cluster.nodes else []
    terminal.note(f"virtual nodes: {', '.join(names) or 'none yet; no virtual pool is in force'}")
    if cluster.not_isolated:
        terminal.note(f"nodes share this machine's network: {cluster.not_isolated}")
    if fewer := cluster.shortfall():
        terminal.note(fewer)
    terminal.note("GPUs of virtual nodes are simulated. In another terminal: muster status")
    token = os.path.relpath(cluster.state / "token")
    terminal.note_command(f'metrics: curl -H "Authorization: Bearer $(cat {token})" \\')
    terminal.note_command(f"  {cluster.url}/metrics")
    terminal.note("Ctrl-C stops the cluster.")


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", help="Working folder; created anew each time.")
    ] = Path("demo"),
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the cluster running at the end.")
    ] = False,
) -> None:
    """Show Muster at work on real jobs, in a minute or two.

    Starts four virtual nodes, trains on them, evicts, kills an agent and a node, and checks each
    step. It needs neither GPUs nor root.

    Example: muster demo

    Example: muster demo --keep
    """
    from reconciler.demo import steps  # noqa: PLC0415 - only the demo needs it

    raise typer.Exit(steps.play(folder, keep=keep))


def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the repository.")],
) -> None:
    """Create a starter repository with one commit.

    It has two virtual nodes, a queue and a job. `muster up` in it starts the cluster.

    Example: muster init my-cluster
    """
    try:
        starter.begin(folder)
    except starter.StarterError as error:
        terminal.fail(str(error))
    terminal.out.print(str(folder))
    terminal.note(f"next: cd {folder} && muster up")


def controller(call: typer.Context) -> None:
    """Run a controller.

    `muster controller --help` lists its options.

    Example: muster controller --repo https://git.example.org/cluster.git --state /var/lib/muster
    """
    _become("reconciler.controller.process", call.args)


def agent(call: typer.Context) -> None:
    """Run the agent of a node.

    `muster agent --help` lists its options.

    Example: muster agent --server https://muster.example.org --name gpu001 --root /var/lib/muster
    """
    _become("agents", call.args)


def _become(module: str, arguments: list[str]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, interpreter.module_command(module, *arguments))  # noqa: S606 - no shell


def version() -> None:
    """Print the version.

    Example: muster version
    """
    terminal.out.print(f"muster {reconciler.__version__}")
