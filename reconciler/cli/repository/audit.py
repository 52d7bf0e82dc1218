"""The command `audit`: who changed or read what, who was refused, and whether the log is whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconciler.cli import context, terminal
from reconciler.cli.repository import history
from reconciler.model.values import times

if TYPE_CHECKING:
    from reconciler.operations.audit import audit_anchors, audit_log
    from reconciler.operations.backup import backup_contents
else:
    from reconciler.cli import lazy_import

    audit_anchors = lazy_import.module("reconciler.operations.audit.audit_anchors")
    audit_log = lazy_import.module("reconciler.operations.audit.audit_log")
    backup_contents = lazy_import.module("reconciler.operations.backup.backup_contents")

Json = Any
REVISIONS, ACCESS = "/v1/audit", "/v1/audit/access"
#: The most hashes that do not agree to print.
_WRONG_SHOWN = 5


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(audit)
    group.command()(access)
    group.command()(export)
    group.command()(verify)
    app.add_typer(group, name="audit")


_Person = Annotated[
    str | None,
    typer.Option(
        "--person", metavar="PERSON", help="Part of a person's address. Default: everybody."
    ),
]
_Object = Annotated[
    str | None,
    typer.Option("--object", metavar="KIND/NAME", help="Object, or a kind. Default: all."),
]


class RevisionAction(StrEnum):
    """Outcome of a revision for one of its objects."""

    ADDED = "Added"
    CHANGED = "Changed"
    REMOVED = "Removed"
    REFUSED = "Refused"
    DROPPED = "Dropped"


class AccessAction(StrEnum):
    """Kind of a call that is written down."""

    UNAUTHENTICATED = "Unauthenticated"
    FORBIDDEN = "Forbidden"
    LOGS_READ = "LogsRead"
    SNAPSHOT_READ = "SnapshotRead"
    OVERRIDE_CHANGED = "OverrideChanged"
    TOKENS_CHANGED = "TokensChanged"
    SESSION_BEGAN = "SessionBegan"
    SESSION_ENDED = "SessionEnded"
    NOTIFICATION_CHANGED = "NotificationChanged"
    EPHEMERAL_JOB = "EphemeralJob"


_Action = Annotated[
    RevisionAction | None,
    typer.Option("--action", help="What became of an object. Default: anything."),
]
_AccessAction = Annotated[
    AccessAction | None,
    typer.Option(
        "--action",
        metavar="ACTION",
        help="Unauthenticated, Forbidden, LogsRead, SnapshotRead, OverrideChanged, TokensChanged, "
        "SessionBegan, SessionEnded, NotificationChanged or EphemeralJob. Default: anything.",
    ),
]
_Since = Annotated[
    str | None,
    typer.Option("--since", help="What happened after this time, such as 7d. Default: all."),
]
_Until = Annotated[
    str | None, typer.Option("--until", help="What happened before this time. Default: now.")
]


class _Filters(NamedTuple):
    """Options that select entries."""

    person: str | None
    object: str | None
    action: str | None
    since: str | None
    until: str | None

    def query(self) -> dict[str, str]:
        """Return the parameters of the API."""
        now = time.time()
        asked = {"person": self.person, "object": self.object, "action": self.action}
        moments = {"since": self.since, "until": self.until}
        found = {name: text for name, text in asked.items() if text}
        for name, text in moments.items():
            if text is not None:
                found[name] = times.format_time(context.parse_moment(f"--{name}", text, now))
        return found


def _pages(api: Any, path: str, query: dict[str, str], limit: int | None) -> Iterator[Json]:
    """Yield pages until there are so many entries, or no more."""
    before: int | None = None
    left = limit
    while left is None or left > 0:
        size = history.ENTRIES_MAX if left is None else min(left, history.ENTRIES_MAX)
        page = api.get(path, limit=size, before=before, **query)
        yield page
        before = page.get("next")
        if before is None:
            return
        left = None if left is None else left - len(page["items"])


def _entries(api: Any, path: str, query: dict[str, str], limit: int) -> Json:
    """Return one page with up to so many entries."""
    first, *rest = _pages(api, path, query, limit)
    return first | {"items": [one for page in (first, *rest) for one in page["items"]]}


def audit(
    ctx: typer.Context,
    limit: history.Limit = 20,
    *,
    person: _Person = None,
    label: _Object = None,
    action: _Action = None,
    since: _Since = None,
    until: _Until = None,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show who changed what, in which commit, and the result.

    An entry lists the first 50 objects of its revision. `muster audit access` shows who read or was
    refused what, `muster audit verify` checks that the log was not altered.

    Example: muster audit

    Example: muster audit --object Queue/research --since 30d

    Example: muster audit verify
    """
    if ctx.invoked_subcommand is not None:
        return
    query = _Filters(person, label, action, since, until).query()
    with context.controller(server, token_file) as api:
        page = _entries(api, REVISIONS, query, limit)
    _show(page, output, _print_revision, "no entry matches" if query else "no revisions yet")


def _show(
    page: Json, output: terminal.Output, print_entry: Callable[[Json], None], none: str
) -> None:
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    for one in page["items"]:
        print_entry(one)
    if not page["items"]:
        terminal.note(none)


def _print_revision(one: Json) -> None:
    terminal.out.print(
        f"{one['number']:>6}  {terminal.format_clock(one['at'])}  {one['revision'][:12]}  "
        f"{one['result']}",
        markup=False,
    )
    for commit in one["commits"]:
        head = f"{commit['id'][:12]}  {history.responsible_for(commit)}"
        terminal.print_paragraph(f"{head}: {commit['subject']}", 8, 22)
    if one.get("dropped"):
        terminal.print_paragraph(terminal.format_clocks(one["message"]), 8)
    for label in one["objects"]:
        terminal.print_paragraph(label, 8, 10)
    for problem in one["problems"]:
        subject = f" {problem['object']}" if problem["object"] else ""
        terminal.print_paragraph(f"{problem['rule']}{subject}: {problem['message']}", 8, 10)


def access(
    limit: history.Limit = 20,
    *,
    person: _Person = None,
    label: _Object = None,
    action: _AccessAction = None,
    since: _Since = None,
    until: _Until = None,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show who was refused, read other people's output, or made overrides. For admins.

    Example: muster audit access --person eve --since 1d

    Example: muster audit access --action OverrideChanged
    """
    query = _Filters(person, label, action, since, until).query()
    with context.controller(server, token_file) as api:
        page = _entries(api, ACCESS, query, limit)
    _show(page, output, _print_call, "no entry matches" if query else "no entries yet")


def _print_call(one: Json) -> None:
    often = f", {one['count']} times" if one["count"] > 1 else ""
    who = one["identity"] or one["address"] or "-"
    terminal.out.print(
        f"{one['number']:>6}  {terminal.format_clock(one['at'])}  {one['action']}  {who}",
        markup=False,
        soft_wrap=True,
    )
    told = f": {one['message']}" if one["message"] else ""
    terminal.print_paragraph(f"{one['request']}{often}{told}", 8, 10)


def export(
    *,
    only_access: Annotated[
        bool, typer.Option("--access", help="Entries of `muster audit access`. For admins.")
    ] = False,
    person: _Person = None,
    label: _Object = None,
    since: _Since = None,
    until: _Until = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Write entries as JSON, one a line, newest first, each with its hash.

    Example: muster audit export --since 30d >audit-november.jsonl
    """
    query = _Filters(person, label, None, since, until).query()
    count = 0
    with context.controller(server, token_file) as api:
        for page in _pages(api, ACCESS if only_access else REVISIONS, query, None):
            for item in page["items"]:
                terminal.print_json_line(item)
            count += len(page["items"])
    terminal.note(terminal.counted(count, "line"))


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
    begins: Annotated[
        str | None,
        typer.Option(
            "--begins",
            help="First revision of this log, if the one before it was lost. Default: none was.",
        ),
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Verify the hash chain of the audit log.

    Exits with 1 if it is broken. A chain that was written anew as a whole is intact, but differs
    from what the notes on revisions say: fetch them with `git fetch origin
    refs/notes/muster:refs/notes/muster`, and give --repo with --file. Of a log in the folder of a
    backup, notes that are newer than the backup are counted apart. After the loss of a log, name
    with --begins the revision with which the new one begins: notes before it are of the lost log.

    Example: muster audit verify

    Example: muster audit verify --file audit.jsonl --repo .

    Example: muster audit verify --from 48213
    """
    if repository is not None and file is None:
        terminal.fail("--repo compares a copy of the log: give it with --file", terminal.USAGE)
    if begins is not None and repository is None:
        terminal.fail("--begins says which notes count: give it with --repo", terminal.USAGE)
    if file is not None:
        found = _verify_file(file, first)
    else:
        with context.controller(server, token_file) as api:
            found = _found_in(api.get("/v1/audit/verify", first=first if first > 1 else None))
    _tell(found, first)
    if repository is not None and file is not None:
        _compare(file, repository, begins)


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


def _compare(file: Path, repository: Path, begins: str | None) -> None:
    """Compare a copy of the log with the notes of a repository. Exit if they differ."""
    try:
        copied_at = backup_contents.made_at(file)
        found = audit_anchors.compare_files(file, repository, begins, copied_at)
        first = audit_anchors.first_revision(file) if found.wrong and begins is None else ""
    except (audit_anchors.AnchorError, backup_contents.BackupError) as error:
        terminal.fail(str(error))
    if found.wrong:
        more = len(found.wrong) - _WRONG_SHOWN
        terminal.fail(
            "; ".join(found.wrong[:_WRONG_SHOWN])
            + (f"; and {more} more" if more > 0 else "")
            + (f". If you know that the log before was lost: --begins {first[:12]}" * bool(first))
        )
    gone = f"; {found.gone} more are of lines that were dropped since" if found.gone else ""
    terminal.note(f"{found.compared} hashes in notes of {repository} agree{gone}")
    if copied_at is not None:
        when = terminal.format_clock(times.format_time(copied_at))
        newer = f"; {terminal.counted(found.newer, 'newer note')} were not compared"
        terminal.note(
            f"the backup of {when} has all lines of then, up to line {found.last}"
            + newer * bool(found.newer)
        )
    if found.earlier:
        terminal.note(
            f"{terminal.counted(found.earlier, 'note')} before {begins} were not compared: they "
            "are of an earlier log, and verify it with --file if it was kept"
        )


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
