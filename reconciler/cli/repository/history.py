"""The command `history`: the result of each revision."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reconciler.cli import context, terminal

Json = Any
#: The most entries that a controller sends at once.
ENTRIES_MAX = 1000
Limit = Annotated[
    int,
    typer.Option("--limit", "-n", help="Number of entries, newest first.", min=1, max=ENTRIES_MAX),
]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(history)


def history(
    limit: Limit = 20,
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show the result of each revision.

    OBJECTS counts those that were added (+), changed (~) and removed (-).

    Example: muster history
    """
    with context.controller(server, token_file) as api:
        page = api.get("/v1/audit", limit=limit)
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    clocks = [terminal.format_clock(one["at"]) for one in page["items"]]
    width = max(map(len, clocks), default=0)
    if clocks:
        _line_of("AT".ljust(width), "REVISION", "RESULT", "OBJECTS", "TOOK")
    for at, one in zip(clocks, page["items"], strict=True):
        changes = f"+{one['added']} ~{one['changed']} -{one['removed']}"
        took = f"{one['duration_s']:.2f} s"
        _line_of(at.ljust(width), one["revision"][:12], one["result"], changes, took)
        if one["commits"]:
            commit, more = one["commits"][-1], len(one["commits"]) - 1
            earlier = f" (and {terminal.counted(more, 'commit')} before it)" if more else ""
            terminal.print_paragraph(
                f"{responsible_for(commit)}: {commit['subject']}{earlier}", 4, 6
            )
        if one["message"]:
            terminal.print_paragraph(terminal.format_clocks(one["message"]), 4)
    if not page["items"]:
        terminal.note("no revisions yet")


def _line_of(at: str, revision: str, result: str, changes: str, took: str) -> None:
    terminal.out.print(
        f"{at}  {revision:<12}  {result:<9}  {changes:<12}  {took}", markup=False, soft_wrap=True
    )


def responsible_for(commit: Json) -> str:
    """Return who is responsible for a commit. Without signature checks it is its claimed author."""
    submitter: str = commit["submitter"]
    author: str = commit["author"]
    signer: str | None = commit.get("signer")  # an older controller does not say
    if signer:
        return signer if signer == author else f"{signer} (written by {author})"
    if signer is not None:
        return f"unknown signer (claims {author})"
    if not submitter or submitter == author:
        return author
    return f"{submitter} (committed by {author})"
