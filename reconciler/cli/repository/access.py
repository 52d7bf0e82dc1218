"""The command `muster access`: who may do what, by the YAML in a clone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import context, lazy_import, terminal

if TYPE_CHECKING:
    from reconciler.operations import permission_check, scratch_repository
    from reconciler.operations.validate import folder_check
else:
    permission_check = lazy_import.module("reconciler.operations.permission_check")
    folder_check = lazy_import.module("reconciler.operations.validate.folder_check")
    scratch_repository = lazy_import.module("reconciler.operations.scratch_repository")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Check who may do what, by the YAML in a clone.",
    )
    group.command()(can)
    app.add_typer(group, name="access")


def can(
    email: Annotated[str, typer.Argument(help="E-mail address of the person.")],
    verb: Annotated[
        str,
        typer.Argument(
            help="What to do: submit, manage, read, change, drain, approve, snapshot or "
            "impersonate."
        ),
    ],
    subject: Annotated[
        str,
        typer.Argument(
            metavar="OBJECT",
            help="Kind/name, such as Queue/research. Left out for approve and snapshot.",
        ),
    ] = "",
    *,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Folder with the YAML. Default: that of this clone."),
    ] = None,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """Check if a person may do something, and show which role allows it.

    Exits with 0 if allowed, with 3 if not.

    Example: muster access can alice@example.org submit Queue/research

    Example: muster access can alice@example.org change NodePool/h200
    """
    try:
        where = permission_check.folder_around(Path.cwd()) if folder is None else folder
        structure = permission_check.structure_of(folder_check.read_folder(where))
        decision = permission_check.can(structure, email, verb, subject)
    except permission_check.WordsError as error:
        terminal.fail(str(error), terminal.USAGE)
    except (scratch_repository.RevisionError, permission_check.QuestionError) as error:
        terminal.fail(str(error))
    with terminal.keep_exit_code():
        if output in (terminal.Output.JSON, terminal.Output.YAML):
            terminal.print_document({"allowed": decision.allowed, "why": decision.why}, output)
        else:
            answer = "yes" if decision.allowed else "no"
            terminal.out.print(f"{answer}: {decision.why}", markup=False, soft_wrap=True)
    raise typer.Exit(terminal.DONE if decision.allowed else terminal.REFUSED)
