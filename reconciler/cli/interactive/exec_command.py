"""The command `muster exec`: run a command in a task that runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import array_elements, common_options, context, lazy_import, terminal
from reconciler.cli.interactive import local_terminal, remote_command

if TYPE_CHECKING:
    from reconciler.operations.client import session_connection
else:
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(name="exec")(exec_)


Task = Annotated[
    str | None,
    typer.Option("--task", "-t", help="Task, such as main-0 or worker-3. Default: the first."),
]
Element = Annotated[
    int | None, typer.Option("--element", "-e", help="Array index. Default: 0.", min=0)
]


def exec_(
    name: common_options.JobOrElement,
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    *,
    task: Task = None,
    element: Element = None,
    pty: Annotated[
        bool | None,
        typer.Option(
            "--pty/--no-pty",
            help="Whether the command gets a terminal. Default: as this command has one.",
            show_default=False,
        ),
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Run a command in a task that runs.

    It runs as the job's user, in the task's control group, folders and environment, with its GPUs,
    and ends with the task. What it has started in the background ends with it. With a terminal
    every key goes to the command, Ctrl-C too; without one Ctrl-C is sent to it as a signal, and a
    second Ctrl-C leaves.

    It takes the right exec, and for another's job the right impersonate. Exit codes: the command's
    own; 128 + N: ended by signal N; 125: it was not started; 126, 127: it can't be run, or was not
    found; 255: the connection broke off.

    Example: muster exec train -- bash

    Example: muster exec train -t worker-3 -- nvidia-smi
    """
    name, element = array_elements.resolve_element(name, element)
    has_terminal = local_terminal.is_one() if pty is None else pty
    with context.controller(server, token_file, failed=terminal.MUSTER_FAILED) as api:
        place = session_connection.SessionPlace(name, task, element)
        wanted = remote_command.RemoteCommand(place, tuple(command), has_terminal=has_terminal)
        code = remote_command.run(
            api, context.endpoint(server, token_file, failed=terminal.MUSTER_FAILED), wanted
        )
    raise typer.Exit(code)
