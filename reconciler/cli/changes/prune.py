"""The command `muster prune`: delete files of jobs that ended long ago in one commit."""

import time
from typing import Annotated

import typer

from reconciler.cli import context, terminal
from reconciler.cli.changes import submit
from reconciler.operations import job_pruning

#: HTTP status for a job that the caller may not change.
NOT_ALLOWED = 403


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(prune)


def prune(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", help="Only jobs that ended longer ago than this, such as 14d."
        ),
    ] = "30d",
    *,
    dry_run: submit.DryRun = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Delete files of jobs that ended long ago from git.

    The YAML of a job stays in git when the job has ended. Prune when old files hide the jobs that
    matter; retention.files of the Cluster does the same on a schedule. Jobs that wait or run are
    never touched. History, reports and logs keep the ended jobs as long as retention allows.

    The controller makes the commits in your name, one for every 500 jobs. A file stays if another
    job depends on it, if two different documents have its name, or if you may not change it; each
    is reported with its reason. Exits with 3 if nothing could be deleted because you may not.

    Example: muster prune --dry-run

    Example: muster prune --older-than 14d
    """
    before = time.time() - context.parse_seconds("--older-than", older_than)
    with context.controller(server, token_file) as api:
        chosen = job_pruning.choose(map(job_pruning.of_item, api.items("/v1/jobs")), before)
        for name, by in chosen.kept.items():
            terminal.note(f"{name} is kept: {by} depends on it")
        if not chosen.names:
            terminal.note(f"no files of jobs that ended more than {older_than} ago")
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
    terminal.note(f"{files} would be deleted" if dry_run else f"{files} deleted")
    if refused and not left:
        raise typer.Exit(terminal.REFUSED)
