"""Lines: nothing but a line feed ends one in what other programs print."""

import ast
from pathlib import Path

import pytest

from reconciler import package_data
from tests.unit.house import measures

ROOT = package_data.checkout()


def _splits(tree: ast.Module) -> list[int]:
    """Return lines that call ``splitlines`` to take text apart, rather than to cut it up."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "splitlines"
        and not node.keywords
    ]


def test_what_splits_at_more_is_found() -> None:
    assert _splits(ast.parse("a = text.splitlines()\nb = text.split('\\n')\n")) == [1]


@pytest.mark.parametrize(
    "path",
    measures.modules(ROOT, ("reconciler", "agents")),
    ids=lambda path: str(Path(path).relative_to(ROOT)),
)
def test_no_other_character_ends_a_line(path: Path) -> None:
    assert _splits(measures.tree(path)) == []
