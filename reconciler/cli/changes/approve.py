"""The command `muster approve`: let a change apply that safety limits hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.cli.changes import submit
from reconciler.model.values import found_values
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.changes import change_requests, held_changes, pusher, targets
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    held_changes = lazy_import.module("reconciler.operations.changes.held_changes")
    change_requests = lazy_import.module("reconciler.operations.changes.change_requests")
    pusher = lazy_import.module("reconciler.operations.changes.pusher")

#: Beginning of the digest of a plan.
PLAN = "sha256:"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(approve)


def approve(
    digest: Annotated[
        str, typer.Argument(help="Digest of the held change, as `muster status` shows it.")
    ],
    reason: submit.Reason = "",
    *,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Approve a change that safety limits hold.

    A commit that would stop or remove too much at once is held: it is in git, but not in force.
    `muster status` shows why, and the command with the digest that approves it. The digest is a
    checksum of the change, so the approval applies to no other. The approval is a commit too; who
    may approve is set by Access.

    Example: muster approve sdramovcrs6en5cgkcqgp3by4s6j2h15 --reason "two racks less"

    Example: muster approve sdramovcrs6en5cgkcqgp3by4s6j2h15 --dry-run
    """
    if not digest.startswith(PLAN) and not pusher.is_digest(digest):
        terminal.fail(
            f"{found_values.quote(digest)} is not the digest of a change; `muster status` shows "
            "held changes, with "
            "the command that approves each",
            terminal.USAGE,
        )
    to = submit.target(submit.Place(clone, server, token_file, with_local))
    act = change_requests.Act(verb="approve", name=digest, reason=reason)
    figure = _figure_of(act, to, server, token_file)
    results = submit.make_changes([act], to, dry_run=dry_run)
    for result in results:
        submit.report_change(result, to, dry_run=dry_run)
        for warning in result.warnings:
            terminal.note(f"warning: {warning}")
    if figure:
        terminal.note(figure)
    submit.exit_if_withheld(results)


def _figure_of(
    act: change_requests.Act, to: targets.ChangeTarget, server: str | None, token_file: str | None
) -> str:
    """Return what a held change does, by its digest; empty if no controller can be asked.

    Exit if no held change has the digest: its approval would be a commit that lets nothing apply.
    """
    digest = act.name
    try:
        with api_client.ApiClient(
            endpoints.find(server, token_file, Path.cwd()), timeout_s=5.0
        ) as api:
            held = api.get("/v1/sync")["sync"]["held"]
    except (api_client.ApiError, endpoints.EndpointError):
        held = None
    if digest.startswith(PLAN):
        terminal.fail(
            f"{digest} is the digest of a whole plan; approve a held change by its own digest, "
            "which the plan and `muster status` show",
            details=[f"held now: {one['message'].removeprefix('held: ')}" for one in held or ()],
        )
    if held is None:
        return ""  # in a clone one can approve before the change is anywhere else
    figures = [
        str(one["message"]).removeprefix("held: ").partition("; `muster approve ")[0]
        for one in held
        if held_changes.is_of(digest, one["digest"])
    ]
    if not figures:
        for done in submit.make_changes([act], to, dry_run=True):
            if change_requests.is_there(done):
                terminal.out.print(done.name, markup=False)
                terminal.note(done.message)
                raise typer.Exit
        nothing = (
            "nothing is held now; the controller may not have read the last push yet: "
            "`muster status`"
        )
        terminal.fail(
            f"no held change has the digest {digest}; nothing was committed",
            details=[f"held now: {one['message'].removeprefix('held: ')}" for one in held]
            or [nothing],
        )
    return "; ".join(figures)
