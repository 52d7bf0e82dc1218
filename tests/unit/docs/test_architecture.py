"""Every place in the code that the pages for contributors name exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs import pages

#: ``path/file.py:name`` or ``path/file.py:Class.name``.
PLACE = re.compile(r"`([\w/.-]+\.py):([A-Za-z_][\w.]*)`")
#: A file or folder below one of the project's folders.
PATH = re.compile(
    r"`((?:reconciler|agents|tests|bench|grafana|schemas|cluster-state|systemd|docs)/[\w/.*-]*)`"
)
PAGES = [pages.ROOT / "docs" / "ARCHITECTURE.md", pages.ROOT / "CONTRIBUTING.md"]


def defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield the names that a module defines, and those of its classes behind a dot."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + node.name
            case ast.ClassDef():
                yield prefix + node.name
                yield from defined(node.body, f"{prefix}{node.name}.")
            case ast.Assign(targets=targets):
                yield from (prefix + one.id for one in targets if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_named_places_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = []
    for file, name in sorted(set(PLACE.findall(text))):
        path = pages.ROOT / file
        if not path.is_file():
            missing.append(f"{file}: no such file")
        elif name not in set(defined(ast.parse(path.read_text(encoding="utf-8")).body)):
            missing.append(f"{file} has no {name}")
    missing += [
        f"{found}: no such file or folder"
        for found in sorted(set(PATH.findall(text)))
        if not list(pages.ROOT.glob(found.rstrip("/")))
    ]
    assert missing == []


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name)
def test_named_modules_exist(page: Path) -> None:
    """Modules are named from the root, or below ``tests``; test files also by their name."""
    named = set(re.findall(r"`([\w/.-]+\.py)`", page.read_text(encoding="utf-8")))
    root = pages.ROOT
    missing = [
        path
        for path in sorted(named)
        if not (root / path).is_file()
        and not (root / "tests" / path).is_file()
        and ("/" in path or not list((root / "tests").rglob(path)))
    ]
    assert missing == [], "name a module as it is called now"


def test_every_package_is_in_the_table() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    for package in ("reconciler", "agents"):
        for init in (pages.ROOT / package).glob("*/__init__.py"):
            name = init.parent.relative_to(pages.ROOT).as_posix()
            if name in {"agents/gpus", "agents/health", "agents/tasklib"}:
                continue  # within `agents/host/` … `agents/isolation/`; given to tasks
            assert f"`{name}/`" in text, name
