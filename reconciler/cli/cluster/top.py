"""The command `muster top`: queues, nodes, GPUs and events, live, in 80 columns.

It asks for lists only after an event, at most every `every` seconds, and less often if they take
long. Events are waited for a second at a time, so that the clock and times continue.
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import array_elements, context, lazy_import, reason_order, terminal
from reconciler.cli.cluster import inspect_commands
from reconciler.model.state import events
from reconciler.model.values import times

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any
WIDTH_MIN, WIDTH_MAX = 80, 120
#: The longest time without a look at lists: what changes without an event is shown then.
NEWS_S = 10.0
#: How often the screen is drawn.
TICK_S = 1.0
EVENTS_KEPT = 200
#: The most jobs to read.
JOBS_MAX = 50
#: Status if the token stands for no person.
NO_PERSON = 400
#: Requests take at most one part in so many of the time: slow ones are made less often.
PARTS = 20
#: Events shown even without a text of their own; others follow from those beside them.
TELLING = frozenset({"JobSucceeded", "JobFailed", "JobCancelled", "JobTimedOut", "JobHeld"})
_BAR = 10
#: The most characters of a name in the list of events, so that 80 columns have room for a message.
NAME_MAX = 28
#: And of the name of a queue beside a job.
QUEUE_MAX = 12


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(top)


def top(
    *,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            min=0.5,
            help="Least time between two updates.",
            callback=context.require_finite,
        ),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Watch your jobs, queues, nodes, GPUs and events; Ctrl-C ends it.

    Jobs are those of yours that have not ended, or of all if the token is no person's. -o json or
    yaml prints sync, jobs, queues, nodes, drift and the newest events once.

    Example: muster top --once
    """
    is_data = output in (terminal.Output.JSON, terminal.Output.YAML)
    live = terminal.out.is_terminal and not once and not is_data
    with context.controller(server, token_file) as api:
        events: deque[Json] = deque(maxlen=EVENTS_KEPT)
        if live:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(api, events, every)
            return
        _news(api, events, None, wait_s=None)
        if is_data:
            terminal.print_document(look(api) | {"events": list(events)}, output)
            return
        _draw(look(api), events, live=False)


def _watch(api: "api_client.ApiClient", events: deque[Json], every: float) -> None:
    """Draw the screen until it is interrupted."""
    after, told = None, True
    seen: dict[str, Json] = {}
    read_at, pause_s = time.monotonic(), 0.0
    tick_s = min(TICK_S, every)
    while True:
        began = time.monotonic()
        before = after
        after = _news(api, events, after, wait_s=tick_s if after is not None else None)
        told = told or after != before
        now = time.monotonic()
        if not seen or now - read_at >= rest_s(pause_s, told=told):
            seen, told = look(api), False
            read_at = time.monotonic()
            pause_s = max(every, PARTS * (read_at - now))
        _draw(seen, events, live=True)
        time.sleep(max(0.0, tick_s - (time.monotonic() - began)))  # many events come at once


def rest_s(pause_s: float, *, told: bool) -> float:
    """Return how long after one look at lists the next is due, in seconds.

    Args:
        pause_s: the least time between two looks.
        told: True if events have come since.
    """
    return pause_s if told else max(pause_s, NEWS_S)


def _draw(seen: dict[str, Json], events: Sequence[Json], *, live: bool) -> None:
    width, height = _size(live=live)
    lines = picture(seen, events, width, height, time.time())
    text = "\n".join(map(terminal.escape_control, lines))
    # the screen is overwritten, not cleared, so that it does not flicker
    sys.stdout.write(f"\x1b[H\x1b[J{text}\n" if live else f"{text}\n")
    sys.stdout.flush()


def _news(
    api: "api_client.ApiClient", events: deque[Json], after: int | None, *, wait_s: float | None
) -> int:
    """Add the events since `after`, waiting for them. Return the position of the last."""
    page = api.get("/v1/events", after=after, wait_s=wait_s, limit=EVENTS_KEPT)
    events.extend(one for one in page["items"] if is_news(one))
    return int(page["next"])


def grouped(events: Sequence[Json]) -> list[list[Json]]:
    """Return consecutive events with the same text, of many jobs or nodes, together."""
    found: list[list[Json]] = []
    for one in events:
        if found and _alike(found[-1][0], one):
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _alike(one: Json, other: Json) -> bool:
    same = one["kind"] == other["kind"] and one["message"] == other["message"]
    return same and bool(one.get("job")) == bool(other.get("job"))


def is_news(one: Json) -> bool:
    """Return True if an event has a text of its own or ends a job."""
    return one["kind"] in TELLING or one["message"] not in ("", events.SENTENCES.get(one["kind"]))


def _size(*, live: bool) -> tuple[int, int]:
    if not live:
        return min(WIDTH_MAX, max(WIDTH_MIN, terminal.width())), 40
    size = terminal.out.size
    return min(WIDTH_MAX, max(WIDTH_MIN, size.width)), max(16, size.height - 1)


def look(api: "api_client.ApiClient") -> dict[str, Json]:
    """Return everything that is shown except events."""
    return {
        "sync": api.get("/v1/sync")["sync"],
        "jobs": _jobs(api),
        "queues": api.get("/v1/queues")["items"],
        "nodes": api.get("/v1/nodes")["items"],
        "drift": api.get("/v1/drift")["items"],
    }


def _jobs(api: "api_client.ApiClient") -> list[Json]:
    """Return the newest jobs that have not ended: those of the caller, or of all if it has none."""
    query: dict[str, str | float] = {
        "endedSince": times.format_time(time.time()),
        "limit": JOBS_MAX,
    }
    try:
        return list(api.get("/v1/jobs", mine="true", **query)["items"])
    except api_client.ApiError as error:
        if error.status != NO_PERSON:
            raise
    return list(api.get("/v1/jobs", **query)["items"])


def picture(
    seen: dict[str, Json], events: Sequence[Json], width: int, height: int, now: float
) -> list[str]:
    """Return the lines of the screen, at most `height`, none longer than `width`."""
    nodes, queues = seen["nodes"], seen["queues"]
    there = [node for node in nodes if node["state"] != "Gone"]
    lines = [_head(seen, now), "", *_bars(there), ""]
    room = max(6, height - len(lines) - 3)
    part = 4 if seen.get("jobs") else 3
    queue_rows = max(2, min(len(queues), room // part))
    node_rows = max(2, min(len(nodes), room // part))
    jobs = seen.get("jobs") or []
    if jobs:
        lines += [*_job_rows(jobs, max(2, min(len(jobs), room // 4)), now), ""]
    lines += [*_queues(queues, queue_rows, there), "", *_nodes(nodes, node_rows), ""]
    lines.append("EVENTS")
    left = max(1, height - len(lines))
    lines += [_event(*alike) for alike in grouped(events)[-left:]] or ["none yet"]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines[:height]]


def _head(seen: dict[str, Json], now: float) -> str:
    sync = seen["sync"]
    revision = (sync.get("jobsRevision") or "-")[:12]
    drift = len(seen["drift"])
    drifted = f"{drift} differences" if drift != 1 else "1 difference"
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    return (
        f"{clock}  git {sync.get('sync', '?')} at {revision}  drift {drifted if drift else 'none'}"
    )


def _bars(nodes: list[Json]) -> list[str]:
    """Return bars of allocated resources of all nodes together."""
    lines = []
    for title, resource, unit in (
        ("GPUs", "gpu", 1.0),
        ("CPUs", "cpu", 1.0),
        ("GiB", "memory", 2.0**30),
    ):
        has = sum((node.get("capacity") or {}).get(resource, 0) for node in nodes) / unit
        given = sum((node.get("allocated") or {}).get(resource, 0) for node in nodes) / unit
        if has:
            lines.append(f"{title:<5}{bar(given / has, 3 * _BAR)} {given:g} of {has:g}")
    busy = [
        gpu["usage"]["utilization"]
        for node in nodes
        for gpu in node.get("gpus") or []
        if gpu.get("usage") and gpu["usage"].get("utilization") is not None
    ]
    if busy:
        mean = sum(busy) / len(busy)
        which = "1 GPU that reports" if len(busy) == 1 else f"{len(busy)} GPUs that report"
        lines.append(f"{'busy':<5}{bar(mean, 3 * _BAR)} {mean:.0%} of {which}")
    return lines


def bar(part: float, cells: int) -> str:
    """Return a share as `[####......]`."""
    full = round(min(1.0, max(0.0, part)) * cells)
    return f"[{'#' * full}{'.' * (cells - full)}]"


def _job_rows(jobs: list[Json], rows: int, now: float) -> list[str]:
    """Return rows of jobs; columns are as wide as what they hold, so that the reason has room."""
    shown = jobs[:rows]
    table = [["JOB", "STATE", "QUEUE", "DONE", "SINCE"]]
    for one in shown:
        began = terminal.parse_time(one.get("started") or one.get("submitted"))
        age = terminal.format_duration(None if began is None else max(0.0, now - began))
        name = terminal.shortened(one["name"], NAME_MAX, middle=True)
        queue = _cut(one["queue"] or "-", QUEUE_MAX)
        table.append([name, one["state"], queue, ", ".join(array_elements.done_words(one)), age])
    if not any(one["array"] for one in shown):
        table = [[*row[:3], row[4]] for row in table]
    if len({one["queue"] for one in shown}) == 1:
        table = [[*row[:2], *row[3:]] for row in table]
    sizes = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row, why in zip(table, ["WHY", *map(_why, shown)], strict=True):
        *cells, since = (cell.ljust(size) for cell, size in zip(row, sizes, strict=True))
        lines.append("  ".join([*cells, since.strip().rjust(sizes[-1]), why]).rstrip())
    return _more(lines, len(jobs) - rows, "jobs")


def _why(job: Json) -> str:
    reason = reason_order.leading(job.get("reasons") or [])
    why = f"{reason['code']}: {reason['message']}" if reason else job.get("message") or ""
    return terminal.format_clocks(why)


def _queues(queues: list[Json], rows: int, nodes: list[Json]) -> list[str]:
    """Return rows of queues. The share is that of what is guaranteed, else of the limit, else of
    all nodes; of CPUs where there are no GPUs.
    """
    counted = inspect_commands.with_children(queues)
    shown = sorted(counted, key=lambda one: -(one["running"] + one["pending"]))[:rows]
    has_gpus = not nodes or any((node.get("capacity") or {}).get("gpu") for node in nodes)
    main = "gpu" if has_gpus else "cpu"
    whole = sum((node.get("capacity") or {}).get(main, 0) for node in nodes)
    lines = [
        f"{'QUEUE':<20}{'RUN':>5}{'WAIT':>6}{f'{main.upper()}S':>8}{'GUAR':>7}{'LIMIT':>7}  SHARE"
    ]
    for one in shown:
        has, due, limit = (
            (one.get(kind) or {}).get(main) for kind in ("allocated", "guaranteed", "limit")
        )
        of = due or limit or whole
        share = bar((has or 0) / of, _BAR) if of else ""
        if one.get("suspended"):
            share = "suspended"
        lines.append(
            f"{_cut(one['name'], 19):<20}{one['running']:>5}{one['pending']:>6}"
            f"{_amount(has):>8}{_amount(due):>7}{_amount(limit):>7}  {share}".rstrip()
        )
    return _more(lines, len(queues) - len(shown), "queues")


def _nodes(nodes: list[Json], rows: int) -> list[str]:
    """Return rows of nodes: unhealthy ones first, then the fullest."""

    def rank(one: Json) -> tuple[bool, float, str]:
        capacity, given = one.get("capacity") or {}, one.get("allocated") or {}
        full = max((given.get(name, 0) / has for name, has in capacity.items() if has), default=0.0)
        return (one["state"] == "Ready", -full, one["name"])

    shown = sorted(nodes, key=rank)[:rows]
    lines = [f"{'NODE':<20}{'STATE':<11}{'CPUS':>9}{'GPUS':>9}  {'ALLOCATED':<12}BUSY"]
    for one in shown:
        capacity, given = one.get("capacity") or {}, one.get("allocated") or {}
        main = "gpu" if capacity.get("gpu") else "cpu"
        whole = capacity.get(main) or 1
        busy = [
            gpu["usage"]["utilization"]
            for gpu in one.get("gpus") or []
            if gpu.get("usage") and gpu["usage"].get("utilization") is not None
        ]
        lines.append(
            f"{_cut(one['name'], 19):<20}{one['state']:<11}"
            f"{_of(given, capacity, 'cpu'):>9}{_of(given, capacity, 'gpu'):>9}  "
            f"{bar(given.get(main, 0) / whole, _BAR)}"
            f"{f'{sum(busy) / len(busy):.0%}' if busy else '':>5}".rstrip()
        )
    return _more(lines, len(nodes) - len(shown), "nodes")


def _more(lines: list[str], left_out: int, what: str) -> list[str]:
    return [*lines, f"... and {left_out} more {what}"] if left_out > 0 else lines


def _of(given: Json, capacity: Json, resource: str) -> str:
    return f"{given.get(resource, 0):g}/{capacity.get(resource, 0):g}"


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def _event(*alike: Json) -> str:
    """Return the line of one event, or of several alike: their number, and the newest."""
    one = alike[-1]
    subject = terminal.shortened(one.get("job") or one.get("node") or "-", NAME_MAX, middle=True)
    if len(alike) > 1:
        subject = f"{len(alike)} {'jobs' if one.get('job') else 'nodes'}, {subject}"
    elif one.get("job") and one.get("node"):
        subject += f" on {one['node']}"
    text = f"{terminal.format_clock(one['at'])}  {one['kind']:<16} {subject}  {one['message']}"
    return text.rstrip()
