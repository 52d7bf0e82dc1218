"""Hooks of the documentation site.

Pages link to files of the repository, so that the links work in any view of it. The site has only
what lies below ``docs/``: two pages of the root are added, other links out of it become text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

#: Pages of the repository's root that the site has as well.
FROM_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root."""
    root = Path(config["config_file_path"]).parent
    for name in FROM_ROOT:
        text = (root / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Point links at the site's pages; make those that leave it text."""
    source = page.file.src_uri
    here = posixpath.dirname(source if source in FROM_ROOT else f"docs/{source}")
    there = posixpath.dirname(source)

    def rewrite(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(here, target))
        if path in FROM_ROOT:
            inside = path
        elif path.startswith("docs/") and path.endswith((".md", ".svg", ".png")):
            inside = path.removeprefix("docs/")
        else:
            return text
        return f"[{text}]({posixpath.relpath(inside, there or '.')}{anchor})"

    return LINK.sub(rewrite, markdown)
