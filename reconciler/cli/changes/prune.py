"""``muster prune``: files of jobs that ended long ago leave the repository in one commit."""

import time
from typing import Annotated

import typer

from reconciler.cli import context, terminal
from reconciler.cli.changes import submit
from reconciler.operations import job_pruning

#: The status of a job that the caller may not change.
NOT_ALLOWED = 403


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(prune)


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only jobs that ended so long ago.")
    ] = "30d",
    *,
    dry_run: submit.DryRun = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Take files of jobs that ended long ago out of git.

    The controller makes the commit in your name, one for every 500 jobs. History, reports and
    logs keep the jobs for as long as retention says. A job that another one depends on stays, and
    so does one whose name two documents have that say different things, and one that you may not
    change: which, and why, is told. Where for that reason none is left to remove, it exits with 3.

    Example: muster prune --older-than 14d --dry-run
    """
    before = time.time() - context.seconds("--older-than", older_than)
    with context.controller(server, token_file) as api:
        chosen = job_pruning.choose(map(job_pruning.of_item, api.items("/v1/jobs")), before)
        for name, by in chosen.kept.items():
            terminal.note(f"{name} stays: {by} depends on it")
        if not chosen.names:
            terminal.note(f"no file of a job that ended more than {older_than} ago")
            return
        left = refused = 0
        for begin in range(0, len(chosen.names), job_pruning.COMMIT_MAX):
            body = {
                "verb": "prune",
                "names": chosen.names[begin : begin + job_pruning.COMMIT_MAX],
                "reason": f"ended more than {older_than} ago",
                "dry_run": dry_run,
            }
            for item in api.post("/v1/changes", body)["items"]:
                refused += item["status"] == NOT_ALLOWED
                if item["message"] and item["commit"] is None:
                    terminal.note(f"{item['name']}: {item['message']}")
                else:
                    left += 1
                    terminal.out.print(item["name"], markup=False)
    files = f"{left} file{'' if left == 1 else 's'}"
    terminal.note(f"{files} would be removed" if dry_run else f"{files} removed")
    if refused and not left:
        raise typer.Exit(terminal.REFUSED)
