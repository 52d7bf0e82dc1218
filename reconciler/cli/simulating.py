"""Commands that run the controller's own function in virtual time: ``scenario``, ``simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import context, lazily, terminal

if TYPE_CHECKING:
    from reconciler.operations import scenarios
else:
    scenarios = lazily.module("reconciler.operations.scenarios")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(scenario)


def scenario(
    paths: Annotated[list[Path], typer.Argument(help="Documents, or folders of them.")],
    *,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """Run scheduling scenarios through the controller's own function; compare what comes out.

    Exits with 0 when every document agrees in its states, or is listed as meant to differ.

    Example: muster scenario scenarios/fair-share -o json
    """
    try:
        files = scenarios.find(paths)
    except scenarios.PathError as error:
        terminal.fail(str(error))
    report = scenarios.run(files)
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.document({"folders": msgspec.to_builtins(report.folders)}, output)
    else:
        _show(report, wide=output is terminal.Output.WIDE)
    for told in report.errors:
        terminal.note(f"muster: {told}")
    raise typer.Exit(terminal.DONE if report.agrees else terminal.ERROR)


def _show(report: scenarios.Report, *, wide: bool) -> None:
    rows = [
        [name, str(f.total), str(f.exact), str(f.states), str(len(f.diverging))]
        for name, f in report.folders.items()
    ]
    headings = ["FOLDER", "DOCUMENTS", "EXACT", "STATES", "DIVERGING"]
    terminal.table(headings, rows, right="DOCUMENTS EXACT STATES DIVERGING")
    for name, folder in report.folders.items():
        for one in folder.diverging:
            meant = f" (meant: {one.meant})" if one.meant else ""
            terminal.out.print(f"\n{name}/{one.file}{meant}", markup=False, soft_wrap=True)
            for subject, found in one.found.items():
                expected = one.expected.get(subject)
                line = f"  {subject}: found {_told(found)}"
                if expected is not None:
                    line += f"; expected {_told(expected)}"
                terminal.out.print(line, markup=False, soft_wrap=True)
        for file in folder.elsewhere if wide else ():
            line = f"\n{name}/{file}: as expected, on other nodes"
            terminal.out.print(line, markup=False, soft_wrap=True)


def _told(fields: dict[str, object]) -> str:
    parts = []
    for key, value in fields.items():
        if key == "state":
            parts.append(str(value))
        elif key == "node":
            parts.append(f"on {value}")
        elif isinstance(value, float):
            parts.append(f"since second {value:g}")
    return " ".join(parts)
