"""Child interpreters: none has the current folder on its path of imports."""

import ast
import itertools
from pathlib import Path

import pytest

from reconciler import package_data
from tests.unit.house import measures

ROOT = package_data.checkout()
#: The one module that may run an interpreter with other options.
ALLOWED = "reconciler/interpreter.py"
#: They start interpreters of their own accord.
BARRED = {"multiprocessing", "concurrent.futures.process"}


def _unsafe(tree: ast.Module) -> list[int]:
    """Return lines with a command that runs Python without ``-I``, or that lets others do so."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            words = [ast.unparse(part) for part in node.elts]
            for word, after in itertools.pairwise([*words, ""]):
                if word == "sys.executable" and after != "'-I'":
                    found.append(node.lineno)
        if isinstance(node, ast.Import) and BARRED & {name.name for name in node.names}:
            found.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module in BARRED:
            found.append(node.lineno)
        if isinstance(node, ast.Name | ast.Attribute) and "ProcessPool" in ast.unparse(node):
            found.append(node.lineno)
    return found


def test_what_is_unsafe_is_found() -> None:
    unsafe = 'a = [sys.executable, "-m", "agents"]\nimport multiprocessing\n'
    assert sorted(_unsafe(ast.parse(unsafe))) == [1, 2]
    assert _unsafe(ast.parse('c = [sys.executable, "-I", "-S", SCRIPT]')) == []


@pytest.mark.parametrize(
    "path", measures.modules(ROOT), ids=lambda path: str(Path(path).relative_to(ROOT))
)
def test_children_are_safe(path: Path) -> None:
    if str(path.relative_to(ROOT)) == ALLOWED:
        return
    assert _unsafe(measures.tree(path)) == []
