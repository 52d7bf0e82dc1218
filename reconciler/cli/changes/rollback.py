"""The commands `muster rollback`, `muster suspend` and `muster resume`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import completion, context, terminal
from reconciler.cli.changes import overrides, submit
from reconciler.cli.repository import review

if TYPE_CHECKING:
    from reconciler.operations.changes import (
        local_changes,
        remote_changes,
        revision_rollback,
        suspension,
    )
    from reconciler.operations.plan import planner
else:
    from reconciler.cli import lazy_import

    local_changes = lazy_import.module("reconciler.operations.changes.local_changes")
    planner = lazy_import.module("reconciler.operations.plan.planner")
    revision_rollback = lazy_import.module("reconciler.operations.changes.revision_rollback")
    suspension = lazy_import.module("reconciler.operations.changes.suspension")

Here = Annotated[
    Path, typer.Option("--clone", help="Your clone of the repository.", envvar="MUSTER_CLONE")
]


#: The most subjects of commits to show that are pushed with a rollback.
ALONG_MAX = 5


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (rollback, suspend, resume):
        app.command()(command)


def rollback(
    revision: Annotated[str, typer.Argument(help="Branch, tag or commit to restore.")],
    reason: submit.Reason = "",
    *,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Also restore jobs. Default: only structure.")
    ] = False,
    branch: Annotated[
        str,
        typer.Option("--branch", help="Commit to a new branch, for a pull request. Default: none."),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    dry_run: submit.DryRun = False,
    forecast: review.Forecast = True,
    path: Annotated[
        str,
        typer.Option(
            "--path", help="Folder of the clone with the cluster's YAML. Default: all of it."
        ),
    ] = "",
    clone: Here = Path(),
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Restore an earlier revision by a new commit.

    The structure (pools, queues, quotas, access) becomes what it was. Jobs stay as they are unless
    --jobs is given. The effect is shown first, as by `muster plan`, and confirmed. Your commits
    that are not pushed yet are pushed with it and included in what is shown. Exits with 3 if safety
    limits hold the commit.

    Example: muster rollback HEAD~3 --reason "the new queues starve training"

    Example: muster rollback 4be1c02f --branch undo-queues

    Example: muster rollback HEAD~1 --dry-run
    """
    snapshot, live, why = review.read_controller(None, server, token_file)
    try:
        root = revision_rollback.here(clone)
        prepared = revision_rollback.prepare(
            root, path, revision, jobs=jobs, reason=reason, live=live
        )
        if prepared is None:
            terminal.note(f"nothing to do: everything is as it was at {revision}")
            raise typer.Exit(terminal.DONE)
        # each rehearsal has a new commit id, which names nothing afterwards
        found = msgspec.structs.replace(prepared.found, head_commit="")
        plan = planner.plan(found, snapshot, time.time(), no_snapshot=why, forecast=forecast)
        review.show(plan, review.PlanForm.TEXT, "")
        if prepared.along:
            terminal.note(_going_along(prepared.along))
        if prepared.unread:
            terminal.note(f"not restored, because they can't be read: {', '.join(prepared.unread)}")
        if prepared.drains:
            terminal.note(f"drained since then, will take work again: {', '.join(prepared.drains)}")
        if prepared.problems:
            terminal.fail("the restored revision would be refused today", details=prepared.problems)
        if dry_run:
            terminal.note("nothing was changed")
            return
        if not yes and not terminal.confirmed(f"Restore {revision}?"):
            terminal.fail("nothing was changed")
        pushed = revision_rollback.publish(root, prepared, branch)
    except revision_rollback.RollbackError as error:
        terminal.fail(str(error))
    where = "pushed" if pushed else "committed locally; this clone has no remote"
    terminal.out.print(prepared.commit[:12], markup=False)
    held = plan.verdict == "held"
    terminal.note(f"{where}; safety limits hold it until it is approved" if held else where)
    if not branch:
        submit.exit_if_withheld(
            [revision_rollback.standing_of(prepared.commit, server, token_file)]
        )


def _going_along(commits: tuple[str, ...]) -> str:
    """Return a sentence about commits that are pushed with the rollback."""
    many = len(commits) > 1
    which = f"{len(commits)} commits of yours are" if many else "a commit of yours is"
    shown = "; ".join(commits[:ALONG_MAX])
    shown += f"; and {len(commits) - ALONG_MAX} more" if len(commits) > ALONG_MAX else ""
    return f"{which} not pushed yet, will be pushed too, and included above: {shown}"


What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="cluster, queue/NAME or job/NAME.",
        autocompletion=completion.subjects,
        callback=context.require_text,
    ),
]


def suspend(
    subject: What,
    reason: submit.Reason = "",
    *,
    override: overrides.Override = False,
    lasts: overrides.For = None,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Suspend the cluster, a queue or a job: nothing new starts.

    Running jobs of the cluster or the queue continue; a suspended job stops. Everything is still
    observed, and `muster status` shows the suspension and its age. It is a commit, in your clone or
    by the controller.

    Example: muster suspend queue/research --reason "the file server is repaired"

    Example: muster suspend cluster --override --for 2h --reason "the cooling is out"
    """
    overrides.check_options(override=override, lasts=lasts, dry_run=dry_run)
    if override:
        subject = _overridable(subject, "to stop a job, use `muster cancel JOB --override`")
        overrides.make_overrides("suspend", [subject], reason, lasts, (server, token_file))
        return
    _set(
        "suspend",
        subject,
        reason,
        submit.Place(clone, server, token_file, with_local),
        dry_run=dry_run,
    )


def resume(
    subject: What,
    reason: submit.Reason = "",
    *,
    override: Annotated[
        bool,
        typer.Option("--override", help="End a `muster suspend --override`; git applies again."),
    ] = False,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Resume the cluster, a queue or a job that is suspended.

    Example: muster resume queue/research

    Example: muster resume cluster --override
    """
    overrides.check_options(override=override, lasts=None, dry_run=dry_run)
    if override:
        subject = _overridable(subject, "for a job, use `muster release JOB`")
        overrides.end_override(overrides.Verb.SUSPEND, subject, (server, token_file))
        return
    _set(
        "resume",
        subject,
        reason,
        submit.Place(clone, server, token_file, with_local),
        dry_run=dry_run,
    )


def _overridable(subject: str, instead: str) -> str:
    """Return the subject of an override as the controller names it. Exit for a job."""
    kind, _ = _parse(subject)
    if kind == "Job":
        terminal.fail(f"--override suspends only the cluster and queues; {instead}", terminal.USAGE)
    return suspension.canonical(subject)


def _parse(subject: str) -> tuple[str, str]:
    """Return kind and name of a subject. Exit if the text names none."""
    try:
        return suspension.parse_with_jobs(subject)
    except suspension.SubjectError as error:
        terminal.fail(str(error), terminal.USAGE)


def _set(
    verb: remote_changes.ChangeVerb,
    subject: str,
    reason: str,
    place: submit.Place,
    *,
    dry_run: bool,
) -> None:
    """Suspend or resume a subject. A job is suspended by holding it."""
    kind, name = _parse(subject)
    if kind == "Job":
        verb = "hold" if verb == "suspend" else "release"
        subject = name
    submit.change_all(verb, [subject], reason, place, dry_run=dry_run)
