"""The command `muster cp`: copy files from or to a task that runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import array_elements, context, lazy_import, terminal
from reconciler.cli.interactive import exec_command, file_copy

if TYPE_CHECKING:
    from reconciler.operations.client import session_connection
else:
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(name="cp")(cp)


def cp(
    source: Annotated[str, typer.Argument(help="File or folder: PATH here, or JOB:PATH.")],
    target: Annotated[str, typer.Argument(help="Where it goes: PATH here, or JOB:PATH.")],
    *,
    task: exec_command.Task = None,
    element: exec_command.Element = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Copy a file or a folder from or to a task that runs.

    One of both is JOB:PATH; there a path without / at its beginning is in the task's working
    directory. A target that is a folder gets the copy in it, any other target becomes the copy.
    It is copied as the job's user, with `tar` in the task. Here nothing is written outside of the
    target, whatever the task sends, and devices and the like are refused.

    Exit codes: 0 copied; 1 not, or not all; 125 the copy was not started; 255 the connection broke
    off.

    Example: muster cp train:out/model.pt .

    Example: muster cp config.yaml train:/tmp/config.yaml -t worker-0
    """
    from_job, from_path = _split(source)
    to_job, to_path = _split(target)
    if bool(from_job) == bool(to_job):
        terminal.fail(
            f"found {source!a} and {target!a}: one of both is JOB:PATH. A path here that has a "
            "colon begins with ./",
            terminal.USAGE,
        )
    name, element = array_elements.resolve_element(from_job or to_job, element)
    place = session_connection.SessionPlace(name, task, element)
    with context.controller(server, token_file, failed=terminal.MUSTER_FAILED) as api:
        endpoint = context.endpoint(server, token_file, failed=terminal.MUSTER_FAILED)
        if from_job:
            code = file_copy.download(api, endpoint, place, from_path, Path(to_path))
        else:
            code = file_copy.upload(api, endpoint, place, Path(from_path), to_path)
    raise typer.Exit(code)


def _split(written: str) -> tuple[str, str]:
    """Return the job and the path of an argument; no job for a path here. Exit if it is empty."""
    job, colon, path = written.partition(":")
    if not colon or "/" in job:
        job, path = "", written
    elif not job:
        terminal.fail(f"found {written!a}, expected JOB:PATH", terminal.USAGE)
    if job and not path:
        path = "."
    if not path:
        terminal.fail("a path is empty", terminal.USAGE)
    return job, path
