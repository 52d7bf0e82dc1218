"""Commands that protect the store: `backup` a live one, `restore` into an empty place, `adopt`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.model.values import found_values
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations import store_backup
else:
    store_backup = lazy_import.module("reconciler.operations.store_backup")  # SQLAlchemy is slow

Store = Annotated[
    str | None,
    typer.Option("--store", help="URL of the store. Default: that of `muster up` here."),
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


def adopt(
    names: Annotated[
        list[str] | None, typer.Argument(help="Jobs to run.", callback=context.require_name)
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Run all jobs that git has.")] = False,
    nothing: Annotated[bool, typer.Option("--none", help="Run no job: all count as done.")] = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Choose which jobs to run after a restore, or after the store was lost.

    The other jobs count as done. Without names or options, list what runs and what waits. Until
    you choose, what runs goes on, and nothing starts that may have run already.

    Example: muster adopt evaluate report
    """
    chosen = (bool(names), everything, nothing).count(True)
    if chosen > 1:
        terminal.fail("expected names of jobs to run, or --all, or --none", terminal.USAGE)
    with context.controller(server, token_file) as api:
        if not chosen:
            _list(api.get("/v1/adopt"))
            return
        api.post("/v1/adopt", {"names": names or [], "everything": everything})
    terminal.note("adopted")


def _list(found: dict[str, Any]) -> None:
    """Print what waits to be adopted, one job a line."""
    if not found["pending"]:
        terminal.note("nothing waits to be adopted")
        return
    terminal.note(f"{found['why']}; {found['blocked'] or 'run `muster adopt` with your choice'}")
    for name in found["alive"]:
        terminal.print_line(f"{name}\truns")
    for name, what in found["awaiting"].items():
        terminal.print_line(f"{name}\t{what}")
    for name in found["unheard"]:
        terminal.note(f"node {name} was not heard yet")


def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    store: Store = None,
) -> None:
    """Copy the store to a file, also while it is in use.

    Example: muster backup muster-2026-11-21.db
    """
    url = _store(store, must_exist=True)
    try:
        size = store_backup.save(url, file)
    except store_backup.BackupError as error:
        terminal.fail(str(error))
    terminal.note(f"wrote {file}: {size} bytes of {url}")


def restore(
    file: Annotated[Path, typer.Argument(help="File that `muster backup` wrote.")],
    store: Store = None,
) -> None:
    """Restore a backup to a place without a store.

    Do this before you start the controller.

    Example: muster restore muster-2026-11-21.db --store sqlite:////var/lib/muster/store.db
    """
    url = _store(store, must_exist=False)
    try:
        size = store_backup.restore(file, url)
    except store_backup.BackupError as error:
        terminal.fail(str(error))
    terminal.note(f"restored {size} bytes into {url}")
