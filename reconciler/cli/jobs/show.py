"""The command `muster job`: one job with every try at its tasks, or one element of an array."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import (
    array_elements,
    common_options,
    context,
    lazy_import,
    reason_order,
    terminal,
)
from reconciler.cli.jobs import job_list, show_usage
from reconciler.cli.waiting import explain_start

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

Json = Any

#: Ends of attempts caused by other jobs, and how many evictions `muster job` shows.
EVICTED = frozenset({"Preempted"})
EVICTIONS_SHOWN, EVENTS_MAX = 3, 1000
#: How many different messages of attempts it shows.
NOTES_SHOWN = 5


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(job)


def job(
    name: common_options.JobOrElement,
    *,
    run: Annotated[
        int | None,
        typer.Option("--run", help="A run by its number, from 1. Default: the newest.", min=1),
    ] = None,
    element: common_options.OfElement = None,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show one job and every attempt at its tasks.

    For an array element, JOB[ELEMENT], only its attempts are shown, of the newest run that has it.
    Of an array the newest tries are shown, of elements that failed first.

    Example: muster job train -o json

    Example: muster job "sweep[7]"

    Example: muster job sweep --run 1
    """
    name, element = array_elements.resolve_element(name, element)
    with context.controller(server, token_file) as api:
        leading = None if output.is_data else array_elements.ELEMENTS_SHOWN
        item = api.get(f"/v1/jobs/{name}", run=run, element=element, leading=leading)["job"]
        if element is not None:
            array_elements.require_element(item, element)
            if run is None:
                newest = api.get(f"/v1/jobs/{name}", attempts=0)["job"]["run"]
                item["newestRun"] = newest
        evicted = []
        if any(one.get("endReason") in EVICTED for one in item["attempts"]):
            happened = api.get("/v1/events", job=name, limit=EVENTS_MAX)["items"]
            evicted = [one for one in happened if one["kind"] == "JobEvicted"]
        nodes = [] if output.is_data else _nodes(api, item["attempts"])
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(item, output)
        return
    measured = show_usage.with_busy(item["attempts"], nodes)
    show_job({**item, "attempts": measured}, evicted, element)


def _nodes(api: Any, attempts: list[Json]) -> list[Json]:
    """Return all nodes if GPUs of alive attempts are on some, as far as they may be read."""
    if not any(one["state"] != "Ended" and one.get("devices") for one in attempts):
        return []
    try:
        return list(api.get("/v1/nodes")["items"])
    except api_client.ApiError:
        return []


def show_job(item: Json, evicted: list[Json], element: int | None = None) -> None:
    """Print the facts of a job and its attempts, or those of one `element` only."""
    facts(item, evicted)
    attempts = item.get("attempts") or []
    if element is not None and item["array"]:
        told = array_elements.describe_element(item, element)
        if item.get("newestRun", item["run"]) != item["run"]:
            told += f" Run {item['newestRun']} does not have it."
        terminal.print_line(f"{'Element':<10}{told}", 10)
        attempts = [one for one in attempts if one.get("element") == element]
    if attempts:
        terminal.out.print()
        terminal.print_table(
            ["TASK", "TRY", "NODE", "GPUS", "STATE", "EXIT", "STARTED", "TIME"],
            [_attempt_row(attempt) for attempt in attempts],
            right="TRY EXIT TIME",
        )
        _show_notes(attempts)
        show_usage.show(attempts)
    if item.get("elementsLeftOut"):
        others = terminal.counted(item["elementsLeftOut"], "more element")
        terminal.note(f"and {others}: muster job '{item['name']}[N]' shows one")


def _show_notes(attempts: list[Json]) -> None:
    """Print what is told of attempts: how they started, and why they ended. Equal ones are one."""
    told = [one for one in attempts if one.get("message")]
    first: dict[str, Json] = {}
    for one in told:
        first.setdefault(one["message"], one)
    for text, one in list(first.items())[:NOTES_SHOWN]:
        said = ", ".join(filter(None, (one.get("endReason"), text)))
        terminal.print_line(f"{_task(one)}, try {one['attempt']}: {said}", 2)
    if len(first) > NOTES_SHOWN:
        terminal.note(f"{len(first) - NOTES_SHOWN} more messages: muster job -o json")


def facts(item: Json, evicted: list[Json]) -> None:
    """Print everything except the tries, a line each; `evicted` are events of evictions."""
    state = reason_order.state_text(item, item.get("reasons") or ())
    lines = [
        ("Job", f"{item['name']} (run {item['run']})" if item["run"] else item["name"]),
        *([("Queue", item["queue"])] if item["queue"] else []),
        ("Owner", item.get("owner") or "-"),
        *([("Document", job_list.NOT_IN_GIT)] if item.get("ephemeral") else []),
        ("State", ", ".join(filter(None, (state, job_list.stopping_text(item))))),
        ("Times", job_list.times_text(item)),
    ]
    if told := job_list.waits_text(item, time.time()):
        lines.append(("Waited", told))
    if folder := item.get("checkpointFolder"):
        lines.append(("Saves in", folder))
    if code := item.get("code"):
        lines.append(("Code", code))
    if told := job_list.tasks_text(item):
        lines.append(("Tasks", told))
    if item["array"]:
        counts = ", ".join(f"{count} {state}" for state, count in item["elements"].items())
        told = array_elements.counts_text(item.get("elementIndexes") or {})
        lines.append(("Elements", told or counts))
        if whole := item.get("elementsOfAllRuns"):
            lines.append(("All runs", array_elements.counts_text(whole)))
    if item.get("message") not in (
        "",
        None,
        *(one["message"] for one in item.get("reasons") or ()),
    ):
        lines.append(("Message", item["message"]))
    for one in item.get("setByPolicy") or ():
        said = f"is {one['value']}" if one["value"] else "is removed"
        lines.append(("Policy", f"{one['policy']}: {one['field']} {said}"))
    before = len(evicted) - EVICTIONS_SHOWN
    if before > 0:
        times_before = terminal.counted(before, "time")
        told = f"{times_before} before: muster events --job {item['name']}"
        lines.append(("Evicted", told))
    lines += [
        ("Evicted", f"{terminal.format_clock(one['at'])}: {one['message']}")
        for one in evicted[-EVICTIONS_SHOWN:]
    ]
    for reason in reason_order.ordered(item.get("reasons") or []):
        lines.append(("Waits", f"{reason['code']}: {reason['message']}"))
        if reason.get("unblocks"):
            lines.append(("", f"To fix: {reason['unblocks']}"))
    if item.get("place"):
        lines.append(("Place", str(item["place"])))
    if item.get("estimatedStart"):
        whose = explain_start.whose(item).strip()
        text = explain_start.start_text(item, time.time())
        lines.append(("Start", f"{whose}: {text}" if whose else text))
    for title, text in lines:
        terminal.print_line(f"{title:<10}{terminal.format_clocks(text)}", 10)


def _task(attempt: Json) -> str:
    """Return `worker-3`, or `[7] main-0` for element 7 of an array."""
    element = attempt.get("element")
    return attempt["task"] if element is None else f"[{element}] {attempt['task']}"


def _attempt_row(attempt: Json) -> list[str]:
    started, ended = (
        terminal.parse_time(attempt.get("started")),
        terminal.parse_time(attempt.get("ended")),
    )
    took = None if started is None else (ended or time.time()) - started
    status = "-"
    if attempt.get("signal"):
        status = f"signal {attempt['signal']}"
    elif attempt.get("exitCode") is not None:
        status = str(attempt["exitCode"])
    state = attempt["phase"] or attempt["state"]
    reason = attempt.get("endReason")
    if state == "Ended" and reason and reason != "Exited":
        state = reason
    elif state == "Ended" and reason:
        state = "Failed" if attempt.get("signal") or attempt.get("exitCode") else "Succeeded"
    return [
        _task(attempt),
        str(attempt["attempt"]),
        attempt["node"],
        ",".join(map(str, attempt.get("devices") or [])) or "-",
        state,
        status,
        terminal.format_clock(attempt.get("started")),
        terminal.format_duration(took),
    ]
