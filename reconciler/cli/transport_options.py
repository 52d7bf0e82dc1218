"""The options of every command that calls a controller: whom it trusts, and if it may not encrypt.

They stand for the variables of the same meaning, so that programs that a command starts get them
too.
"""

import os
from typing import Any

import typer.core

from reconciler.operations.client import endpoints


def apply(command: Any) -> None:
    """Add the options to a command that takes ``--token-file``, and to all commands below it."""
    for below in getattr(command, "commands", {}).values():
        apply(below)
    places = [at for at, one in enumerate(command.params) if "--token-file" in one.opts]
    if places:
        command.params[places[0] + 1 : places[0] + 1] = [_ca(), _insecure()]


def _ca() -> Any:
    return typer.core.TyperOption(
        param_decls=["--ca"],
        metavar="FILE",
        help="CA of the controller's certificate, PEM. Default: those of this machine.",
        envvar=endpoints.CA_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_set(endpoints.CA_VARIABLE),
    )


def _insecure() -> Any:
    return typer.core.TyperOption(
        param_decls=["--insecure"],
        is_flag=True,
        help="Send your token to another machine without encryption.",
        envvar=endpoints.INSECURE_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_set(endpoints.INSECURE_VARIABLE),
    )


def _set(variable: str) -> Any:
    """Return a callback that keeps what is given in a variable."""

    def keep(_context: Any, _option: Any, value: Any) -> Any:
        if value:
            os.environ[variable] = "1" if value is True else str(value)
        return value

    return keep
