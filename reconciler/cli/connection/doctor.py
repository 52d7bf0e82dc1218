"""The command `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from reconciler.cli import context, lazy_import, terminal

if TYPE_CHECKING:
    from reconciler.operations.doctor import examination, facts
else:
    examination = lazy_import.module("reconciler.operations.doctor.examination")
    facts = lazy_import.module("reconciler.operations.doctor.facts")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(doctor)


def doctor(
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Look for what stands between you and your first job.

    Looks at the controller, your token, the clock, nodes, your rights, git and your Python, and
    says what to do. Exits with 1 if something is wrong. For a node: muster agent --check.

    Example: muster doctor
    """
    lines = examination.examine(facts.gather(server, token_file, Path.cwd()))
    is_wrong = examination.worst(lines) == "wrong"
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document({"items": [msgspec.to_builtins(one) for one in lines]}, output)
    else:
        width = max(len(one.part) for one in lines)
        for one in lines:
            terminal.print_line(f"{one.verdict:<5}  {one.part:<{width}}  {one.text}", width + 9)
            if one.to_fix:
                terminal.print_line(f"{'':<{width + 9}}to do: {one.to_fix}", width + 11)
    if is_wrong:
        raise typer.Exit(terminal.ERROR)
