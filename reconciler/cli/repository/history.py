"""Commands that look back: `history` of revisions, and the `audit` log with its hash chain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconciler.cli import context, terminal
from reconciler.model.values import times

if TYPE_CHECKING:
    from reconciler.operations.audit import audit_anchors, audit_log
else:
    from reconciler.cli import lazy_import

    audit_anchors = lazy_import.module("reconciler.operations.audit.audit_anchors")
    audit_log = lazy_import.module("reconciler.operations.audit.audit_log")

Json = Any
#: The most entries that a controller sends at once.
ENTRIES_MAX = 1000
#: The most hashes that do not agree to print.
_WRONG_SHOWN = 5
Limit = Annotated[
    int,
    typer.Option("--limit", "-n", help="Number of entries, newest first.", min=1, max=ENTRIES_MAX),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(history)
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(audit)
    group.command()(verify)
    app.add_typer(group, name="audit")


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


def audit(
    ctx: typer.Context,
    limit: Limit = 20,
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show who changed what, in which commit, and the result.

    `muster audit verify` checks that the log was not altered.

    Example: muster audit

    Example: muster audit verify
    """
    if ctx.invoked_subcommand is not None:
        return
    with context.controller(server, token_file) as api:
        page = api.get("/v1/audit", limit=limit)
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    for one in page["items"]:
        terminal.out.print(
            f"{one['number']:>6}  {terminal.format_clock(one['at'])}  {one['revision'][:12]}  "
            f"{one['result']}",
            markup=False,
        )
        for commit in one["commits"]:
            head = f"{commit['id'][:12]}  {responsible_for(commit)}"
            terminal.print_paragraph(f"{head}: {commit['subject']}", 8, 22)
        if one.get("dropped"):
            terminal.print_paragraph(terminal.format_clocks(one["message"]), 8)
        for label in one["objects"]:
            terminal.print_paragraph(label, 8, 10)
        for problem in one["problems"]:
            subject = f" {problem['object']}" if problem["object"] else ""
            terminal.print_paragraph(f"{problem['rule']}{subject}: {problem['message']}", 8, 10)


def verify(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="A copy of the log, with its parts beside it. Default: the controller's."
        ),
    ] = None,
    *,
    first: Annotated[
        int,
        typer.Option(
            "--from",
            metavar="LINE",
            help="First line to check, if older parts were removed.",
            min=1,
        ),
    ] = 1,
    repository: Annotated[
        Path | None,
        typer.Option(
            "--repo",
            help="A clone with its notes, whose hashes are compared too. Default: none.",
        ),
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Verify the hash chain of the audit log.

    Exits with 1 if it is broken. A chain that was written anew as a whole is intact, but differs
    from what the notes on revisions say: fetch them with `git fetch origin
    refs/notes/muster:refs/notes/muster`, and give --repo with --file.

    Example: muster audit verify

    Example: muster audit verify --file audit.jsonl --repo .

    Example: muster audit verify --from 48213
    """
    if repository is not None and file is None:
        terminal.fail("--repo compares a copy of the log: give it with --file", terminal.USAGE)
    if file is not None:
        found = _verify_file(file, first)
    else:
        with context.controller(server, token_file) as api:
            found = _found_in(api.get("/v1/audit/verify", first=first if first > 1 else None))
    _tell(found, first)
    if repository is not None and file is not None:
        _compare(file, repository)


def _verify_file(file: Path, first: int) -> _Found:
    """Verify a copy of the log. Exit if there is none."""
    if not file.is_file():
        terminal.fail(f"{file} does not exist")
    verdict = audit_log.Log(file).verify(first)
    found = _Found(verdict.lines, verdict.last, verdict.wrong, torn=verdict.torn)
    if verdict.anchor is None or not verdict.anchor.entry.dropped:
        return found
    line, dropped = verdict.anchor, verdict.anchor.entry.dropped
    return found._replace(
        gone=dropped.last,
        anchor=line.number,
        at=times.format_time(line.entry.at),
        revision=line.entry.revision,
        said=line.entry.message,
    )


def _found_in(answer: Json) -> _Found:
    """Return the result that the controller sent."""
    found = _Found(answer["lines"], answer["last"], answer["wrong"], torn=answer.get("torn", False))
    anchor = answer.get("anchor")
    if not anchor:
        return found
    return found._replace(
        gone=anchor["dropped"]["last"],
        anchor=anchor["number"],
        at=anchor["at"],
        revision=anchor["revision"],
        said=anchor["message"],
    )


def _compare(file: Path, repository: Path) -> None:
    """Compare a copy of the log with the notes of a repository. Exit if they differ."""
    try:
        found = audit_anchors.compare_files(file, repository)
    except audit_anchors.AnchorError as error:
        terminal.fail(str(error))
    if found.wrong:
        more = len(found.wrong) - _WRONG_SHOWN
        terminal.fail(
            "; ".join(found.wrong[:_WRONG_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        )
    gone = f"; {found.gone} more are of lines that were dropped since" if found.gone else ""
    terminal.note(f"{found.compared} hashes in notes of {repository} agree{gone}")


class _Found(NamedTuple):
    """Result of verifying the chain.

    `gone` is the last line that retention dropped; line `anchor` records when, and by which
    revision.
    """

    lines: int
    last: str
    wrong: str
    torn: bool
    gone: int = 0
    anchor: int = 0
    at: str = ""
    revision: str = ""
    said: str = ""


def _tell(found: _Found, first: int) -> None:
    """Print how far the chain is intact. Exit with an error if it is broken."""
    begins = max(first, found.gone + 1)
    if found.wrong:
        if found.lines < begins:
            terminal.fail(f"no line could be verified: {found.wrong}")
        good = f"for {found.lines} lines" if first == 1 and not found.gone else ""
        good = good or f"from line {begins} to {found.lines}"
        terminal.fail(f"the chain is intact {good}, then broken: {found.wrong}")
    count = f"{found.lines} lines" if begins == 1 else f"lines {begins} to {found.lines}"
    terminal.print_line(f"{count}, the chain is intact; last hash {found.last}", 0)
    if found.gone:
        when = f"line {found.anchor}, {terminal.format_clock(found.at)}, by {found.revision[:12]}"
        terminal.print_paragraph(f"{when}: {terminal.format_clocks(found.said)}", 4, 6)
    if found.torn:
        terminal.note("the last line is incomplete, as after a crash, and is not counted")
