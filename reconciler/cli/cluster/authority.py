"""The commands `muster ca`: a certificate authority for a site that has none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import lazy_import, terminal

if TYPE_CHECKING:
    from reconciler.operations import own_ca
else:
    own_ca = lazy_import.module("reconciler.operations.own_ca")


def _require_hosts(hosts: list[str]) -> list[str]:
    """Return hosts as given. Raise BadParameter if one is no name or address."""
    try:
        own_ca.require_hosts(hosts)
    except own_ca.AuthorityError as error:
        raise typer.BadParameter(str(error)) from None
    return hosts


_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the authority's files are.")]
_Hosts = Annotated[
    list[str],
    typer.Option(
        "--host",
        metavar="NAME",
        help="Name or address by which the controller is reached. Can be repeated.",
        callback=_require_hosts,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Make TLS certificates for the controller, if the site has no authority.",
    )
    group.command()(init)
    group.command()(issue)
    app.add_typer(group, name="ca")


def init(folder: _Folder, *, host: _Hosts) -> None:
    """Make an authority, and a certificate and key of the controller.

    Example: muster ca init /etc/muster/tls --host ctl.example.org --host 10.0.0.5
    """
    _make(own_ca.init, folder, host)
    terminal.note(f"the authority is in {folder}; its ca.key is needed only to renew")
    _say_use(folder, host)


def issue(folder: _Folder, *, host: _Hosts) -> None:
    """Renew the controller's certificate and key.

    The controller reads them without a restart.

    Example: muster ca issue /etc/muster/tls --host ctl.example.org --host 10.0.0.5
    """
    _make(own_ca.issue, folder, host)
    terminal.note(f"{folder}/server.pem is new, valid for {own_ca.SERVER_DAYS} days")


def _make(
    make: Callable[[Path, list[str], dt.datetime], None], folder: Path, hosts: list[str]
) -> None:
    try:
        make(folder, hosts, dt.datetime.now(dt.UTC))
    except own_ca.AuthorityError as error:
        terminal.fail(str(error))


def _say_use(folder: Path, hosts: list[str]) -> None:
    name = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    terminal.note(f"controller:  --tls-cert {folder}/server.pem --tls-key {folder}/server.key")
    terminal.note(f"agents:      --server https://{name}:7420 --ca {folder}/ca.pem")
    terminal.note(f"people:      MUSTER_SERVER=https://{name}:7420 MUSTER_CA={folder}/ca.pem")
