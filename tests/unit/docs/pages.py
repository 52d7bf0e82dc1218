"""Pages of documentation, taken apart into what can be run.

A comment above a block says what the test is to do with it: ``<!-- refused: TEXT -->``, the
documents are refused with this text; ``<!-- warned: TEXT -->``, they are accepted with this one.
"""

import re
from pathlib import Path

import msgspec

from reconciler import package_data

ROOT = package_data.checkout()

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (refused|warned): (.*?) -->\n$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(msgspec.Struct, frozen=True):
    """One fenced block. ``mark`` is what the comment above it says, if any."""

    language: str
    text: str
    line: int
    mark: tuple[str, str] = ("", "")


def pages() -> list[Path]:
    """Every page of documentation."""
    found = [ROOT / "README.md", ROOT / "cluster-state" / "README.md"]
    return [*found, *sorted((ROOT / "docs").rglob("*.md"))]


def name(page: Path) -> str:
    """How a page is called in the names of tests."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        mark = _MARK.search(before)
        found.append(
            Block(
                language=match[2],
                text=match[3],
                line=before.count("\n") + 1,
                mark=(mark[1], mark[2]) if mark else ("", ""),
            )
        )
    return found


def links(page: Path) -> list[str]:
    """Where a page points to inside the repository."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]
