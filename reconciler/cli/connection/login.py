"""The commands `login`, `logout` and `whoami`."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any
#: The longest token that is read.
_TOKEN_CHARACTERS_MAX = 4096


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (login, logout, whoami):
        app.command()(command)


def login(
    url: Annotated[
        str, typer.Argument(help="URL of the controller.", callback=context.require_url)
    ],
    *,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token. Default: it is asked for, or read from stdin.",
        ),
    ] = None,
) -> None:
    """Keep a controller and your token, for all commands of yours.

    The token is tried first, and kept in a file that only you may read. --server, MUSTER_SERVER and
    the cluster of a folder (muster up) come before it.

    Example: muster login https://muster.example.org:7420

    Example: muster login https://muster.example.org:7420 --token-file ~/token
    """
    try:
        token = endpoints.read_token(token_file) if token_file is not None else _asked_for()
        ca_file = os.environ.get(endpoints.CA_VARIABLE) or None
        answer = _tried(url, token, ca_file)
        kept = endpoints.log_in(url, token, ca_file)
    except (endpoints.EndpointError, OSError) as error:
        terminal.fail(str(error))
    terminal.print_line(f"logged in to {kept.url} as {_who(answer)}")
    terminal.note(f"kept in {endpoints.login_file().parent}; next: muster doctor")


def logout() -> None:
    """Forget the controller and the token of `muster login`.

    The token itself stays valid: who runs the controller revokes it.

    Example: muster logout
    """
    try:
        url = endpoints.log_out()
    except OSError as error:
        terminal.fail(f"{endpoints.login_file()}: {error.strerror}")
    terminal.note("nobody is logged in" if url is None else f"logged out of {url}")


def whoami(
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show whose token you use, and what Access says of that person.

    Example: muster whoami
    """
    with context.controller(server, token_file) as api:
        answer = api.get("/v1/identity")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(answer, output)
        return
    whose = answer["identity"]
    rows = [
        ["identity", whose["name"] + ("" if whose["isListed"] else " (not in Access)")],
        ["token", f"{answer['role']}, until {answer['expiresAt'] or 'it is revoked'}"],
        ["roles", ", ".join(whose["roles"]) or "-"],
        ["groups", ", ".join(whose["groups"]) or "-"],
        ["unix user", whose["unixUser"] or "-"],
    ]
    terminal.print_table(["WHAT", "VALUE"], rows)


def _asked_for() -> str:
    """Return the token that somebody types, or that a program writes.

    Raises:
        EndpointError: there is none.
    """
    if sys.stdin.isatty():
        token = getpass.getpass("token: ", stream=sys.stderr).strip()
    else:
        token = sys.stdin.read(_TOKEN_CHARACTERS_MAX).strip()
    if not token or not token.isprintable() or " " in token:
        raise endpoints.EndpointError(
            "no token came; expected one word. To fix: ask who runs the controller for one (muster "
            "token create), and paste it here, or name its file with --token-file"
        )
    return token


def _tried(url: str, token: str, ca_file: str | None) -> Json:
    """Return what the controller says of a token. Exit if it does not take it."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as held:  # of mode 0600
        held.write(token)
        held.flush()
        endpoint = endpoints.Endpoint(url.rstrip("/"), held.name, ca_file)
        endpoints.require_privacy(endpoint)
        try:
            with api_client.ApiClient(endpoint) as api:
                return api.get("/v1/identity")
        except api_client.ApiError as error:
            terminal.fail(f"{error}; nothing was kept")


def _who(answer: Json) -> str:
    end = f" until {answer['expiresAt']}" if answer["expiresAt"] else ""
    return f"{answer['identity']['name']} ({answer['role']}{end})"
