"""Waiting for jobs: the command `muster wait`, and the waiting of `muster run`.

A job that was just committed may not be known yet. If its commit is held, it stays unknown until
somebody approves it; this is reported with what lets it apply.
"""

from __future__ import annotations

import contextlib
import enum
import time
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from reconciler.cli import (
    array_elements,
    completion,
    context,
    lazy_import,
    reason_order,
    retries,
    terminal,
)
from reconciler.cli.changes import job_selection
from reconciler.cli.jobs import explain_start
from reconciler.model.values import quantities
from reconciler.operations.changes import held_changes

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

#: Exit code of `muster run` and `muster wait` when the time is up.
TIMED_OUT = 124
#: Exit code of `muster wait` for jobs of which none failed, and some wait for a person.
STUCK = 4
#: How long one request waits for events of a job.
LOOK_S = 20.0
#: How long an unknown job may take to appear: the controller reads commits at once.
UNKNOWN_S_MAX = 15.0
#: After how long of that it is reported.
UNKNOWN_TOLD_S = 5.0
#: How long `muster wait` looks for a name after it asked the controller to read git again.
APPEAR_S_MAX, APPEAR_EVERY_S = 5.0, 0.25
#: How long a job that can't start stays: nodes may be about to report for the first time.
IMPOSSIBLE_S_MAX = 30.0
#: Reasons that the job itself asks for.
AS_ASKED = frozenset({"ArrayLimit"})
#: Stands for a reason while the controller does not know the job.
UNKNOWN = "unknown"
FINISHED = frozenset({"Succeeded", "Failed", "Cancelled", "TimedOut"})

Json = Any


class Until(enum.Enum):
    """State that `muster wait` waits for; the end of a job ends it in any case."""

    ENDED = "ended"
    STARTED = "started"
    HELD = "held"


#: States in which a job is as far as that.
REACHED = {
    Until.ENDED: FINISHED,
    Until.STARTED: FINISHED | {"Starting", "Running"},
    Until.HELD: FINISHED | {"Held"},
}


_FAR = {Until.ENDED: "ended", Until.STARTED: "started", Until.HELD: "been held"}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(wait)


class ImpossibleError(Exception):
    """Error: a job waits for something that will not happen."""


class NotAppliedError(Exception):
    """Error: a job is committed but unknown, because git is held. The message has what lets it
    apply.
    """


class VanishedError(Exception):
    """Error: a job that waited is gone without a start. The message has the reason for which it
    waited.
    """


def wait_until(
    api: retries.Patient,
    name: str,
    condition: Any,
    ends_at: float | None = None,
    *,
    give_up: bool = False,
    if_held: bool = False,
) -> Json:
    """Return the job as soon as `condition` holds; None if the time is up before.

    The job is read at once in any case, and once more when the time is up.

    Raises:
        NotAppliedError: the job is unknown, because git does not apply.
        VanishedError: the job was refused, and its YAML was deleted.
        ImpossibleError: with `give_up`, if it could never start for a while; with `if_held` also
            if it was held for as long.
    """
    after: int | None = None
    last_reason = ""
    usual: set[str] = set()
    unknown_until = time.monotonic() + UNKNOWN_S_MAX
    impossible_until: float | None = None
    while True:
        is_over = ends_at is not None and time.monotonic() >= ends_at
        job = _read_job(api, name, last_reason, unknown_until)
        if job is not None and condition(job):
            return job
        if is_over:
            return None
        if job is not None and job["reasons"]:
            reason = new_reason_text(reason_order.ordered(job["reasons"])[0], last_reason, usual)
            if reason:
                last_reason = reason
                start = explain_start.short_start(job, time.time())
                told = f"{terminal.format_clocks(reason)}{f'; starts {start}' if start else ''}"
                terminal.note(f"{name} waits: {told}")
        late = time.monotonic() > unknown_until - UNKNOWN_S_MAX + UNKNOWN_TOLD_S
        if job is None and late and last_reason != UNKNOWN:
            last_reason = UNKNOWN
            _tell_unknown(api, name)
        hopeless = _hopeless(job, if_held=if_held) if give_up and job is not None else ""
        if not hopeless:
            impossible_until = None
        elif impossible_until is None:
            impossible_until = time.monotonic() + IMPOSSIBLE_S_MAX
        elif time.monotonic() > impossible_until:
            raise ImpossibleError(hopeless)
        left_s = LOOK_S if ends_at is None else min(LOOK_S, max(0.0, ends_at - time.monotonic()))
        if job is None or hopeless:
            left_s = min(left_s, 1.0)
        page = api.get(
            "/v1/events", job=name, after=after, wait_s=left_s if after is not None else None
        )
        after = page["next"]


def _read_job(
    api: retries.Patient, name: str, last_reason: str, unknown_until: float
) -> Json | None:
    """Return the job, or None if the controller does not know it yet.

    Args:
        last_reason: the last printed reason for which it waits.
        unknown_until: how long it may be unknown, by the monotonic clock.

    Raises:
        NotAppliedError: the job is unknown for longer, because git does not apply.
        VanishedError: the job waited before.
    """
    try:
        return api.get(f"/v1/jobs/{name}")["job"]
    except api_client.ApiError as error:
        if error.status != 404:
            raise
        if last_reason and last_reason != UNKNOWN:
            raise VanishedError(f"{name} never started: {last_reason}") from None
        if time.monotonic() > unknown_until:
            _leave_unknown(api, error)
        return None


def new_reason_text(reason: Json, last: str, usual: set[str]) -> str:
    """Return the text of the first reason for which a job waits; empty if it is no news.

    An array that runs as many elements at once as it asks for waits for changing reasons between
    two elements; each is reported once.

    Args:
        reason: code and message.
        last: the last text that was printed.
        usual: texts about reasons that the job asked for; grows.
    """
    text = f"{reason['code']}: {reason['message']}"
    if text == last or text in usual:
        return ""
    if reason["code"] in AS_ASKED:
        usual.add(text)
    return text


def _tell_unknown(api: retries.Patient, name: str) -> None:
    """Print why the controller does not know what was committed."""
    left = f"waiting up to {UNKNOWN_S_MAX:.0f}s"
    why = held_changes.revision(api.get("/v1/sync")["sync"])
    why = f"its commit is not applied: {why}" if why else left
    terminal.note(f"the controller does not know {name} yet; {why}")


def _leave_unknown(api: retries.Patient, error: api_client.ApiError) -> NoReturn:
    """Raise the error about a job that did not appear."""
    why = held_changes.revision(api.get("/v1/sync")["sync"])
    if why:
        raise NotAppliedError(why) from error
    raise error


def _hopeless(job: Json, *, if_held: bool = False) -> str:
    """Return the reason that waiting does not end, if there is one."""
    is_held = if_held and job["state"] == "Held"
    for reason in job["reasons"]:
        if reason_order.is_never(reason) or (is_held and reason["code"] == "Held"):
            return f"{reason['code']}: {reason['message']}"
    return ""


def wait(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Names of jobs; * and ? stand for any text in those that there are.",
            autocompletion=completion.jobs,
            callback=context.require_name,
        ),
    ],
    *,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="Give up after this time, such as 10m. Default: never."),
    ] = None,
    until: Annotated[
        Until,
        typer.Option(
            "--until",
            metavar="STATE",
            help="ended, started or held: what to wait for, or the end of a job.",
        ),
    ] = Until.ENDED,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Wait until jobs have ended.

    Each job's state is printed as it comes. A job that is held, or can never start, such as one
    whose dependency has failed, is not waited for after half a minute. Exit codes: 0 all succeeded,
    or are as far as --until says; 1 not all are, or a name is unknown; 4 none has failed, and some
    are held or can never start; 124 the time is up; 125 the controller can't be reached, or did not
    come back within a minute.

    Example: muster wait train evaluate --timeout 2h

    Example: muster wait 'sweep-*'
    """
    timeout_s = context.parse_seconds("--timeout", timeout) if timeout else None
    array_elements.require_whole_jobs("wait", names)
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    span = "" if timeout_s is None else quantities.format_duration(timeout_s)
    with context.controller(server, token_file) as api:
        names = job_selection.expanded(api, names)
        try:
            patient = retries.Patient(api, ends_at=ends_at)
            failed, stuck = _ended_badly(patient, names, until, ends_at, span)
        except VanishedError as error:
            terminal.fail(f"{error}; its YAML was deleted")
        except (retries.GoneError, api_client.ApiError) as error:
            if isinstance(error, api_client.ApiError) and not error.unreachable:
                raise
            if ends_at is not None and time.monotonic() > ends_at:
                terminal.fail(f"not all have ended after {span}, and {error}", TIMED_OUT)
            terminal.fail(f"{error}; {continues_text(names)}", retries.FAILED)
        except BrokenPipeError:
            terminal.drop_stdout()
            terminal.fail(
                f"nobody reads the output any more; {continues_text(names)}", retries.FAILED
            )
    code = STUCK if stuck else terminal.DONE
    raise typer.Exit(terminal.ERROR if failed else code)


def _ended_badly(
    api: retries.Patient, names: list[str], until: Until, ends_at: float | None, span: str
) -> tuple[list[str], list[str]]:
    """Wait for jobs and print each one's state.

    Returns:
        Those that failed, and those that are held or can never start.
    """
    _require_known(api, names)
    failed, stuck = [], []
    for name in names:
        try:
            job = wait_until(
                api,
                name,
                lambda item: item["state"] in REACHED[until],
                ends_at,
                give_up=True,
                if_held=True,
            )
        except ImpossibleError as why:
            terminal.out.print(f"{name}: {terminal.escape_control(str(why))}", markup=False)
            stuck.append(name)
            continue
        if job is None:
            terminal.fail(f"{name} has not {_FAR[until]} after {span}", TIMED_OUT)
        terminal.out.print(f"{name}: {job['state']}", markup=False)
        if job["state"] not in REACHED[until] - FINISHED | {"Succeeded"}:
            failed.append(name)
    return failed, stuck


def _require_known(api: retries.Patient, names: list[str]) -> None:
    """Exit if the controller knows no job of a name.

    It may not have read what was just committed: it is asked to look, and given a few seconds.
    """
    missing = _missing(api, names)
    if not missing:
        return
    terminal.note(
        f"the controller does not know {', '.join(missing)} yet; it reads git again, waiting "
        f"{APPEAR_S_MAX:.0f}s"
    )
    with contextlib.suppress(api_client.ApiError):  # it may be reading already
        api.post("/v1/hooks/git")
    ends_at = time.monotonic() + APPEAR_S_MAX
    while missing and time.monotonic() < ends_at:
        time.sleep(APPEAR_EVERY_S)
        missing = _missing(api, list(missing))
    if missing:
        why = held_changes.revision(api.get("/v1/sync")["sync"])
        first, *others = missing.values()
        terminal.fail(first, details=[*others, *([f"not applied yet: {why}"] if why else [])])


def _missing(api: retries.Patient, names: list[str]) -> dict[str, str]:
    """Return names that no job has, with the controller's message about each."""
    found = {}
    for name in names:
        try:
            api.get(f"/v1/jobs/{name}")
        except api_client.ApiError as error:
            if error.status != 404:
                raise
            found[name] = str(error)
    return found


def continues_text(names: list[str]) -> str:
    """Return a sentence about jobs that nobody watches any more."""
    verb = "continues" if len(names) == 1 else "continue"
    return f"{', '.join(names)} {verb} without this command: muster wait {' '.join(names)}"
