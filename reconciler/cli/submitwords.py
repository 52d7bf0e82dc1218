"""What the words behind ``muster submit`` mean: files, or a command, and how many elements.

A command stands behind ``--``. Without it a single word, or one that looks like a path, is more
likely a file that is not there, or a script that is meant to be read, than a program of the nodes:
it would become a job that fails.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import typer.core

from reconciler.cli import terminal

#: Key of ``Context.meta``: whether the words stood behind ``--``.
BEHIND = "muster.behind"
_ELEMENTS = re.compile(r"(?P<count>\d+)|0-(?P<last>\d+)(%(?P<at_once>\d+))?")


class Command(typer.core.TyperCommand):
    """Remembers whether the words stood behind ``--``, which the parser takes away."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and note it."""
        given = list(args)
        left = super().parse_args(ctx, args)
        count = len(ctx.params.get("arguments") or ())
        ctx.meta[BEHIND] = len(given) > count > 0 and given[-count - 1] == "--"
        return left


def is_document(word: str) -> bool:
    """Whether a word names a file of documents, or standard input."""
    return word == "-" or word.endswith((".yaml", ".yml"))


def require_command(words: list[str], *, behind: bool) -> None:
    """Leave the command where words without ``--`` can't be meant as a command."""
    first = words[0]
    if behind or (len(words) > 1 and "/" not in first and not any(map(is_document, words[:1]))):
        return
    other = next(word for word in words if not is_document(word))
    found = Path(other).is_file()
    what = "is no YAML file" if found else "is no file"
    terminal.fail(
        f"{other} {what}: expected YAML files (*.yaml, *.yml, or - for standard input), or a "
        "command behind --",
        terminal.USAGE,
        [f"to run it on a node: muster submit -- {shlex.join(words)}"]
        if not any(map(is_document, words))
        else (),
    )


def elements(text: str) -> tuple[int, int | None]:
    """How many elements ``--array`` asks for, and how many at once: ``10``, or ``0-9%4``."""
    found = _ELEMENTS.fullmatch(text)
    if found is None:
        terminal.fail(
            f"--array: found {text!r}, expected how many elements: 10, or 0-9 for the same, or "
            "0-9%4 for four of them at once; the indices are 0, 1, 2 and so on",
            terminal.USAGE,
        )
    if found["count"] is not None:
        return int(found["count"]), None
    return int(found["last"]) + 1, int(found["at_once"]) if found["at_once"] else None
