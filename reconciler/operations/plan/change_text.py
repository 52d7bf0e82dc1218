"""Changed objects of a plan as lines of text: each with its fields, before and after."""

import difflib
from collections.abc import Iterator

import msgspec

from reconciler.model.values import paragraphs
from reconciler.model.values.text_lines import split_lines
from reconciler.operations.plan import plan_types

#: Nothing is wider, except long names and values.
WIDTH = 80
MARKS = {"remove": "-", "change": "~", "add": "+"}
STYLES = {"remove": "red", "change": "yellow", "add": "green"}


class PlanLine(msgspec.Struct, frozen=True):
    """A line; ``style`` is empty for plain text."""

    text: str
    style: str = ""


def change_lines(change: plan_types.ChangeView) -> Iterator[PlanLine]:
    """Yield one object with its fields."""
    style = STYLES[change.operation]
    label = f"{change.kind}/{change.name}" if change.name else change.kind
    yield PlanLine(f"{MARKS[change.operation]} {label}", style)
    if change.summary:
        for text in paragraphs.wrapped(change.summary, WIDTH - 4):
            yield PlanLine(f"    {text}")
    width = min(28, max((len(path) for path in change.fields), default=0))
    for path, (before, after) in change.fields.items():
        yield from field_lines(path, before, after, width)
    for text in paragraphs.wrapped(change.note, WIDTH - 4) if change.note else ():
        yield PlanLine(f"    {text}", "yellow")


def field_lines(path: str, before: str | None, after: str | None, width: int) -> Iterator[PlanLine]:
    """Yield one field: on one line if it fits, a text of several lines as a difference."""
    if "\n" in (before or "") or "\n" in (after or ""):
        yield PlanLine(f"    {path}")
        for text in text_difference(before or "", after or ""):
            style = {"-": "red", "+": "green"}.get(text[:1], "")
            yield PlanLine(f"      {text}", style)
        return
    old, new = before or "none", after or "none"
    line = f"    {path:<{width}}  {old} -> {new}"
    if len(line) <= WIDTH:
        yield PlanLine(line)
        return
    yield PlanLine(f"    {path}")
    yield PlanLine(f"      - {old}", "red")
    yield PlanLine(f"      + {new}", "green")


def text_difference(before: str, after: str) -> list[str]:
    """Yield the difference of two texts of several lines, with two lines of context."""
    found = difflib.unified_diff(split_lines(before), split_lines(after), lineterm="", n=2)
    return [line for line in found if not line.startswith(("---", "+++"))]
