"""Commands that review before anything happens: ``validate`` a folder, ``plan`` a revision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import context, lazily, terminal
from reconciler.operations import endpoints

if TYPE_CHECKING:
    from reconciler.operations import client as clients
    from reconciler.operations import revisions
else:
    clients = lazily.module("reconciler.operations.client")
    revisions = lazily.module("reconciler.operations.revisions")

MARKS = {"add": "+", "remove": "-", "change": "~"}
STYLES = {"add": "green", "remove": "red", "change": "yellow"}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(validate)
    app.command()(plan)


def validate(
    folder: Annotated[Path, typer.Argument(help="Folder with the YAML.")] = Path(),
    *,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """Check the YAML of a folder; print every problem.

    Example: muster validate .
    """
    try:
        found = revisions.read_folder(folder)
    except revisions.RevisionError as error:
        terminal.fail(str(error))
    problems = found.status.problems
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.document({"problems": msgspec.to_builtins(problems)}, output)
    else:
        for problem in problems:
            terminal.out.print(problem.text(), markup=False, soft_wrap=True)
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    structure = found.structure
    if found.status.sync == "Unknown":
        terminal.fail(found.status.message)
    terminal.note(
        f"{len(structure.pools)} pools, {len(structure.queues)} queues, {len(found.jobs)} jobs: "
        f"{errors} errors, {warnings} warnings"
    )
    raise typer.Exit(terminal.ERROR if errors else terminal.DONE)


def plan(
    revision: Annotated[str, typer.Argument(help="Revision to look at.")] = "HEAD",
    base: Annotated[
        str | None, typer.Option("--base", help="Revision to compare with; else its parent.")
    ] = None,
    repo: Annotated[Path, typer.Option("--repo", help="Your clone.")] = Path(),
    path: Annotated[str, typer.Option("--path", help="Folder of it that is read.")] = "",
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show what a revision changes, field by field.

    Exits with 2 when there is any change.

    Example: muster plan my-branch --base main
    """
    try:
        found = revisions.compare(repo, path, base or f"{revision}~1", revision)
    except revisions.RevisionError as error:
        terminal.fail(str(error))
    effects = _effects(found.head.status.attempted_revision or "", server, token_file)
    problems = [p for p in found.head.status.problems if p.severity == "error"]
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        value = {
            "changes": msgspec.to_builtins(found.changes),
            "problems": msgspec.to_builtins(found.head.status.problems),
            "base": found.base.status.attempted_revision,
            "head": found.head.status.attempted_revision,
            "effects": effects,
        }
        terminal.document(value, output)
    else:
        for change in found.changes:
            title = f"{MARKS[change.operation]} {change.kind} {change.name}"
            terminal.out.print(title, style=STYLES[change.operation], markup=False)
            for field, (before, after) in change.fields.items():
                terminal.out.print(f"    {field}: {before} → {after}", markup=False, soft_wrap=True)
        for problem in problems:
            terminal.out.print(problem.text(), markup=False, soft_wrap=True)
        for effect in effects or ():
            line = f"{effect['effect']:<7}{effect['subject']}: {effect['message']}"
            terminal.out.print(line, markup=False, soft_wrap=True)
        counts = {name: sum(change.operation == name for change in found.changes) for name in MARKS}
        if effects is None:
            terminal.note("without a controller that has this revision: no effects are shown")
        terminal.note(
            f"Plan: {counts['add']} to add, {counts['change']} to change, "
            f"{counts['remove']} to remove."
        )
    if problems:
        raise typer.Exit(terminal.ERROR)
    raise typer.Exit(terminal.CHANGES if found.changes else terminal.DONE)


def _effects(
    revision: str, server: str | None, token_file: str | None
) -> list[dict[str, str]] | None:
    """What the controller would do at once; None where there is none, or it has no such commit."""
    try:
        endpoint = endpoints.find(server, token_file, Path.cwd())
        with clients.Client(endpoint) as api:
            found: list[dict[str, str]] = api.get("/v1/plan", revision=revision)["effects"]
    except (endpoints.EndpointError, clients.ApiError):
        return None
    return found
