"""The documentation site builds without a warning, and asks for nothing over the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.docs import pages

#: What a browser fetches by itself when it shows a page.
FETCHED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]*)"
)
CANONICAL = re.compile(r'<link[^>]*rel="?(?:canonical|next|prev)[^>]*>')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; any warning fails."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=pages.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_built(site: Path) -> None:
    docs = pages.ROOT / "docs"
    built = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"README.md"}
    assert written <= built
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "index.md"} <= built


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = CANONICAL.sub("", path.read_text(encoding="utf-8"))
        assert FETCHED.findall(text) == [], path
    assert list((site / "search").glob("search_index.json"))


def test_every_page_is_in_the_navigation() -> None:
    text = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/.-]+\.md", text))
    docs = pages.ROOT / "docs"
    assert {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} <= listed


def test_diagrams_are_current() -> None:
    source = pages.ROOT / "docs" / "site" / "diagrams.py"
    names: dict[str, object] = {"__name__": "diagrams"}
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), names)  # noqa: S102
    diagrams, draw = names["DIAGRAMS"], names["draw"]
    assert isinstance(diagrams, dict)
    assert callable(draw)
    for name, diagram in diagrams.items():
        path = pages.ROOT / "docs" / "images" / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == draw(diagram), "run docs/site/diagrams.py"
