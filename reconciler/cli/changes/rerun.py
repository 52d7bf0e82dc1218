"""The command that lets jobs run again."""

from typing import Annotated

import typer

from reconciler.cli import array_elements, context
from reconciler.cli.changes import submit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(rerun)


def rerun(
    names: submit.Names,
    reason: submit.Reason = "",
    *,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not go on from earlier checkpoints.")
    ] = False,
    dry_run: submit.DryRun = False,
    clone: submit.Clone = None,
    with_local: submit.WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Run jobs again that have ended.

    Raises spec.run in their YAML, in a commit. A job with checkpoints goes on from those of the run
    before: see spec.resumeFrom. Logs of earlier runs are kept: `muster logs --run`.

    Example: muster rerun train

    Example: muster rerun train --fresh
    """
    array_elements.require_whole_jobs("rerun", names)
    place = submit.Place(clone, server, token_file, with_local)
    submit.change_all("rerun", names, reason, place, dry_run=dry_run, fresh=fresh)
