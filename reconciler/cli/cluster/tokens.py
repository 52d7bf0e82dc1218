"""The commands `muster token`: tokens of people and nodes, on the controller's machine."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from reconciler.cli import context, terminal
from reconciler.model.values import found_values, quantities, times
from reconciler.operations.client import endpoints
from reconciler.operations.tokens import token_changes, token_file


class TokenRole(StrEnum):
    """Roles of tokens."""

    USER = "user"
    ADMIN = "admin"
    NODE = "node"
    METRICS = "metrics"


_Tokens = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="Token file of the controller. Default: that of `muster up` here.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Create, list and revoke tokens, on the controller's machine.",
    )
    group.command()(create)
    group.command(name="list")(show)
    group.command()(revoke)
    app.add_typer(group, name="token")


def create(
    identity: Annotated[
        str,
        typer.Argument(
            help="Whose token it is: an address. Of a node: a host list, such as gpu[001-064]."
        ),
    ],
    *,
    role: Annotated[TokenRole, typer.Option("--role", help="What the token may do.")],
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DURATION",
            help="How long it is valid, such as 90d. Default: until it is revoked.",
        ),
    ] = None,
    tokens: _Tokens = None,
) -> None:
    """Create a token and print it.

    It is printed this once: the file holds only its hash. A running controller takes it within a
    second.

    Example: muster token create ada@example.org --role user --expires 90d

    Example: muster token create 'gpu[001-064]' --role node --tokens /etc/muster/tokens
    """
    expires_at = None if expires is None else time.time() + _duration(expires)
    path = _file(tokens)
    try:
        token, line = token_changes.create(path, identity, role.value, expires_at)
    except token_file.TokenError as error:
        terminal.fail(str(error))
    terminal.out.print(token, markup=False, soft_wrap=True)
    end = "until it is revoked" if line.expires_at is None else f"until {_end(line)}"
    terminal.note(f"token {line.id} of {line.identity} is in {path}, valid {end}")


def show(
    *,
    tokens: _Tokens = None,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """List the tokens of a file, without what they are.

    Example: muster token list

    Example: muster token list --tokens /etc/muster/tokens -o json
    """
    try:
        lines = token_changes.listed(_file(tokens))
    except token_file.TokenError as error:
        terminal.fail(str(error))
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        items = [
            {
                "id": one.id,
                "identity": one.identity,
                "role": one.role,
                "expiresAt": None if one.expires_at is None else _end(one),
            }
            for one in lines
        ]
        terminal.print_document({"items": items}, output)
        return
    if not lines:
        terminal.note("no tokens")
        return
    terminal.print_table(
        ["ID", "IDENTITY", "ROLE", "EXPIRES"],
        [[one.id, one.identity, one.role, _shown_end(one)] for one in lines],
        cut=output is not terminal.Output.WIDE,
    )


def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="ID of the token, from `muster token list`.")
    ],
    *,
    tokens: _Tokens = None,
) -> None:
    """Revoke a token.

    A running controller refuses it within a second.

    Example: muster token revoke 3f9a1c02
    """
    try:
        line = token_changes.revoke(_file(tokens), token_id)
    except token_file.TokenError as error:
        terminal.fail(str(error))
    terminal.note(f"revoked {line.id}, {line.role} token of {line.identity}")


def _file(named: Path | None) -> Path:
    """Return the token file to work on. Exit if there is none."""
    if named is not None:
        return named
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / endpoints.ENDPOINT_FILE.parent / "tokens"
        if path.exists():
            return path
    return terminal.fail(
        "no token file here. To fix: name the one of the controller, such as "
        "--tokens /var/lib/muster/tokens",
        terminal.USAGE,
    )


def _duration(text: str) -> int:
    """Return the seconds of a duration. Exit if it is none."""
    try:
        found = quantities.parse_duration(text)
    except ValueError as error:
        return terminal.fail(f"--expires: {error}", terminal.USAGE)
    if found <= 0:
        terminal.fail(
            f"--expires: found {found_values.quote(text)}, expected more than nothing",
            terminal.USAGE,
        )
    return found


def _end(line: token_file.TokenLine) -> str:
    """Return when a token expires."""
    return "" if line.expires_at is None else times.format_time(line.expires_at)


def _shown_end(line: token_file.TokenLine) -> str:
    """Return when a token expires, for people."""
    if line.expires_at is None:
        return "never"
    is_over = line.expires_at <= time.time()
    return f"{terminal.format_clock(_end(line))}{' (expired)' if is_over else ''}"
