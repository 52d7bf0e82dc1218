"""Every promise of isolation names a test that is there, and each test of it is named."""

import ast
import re
from pathlib import Path

from tests.unit.docs import pages

PAGE = pages.ROOT / "docs" / "guides" / "operator" / "isolation.md"
TESTS = pages.ROOT / "tests"
ROW = re.compile(r"^\| (.+) \| `([\w/]+\.py)`: `(\w+)` \| (.+) \|$", re.MULTILINE)
SEEN = {"real tasks", "what is asked of the system"}


def names_in(path: Path) -> set[str]:
    """Names of a file's tests that hold something."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and any(isinstance(inner, (ast.Assert, ast.With)) for inner in ast.walk(node))
    }


def test_each_promise_has_a_test_that_is_there() -> None:
    section = (
        PAGE.read_text(encoding="utf-8").partition("## What is tested")[2].partition("\n## ")[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    rows = ROW.findall(section)
    assert len(rows) == len(lines) - 1, "a row that can't be read"
    assert len({promise for promise, *_ in rows}) == len(rows)
    for promise, file, name, seen in rows:
        assert seen in SEEN, promise
        assert name in names_in(TESTS / file), (promise, file, name)
        assert (seen == "real tasks") or file.startswith("unit/"), promise
    told = {name for _, _, name, _ in rows}
    for file in ("test_isolation.py", "test_breakouts.py"):
        assert names_in(TESTS / "integration/agents" / file) <= told
