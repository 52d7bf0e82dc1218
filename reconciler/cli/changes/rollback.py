"""Commands that take back or pause: ``rollback``, ``suspend`` and ``resume``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import completion, context, terminal
from reconciler.cli.changes import overrides, submit
from reconciler.cli.repository import review

if TYPE_CHECKING:
    from reconciler.changes import requests
    from reconciler.operations.changes import local_changes, revision_rollback, suspension
    from reconciler.operations.plan import planner
else:
    from reconciler.cli import lazy_import

    requests = lazy_import.module("reconciler.changes.requests")
    local_changes = lazy_import.module("reconciler.operations.changes.local_changes")
    planner = lazy_import.module("reconciler.operations.plan.planner")
    revision_rollback = lazy_import.module("reconciler.operations.changes.revision_rollback")
    suspension = lazy_import.module("reconciler.operations.changes.suspension")

Here = Annotated[
    Path, typer.Option("--clone", help="Your clone of the repository.", envvar="MUSTER_CLONE")
]


#: The most commits that go along whose subjects are shown.
ALONG_MAX = 5


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (rollback, suspend, resume):
        app.command()(command)


def rollback(
    revision: Annotated[str, typer.Argument(help="Revision to go back to.")],
    reason: submit.Reason = "",
    *,
    jobs: Annotated[bool, typer.Option("--jobs", help="Let jobs go back too.")] = False,
    branch: Annotated[
        str, typer.Option("--branch", help="Commit to a new branch, for a pull request.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    dry_run: submit.DryRun = False,
    forecast: review.Forecast = True,
    path: Annotated[str, typer.Option("--path", help="Folder of the clone that is read.")] = "",
    clone: Here = Path(),
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Go back to a revision, by a commit on top.

    The structure becomes what it was then.

    What it does is shown first, as `muster plan` shows it: what changes, what that does to GPUs
    and running work, which jobs start sooner or later. Jobs stay as they are unless --jobs is
    given. Commits of yours that are not pushed yet go along, and are part of what is shown. Exits
    with 3 where it is committed to a branch that is held.

    Example: muster rollback HEAD~3 --reason "the new queues starve training"

    Example: muster rollback 4be1c02f --branch undo-queues

    Example: muster rollback HEAD~1 --dry-run
    """
    snapshot, live, why = review.known(None, server, token_file)
    try:
        root = revision_rollback.here(clone)
        made = revision_rollback.prepare(root, path, revision, jobs=jobs, reason=reason, live=live)
        if made is None:
            terminal.note(f"nothing to do: what is asked for is as it was at {revision}")
            raise typer.Exit(terminal.DONE)
        # its commit has a new name each time that it is rehearsed, which would name nothing
        found = msgspec.structs.replace(made.found, head_commit="")
        plan = planner.plan(found, snapshot, time.time(), no_snapshot=why, forecast=forecast)
        review.show(plan, review.PlanForm.TEXT, "")
        if made.along:
            terminal.note(_going_along(made.along))
        if made.unread:
            terminal.note(f"left as they are, since they can't be read: {', '.join(made.unread)}")
        if made.drains:
            terminal.note(f"drained since, and takes work again: {', '.join(made.drains)}")
        if made.problems:
            terminal.fail("going back there is refused today", details=made.problems)
        if dry_run:
            terminal.note("nothing was changed")
            return
        if not yes and not _confirmed(f"Go back to {revision}?"):
            terminal.fail("nothing was changed")
        pushed = revision_rollback.publish(root, made, branch)
    except revision_rollback.RollbackError as error:
        terminal.fail(str(error))
    where = "pushed" if pushed else "committed in this clone, which pushes nowhere"
    terminal.out.print(made.commit[:12], markup=False)
    held = plan.verdict == "held"
    terminal.note(f"{where}; safety limits hold it until it is approved" if held else where)
    if not branch:
        submit.leave_withheld([local_changes.standing_of(made.commit, server, token_file)])


def _going_along(commits: tuple[str, ...]) -> str:
    """That commits are pushed with it which nobody has seen yet."""
    many = len(commits) > 1
    which = f"{len(commits)} commits of yours that are" if many else "a commit of yours that is"
    shown = "; ".join(commits[:ALONG_MAX])
    shown += f"; and {len(commits) - ALONG_MAX} more" if len(commits) > ALONG_MAX else ""
    goes = "go along, and are" if many else "goes along, and is"
    return f"{which} not pushed yet {goes} part of what is shown: {shown}"


def _confirmed(question: str) -> bool:
    """Whether somebody says yes; leaves the command where nobody is there to answer."""
    while True:
        sys.stderr.write(f"{question} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not sys.stdin.isatty() or not answer.endswith("\n"):
            sys.stderr.write("\n")  # what comes from a pipe ends no line on the screen
        if not answer:
            terminal.fail("nothing was changed: nobody answered; --yes does it without asking")
        if (said := answer.strip().lower()) in ("", "n", "no"):
            return False
        if said in ("y", "yes"):
            return True


What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="cluster, queue/NAME or job/NAME.",
        autocompletion=completion.subjects,
        callback=context.named,
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
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Stop acting on the cluster, a queue or a job.

    It is watched as before.

    Nothing new starts; what runs goes on, except that a job that is suspended stops. It is a
    commit, in your clone or made by the controller; `muster status` tells for how long it lasts.

    Example: muster suspend queue/research --reason "the file server is repaired"

    Example: muster suspend cluster --override --for 2h --reason "the cooling is out"
    """
    overrides.check_options(override=override, lasts=lasts, dry_run=dry_run)
    if override:
        subject = _overridable(subject, "`muster cancel JOB --override` stops a job behind git")
        overrides.put("suspend", [subject], reason, lasts, (server, token_file))
        return
    _set("suspend", subject, reason, (clone, server, token_file), dry_run=dry_run)


def resume(
    subject: What,
    reason: submit.Reason = "",
    *,
    override: Annotated[
        bool,
        typer.Option("--override", help="End what `muster suspend --override` did; git decides."),
    ] = False,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Let what was suspended go on.

    Example: muster resume queue/research

    Example: muster resume cluster --override
    """
    overrides.check_options(override=override, lasts=None, dry_run=dry_run)
    if override:
        subject = _overridable(subject, "`muster release JOB` lets a job go on")
        overrides.end(overrides.Verb.SUSPEND, subject, (server, token_file))
        return
    _set("resume", subject, reason, (clone, server, token_file), dry_run=dry_run)


def _overridable(subject: str, instead: str) -> str:
    """The subject of an override, as the controller has it; leaves the command for any other."""
    try:
        return suspension.canonical(subject)
    except requests.ConflictError as error:
        is_job = subject.lower().startswith(suspension.JOB)
        told = f"only the cluster and queues are suspended behind git: {instead}"
        terminal.fail(told if is_job else str(error), terminal.USAGE)


def _set(
    verb: local_changes.Verb,
    subject: str,
    reason: str,
    place: tuple[Path | None, str | None, str | None],
    *,
    dry_run: bool,
) -> None:
    """A job is suspended by holding it."""
    if subject.lower().startswith(suspension.JOB):
        verb = "hold" if verb == "suspend" else "release"
        subject = subject[len(suspension.JOB) :]
    submit.change_all(verb, [subject], reason, place, dry_run=dry_run)
