"""The command `muster wait`."""

from __future__ import annotations

import contextlib
import enum
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import array_elements, completion, context, lazy_import, retries, terminal
from reconciler.cli.changes import job_selection
from reconciler.cli.waiting import job_wait
from reconciler.model.values import quantities
from reconciler.operations.changes import held_changes

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

#: Exit code of `muster wait` for jobs of which none failed, and some wait for a person.
STUCK = 4
#: How long `muster wait` looks for a name after it asked the controller to read git again.
APPEAR_S_MAX, APPEAR_EVERY_S = 5.0, 0.25

Json = Any


class Until(enum.Enum):
    """State that `muster wait` waits for; the end of a job ends it in any case."""

    ENDED = "ended"
    STARTED = "started"
    HELD = "held"


#: States in which a job is as far as that.
REACHED = {
    Until.ENDED: job_wait.FINISHED,
    Until.STARTED: job_wait.FINISHED | {"Starting", "Running"},
    Until.HELD: job_wait.FINISHED | {"Held"},
}


_FAR = {Until.ENDED: "ended", Until.STARTED: "started", Until.HELD: "been held"}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(wait)


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
        except job_wait.VanishedError as error:
            terminal.fail(f"{error}; its YAML was deleted")
        except (retries.GoneError, api_client.ApiError) as error:
            if isinstance(error, api_client.ApiError) and not error.unreachable:
                raise
            if ends_at is not None and time.monotonic() > ends_at:
                terminal.fail(f"not all have ended after {span}, and {error}", job_wait.TIMED_OUT)
            terminal.fail(f"{error}; {job_wait.continues_text(names)}", retries.FAILED)
        except BrokenPipeError:
            terminal.drop_stdout()
            terminal.fail(
                f"nobody reads the output any more; {job_wait.continues_text(names)}",
                retries.FAILED,
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
            job = job_wait.wait_until(
                api,
                name,
                lambda item: item["state"] in REACHED[until],
                ends_at,
                give_up=True,
                if_held=True,
                newer_than="",
            )
        except job_wait.ImpossibleError as why:
            terminal.out.print(f"{name}: {terminal.escape_control(str(why))}", markup=False)
            stuck.append(name)
            continue
        if job is None:
            terminal.fail(f"{name} has not {_FAR[until]} after {span}", job_wait.TIMED_OUT)
        terminal.out.print(f"{name}: {job['state']}", markup=False)
        if job["state"] not in REACHED[until] - job_wait.FINISHED | {"Succeeded"}:
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
            if not job_wait.uncommitted_reason(api, name):
                found[name] = str(error)
    return found
