"""The commands `nodes`, `node`, `queues`, `events` and `status`."""

import sys
import time
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import (
    array_elements,
    common_options,
    completion,
    context,
    lazy_import,
    reason_order,
    retries,
    terminal,
)
from reconciler.cli.cluster import node_details, reserved_nodes
from reconciler.model.values import suggestions

if TYPE_CHECKING:
    from reconciler.model import desired
    from reconciler.model.rules import review_findings
    from reconciler.operations.client import api_client
    from reconciler.operations.views import cluster_status
else:
    desired = lazy_import.module("reconciler.model.desired")
    review_findings = lazy_import.module("reconciler.model.rules.review_findings")
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    cluster_status = lazy_import.module("reconciler.operations.views.cluster_status")

Json = Any

#: The most objects that `muster status` lists.
STANDINGS_MAX = 20
#: After the name of a pool in mode `observe`.
OBSERVED = " (observe)"
#: How long one request waits for new events.
FOLLOW_S = 30.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (nodes, node, queues, events, status):
        app.command()(command)


def nodes(
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List nodes and their allocated resources.

    CPUS, GIB and GPUS show what is allocated of what tasks may take, as the pool declares it; what
    a node has beyond that is shown by muster node. Pools in mode `observe` are marked: nothing is
    started on their nodes.

    Example: muster nodes -o wide
    """
    with context.controller(server, token_file) as api:
        page = api.get("/v1/nodes")
        kept_nodes = reserved_nodes.read(api)
        is_data = output in (terminal.Output.JSON, terminal.Output.YAML)
        pools = {} if is_data else _pools(api)
    if is_data:
        terminal.print_document(page, output)
        return
    rows = [
        [
            item["name"],
            (item.get("pool") or "-") + (OBSERVED if _is_observed(pools, item) else ""),
            item["state"],
            _of(item, node_details.offered(item, pools), "cpu"),
            _gib(item, node_details.offered(item, pools)),
            _gpus(item, node_details.offered(item, pools)),
            terminal.format_clocks(_message(kept_nodes, item)),
        ]
        for item in page["items"]
    ]
    cut = output is not terminal.Output.WIDE
    headings = ["NAME", "POOL", "STATE", "CPUS", "GIB", "GPUS", "MESSAGE"]
    below = terminal.move_last_cells_below(headings, rows) if cut else {}
    terminal.print_table(headings, rows, cut=cut, below=below)


def _message(kept_nodes: list[Json], item: Json) -> str:
    """Return why a node is in its state, and what keeps work from it now."""
    kept = reserved_nodes.of_node(kept_nodes, item["name"], time.time(), is_open=True)
    return "; ".join(filter(None, (item.get("message"), kept)))


def _pools(api: "api_client.ApiClient") -> dict[str, Json]:
    """Return the pools by name."""
    return {one["name"]: one for one in api.get("/v1/pools")["items"]}


def _is_observed(pools: dict[str, Json], item: Json) -> bool:
    """Return True if a node's pool is in mode `observe`."""
    return bool(pools.get(item.get("pool") or "", {}).get("observeOnly"))


def node(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the node.", autocompletion=completion.nodes, callback=context.require_name
        ),
    ],
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show one node, its GPUs and the tasks on them.

    Example: muster node gpu001
    """
    with context.controller(server, token_file) as api:
        page = api.get("/v1/nodes")
        kept_nodes = reserved_nodes.read(api)
        pools = _pools(api)
    items = page["items"]
    item = next((one for one in items if one["name"] == name), None)
    if item is None:
        terminal.fail(suggestions.missing("Node", name, [one["name"] for one in items]))
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(item, output)
        return
    kept = reserved_nodes.of_node(kept_nodes, name, time.time())
    offered = node_details.offered(item, pools)
    node_details.show(item, offered, is_observed=_is_observed(pools, item), reserved=kept)


def _gpus(item: Json, offered: Json) -> str:
    simulated = any(gpu["simulated"] for gpu in item["gpus"])
    bad = sum(gpu["state"] != "ok" for gpu in item["gpus"])
    busy = node_details.busy(item)
    notes = ["simulated"] if simulated else []
    notes += [f"{bad} bad"] if bad else []
    parts = [part for gpu in item["gpus"] for part in gpu["mig"]]
    given = sum(part["attempt"] is not None for part in parts)
    notes += [f"MIG {given}/{len(parts)}"] if parts else []
    notes += [busy] if busy else []
    return " ".join([_of(item, offered, "gpu"), *notes])


def _of(item: Json, offered: Json, resource: str) -> str:
    allocated = (item.get("allocated") or {}).get(resource, 0)
    return f"{allocated:g}/{offered.get(resource, 0):g}"


def _gib(item: Json, offered: Json) -> str:
    allocated = (item.get("allocated") or {}).get("memory", 0) / 2**30
    return f"{allocated:.3g}/{offered.get('memory', 0) / 2**30:.3g}"


def queues(
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List queues with allocation, guarantee and limit.

    Rows below a queue are the pools for which it has amounts. LENDS is how much of the guarantee
    others may borrow. GPUS, CPUS, RUN and WAIT include child queues. -o wide adds fair share and
    demand, in every pool.

    Example: muster queues -o wide
    """
    with context.controller(server, token_file) as api:
        page = api.get("/v1/queues")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    wide = output is terminal.Output.WIDE
    kinds, names = queue_columns(page["items"], wide=wide)
    rows = queue_rows(with_children(page["items"]), kinds, wide=wide)
    headings = ["NAME", "PARENT", "GPUS", *names, "CPUS", *names]
    headings += ["WEIGHT", "PRIO"] if wide else []
    terminal.print_table(
        [*headings, "RUN", "WAIT"],
        rows,
        right="GPUS GUAR LENDS LIMIT CPUS RUN WAIT FAIR DEMAND WEIGHT PRIO",
        cut=not wide,
    )


def with_children(items: list[Json]) -> list[Json]:
    """Return queues whose `running` and `pending` include those of their child queues.

    Amounts of the API include children already; its counts of jobs are each queue's own.
    """
    parents = {item["name"]: item.get("parent") for item in items}
    sums = {item["name"]: [0, 0] for item in items}
    for item in items:
        above, left = item["name"], len(items)
        while above in sums and left:  # a server could send a tree with a cycle
            sums[above][0] += item["running"]
            sums[above][1] += item["pending"]
            above, left = parents[above], left - 1
    return [
        item | {"running": running, "pending": pending}
        for item, (running, pending) in zip(items, sums.values(), strict=True)
    ]


def queue_columns(items: list[Json], *, wide: bool) -> tuple[list[str], list[str]]:
    """Return the kinds of amounts to show, and the headings of all but the first."""
    named = {"fairShare": "FAIR", "demand": "DEMAND"} if wide else {}
    named["guaranteed"] = "GUAR"
    parts = [one for item in items for one in (item, *(item.get("pools") or []))]
    if any(value is not None for p in parts for value in (p.get("lendingLimit") or {}).values()):
        named["lendingLimit"] = "LENDS"
    named["limit"] = "LIMIT"
    return ["allocated", *named], list(named.values())


def queue_rows(items: list[Json], kinds: list[str], *, wide: bool) -> list[list[str]]:
    """Return a row for each queue, and below it one for each pool in which it has amounts.

    Args:
        items: of the API.
        kinds: of the amounts to show, in order.
        wide: True adds weight, priority and every pool.
    """
    rows = []
    for item in items:
        mark = " (suspended)" if item.get("suspended") else ""
        row = [item["name"] + mark, item.get("parent") or "-", *_amounts(item, kinds)]
        if wide:
            row += [f"{item['weight']:g}", str(item["priority"])]
        rows.append([*row, str(item["running"]), str(item["pending"])])
        for one in item.get("pools") or []:
            if wide or one["named"]:
                cells = [f"  in {one['pool']}", "", *_amounts(one, kinds)]
                rows.append(cells + [""] * (len(rows[-1]) - len(cells)))
    return rows


def _amounts(item: Json, kinds: list[str]) -> list[str]:
    return [amount(item, kind, each) for each in ("gpu", "cpu") for kind in kinds]


def amount(item: Json, kind: str, resource: str) -> str:
    """Return an amount of a queue as text, a dash if there is none."""
    amount = (item.get(kind) or {}).get(resource)
    return "-" if amount is None else f"{amount:g}"


def events(
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            help="Only events of this job. Default: all.",
            autocompletion=completion.jobs,
            callback=context.require_name,
        ),
    ] = None,
    node: common_options.OfNode = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Continue with new events until Ctrl-C.")
    ] = False,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show recent events, oldest first.

    -w continues with new ones; with -o json or yaml it prints one JSON object a line.

    Example: muster events --job train -w
    """
    array_elements.require_whole_jobs("events --job", [job] if job else ())
    after: int | None = None
    with context.controller(server, token_file) as api:
        connection = retries.Patient(api) if watch else api
        while True:
            wait_s = FOLLOW_S if watch and after is not None else None
            try:
                page = connection.get("/v1/events", after=after, job=job, node=node, wait_s=wait_s)
            except retries.GoneError as error:
                terminal.fail(f"{error}; events are still recorded: muster events", retries.FAILED)
            if after is None and not page["items"]:
                _check_known(api, job, node)
            if output in (terminal.Output.JSON, terminal.Output.YAML) and not watch:
                terminal.print_document(page, output)
                return
            for item in page["items"]:
                _print_event(item, output)
            sys.stdout.flush()
            after = page["next"]
            if not watch:
                return


def _check_known(api: "api_client.ApiClient", job: str | None, node: str | None) -> None:
    """Exit if the job or node does not exist."""
    if job is not None:
        api.get(f"/v1/jobs/{job}")
    if node is not None:
        known = [one["name"] for one in api.get("/v1/nodes")["items"]]
        if node not in known:
            terminal.fail(suggestions.missing("Node", node, known))


def _print_event(item: Json, output: terminal.Output) -> None:
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_json_line(item)
        return
    subject = item.get("job") or item.get("node") or "-"
    where = f" on {item['node']}" if item.get("job") and item.get("node") else ""
    at = terminal.format_clock(item["at"])
    terminal.print_line(
        f"{at}  {item['kind']:<18} {subject}{where}  {terminal.format_clocks(item['message'])}"
    )


def status(
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show sync and health of the cluster.

    Shows sync with git, and health. The cluster's state is its worst object's.

    Example: muster status
    """
    with context.controller(server, token_file) as api:
        sync = api.get("/v1/sync")["sync"]
        nodes_found, kept_nodes = api.get("/v1/nodes")["items"], reserved_nodes.read(api)
        jobs_found = _job_counts(api)
        overridden = api.get("/v1/overrides")["items"]
        found = cluster_status.roll_up(
            cluster_status.with_overrides(sync, overridden),
            api.get("/v1/pools")["items"],
            api.get("/v1/queues")["items"],
            nodes_found,
            (drifting := api.get("/v1/drift")["items"]),
            now=time.time(),
        )
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(
            {
                "sync": sync,
                "standing": cluster_status.shown(found),
                "nodes": len(nodes_found),
                "overrides": overridden,
                "reservations": kept_nodes,
            },
            output,
        )
        return
    _print_git(sync)
    _standing(found, sync, overridden)
    terminal.out.print(f"Nodes  {_tally(nodes_found)}", markup=False)
    terminal.out.print(f"Jobs   {_counts_text(jobs_found)}", markup=False)
    for line in reserved_nodes.lines(kept_nodes, time.time()):
        terminal.print_paragraph(f"Kept   {line}", 0, 7)
    if told_drift := cluster_status.drift_line(drifting):
        terminal.print_paragraph(f"Drift  {told_drift}", 0, 7)
    if told_waits := cluster_status.submissions_line(sync, terminal.format_clock):
        terminal.print_paragraph(f"Queue  {told_waits}", 0, 7)
    for one in overridden:
        if one["verb"] == "submit":
            continue  # the line above counts them
        until = terminal.format_clock(one["expires"])
        terminal.print_paragraph(
            f"Override: {one['verb']} {one['subject']} until {until}, by {one['owner']}: "
            f"{one['reason']}",
            0,
            7,
        )


def _print_git(sync: Json) -> None:
    """Print the sync status: revision, held changes, problems and failed notifications."""
    revision = (sync.get("jobsRevision") or "-")[:12]
    terminal.out.print(f"Git    {sync.get('sync', '?')} at {revision}", markup=False)
    waiting = sync.get("held") or []
    held = [one["message"] for one in waiting]
    messages = list(held)
    if sync.get("message") and not (held and sync["message"].startswith(held[0])):
        messages.insert(0, sync["message"])  # it is not about a held change, which comes after it
    for message in messages:
        reasons = next((one.get("reasons") for one in waiting if one["message"] == message), None)
        _held(message, reasons or [])
    if sync.get("nextLook"):  # older controllers do not send it
        again = terminal.format_clock(sync["nextLook"])
        terminal.print_paragraph(f"the next look is at {again}, or when a webhook calls", 7)
    for problem in sync.get("problems") or []:
        if problem["message"] in messages or (held and problem["rule"] in review_findings.RULES):
            continue  # printed above, with what lets it apply
        terminal.print_paragraph(problem_text(problem), 7, 9)
    for one in sync.get("untold") or []:  # older controllers do not send it
        since = terminal.format_clock(one["since"])
        failure = f"not notified since {since}: {one['channel']}: {one['why']}"
        failure += f" ({terminal.counted(one['tries'], 'attempt')})"
        terminal.print_paragraph(failure, 7, 9)


def _held(message: str, reasons: list[str]) -> None:
    """Print a message about a held change; if there are several reasons, each on its own line."""
    if len(reasons) <= 1:
        terminal.print_paragraph(terminal.format_clocks(message), 7)
        return
    terminal.print_paragraph(f"held, for {len(reasons)} reasons:", 7)
    for reason in reasons:
        terminal.print_paragraph(terminal.format_clocks(f"- {reason}"), 7, 9)
    rest = message.removeprefix("held: ").removeprefix("; ".join(reasons)).removeprefix("; ")
    if rest:
        terminal.print_paragraph(terminal.format_clocks(rest), 7)


def _standing(found: cluster_status.ClusterStatus, sync: Json, overridden: list[Json]) -> None:
    """Print sync and health of the cluster, and of objects that are not well."""
    whole = f"State  {found.sync}, {found.health}"
    by_git = (sync.get("suspended") or {}).get("Cluster")
    since = by_git or cluster_status.with_overrides(sync, overridden).get("suspended", {}).get(
        "Cluster"
    )
    if since:
        age = cluster_status.age(since, time.time())
        resume = "muster resume cluster" + ("" if by_git else " --override")
        whole += f"; the whole cluster is suspended for {age} (`{resume}`)"
    terminal.print_paragraph(whole, 0, 7)
    unwell = [one for one in found.objects if not one.is_well]
    for one in unwell[:STANDINGS_MAX]:
        why = f"  {one.why}" if one.why else ""
        terminal.print_paragraph(f"{one.object}: {one.sync}, {one.health}{why}", 7, 9)
    if len(unwell) > STANDINGS_MAX:
        terminal.print_paragraph(f"and {len(unwell) - STANDINGS_MAX} more; -o json has all", 7)


def problem_text(problem: Json) -> str:
    """Return a problem in one line: place, severity, object, field, message, found, expected."""
    return desired.Problem(**problem).text()


def _job_counts(api: "api_client.ApiClient") -> Mapping[str, int]:
    try:
        counts: Mapping[str, int] = api.get("/v1/job-counts")["states"]
    except api_client.ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        counts = _counts(api.items("/v1/jobs"))  # an older controller
    return counts


def _counts(items: list[Json]) -> Mapping[str, int]:
    return Counter(reason_order.state_text(one, one.get("reasons") or ()) for one in items)


def _tally(items: list[Json]) -> str:
    return _counts_text(_counts(items))


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
