"""The commands `muster cancel`, `hold`, `release` and `rerun`: one verb for several jobs.

Jobs are named, or selected by wildcards and filters as in `muster jobs`. A selection is shown and
confirmed before anything is done.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import array_elements, completion, context, terminal
from reconciler.cli.changes import job_selection, overrides, submit
from reconciler.model.state import states

if TYPE_CHECKING:
    from reconciler.operations.changes import remote_changes

#: The most names of a selection that are listed before the question.
LISTED_MAX = 20

_OVER = frozenset(state.value for state in states.FINISHED_JOB_STATES)
_ALIVE = frozenset(job_selection.STATES) - _OVER
#: What `--failed` selects, of jobs and of elements.
_FAILED = (states.JobState.FAILED.value, states.JobState.TIMED_OUT.value)
#: The states of jobs to which a selection may do something, by verb.
_STATES: dict[remote_changes.ChangeVerb, frozenset[str]] = {
    "cancel": _ALIVE,
    "hold": _ALIVE - {states.JobState.HELD.value, job_selection.SUBMITTING},
    "release": frozenset({states.JobState.HELD.value}),
    "rerun": _OVER,
}

Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names of jobs; * and ? are wildcards. JOB[1-3,7] means elements of an array.",
        autocompletion=completion.jobs,
        callback=context.require_name,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (hold, release, cancel, rerun):
        app.command()(command)


def cancel(
    names: Names = None,
    reason: submit.Reason = "",
    *,
    queue: job_selection.Queue = None,
    state: job_selection.State = None,
    owner: job_selection.Owner = None,
    labels: job_selection.Labels = None,
    mine: job_selection.Mine = False,
    yes: Yes = False,
    override: overrides.Override = False,
    lasts: overrides.For = None,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Cancel jobs: stop them and delete their YAML.

    The deletion is a commit. Wildcards and filters select among jobs that have not ended, and are
    confirmed. Jobs that still wait for git (Submitting) are withdrawn. With --override it works
    while git can't be reached.

    Example: muster cancel train

    Example: muster cancel 'sweep-*' --mine --state Pending

    Example: muster cancel 'array[3,7-9]'

    Example: muster cancel train --override --for 2h --reason "fills the disk; git is down"
    """
    overrides.check_options(override=override, lasts=lasts, dry_run=dry_run)
    place = submit.Place(clone, server, token_file, with_local)
    filters = job_selection.Filters(queue, state, owner, labels, mine)
    chosen = _chosen("cancel", names or [], filters, place, asks=not (yes or dry_run))
    if override:
        if any(chosen.values()):
            terminal.fail("--override cancels whole jobs, not elements", terminal.USAGE)
        overrides.make_overrides("cancel", list(chosen), reason, lasts, (server, token_file))
        return
    submit.change_all("cancel", list(chosen), reason, place, dry_run=dry_run, elements=chosen)


def hold(
    names: Names = None,
    reason: submit.Reason = "",
    *,
    queue: job_selection.Queue = None,
    state: job_selection.State = None,
    owner: job_selection.Owner = None,
    labels: job_selection.Labels = None,
    mine: job_selection.Mine = False,
    yes: Yes = False,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Hold jobs: running ones stop, waiting ones do not start.

    Sets spec.suspend in their YAML, in a commit. Wildcards and filters select among jobs that have
    not ended, and are confirmed. `muster release` lets them continue.

    Example: muster hold train --reason "data is being repaired"

    Example: muster hold --mine --state Pending
    """
    place = submit.Place(clone, server, token_file, with_local)
    filters = job_selection.Filters(queue, state, owner, labels, mine)
    chosen = _chosen("hold", names or [], filters, place, asks=not (yes or dry_run))
    submit.change_all("hold", list(chosen), reason, place, dry_run=dry_run, elements=chosen)


def release(
    names: Names = None,
    reason: submit.Reason = "",
    *,
    queue: job_selection.Queue = None,
    state: job_selection.State = None,
    owner: job_selection.Owner = None,
    labels: job_selection.Labels = None,
    mine: job_selection.Mine = False,
    yes: Yes = False,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Release held jobs, so that they may start again.

    Removes spec.suspend from their YAML, in a commit. Wildcards and filters select among held jobs,
    and are confirmed.

    Example: muster release train

    Example: muster release 'sweep-*' --yes
    """
    place = submit.Place(clone, server, token_file, with_local)
    filters = job_selection.Filters(queue, state, owner, labels, mine)
    chosen = _chosen("release", names or [], filters, place, asks=not (yes or dry_run))
    submit.change_all("release", list(chosen), reason, place, dry_run=dry_run, elements=chosen)


def rerun(
    names: Names = None,
    reason: submit.Reason = "",
    *,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not go on from earlier checkpoints.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only failed jobs, and of arrays the failed elements.")
    ] = False,
    queue: job_selection.Queue = None,
    state: job_selection.State = None,
    owner: job_selection.Owner = None,
    labels: job_selection.Labels = None,
    mine: job_selection.Mine = False,
    yes: Yes = False,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Run jobs again that have ended.

    Raises spec.run in their YAML, in a commit. Wildcards and filters select among jobs that have
    ended, and are confirmed. Elements of an array run again in a run without the others. A job with
    checkpoints goes on from those of the run before: see spec.resumeFrom. Logs of earlier runs are
    kept: `muster logs --run`.

    Example: muster rerun train

    Example: muster rerun train --fresh

    Example: muster rerun 'array[3]'

    Example: muster rerun 'sweep-*' --failed
    """
    place = submit.Place(clone, server, token_file, with_local)
    filters = job_selection.Filters(queue, state, owner, labels, mine)
    chosen = _chosen("rerun", names or [], filters, place, asks=not (yes or dry_run), failed=failed)
    submit.change_all(
        "rerun", list(chosen), reason, place, dry_run=dry_run, elements=chosen, fresh=fresh
    )


def _chosen(
    verb: remote_changes.ChangeVerb,
    written: list[str],
    filters: job_selection.Filters,
    place: submit.Place,
    *,
    asks: bool,
    failed: bool = False,
) -> dict[str, str]:
    """Return the jobs to act on, each with the elements that are meant, empty for all.

    Exit if there is none, or if a selection is not confirmed.

    Args:
        verb: what is to be done.
        written: names; those without wildcards, and without a filter, are taken as they are.
        filters: of this command.
        place: where the change is made; the controller there is asked for jobs.
        asks: whether a selection is confirmed.
        failed: only failed jobs, and of arrays their failed elements.
    """
    named = _named(written)
    is_selection = filters != job_selection.Filters() or any(map(job_selection.is_pattern, named))
    if not named and not is_selection:
        terminal.fail(
            f"no job to {verb}: expected names, or a filter such as --mine or --state",
            terminal.USAGE,
        )
    chosen = named
    if is_selection:
        selected = _selected(verb, list(named), filters, place)
        chosen = {name: named.get(name, "") for name in selected}
    if failed:
        chosen = _failed(chosen, place)
    if not is_selection:
        return chosen
    terminal.note(_listed([f"{name}[{of}]" if of else name for name, of in chosen.items()]))
    many = terminal.counted(len(chosen), "job")
    if asks and not sys.stdin.isatty():  # a script's input is not an answer
        terminal.fail(
            f"nothing was changed: nobody can be asked whether to {verb} {many}. To do it, add "
            "--yes; --dry-run shows what it would do",
            terminal.USAGE,
        )
    if asks and not terminal.confirmed(f"{verb.capitalize()} {many}?"):
        terminal.fail("nothing was changed")
    return chosen


def _named(written: list[str]) -> dict[str, str]:
    """Return names of jobs with the elements that they name. Exit if a name contradicts another."""
    found: dict[str, str] = {}
    for one in written:
        if "[" in one and job_selection.is_pattern(one):
            terminal.fail(f"{one}: elements are named without wildcards", terminal.USAGE)
        has_elements = not array_elements.BRACKETS.isdisjoint(one)
        name, elements = array_elements.parse_set(one) if has_elements else (one, "")
        if name in found and bool(found[name]) is not bool(elements):
            terminal.fail(
                f"{name} is named as a whole and by elements; write one of them", terminal.USAGE
            )
        found[name] = array_elements.joined(found.get(name, ""), elements)
    return found


def _failed(chosen: dict[str, str], place: submit.Place) -> dict[str, str]:
    """Return those of the jobs that have failed, arrays with their failed elements. Exit if none
    has.
    """
    left: dict[str, str] = {}
    with context.controller(place.server, place.token_file) as api:
        for name, elements in chosen.items():
            job = api.get(f"/v1/jobs/{name}", attempts=1)["job"]
            if not job["array"]:
                left |= {name: ""} if job["state"] in _FAILED else {}
                continue
            by_state = job.get("elementIndexes") or {}
            texts = [by_state[state] for state in _FAILED if state in by_state]
            if among := array_elements.common(",".join(texts), elements):
                left[name] = among
    if not left:
        terminal.fail("nothing has failed, so nothing runs again")
    return left


def _selected(
    verb: remote_changes.ChangeVerb,
    names: list[str],
    filters: job_selection.Filters,
    place: submit.Place,
) -> list[str]:
    """Return the names of jobs that are selected and in a state for the verb. Exit if none is."""
    query = filters.query(names)
    with context.controller(place.server, place.token_file) as api:
        items = job_selection.read(api, query, names, None)
        if filters.queue is not None and not items:
            job_selection.check_queue(api, filters.queue)
        if unknown := job_selection.unknown_names(api, names, items):
            terminal.fail(unknown[0], details=unknown[1:])
    allowed = _STATES[verb]
    chosen = [
        one["name"]
        for one in items
        if one["state"] in allowed and (not one["removed"] or one.get("ephemeral"))
    ]
    if not chosen:
        found = f": {terminal.counted(len(items), 'job')} selected" if items else ""
        states_text = ", ".join(one for one in job_selection.STATES if one in allowed)
        terminal.fail(f"no job to {verb}{found}; expected jobs that are {states_text}")
    return chosen


def _listed(names: list[str]) -> str:
    """Return names for people, cut after some."""
    more = len(names) - LISTED_MAX
    shown = ", ".join(names[:LISTED_MAX])
    return f"{shown} and {more} more" if more > 0 else shown
