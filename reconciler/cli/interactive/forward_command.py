"""The command `muster forward`: reach a port on which a task listens, from here."""

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import array_elements, common_options, context, lazy_import, terminal
from reconciler.cli.interactive import exec_command, port_forward
from reconciler.model.values import addresses, found_values

if TYPE_CHECKING:
    from reconciler.operations.client import session_connection
else:
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(forward)


def _require_address(value: str) -> str:
    """Return an address of this machine as given. Raise BadParameter if it can be none."""
    if value != "localhost":
        try:
            ipaddress.ip_address(value)
        except ValueError:
            found = found_values.quote(value)
            raise typer.BadParameter(f"found {found}, expected one such as 127.0.0.1") from None
    return value


def forward(
    name: common_options.JobOrElement,
    ports: Annotated[str, typer.Argument(help="The port here and in the task, or one for both.")],
    *,
    task: exec_command.Task = None,
    element: exec_command.Element = None,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            help="Address to listen on here.",
            show_default=True,
            callback=_require_address,
        ),
    ] = "127.0.0.1",
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket", help="Listen on a Unix socket here, for yourself alone. Default: a port."
        ),
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Reach a TCP port of a task from here, until Ctrl-C.

    Only a port counts on which a process of the task itself listens. On a machine of several
    people its port here is open to all of them: --socket makes one for yourself. Each connection
    is a session of its own: it takes the right exec, and is judged again.

    Exit codes: 0 left by Ctrl-C; 125 it can't listen here, or nothing of the job can be reached.

    Example: muster forward notebook 8888

    Example: muster forward train 16006:6006 -t worker-0

    Example: muster forward train 6006 --socket ./tensorboard.sock
    """
    name, element = array_elements.resolve_element(name, element)
    here, there = parse_ports(ports)
    if socket is None and not addresses.is_loopback(address):
        terminal.note(f"warning: whoever reaches {address} can use this port")
    place = session_connection.SessionPlace(name, task, element)
    wanted = port_forward.WantedForward(place, there, address, here, socket)
    with context.controller(server, token_file, failed=terminal.MUSTER_FAILED) as api:
        code = port_forward.run(
            api, context.endpoint(server, token_file, failed=terminal.MUSTER_FAILED), wanted
        )
    raise typer.Exit(code)


def parse_ports(text: str) -> tuple[int, int]:
    """Return the port here and the port of the task. Exit if the text is no such thing."""
    here, colon, there = text.partition(":")
    found = [here, there if colon else here]
    if not all(one.isascii() and one.isdigit() and int(one) <= addresses.PORT_MAX for one in found):
        terminal.fail(
            f"ports: found {text!a}, expected PORT or HERE:THERE, such as 8888 or 18888:8888",
            terminal.USAGE,
        )
    numbers = int(found[0]), int(found[1])
    if not numbers[1]:
        terminal.fail("ports: the port of the task must be above 0", terminal.USAGE)
    return numbers
