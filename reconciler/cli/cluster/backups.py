"""Commands that protect the store: `backup` a live one, `restore` into an empty place, `adopt`."""

import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.model.values import found_values, hostlists
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.backup import backup_contents, backup_folder
else:
    # SQLAlchemy is slow
    backup_contents = lazy_import.module("reconciler.operations.backup.backup_contents")
    backup_folder = lazy_import.module("reconciler.operations.backup.backup_folder")

Store = Annotated[
    str | None,
    typer.Option("--store", help="URL of the store. Default: that of `muster up` here."),
]
_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The controller's folder. Default: that of the store."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(backup)
    app.command()(restore)
    app.command()(adopt)


def _store(url: str | None, *, must_exist: bool) -> str:
    if url is not None:
        if not url.startswith("sqlite:"):
            terminal.fail(
                f"--store: found {found_values.quote(url)}, expected sqlite:///PATH; only "
                "SQLite is supported so far",
                terminal.USAGE,
            )
        return url
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / endpoints.ENDPOINT_FILE.parent / "store.db"
        if path.exists() or (not must_exist and path.parent.is_dir()):
            return f"sqlite:///{path}"
    return terminal.fail(
        "no store here. To fix: name one with --store sqlite:///PATH", terminal.USAGE
    )


def _require_nodes(trust: str | None) -> str | None:
    """End the command if ``trust`` can be no list of nodes."""
    if trust is not None:
        try:
            hostlists.expand(trust)
        except hostlists.HostListError as error:
            terminal.fail(f"--trust: {error}", terminal.USAGE)
    return trust


def adopt(
    names: Annotated[
        list[str] | None, typer.Argument(help="Jobs to run.", callback=context.require_name)
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Run all jobs that git has.")] = False,
    nothing: Annotated[bool, typer.Option("--none", help="Run no job: all count as done.")] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            "--trust",
            help="Nodes to believe what they report without a proof: all, none, or a list such as "
            "n[1-8]. Default: nobody has to be believed, or else nothing is adopted.",
            callback=_require_nodes,
        ),
    ] = None,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Choose which jobs to run after a restore, or after the store was lost.

    The other jobs count as done. Without names or options, list what runs and what waits. Until
    you choose, what runs goes on, and nothing starts that may have run already. Tasks without a
    proof that they were assigned to their node are taken over only from nodes that you trust.

    Example: muster adopt evaluate report
    """
    chosen = (bool(names), everything, nothing).count(True)
    if chosen > 1:
        terminal.fail("expected names of jobs to run, or --all, or --none", terminal.USAGE)
    with context.controller(server, token_file) as api:
        if not chosen:
            if trust is not None:
                terminal.fail(
                    "--trust: expected names of jobs to run, or --all, or --none besides",
                    terminal.USAGE,
                )
            found = api.get("/v1/adopt")
            if output in (terminal.Output.JSON, terminal.Output.YAML):
                terminal.print_document(found, output)
            else:
                _list(found)
            return
        choice = {"names": names or [], "everything": everything, "trust": trust or ""}
        api.post("/v1/adopt", choice)
    terminal.note("adopted")


def _list(found: dict[str, Any]) -> None:
    """Print what runs and what waits to be adopted."""
    ran = found.get("ran", ())  # earlier controllers do not send it
    if not found["pending"]:
        terminal.note("nothing waits to be adopted")
        if ran:
            terminal.note("the store did not know these jobs, which do not start again:")
            terminal.print_table(_COLUMNS, [_row(one) for one in ran], cut=False)
        return
    terminal.note(f"{found['why']}; {found['blocked'] or 'run `muster adopt` with your choice'}")
    rows = [_row(one) for one in (*(found.get("jobs") or _of_earlier(found)), *ran)]
    for one in found.get("unproven", ()):
        doubt = f", but {one['doubt']}" if one["doubt"] else ""
        what = f"{one['state']} on {one['node']} without a proof{doubt}"
        rows.append((one["attempt"], "-", "-", "-", what))
    if rows:
        terminal.print_table(_COLUMNS, rows, cut=False)
    for name in found["unheard"]:
        terminal.note(f"node {name} was not heard yet")


_COLUMNS = ("NAME", "QUEUE", "OWNER", "SUBMITTED", "WHAT")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    """Return a line about a job."""
    submitted = terminal.format_clock(one["submitted"])
    return (one["name"], one["queue"] or "-", one["owner"] or "-", submitted, one["why"])


def _of_earlier(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the jobs in an answer of an earlier controller, which names them alone."""
    for name, why in [*((name, "runs") for name in found["alive"]), *found["awaiting"].items()]:
        yield {"name": name, "queue": "", "owner": "", "submitted": None, "why": why}


def backup(
    target: Annotated[Path, typer.Argument(help="Folder to make; it must not exist.")],
    store: Store = None,
    folder: _Folder = None,
) -> None:
    """Copy the store and the audit log, also while they are in use.

    Secrets are named and not copied. Each copied file has a checksum in `manifest.json`.

    Example: muster backup /backup/muster-2026-11-21
    """
    url = _store(store, must_exist=True)
    try:
        made = backup_folder.save(url, folder or _folder_of(url), target, time.time())
    except backup_contents.BackupError as error:
        terminal.fail(str(error))
    size = sum(one.size for one in made.files)
    terminal.note(f"wrote {target}: {terminal.counted(len(made.files), 'file')}, {size} bytes")
    _note_missing(made)


def restore(
    source: Annotated[Path, typer.Argument(help="Folder that `muster backup` made.")],
    store: Store = None,
    folder: _Folder = None,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only look whether the backup is whole.")
    ] = False,
) -> None:
    """Restore a backup to a place without a store.

    Do this before you start the controller. The files belong to who owns its folder. A file that
    is there stays as it is.

    Example: muster restore muster-2026-11-21 --store sqlite:////var/lib/muster/store.db
    """
    try:
        if check:
            _tell_whole(source, backup_folder.check(source))
            return
        url = _store(store, must_exist=False)
        done = backup_folder.restore(source, url, folder or _folder_of(url))
    except backup_contents.BackupError as error:
        terminal.fail(str(error))
    terminal.note(f"restored {', '.join(done.restored)} beside {url.removeprefix('sqlite:///')}")
    if done.owner is not None:
        terminal.note(f"they belong to {_user(done.owner[0])}, as the folder does")
    for name in done.kept:
        terminal.note(f"{name} was there and stays as it was")
    if done.manifest is not None:
        _note_missing(done.manifest)


def _folder_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).parent


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _tell_whole(source: Path, found: "backup_contents.Manifest") -> None:
    terminal.note(
        f"{source} is whole: {terminal.counted(len(found.files), 'file')} of {found.made_at}"
    )
    _note_missing(found)


def _note_missing(found: "backup_contents.Manifest") -> None:
    """Tell what a restore needs that is not in a backup."""
    if found.left_out:
        names = ", ".join(found.left_out)
        terminal.note(f"not in it, to be kept apart: {names}")
    if not any(one.name == backup_contents.CHAINS[0] for one in found.files):
        terminal.note("no audit log is in it: name the controller's folder with --folder")
