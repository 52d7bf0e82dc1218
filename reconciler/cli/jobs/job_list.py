"""The table of jobs, and the words and times of its cells."""

from collections.abc import Mapping, Sequence
from typing import Any

from reconciler.cli import array_elements, reason_order, terminal
from reconciler.model.state import states

Json = Any

FINISHED = frozenset(state.value for state in states.FINISHED_JOB_STATES)
#: Least widths of columns in a short line: a reason keeps room for its code. Names shrink further
#: if there is no other way.
LEAST = {"NAME": 15, "QUEUE": 8, "REASON": 21}
#: Columns that a short line does without, in this order, before names are cut below their least
#: width; the first ones only where all their cells are the same, and say nothing.
DROPPED = ("QUEUE", "RAN", "START", "WAITED")
IF_SAME = frozenset({"QUEUE", "RAN"})
WAITING = frozenset({"Pending", "Held"})
#: In a narrower terminal, elements that did not succeed are listed below the row.
ROOMY = 100
#: Why tasks are stopping, by the reason of their end.
STOPS = {
    "Cancelled": "cancelled",
    "TimedOut": "time limit",
    "Suspended": "held",
    "Drained": "its node is drained",
    "Preempted": "preempted",
}
#: Replaces a reason that is the same as in the row before.
AS_ABOVE = "as above"
#: A list view holds all tries of a job that has fewer than this.
TRIES_TOLD = 16
#: And so does the view of one job.
TRIES_OF_JOB = 200
#: The most causes of a stop that a row shows.
STOPS_TOLD = 2


#: The start of a job whose estimated start has passed.
ANY_MOMENT = "any moment"
#: Said of a job that no file describes.
NOT_IN_GIT = "not in git"


def show(items: list[Json], now: float, *, wide: bool, recent: bool = False) -> None:
    """Print the table; ``recent``: of jobs that are alive or ended in the last day."""
    if not items:
        terminal.note("no job is alive or ended in the last day" if recent else "no jobs")
        return
    arrays = wide or any(item["array"] for item in items)
    elastic = any(item.get("tasks") for item in items)
    estimated = any(_start(item, now) for item in items)
    apart = wide and any(item.get("ephemeral") for item in items)
    apart_ends = arrays and not wide and terminal.is_bounded() and terminal.width() < ROOMY
    rows = []
    for item in items:
        row = [
            item["name"],
            item["queue"] or "-",
            reason_order.state_text(item, item.get("reasons") or ()),
        ]
        row += [_tasks(item)] if elastic else []
        done, *ends = array_elements.done_words(item)
        row += [done if apart_ends else ", ".join([done, *ends])] if arrays else []
        row += [_waited(item, now), _ran(item, now)]
        row += [_start(item, now) or "-"] if estimated else []
        if wide:
            row += [str(item["run"]), item.get("owner") or "-", _where(item)]
        row += [NOT_IN_GIT if item.get("ephemeral") else item["path"] or "-"] if apart else []
        rows.append([*row, reason_text(item) if item["state"] != "Succeeded" else ""])
    headings = ["NAME", "QUEUE", "STATE", *(["TASKS"] if elastic else [])]
    headings += [*(["DONE"] if arrays else []), "WAITED", "RAN", *(["START"] if estimated else [])]
    below: dict[int, str] = {}
    is_whole = wide or not terminal.is_bounded()  # names are whole where nobody looks at a width
    if wide:
        headings += ["RUN", "OWNER", "NODES", *(["FILE"] if apart else [])]
    else:
        left = terminal.free_width(headings, [row[:-1] for row in rows])
        below = _move_down(rows, items, max(left, LEAST["REASON"]))
    right = "TASKS WAITED RAN DONE START RUN"
    headings.append("REASON")
    if not is_whole:
        _drop_columns(headings, rows)
    least, over = _least(headings, rows)
    if over and not is_whole:
        _move_codes_down(rows, below, max(least["REASON"] - over, len(AS_ABOVE)))
        least, _ = _least(headings, rows)
    if apart_ends:
        _tell_ends(rows, below, items, least["REASON"])
    terminal.print_table(headings, rows, right=right, cut=not is_whole, least=least, below=below)


def _tell_ends(
    rows: list[list[str]], below: dict[int, str], items: Sequence[Json], room: int
) -> None:
    """Tell how many elements of arrays did not succeed, in place of a reason or below the row."""
    for place, (row, item) in enumerate(zip(rows, items, strict=True)):
        told = ", ".join(array_elements.done_words(item)[1:])
        if told and not row[-1] and len(told) <= room:
            row[-1] = told
        elif told:
            below[place] = "; ".join(filter(None, (below.get(place), told)))


def _drop_columns(headings: list[str], rows: list[list[str]]) -> None:
    """Leave out columns, one after the other, until names have room to be told apart."""
    left: list[str] = []
    for heading in DROPPED:
        if heading not in headings or _overlong(_floors(headings, rows)) <= 0:
            continue
        place = headings.index(heading)
        if heading in IF_SAME and len({row[place] for row in rows}) > 1:
            continue
        del headings[place]
        for row in rows:
            del row[place]
        left += [] if heading in IF_SAME else [heading]
    if left:
        terminal.note(f"no room for {' and '.join(left)}: muster jobs -o wide")


def _floors(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the width that each column needs, where names may be cut as long as others fit."""
    columns = zip(headings, *rows, strict=True)
    least = {heading: max(map(len, (heading, *cells))) for heading, *cells in columns}
    return {name: min(size, LEAST.get(name, size)) for name, size in least.items()}


def _overlong(least: Mapping[str, int]) -> int:
    """Return by how many characters a line of such columns is too long."""
    return sum(least.values()) + 2 * (len(least) - 1) - terminal.width()


def _least(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[dict[str, int], int]:
    """Return the least width of each column, and by how many characters a line is too long even
    then.

    Names shrink first, so that other columns stay whole if possible.
    """
    columns = zip(headings, *rows, strict=True)
    least = {heading: max(map(len, (heading, *cells))) for heading, *cells in columns}
    for heading in least.keys() & {"NAME", "QUEUE"}:
        least[heading] = min(least[heading], LEAST[heading])
    over = _overlong(least)
    for heading in ("NAME", "QUEUE"):
        if heading not in least:
            continue
        given = min(max(0, over), least[heading] - terminal.NARROWEST)
        least[heading] -= max(0, given)
        over -= max(0, given)
    return least, max(0, over)


def _move_codes_down(rows: list[list[str]], below: dict[int, str], room: int) -> None:
    """Move reasons longer than `room` below their row: half a code is no use."""
    for place, row in enumerate(rows):
        cell = row[-1]
        if len(cell) <= room:
            continue
        if cell.endswith(AS_ABOVE):
            row[-1] = AS_ABOVE
        else:
            below[place] = ": ".join(filter(None, (cell, below.get(place))))
            row[-1] = ""


def reason_text(item: Json) -> str:
    """Return the most informative reason of a waiting job, or the message about its end."""
    reason = reason_order.leading(item.get("reasons") or [])
    if reason:
        return terminal.format_clocks(f"{reason['code']}: {_waiting_for(item, reason)}")
    text = "; ".join(filter(None, (stopping_text(item), item.get("message"))))
    return terminal.format_clocks(text)


def _waiting_for(item: Json, reason: Json) -> str:
    """Return a reason of a job, and its other message if it waits, such as about its deadline."""
    other_message = item.get("message") if item.get("state") in WAITING else None
    return "; ".join(dict.fromkeys(filter(None, (reason["message"], other_message))))


def stopping_text(item: Json) -> str:
    """Return `stopping (preempted by train), SIGKILL at 11:07:12` if all tasks are stopping, or an
    empty string if they are not.
    """
    alive = [one for one in item.get("attempts") or [] if one["state"] != "Ended"]
    ends = [one["killAt"] for one in alive if one.get("killAt")]
    if not ends or len(ends) < len(alive):
        return ""
    whys = dict.fromkeys(filter(None, (_why_stopping(item, one) for one in alive)))
    because = f" ({', '.join(list(whys)[:STOPS_TOLD])})" if whys else ""
    return f"stopping{because}, SIGKILL at {terminal.format_clock(max(ends))}"


def _why_stopping(item: Json, attempt: Json) -> str:
    """Return why an attempt is stopping, such as `time limit`; empty if that is not known."""
    reason = attempt.get("stopReason") or ""
    if reason == "Preempted" and attempt.get("stopFor"):
        return f"preempted by {attempt['stopFor']}"
    if reason == "TimedOut" and (item.get("message") or "").startswith("its deadline"):
        return "deadline"
    if reason != "SiblingEnded":
        return STOPS.get(reason, "")
    same = [
        one
        for one in item["attempts"]
        if (one.get("element"), one.get("attempt")) == (attempt.get("element"), attempt["attempt"])
    ]
    ended = sorted((one for one in same if one.get("ended")), key=lambda one: str(one["ended"]))
    own = [one for one in ended if one.get("endReason") not in {"SiblingEnded", *STOPS}]
    failed = [one for one in own if one.get("exitCode") != 0 or one.get("endReason") != "Exited"]
    if failed:
        return f"{failed[0]['task']} failed"
    return f"its head {own[-1]['task']} has ended" if own else "another task has ended"


def _move_down(rows: list[list[str]], items: list[Json], room: int) -> dict[int, str]:
    """Return reasons too long for `room`, by the row below which they are printed.

    The rows keep the code. Of consecutive rows with the same reason the first gets the text, and
    the others refer to it.
    """
    below: dict[int, str] = {}
    above = ("", "")
    for place, (row, item) in enumerate(zip(rows, items, strict=True)):
        text, reason = row[-1], reason_order.leading(item.get("reasons") or [])
        if len(text) <= room:
            above = ("", "")
            continue
        code = row[-1] = reason["code"] if reason else ""
        message = terminal.format_clocks(_waiting_for(item, reason)) if reason else text
        if (code, message) == above:
            whole = ", ".join(filter(None, (code, AS_ABOVE)))
            row[-1] = whole if len(whole) <= room else AS_ABOVE
        else:
            below[place], above = message, (code, message)
    return below


def _start(item: Json, now: float) -> str:
    """Return the estimated start of a job that waits, with `~` if others may come first; empty if
    there is none. One that has passed says nothing of when.
    """
    at = item.get("estimatedStart")
    if not at or item["state"] not in WAITING:
        return ""
    if (terminal.parse_time(at) or now) < now:
        return ANY_MOMENT
    return ("" if item.get("estimatedCertain") else "~") + terminal.format_clock(at)


def _tasks(item: Json) -> str:
    """Return `3 of 2-6`: running tasks of an elastic gang, and its bounds."""
    tasks = item.get("tasks")  # an older controller does not send it
    if not tasks or item["state"] in FINISHED:
        return "-"
    return f"{tasks['running']} of {tasks['min']}-{tasks['max']}"


def tasks_text(item: Json) -> str:
    """Return the same in words: `3 tasks run (minimum 2, maximum 6)`, or an empty string for other
    jobs.
    """
    tasks = item.get("tasks")
    if not tasks or item["state"] in FINISHED:
        return ""
    running = "1 task runs" if tasks["running"] == 1 else f"{tasks['running']} tasks run"
    return f"{running} (minimum {tasks['min']}, maximum {tasks['max']})"


def _waited(item: Json, now: float) -> str:
    """Return the time from submission to the first start, else to the end, else to now.

    Of a job that was evicted or retried, that since the end of the try before, to the newest start;
    once it has ended, all its waits together. If the view does not list all tries, the last wait
    is an upper bound: the time since the first start.
    """
    is_whole = not item["array"] and lists_all_tries(item)
    again = _waited_again(item.get("attempts") or [], now) if is_whole else None
    began = None if item["array"] or is_whole else terminal.parse_time(item.get("started"))
    if began is not None and item["state"] in WAITING:
        return f"<={terminal.format_duration(max(0.0, now - began))}"
    if again is not None and (item["state"] in WAITING or item["state"] not in FINISHED):
        return terminal.format_duration(again)
    if len(known := waits(item, now)) > 1 and lists_all_tries(item):
        return terminal.format_duration(sum(known))
    submitted = terminal.parse_time(item.get("submitted"))
    until = (
        terminal.parse_time(item.get("started")) or terminal.parse_time(item.get("ended")) or now
    )
    return terminal.format_duration(None if submitted is None else max(0.0, until - submitted))


def waits(item: Json, now: float) -> list[float]:
    """Return the seconds of each wait of a job that is no array, the first one first.

    That is from submission to the first start, and from the end of each try to the start of the
    next, or to now if there is none and the job waits.
    """
    begin = terminal.parse_time(item.get("submitted"))
    if item["array"] or begin is None:
        return []
    tries: dict[int, list[Json]] = {}
    for one in item.get("attempts") or []:
        tries.setdefault(one.get("attempt", 1), []).append(one)
    found: list[float] = []
    since: float | None = begin
    for _, those in sorted(tries.items()):
        starts = [terminal.parse_time(one["started"]) for one in those if one.get("started")]
        start = min(filter(None, starts), default=None)
        if start is None or since is None:
            continue  # it never ran: the wait goes on
        found.append(max(0.0, start - since))
        ends = [terminal.parse_time(one.get("ended")) for one in those]
        since = None if None in ends else max(filter(None, ends), default=None)
    if since is not None and item["state"] in WAITING:
        found.append(max(0.0, now - since))
    return found


def waits_text(item: Json, now: float) -> str:
    """Return the last wait and all of them together; empty if there was one alone, or if not all
    tries are known.
    """
    known = waits(item, now)
    if len(known) < 2 or len(item["attempts"]) >= TRIES_OF_JOB:
        return ""
    last, total = map(terminal.format_duration, (known[-1], sum(known)))
    return f"{last} since the end of the last try, {total} in {len(known)} waits"


def _waited_again(tries: Sequence[Json], now: float) -> float | None:
    """Return the seconds from the end of the last ended try to the start of the next one, or to
    now; None if there is no such wait, as while a task of an earlier try has not ended.
    """
    newest = max((one.get("attempt", 1) for one in tries), default=0)
    if any(one.get("attempt", 1) < newest and one["state"] != "Ended" for one in tries):
        return None
    alive = [one for one in tries if one.get("attempt", 1) == newest and one["state"] != "Ended"]
    before = [one for one in tries if one.get("attempt", 1) < newest or not alive]
    ends = [terminal.parse_time(one["ended"]) for one in before if one.get("ended")]
    if not ends:
        return None
    starts = [terminal.parse_time(one["started"]) for one in alive if one.get("started")]
    until = min(filter(None, starts), default=now)
    return max(0.0, until - max(filter(None, ends), default=until))


def times_text(item: Json) -> str:
    """Return when a job was submitted, first started and ended, as far as known."""
    known = [name for name in ("submitted", "started", "ended") if item.get(name)]
    return ", ".join(f"{name} {terminal.format_clock(item[name])}" for name in known)


def _ran(item: Json, now: float) -> str:
    """Return how long a job ran, in all tries together."""
    ran = terminal.format_duration(running_time(item, now))
    return ran if item.get("started") is None or lists_all_tries(item) else f"<={ran}"


def lists_all_tries(item: Json) -> bool:
    """Return True if the view lists all tries of a job."""
    return 0 < len(item.get("attempts") or []) < TRIES_TOLD


def running_time(item: Json, now: float) -> float | None:
    """Return the seconds in which any task of a job ran; None if none ever did.

    If the view does not list all tries, it is an upper bound: the time from the first start to the
    end, or to where the job last ran if it waits.
    """
    tries = item.get("attempts") or []
    start, end = terminal.parse_time(item.get("started")), terminal.parse_time(item.get("ended"))
    if start is None:
        return None
    if lists_all_tries(item):
        return _covered(tries, now)
    if end is None and item["state"] in WAITING:
        ends = [terminal.parse_time(one["ended"]) for one in tries if one.get("ended")]
        end = max(filter(None, ends), default=start)
    return max(0.0, (now if end is None else end) - start)


def _covered(tries: Sequence[Json], now: float) -> float:
    """Return the seconds in which at least one try ran."""
    spans = []
    for one in tries:
        began, ended = (
            terminal.parse_time(one.get("started")),
            terminal.parse_time(one.get("ended")),
        )
        if began is not None:
            spans.append((began, now if ended is None else ended))
    total, until = 0.0, 0.0
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _where(item: Json) -> str:
    nodes = sorted({a["node"] for a in item.get("attempts") or [] if a["state"] != "Ended"})
    return ",".join(nodes) or "-"
