"""The command `muster schema`: fields of a kind, without the reference at hand."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from reconciler.cli import context, terminal
from reconciler.model.documents import kinds
from reconciler.model.values import found_values, paragraphs, suggestions
from reconciler.operations import kind_fields


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("schema")(show)


def show(
    what: Annotated[
        str | None,
        typer.Argument(metavar="KIND[.FIELD]", help="A kind, or a field of one. Default: all."),
    ] = None,
    *,
    output: context.Form = terminal.Output.TABLE,
) -> None:
    """List the kinds, or the fields of one kind.

    Each field is shown with its type, default, meaning and an example. -o json prints the JSON
    Schema of a kind, for editors.

    Example: muster schema job

    Example: muster schema job.spec.resources
    """
    if what is None:
        for kind in kinds.KINDS:
            terminal.out.print(
                f"{kind}: {kind_fields.schema_of(kind)['description']}", markup=False
            )
        return
    word, _, below = what.partition(".")
    kind = _kind(word)
    whole = kind_fields.schema_of(kind)
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(whole, output)
        return
    every = _rows(whole)
    rows = [row for row in every if not below or _is_below(row[0], below)]
    if not rows:
        hint = _hint(below, [row[0] for row in every])
        terminal.fail(f"{kind} has no field {below}{hint}", terminal.USAGE)
    for row in rows:
        _print(row)


def _hint(asked: str, names: Sequence[str]) -> str:
    """Return the field that was meant: with the same last part, or spelled alike."""
    last = asked.rpartition(".")[2].lower()
    like = [name for name in names if name.rpartition(".")[2].lower() == last]
    if like:
        return f"; did you mean {like[0]}?"
    whole = {
        ".".join(parts[:length])
        for parts in (name.split(".") for name in names)
        for length in range(1, len(parts) + 1)
    }
    by_short = {name.removeprefix("spec."): name for name in sorted(whole)}
    near = difflib.get_close_matches(asked, [*sorted(whole), *by_short], n=1)
    return f"; did you mean {by_short.get(near[0], near[0])}?" if near else ""


def _print(row: tuple[str, ...]) -> None:
    field, value, default, meaning, example = row
    said = {"—": "", "as below": "", "required": "; required"}.get(default, f"; default {default}")
    text = f"{meaning} Example: {example}"
    width = max(terminal.out.width, 40) if terminal.out.is_terminal else len(text) + 4
    terminal.write_text(f"{field}: {value}{said}\n")
    for line in paragraphs.wrapped(text, width, "    ", "    "):
        terminal.write_text(f"{line}\n")


def _kind(word: str) -> str:
    by_lower = {kind.lower(): kind for kind in kinds.KINDS}
    kind = by_lower.get(word.lower()) or by_lower.get(word.lower().removesuffix("s"))
    if kind is None:
        there = ", ".join(kinds.KINDS)
        hint = suggestions.hint(word.lower(), by_lower)
        terminal.fail(
            f"no kind named {found_values.quote(word)}{hint or '.'} Kinds: {there}.", terminal.USAGE
        )
    return kind


def _rows(whole: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return field, value, default, meaning and example of all fields that are built."""
    return [
        tuple(cell.replace("`", "").replace("\\|", "|") for cell in row)
        for row in kind_fields.rows_of(whole)
        if len(row) == 5  # fields that are not built have two cells
    ]


def _is_below(field: str, asked: str) -> bool:
    """Return True if a field is the requested one or below it; `spec.` may be left out."""
    plain, wanted = field.replace("[]", "").lower(), asked.replace("[]", "").lower()
    return any(plain == one or plain.startswith(f"{one}.") for one in (wanted, f"spec.{wanted}"))
