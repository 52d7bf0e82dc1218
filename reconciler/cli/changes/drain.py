"""The commands `muster drain` and `muster undrain`."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reconciler.cli import completion, context, lazy_import, terminal
from reconciler.cli.changes import overrides, submit
from reconciler.model.values import hostlists

if TYPE_CHECKING:
    from reconciler.operations.changes import change_requests
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    change_requests = lazy_import.module("reconciler.operations.changes.change_requests")

#: States in which a node takes no work, whether it is drained or not.
_OUT = ("Unhealthy", "Unknown", "Gone")

Nodes = Annotated[
    list[str],
    typer.Argument(
        help="Names of nodes, or host lists such as gpu[001-004].",
        autocompletion=completion.nodes,
        callback=context.require_name,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (drain, undrain):
        app.command()(command)


def drain(
    nodes: Nodes,
    reason: Annotated[str, typer.Option("--reason", "-m", help="Reason, shown to others.")],
    *,
    override: overrides.Override = False,
    lasts: overrides.For = None,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Take nodes out of service; running jobs continue.

    Commits an override to the node pool. With --override it works while git can't be reached.

    Example: muster drain gpu003 --reason "fan 3 is noisy"

    Example: muster drain 'gpu[017-020]' --reason "rack 5 is moved"

    Example: muster drain gpu003 --override --for 2h --reason "it smokes; git is down"
    """
    overrides.check_options(override=override, lasts=lasts, dry_run=dry_run)
    names = _expanded(nodes)
    if override:
        overrides.make_overrides("drain", names, reason, lasts, (server, token_file))
        return
    _change_nodes(
        "drain", names, reason, submit.Place(clone, server, token_file, with_local), dry_run=dry_run
    )


def _expanded(nodes: list[str]) -> list[str]:
    """Return names of nodes, each once. Exit if a word is not a host list."""
    try:
        return list(dict.fromkeys(name for one in nodes for name in hostlists.expand(one)))
    except hostlists.HostListError as error:
        terminal.fail(str(error), terminal.USAGE)


def _change_nodes(
    verb: Literal["drain", "undrain"],
    names: list[str],
    reason: str,
    place: submit.Place,
    *,
    dry_run: bool,
) -> None:
    to = submit.target(place)
    done = submit.make_changes(
        [change_requests.DrainRequest(verb, tuple(names), reason)], to, dry_run=dry_run
    )
    submit.report_changes(done, to, verb, reason, dry_run=dry_run)
    if verb == "undrain" and not dry_run and to.endpoint is not None:
        with contextlib.suppress(api_client.ApiError), api_client.ApiClient(to.endpoint) as api:
            for line in still_out(api.get("/v1/nodes")["items"], names):
                terminal.note(line)


def still_out(items: list[Any], names: list[str]) -> Iterator[str]:
    """Yield why nodes take no work although they are drained no more.

    Args:
        items: nodes of the API.
        names: of nodes that are not drained any more.
    """
    for item in items:
        if item["name"] in names and item["state"] in _OUT:
            why = f": {item['message']}" if item.get("message") else ""
            yield f"{item['name']} takes no work yet, because it is {item['state']}{why}"


def undrain(
    nodes: Nodes,
    *,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Put drained nodes back into service.

    Example: muster undrain gpu003
    """
    _change_nodes(
        "undrain",
        _expanded(nodes),
        "",
        submit.Place(clone, server, token_file, with_local),
        dry_run=dry_run,
    )
