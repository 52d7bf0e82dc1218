"""The command `muster explain`: why a job is in its state, now or at a moment in the past."""

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from reconciler.cli import array_elements, common_options, context, reason_order, terminal
from reconciler.cli.cluster import inspect_commands
from reconciler.cli.jobs import explain_elements, job_list, show_usage
from reconciler.cli.waiting import explain_start, run_status
from reconciler.model.values import found_values, quantities, times

Json = Any
NODES_SHOWN = 4
#: Events that explain where a job is, and the verb of a sentence about them.
PLACEMENT_EVENTS = {"JobPlaced": "placed", "JobEvicted": "evicted"}
#: Events in the history of a finished job, and how many of the newest are shown.
STORY = {
    "JobSubmitted": "submitted",
    "JobHeld": "held",
    "JobReleased": "released",
    "JobPlaced": "placed",
    "JobEvicted": "evicted",
    "JobDrained": "drained",
    "JobRequeued": "requeued",
    "JobRetried": "tried again",
    "AttemptLost": "lost",
}
STORY_MAX = 12
#: Characters of a time down to its second.
SECOND = len("2026-11-20T23:30:00")
#: Reasons independent of the queue's amounts, and those that no other queue can end.
NOT_OF_QUEUES = frozenset(
    {
        *("Held", "Invalid", "NotAllowed", "NoUnixUser", "DependencyNeverMet", "Dependency"),
        *(explain_elements.BACKING_OFF, "ArrayLimit"),
    }
)
OF_ITS_OWN = frozenset({"OverLimit", "OverBudget"})
#: Reasons that are found before nodes are checked.
BEFORE_ROOM = frozenset({"OverLimit", "OverBudget", "WaitingForQuota"})
BELOW_LIMIT = "the queue is below its limit"
#: Reasons of Quotas have the code of those of queues, and begin with the name of the Quota.
_QUOTA = re.compile(r"Quota (\S+) ")
#: Ends of tries in which nothing ran, so that there is no output.
NEVER_RAN = frozenset({"StartFailed", "CheckFailed", "StageFailed", "Refused"})


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(explain)


def explain(
    name: common_options.JobOrElement,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="A moment in the past: a time such as 2026-11-20T23:30:00Z, a local clock time "
            "such as 05:08:00, or a span before now such as 10m.",
        ),
    ] = None,
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
    """Explain why a job waits, now or in the past, or why a run ended.

    Shows each reason, what ends it, and the estimated start. --at decides the cycle of that moment
    again, from the controller's journal, and exits with 1 if the decision differs from the recorded
    one. For an array element, JOB[ELEMENT], it is the newest run that has it.

    Example: muster explain train

    Example: muster explain "sweep[7]" --run 1

    Example: muster explain train --at 8h
    """
    if at is not None and run is not None:
        terminal.fail(
            "--at and --run can't be used together: --at is about the run of that moment",
            terminal.USAGE,
        )
    moment = None if at is None else _moment(at)
    job, element = array_elements.resolve_element(name, element)
    with context.controller(server, token_file) as api:
        item = api.get(f"/v1/jobs/{job}/explain", at=moment, run=run, element=element)
    if element is not None:
        array_elements.require_element(item["job"], element)
    replayed = item.get("replayed")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(item, output)
    else:
        if replayed:
            _explain_cycle(replayed)
        now = terminal.parse_time(replayed["decided"]) if replayed else time.time()
        _explain_job(item, now or time.time(), past=bool(replayed), element=element)
    if replayed and replayed["disagreements"]:
        terminal.fail(
            f"the replay of cycle {replayed['cycle']} differs from what Muster "
            f"{replayed['muster']} recorded then, in {_and(replayed)}: this is not what was decided"
        )


def _moment(written: str) -> str:
    """Return the RFC 3339 time of a time, a clock time or a span before now. Exit for any other
    text.
    """
    of_day = context.parse_clock_time(written, time.time())
    if of_day is not None:
        return times.format_time(of_day)
    with contextlib.suppress(quantities.QuantityError):
        return times.format_time(time.time() - context.parse_ago(written))
    try:
        return times.format_time(times.parse_time(written))
    except ValueError as error:
        why = f" ({error})" if isinstance(error, times.OffsetError) else ""
        terminal.fail(
            f"--at: found {found_values.quote(written)}{why}, expected a time such as "
            "2026-11-20T23:30:00Z, a clock "
            "time such as 05:08:00, or a span before now such as 10m or 1d",
            terminal.USAGE,
        )


def _and(replayed: Json) -> str:
    return " and ".join(replayed["disagreements"])


def _explain_cycle(replayed: Json) -> None:
    revision = (replayed["revision"] or "none")[:12]
    structure = (replayed["structureRevision"] or "none")[:12]
    which = revision if structure == revision else f"{revision}, with the structure of {structure}"
    decided = terminal.format_clock(replayed["decided"])
    terminal.out.print(
        f"Cycle {replayed['cycle']}, {decided}, revision {which}:",
        markup=False,
        soft_wrap=True,
    )
    terminal.out.print()


def _explain_job(item: Json, now: float, *, past: bool = False, element: int | None = None) -> None:
    job = item["job"]
    leaves = f", {told}" if (told := job_list.stopping_text(job)) else ""
    verb = "was" if past else "is"
    state = reason_order.state_text(job, item.get("reasons") or ())
    which = f" (run {job['run']})" if item.get("isEarlierRun") else ""
    _say(f"{job['name']}{which} {verb} {state}{_on_nodes(job)}{_spans(job)}{leaves}.")
    if told := job_list.tasks_text(job):
        _say(f"{told}.")
    for line in explain_elements.sentences(item, element):
        _say(line)
    if element is not None and job.get("array"):
        newer = " The newest run does not have it." if item.get("isEarlierRun") else ""
        _say(f"\n{array_elements.describe_element(job, element)}{newer}")
    _explain_silence(item, now)
    told_elsewhere = [one["message"] for one in item.get("reasons") or []]
    told_elsewhere += explain_elements.messages(item)
    of_element = element if job.get("array") else None
    went_well = of_element is not None and array_elements.state_of(job, of_element) == "Succeeded"
    # how another element failed says nothing of one that went well
    if job.get("message") and job["message"] not in told_elsewhere and not went_well:
        _say(f"\n{job['message']}")
    if job["state"] in job_list.FINISHED:
        _tell_story(item, of_element)
    is_waiting = explain_elements.may_wait(item, element)
    item = {**item, "reasons": explain_elements.reasons(item, element)}
    is_over_or_waits = job["state"] in job_list.FINISHED or job["state"] in job_list.WAITING
    if job.get("array") and item["reasons"] and not is_over_or_waits:
        _say("\nWaiting elements:")
    _tell_reasons(item, of_element)
    _explain_room(item)
    _explain_placement(item, of_element, past=past)
    code = (reason_order.leading(item["reasons"]) or {"code": ""})["code"]
    if job["state"] not in job_list.FINISHED and code not in NOT_OF_QUEUES:
        others = [] if code in OF_ITS_OWN or not is_waiting else item.get("borrowers") or []
        counts = not reason_order.never_starts(item["reasons"])
        _explain_queue(item["queue"], others, demand=counts)
        if item.get("notReclaimed") and is_waiting:
            _say(item["notReclaimed"])
    if job["state"] in job_list.WAITING and is_waiting:
        _explain_start(job, now, in_line=code not in NOT_OF_QUEUES)
    elif job["state"] in job_list.FINISHED and job["state"] != "Succeeded" and not went_well:
        _tell_output(job, of_element)


def _tell_reasons(item: Json, element: int | None) -> None:
    """Print for which reasons a job waits, or one of its elements, and what ends each."""
    tries = [one for one in item["job"]["attempts"] if element in {None, one.get("element")}]
    for reason in reason_order.ordered(item["reasons"]):
        _say(f"\n{reason['code']}: {reason['message']}")
        for step in reason.get("funnel") or []:
            nodes = "node: " if step["count"] == 1 else "nodes:"
            terminal.print_line(
                f"  {step['count']:>5} {nodes} {terminal.format_clocks(step['why'])}", 15
            )
        if reason["code"] == explain_elements.BACKING_OFF:
            _tell_last_try(tries)
        if reason.get("unblocks"):
            _say(f"  To fix: {reason['unblocks']}.")


def _tell_output(job: Json, element: int | None) -> None:
    """Print which output has the cause of a bad end, if anything has run."""
    tries = [one for one in job["attempts"] if element in {None, one.get("element")}]
    if not tries:
        return
    last = _last(tries)
    if last.get("endReason") in NEVER_RAN or not last.get("started", True):
        return
    if job["state"] == "Cancelled":  # its stderr does not have the cause
        name = job["name"] if element is None else f"'{job['name']}[{element}]'"
        _say(f"\nOutput: muster logs {name}")
        return
    which = f"--task {last['task']}"
    if last.get("element") is not None:
        which += f" --element {last['element']}"
    _say(f"\nOutput: muster logs {job['name']} {which} --stderr")


def _explain_room(item: Json) -> None:
    """Print that nodes were not checked yet, for a job that limits of a queue or user keep back.

    This is left out for a job that never starts: free nodes change nothing for it.
    """
    found = item.get("reasons") or []
    codes = {one["code"] for one in found}
    if codes and codes <= BEFORE_ROOM and not reason_order.never_starts(found):
        allowed = list(dict.fromkeys(map(_allows, found)))
        _say(f"  Free nodes are checked once {' and '.join(allowed)}.")


def _allows(reason: Json) -> str:
    """Return the event that ends a reason of `BEFORE_ROOM`: a Quota is the message's subject."""
    if quota := _QUOTA.match(reason["message"]):
        return f"Quota {quota[1]} allows it"
    return "its queue may use more" if reason["code"] == "WaitingForQuota" else BELOW_LIMIT


def _explain_silence(item: Json, now: float) -> None:
    """Print which nodes with tasks are silent, since when, and what happens to the tasks."""
    found = item.get("silent") or []
    for one in found[:NODES_SHOWN]:
        heard_at = terminal.parse_time(one["lastHeard"])
        tasks = terminal.counted(one["tasks"], "task")
        last = "never reported"
        if heard_at is not None:
            ago = terminal.format_duration(max(0.0, now - heard_at))
            last = f"last reported {ago} ago, at {terminal.format_clock(one['lastHeard'])}"
        _say(f"\n{one['node']}, with {tasks} of this job, {last}.")
        if one["givenUp"]:
            then = terminal.format_clock(one["givenUp"])
            _say(f"  If it stays silent, tasks with a lease restart elsewhere at {then} or later.")
        if one["endless"]:
            pool = f"NodePool {one['pool']}" if one["pool"] else "a NodePool that has it"
            _say(
                f"  {terminal.counted(one['endless'], 'task')} without a lease: restarted only "
                "after the node is back. To fix: if you know that the node runs nothing, set "
                f"an override with `gone: true` in {pool}."
            )
    if len(found) > NODES_SHOWN:
        more = len(found) - NODES_SHOWN
        _say(f"\n{more} more nodes of this job are silent: muster job {item['job']['name']}")


def _say(text: str) -> None:
    """Print a line, after an empty one if the text begins with an end of line."""
    if text.startswith("\n"):
        terminal.print_line("")
    line = terminal.format_clocks(text.removeprefix("\n"))
    indent = len(line) - len(line.lstrip())
    terminal.print_line(line, indent + 2 if indent else 0)


def _on_nodes(job: Json) -> str:
    """Return `` on n1, n2 and 3 more`` for running tasks; empty if there are none."""
    if job["state"] in job_list.FINISHED:
        return ""
    where = sorted({one["node"] for one in job["attempts"] if one["state"] != "Ended"})
    shown = ", ".join(where[:NODES_SHOWN])
    more = f" and {len(where) - NODES_SHOWN} more" if len(where) > NODES_SHOWN else ""
    return f" on {shown}{more}" if where else ""


def _spans(job: Json) -> str:
    """Return `: it waited 5m10s, ran 1h02m and ended at 11:07:12` for a finished job."""
    submitted, started, ended = (
        terminal.parse_time(job.get(name)) for name in ("submitted", "started", "ended")
    )
    if job["state"] not in job_list.FINISHED or submitted is None or ended is None:
        return ""
    waited = terminal.format_duration(max(0.0, (started or ended) - submitted))
    at_most = "" if job_list.lists_all_tries(job) else "at most "
    time_run = terminal.format_duration(job_list.running_time(job, ended))
    ran = f"ran {at_most}{time_run}" if started else "never ran"
    return f": it waited {waited}, {ran} and ended at {terminal.format_clock(job['ended'])}"


def _tell_story(item: Json, element: int | None) -> None:
    """Print the events of a finished job, or of one of its elements, and how its tries ended."""
    told = [
        one
        for one in item.get("events") or []
        if one["kind"] in STORY and explain_elements.is_about(one["message"], element)
    ]
    if told:
        _say("")
    if len(told) > STORY_MAX:
        _say(f"  ({terminal.counted(len(told) - STORY_MAX, 'earlier event')})")
    for one in told[-STORY_MAX:]:
        where = f" on {one['node']}" if one.get("node") else ""
        because = f": {one['message']}" if one["message"] else ""
        text = f"{terminal.format_clock(one['at'])}  {STORY[one['kind']]}{where}{because}"
        terminal.print_line(f"  {terminal.format_clocks(text)}", 12)
    tries = [
        one
        for one in item["job"]["attempts"]
        if one.get("ended") and element in {None, one.get("element")}
    ]
    if tries:
        _say("")
    newest = sorted(tries, key=lambda found: found["ended"])[-STORY_MAX:]
    # tasks of a gang end together, so those of one second are in the order of their ranks
    newest.sort(key=lambda found: (found["ended"][:SECOND], run_status.place_of(found["task"])))
    for one in newest:
        terminal.print_line(f"  {terminal.format_clock(one['ended'])}  {_end_of(one)}", 12)


def _end_of(attempt: Json) -> str:
    """Return `main-0, try 2 on gpu001 (GPU 0,1), after 1h02m: status 3`."""
    task, devices = show_usage.task_of(attempt), ",".join(map(str, attempt.get("devices") or ()))
    words = f"{task}, try {attempt['attempt']} on {attempt['node']}"
    words += f" (GPU {devices})" if devices else ""
    started, ended = (
        terminal.parse_time(attempt.get("started")),
        terminal.parse_time(attempt["ended"]),
    )
    if started is not None and ended is not None:
        words += f", after {terminal.format_duration(max(0.0, ended - started))}"
    reason = attempt.get("endReason") or "Ended"
    end = f"signal {attempt['signal']}" if attempt.get("signal") else None
    if end is None and attempt.get("exitCode") is not None:
        end = f"status {attempt['exitCode']}"
    told = [reason] if reason != "Exited" else []
    told += [end] if end else []
    return f"{words}: {', '.join(told) or reason}" + (
        f"; {attempt['message']}" if attempt.get("message") else ""
    )


def _tell_last_try(attempts: list[Json]) -> None:
    """Print how the last try ended, by the task that failed first."""
    ended = [one for one in attempts if one.get("ended") and one.get("exitCode") != 0]
    if ended:
        newest = max(ended, key=lambda one: str(one["ended"]))
        same = [
            one
            for one in ended
            if (one.get("element"), one["attempt"]) == (newest.get("element"), newest["attempt"])
        ]
        own = [one for one in same if one.get("endReason") in run_status.OWN_WILL] or same
        _say(f"  Last try: {_end_of(min(own, key=lambda one: str(one['ended'])))}.")


def _last(attempts: list[Json]) -> Json:
    """Return the attempt that ended last, preferably one that failed by itself."""
    bad = [one for one in attempts if one.get("exitCode") != 0]
    own = [one for one in bad if one.get("endReason") in run_status.OWN_WILL]
    return max(own or bad or attempts, key=lambda one: one.get("ended") or "")


def _explain_placement(item: Json, element: int | None, *, past: bool) -> None:
    """Print why the job is on its nodes, or one of its elements, or why it was evicted."""
    told = [
        one
        for one in item.get("events") or []
        if one["kind"] in PLACEMENT_EVENTS and explain_elements.is_about(one["message"], element)
    ]
    if told and item["job"]["state"] not in job_list.FINISHED:
        last = told[-1]
        verb = "had been" if past else "was"
        what = "The last element" if item["job"].get("array") and element is None else "It"
        at = terminal.format_clock(last["at"])
        _say(f"\n{what} {verb} {PLACEMENT_EVENTS[last['kind']]} at {at}:")
        _say(f"  {last['message']}")


def _explain_start(job: Json, now: float, *, in_line: bool) -> None:
    at = terminal.parse_time(job["estimatedStart"])
    if at is None and any(
        one["code"] == explain_elements.BACKING_OFF for one in job.get("reasons") or []
    ):
        return  # the reason has the time of the next try
    _say("")
    found = job.get("reasons") or []
    why = explain_start.why_no_estimate(found) if at is None else ""
    if job["place"] and in_line and not (at is None and explain_start.is_out_of_line(found)):
        _say(f"Place in its queue: {job['place']}.")
    if at is None:
        _say(f"No estimated start: {why}.")
        return
    _say(f"Estimated start{explain_start.whose(job)}: {explain_start.start_text(job, now)}.")


def _explain_queue(queue: Json, borrowers: list[Json], *, demand: bool = True) -> None:
    """Print the amounts of the queue, and the queues that use more than their guarantee.

    ``demand``: with what the queue asks for. The demand leaves out jobs that never start, so that
    they take no share from others; for one of these it would look as if it asked for nothing.
    """
    if queue is None:
        return
    _say(f"\nQueue {queue['name']}:")
    kinds = ("allocated", "guaranteed", "fairShare", "limit", *(["demand"] if demand else []))
    heads = ("ALLOCATED", "GUARANTEED", "FAIR SHARE", "LIMIT", *(["DEMAND"] if demand else []))
    titles = (("gpu", "GPUs"), ("cpu", "CPUs"), ("memory", "memory"))
    rows = [(title, [_amount(queue, kind, each) for kind in kinds]) for each, title in titles]
    for one in queue.get("pools") or []:
        for each, title in titles:
            said = any((one.get(kind) or {}).get(each) is not None for kind in kinds[1:4])
            if said or each == "gpu":
                cells = [_amount(one, kind, each) for kind in kinds]
                rows.append((f"{title} in {one['pool']}", cells))
    width = max(len(title) for title, _ in [*rows, (" " * 10, ())])
    for title, row in [("", heads), *rows]:
        _row(title, row, width)
    for words in _shrunk(queue):
        _say(words)
    if borrowers:
        parts = [f"{one['name']} ({_over(one['over'])})" for one in borrowers]
        _say(f"Queues above their guarantee: {', '.join(parts)}.")


def _shrunk(queue: Json) -> list[str]:
    """Return sentences about guarantees of a root queue that count only in part.

    A root queue has its guarantee as far as it asks for it, unless more is guaranteed than is in
    service.
    """
    if queue.get("parent") is not None:
        return []
    found = []
    for each, noun in (("gpu", "GPUs"), ("cpu", "CPUs"), ("memory", "of memory")):
        owed, counted, *bounds = [
            (queue.get(kind) or {}).get(each)
            for kind in ("guaranteed", "fairShare", "demand", "limit")
        ]
        if owed is None or counted is None:
            continue
        if counted < min(owed, *(bound for bound in bounds if bound is not None)):
            whole, part = _amount(queue, "guaranteed", each), _amount(queue, "fairShare", each)
            found.append(
                f"Only {part} of its guaranteed {whole} {noun} count now: less is in service than "
                "all guarantees together."
            )
    return found


def _row(title: str, cells: Sequence[str], width: int) -> None:
    line = f"  {title:<{width}}" + "".join(f"{cell:>12}" for cell in cells)
    terminal.out.print(line, markup=False, soft_wrap=True)


def _amount(queue: Json, kind: str, resource: str) -> str:
    """Return an amount; memory in GiB, a dash if there is none."""
    if resource != "memory":
        return inspect_commands.amount(queue, kind, resource)
    found = (queue.get(kind) or {}).get(resource)
    return "-" if found is None else f"{found / 2**30:.4g} GiB"


def _over(amounts: Json) -> str:
    shown = []
    if amounts.get("gpu"):
        shown.append(f"{amounts['gpu']:g} GPU{'s' if amounts['gpu'] != 1 else ''}")
    if amounts.get("cpu"):
        shown.append(f"{amounts['cpu']:g} CPU{'s' if amounts['cpu'] != 1 else ''}")
    return ", ".join(shown)
