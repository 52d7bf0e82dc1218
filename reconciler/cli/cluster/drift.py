"""The commands `muster drift` and `muster export`."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import common_options, context, lazy_import, terminal
from reconciler.model.policy import drift_kinds
from reconciler.model.values import found_values, hostlists, suggestions
from reconciler.operations.views import cluster_status

if TYPE_CHECKING:
    from reconciler.operations import discovery
else:
    discovery = lazy_import.module("reconciler.operations.discovery")

Json = Any

#: Least widths of columns in a short line.
LEAST = {"KIND": 25, "SUBJECT": 14}
#: How often --watch asks the controller.
LOOK_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(drift)
    app.command()(export)


def drift(
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", "-k", help="Only this kind of drift, such as node-missing. Default: all."
        ),
    ] = None,
    node: common_options.OfNode = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", help="Only this pool. Default: all.", callback=context.require_name),
    ] = None,
    *,
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Also show differences that the drift policy ignores."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Continue, and print changes until Ctrl-C.")
    ] = False,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List differences between git and the cluster.

    ACTION is what Muster does about a difference: report, remediate or ignore. Exits with 2 if
    there are any.

    Example: muster drift

    Example: muster drift --node gpu007 -o wide
    """
    _require_kind(kind)
    query = {"kind": kind, "node": node, "pool": pool, "all": "true" if everything else None}
    given = {name: value for name, value in query.items() if value is not None}
    with context.controller(server, token_file) as api:
        page = api.get("/v1/drift", **given)
        if not page["items"]:
            _require_known(api, node, pool)
        with contextlib.nullcontext() if watch else terminal.keep_exit_code():
            _show(page, output, following=watch, filters=_filters(kind, node, pool))
        if watch:
            _follow(api, given, page["items"], output)
    raise typer.Exit(terminal.CHANGES if page["items"] else terminal.DONE)


def export(
    *,
    declared: Annotated[
        bool, typer.Option("--all", "-a", help="Also write nodes that a pool declares.")
    ] = False,
    manage: Annotated[
        bool, typer.Option("--manage", help="Write pools that take work, not `mode: observe`.")
    ] = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Generate NodePool YAML for undeclared nodes.

    Nodes that are alike share a pool. Nothing is committed: check the YAML, rename the pools,
    commit.

    Example: muster export > pools.yaml
    """
    with context.controller(server, token_file) as api:
        items = api.get("/v1/nodes")["items"]
        # with --all the result replaces the existing pools
        taken = [] if declared else [one["name"] for one in api.get("/v1/pools")["items"]]
    found = discovery.pools(discovery.seen(items, declared=declared), taken)
    if not found:
        which = "no nodes report" if declared else "every node that reports is declared by a pool"
        terminal.note(f"nothing to write: {which}")
        return
    terminal.write_text(discovery.text(found, observe=not manage))
    count = sum(len(pool.nodes) for pool in found)
    many = f"{terminal.counted(count, 'node')} in {terminal.counted(len(found), 'pool')}"
    terminal.note(f"{many}. Check it with `muster validate`, then commit.")


def _require_kind(kind: str | None) -> None:
    """Exit if there is no such kind of drift."""
    if kind is None or kind in drift_kinds.KINDS:
        return
    near = [one for one in drift_kinds.KINDS if one.startswith(kind)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    hint = hint or suggestions.hint(kind, drift_kinds.KINDS)
    hint = hint or f". Kinds: {', '.join(drift_kinds.KINDS)}."
    terminal.fail(f"no kind of drift named {found_values.quote(kind)}{hint}", terminal.USAGE)


def _require_known(api: Json, node: str | None, pool: str | None) -> None:
    """Exit if nothing was found because the pool or node does not exist."""
    if node is None and pool is None:
        return
    pools = api.get("/v1/pools")["items"]
    names = [one["name"] for one in pools]
    if pool is not None and pool not in names:
        terminal.fail(suggestions.missing("NodePool", pool, names))
    if node is None:
        return
    known = {one["name"] for one in api.get("/v1/nodes")["items"]}
    known.update(host for one in pools if one["hosts"] for host in hostlists.expand(one["hosts"]))
    if node not in known:
        terminal.fail(suggestions.missing("Node", node, sorted(known)))


def _filters(kind: str | None, node: str | None, pool: str | None) -> str:
    """Return the filters, such as `of kind gpu-failed at node gpu001`; empty if there are none."""
    filters = (("of kind", kind), ("at node", node), ("in pool", pool))
    return " ".join(f"{words} {value}" for words, value in filters if value is not None)


def _show(page: Json, output: terminal.Output, *, following: bool, filters: str = "") -> None:
    items = page["items"]
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        if following:
            for item in items:
                _line("found", item)
        else:
            terminal.print_document(page, output)
    elif items:
        _table(items, wide=output is terminal.Output.WIDE)
    elif filters:
        terminal.note(f"no drift {filters}; `muster drift` lists all")
    else:
        terminal.note("no drift: the cluster matches git")


def _table(items: list[Json], *, wide: bool) -> None:
    headings = ["KIND", "SUBJECT", "SEVERITY", "ACTION", "SINCE", "MESSAGE"]
    if wide:
        headings = [*headings[:5], "DESIRED", "OBSERVED", "REMEDY", "MESSAGE"]
    rows = []
    for item in items:
        row = [
            item["kind"],
            cluster_status.short_subject(item["subject"]),
            item["severity"],
            item["action"],
            terminal.format_clock(item.get("firstSeen")),
        ]
        if wide:
            said = (item["wanted"], item["found"], item["remedy"])
            row += [terminal.format_clocks(one) or "-" for one in said]
        rows.append([*row, terminal.format_clocks(item["message"])])
    below = {} if wide else terminal.move_last_cells_below(headings, rows)
    terminal.print_table(headings, rows, cut=not wide, least=LEAST, middle="SUBJECT", below=below)
    for item in items:
        if item["givenUp"] and not wide:
            remedy = terminal.format_clocks(item["remedy"])
            terminal.note(f"{item['kind']} {item['subject']}: {remedy}")


def _follow(api: Json, given: dict[str, str], items: list[Json], output: terminal.Output) -> None:
    """Print differences as they appear and disappear, until interrupted."""
    as_lines = output in (terminal.Output.JSON, terminal.Output.YAML)
    known = {_key(item): item for item in items}
    try:
        while True:
            time.sleep(LOOK_S)
            now = {_key(item): item for item in api.get("/v1/drift", **given)["items"]}
            for sign, change, some in (
                ("+", "found", [now[key] for key in now.keys() - known.keys()]),
                ("-", "gone", [known[key] for key in known.keys() - now.keys()]),
            ):
                for item in sorted(some, key=_key):
                    if as_lines:
                        _line(change, item)
                    else:
                        subject = cluster_status.short_subject(item["subject"])
                        message = terminal.format_clocks(item["message"])
                        text = f"{sign} {item['kind']}  {subject}  {message}"
                        terminal.out.print(text, markup=False, soft_wrap=True)
            sys.stdout.flush()
            known = now
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _line(change: str, item: Json) -> None:
    """Print one change as a line of JSON."""
    terminal.print_json_line({"change": change, **item})
    sys.stdout.flush()


def _key(item: Json) -> str:
    return f"{item['kind']}:{item['subject']}"
