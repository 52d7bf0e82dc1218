"""Measure the layout, names and prose of a checkout.

``python -m tests.unit.house.measures [ROOT]`` prints one line a figure. Nothing is imported from
the checkout: files are parsed, so that any revision can be measured.
"""

import ast
import collections
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("reconciler", "agents")
#: First words with which a docstring names no action and no thing.
ODD_FIRST_WORDS = ("What", "Whether", "Who", "Whom", "Whose", "Of", "So")
#: Phrases that readers stumble over.
ODD_PHRASES = (
    "is told", "are told", "was told", "were told", "for who", "what of", "of who", "who has to",
    "says so", "said so", "stands for itself", "is looked", "are looked", "is come to",
    "not come to", "it is that", "what is to", "of those that", "that is to be", "as it is said",
)  # fmt: skip
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[])")


class Docstring(NamedTuple):
    """A docstring and the place that it stands at."""

    file: str
    line: int
    kind: str
    name: str
    text: str


def modules(root: Path, packages: Sequence[str] = PACKAGES) -> list[Path]:
    """Return all Python files of the packages, sorted."""
    return sorted(path for package in packages for path in (root / package).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    """Parse one file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(path: Path, root: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_sizes(root: Path) -> dict[str, int]:
    """Count the modules in each package folder, without ``__init__`` and ``__main__``."""
    sizes: collections.Counter[str] = collections.Counter()
    for path in modules(root):
        if path.name not in {"__init__.py", "__main__.py"}:
            sizes[str(path.parent.relative_to(root))] += 1
    return dict(sizes)


def public_classes(root: Path) -> dict[str, list[str]]:
    """Map each public class name to the files that define it at their top level."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for path in modules(root):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(root)))
    return dict(found)


def aliases(root: Path, packages: Sequence[str] = (*PACKAGES, "tests", "bench")) -> list[str]:
    """List imports of our own modules or names under another name, as ``file:line: text``.

    An assignment ``Name = module.Other`` at the top of a module counts as one.
    """
    found: list[str] = []
    for path in modules(root, packages):
        found += _assigned_names(path, root, packages)
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            if node.module.split(".")[0] not in packages:
                continue
            found += [
                f"{path.relative_to(root)}:{node.lineno}: {name.name} as {name.asname}"
                for name in node.names
                if name.asname and name.asname != name.name
            ]
    return found


def _assigned_names(path: Path, root: Path, packages: Sequence[str]) -> Iterator[str]:
    """Yield assignments of names of our own modules at the top of a module.

    A constant with a name of its own is left out: it may equal another without being the same.
    """
    parsed = tree(path)
    ours = {
        name.name
        for node in ast.walk(parsed)
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.split(".")[0] in packages
        for name in node.names
        if _is_module(root, f"{node.module}.{name.name}")
    }
    for node in parsed.body:
        if not isinstance(node, ast.Assign):
            continue
        for target, value in _pairs(node):
            if (
                isinstance(target, ast.Name)
                and isinstance(value, ast.Attribute)
                and isinstance(value.value, ast.Name)
                and value.value.id in ours
                and (not target.id.isupper() or target.id == value.attr)
            ):
                text = f"{target.id} = {ast.unparse(value)}"
                yield f"{path.relative_to(root)}:{node.lineno}: {text}"


def _is_module(root: Path, name: str) -> bool:
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets and values of an assignment, with those of tuples one by one."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def gerunds(root: Path) -> list[str]:
    """List modules whose name is one word that ends in "ing"."""
    return [
        str(path.relative_to(root))
        for path in modules(root)
        if path.stem.endswith("ing") and "_" not in path.stem
    ]


def docstrings(root: Path, packages: Sequence[str] = PACKAGES) -> Iterator[Docstring]:
    """Yield the docstrings of modules, classes and functions."""
    for path in modules(root, packages):
        file = str(path.relative_to(root))
        for node in ast.walk(tree(path)):
            if not isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                continue
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", path.stem)
                yield Docstring(file, node.body[0].lineno, type(node).__name__, name, text)


def is_odd(docstring: Docstring) -> bool:
    """Return True if a docstring begins with one of ``ODD_FIRST_WORDS``."""
    first = docstring.text.split(None, 1)[0].rstrip(",;:")
    return first in ODD_FIRST_WORDS


def odd_phrases(texts: Iterable[str]) -> collections.Counter[str]:
    """Count each of ``ODD_PHRASES`` in the texts."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        lowered = " ".join(text.lower().split())
        for phrase in ODD_PHRASES:
            found = len(re.findall(rf"\b{re.escape(phrase)}\b", lowered))
            if found:
                counts[phrase] += found
    return counts


def words(texts: Iterable[str]) -> int:
    """Count words."""
    return sum(len(text.split()) for text in texts)


def prose(markdown: str) -> Iterator[str]:
    """Yield the sentences of a page, without code, tables, headings and front matter."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)", text):
        lines = [line for line in paragraph.splitlines() if line.strip()]
        if not lines or any(
            line.startswith(("    ", "\t", "|", "#", "!!!", "===")) for line in lines
        ):
            continue
        joined = re.sub(r"\s+", " ", " ".join(lines)).strip()
        joined = re.sub(r"^(?:[-*+]|\d+\.|>)\s+", "", joined)
        joined = re.sub(r"\]\([^)]*\)", "]", joined)
        for sentence in _SENTENCE_END.split(joined):
            if len(sentence.split()) > 2:
                yield sentence


def pages(root: Path) -> list[Path]:
    """Return the pages that people read: README and docs, without what is generated."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [
        page for page in found if page.is_file() and "<!-- Written by" not in page.read_text()[:200]
    ]


def sentence_lengths(root: Path) -> list[int]:
    """Return the number of words of each sentence of ``pages``."""
    return [
        len(sentence.split())
        for page in pages(root)
        for sentence in prose(page.read_text(encoding="utf-8"))
    ]


def import_floors(root: Path) -> dict[str, int]:
    """Return the length of the longest import chain inside each top package, in modules.

    A package of the second level counts its own modules only. Modules that import each other count
    as one floor.
    """
    names = {dotted(path, root): path for path in modules(root)}
    imports: dict[str, set[str]] = {}
    for name, path in names.items():
        targets: set[str] = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for each in node.names:
                    full = f"{node.module}.{each.name}"
                    targets.add(full if full in names else node.module)
        imports[name] = {target for target in targets if target in names and target != name}
    areas: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        parts = name.split(".")
        if parts[0] == "agents":
            areas["agents"].append(name)
        elif len(parts) > 1:
            areas[".".join(parts[:2])].append(name)
    return {area: _longest(members, imports) for area, members in sorted(areas.items())}


def _longest(members: Sequence[str], imports: dict[str, set[str]]) -> int:
    """Return the longest chain among ``members``; a back edge ends a chain."""
    inside = set(members)
    depth: dict[str, int] = {}
    path: set[str] = set()

    def visit(name: str) -> int:
        if name in depth:
            return depth[name]
        path.add(name)
        below = [visit(one) for one in sorted(imports[name] & inside) if one not in path]
        path.discard(name)
        depth[name] = 1 + max(below, default=0)
        return depth[name]

    return max((visit(name) for name in sorted(members)), default=0)


def figures(root: Path) -> dict[str, str]:
    """Return all figures by what they are, ready to print."""
    sizes, classes = folder_sizes(root), public_classes(root)
    repeated = {name: files for name, files in classes.items() if len(files) > 1}
    texts = list(docstrings(root))
    odd = [one for one in texts if is_odd(one)]
    phrases = odd_phrases(one.text for one in texts)
    lengths = sentence_lengths(root)
    count = words(one.text for one in texts)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules(root))
    floors = import_floors(root)
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    return {
        "modules": str(len(modules(root))),
        "lines": str(lines),
        "folders above 16 modules": str(sum(size > 16 for size in sizes.values())),
        "largest folders": ", ".join(f"{name} {size}" for name, size in largest),
        "public class names defined twice": str(len(repeated)),
        "aliases of our own modules and names": str(len(aliases(root))),
        "modules named by a gerund": str(len(gerunds(root))),
        "docstrings": str(len(texts)),
        "odd docstrings": f"{len(odd)} ({100 * len(odd) / max(len(texts), 1):.1f} %)",
        "odd phrases in docstrings": f"{sum(phrases.values())} in {count} words",
        "sentences in pages": str(len(lengths)),
        "mean sentence": f"{sum(lengths) / max(len(lengths), 1):.1f} words",
        "sentences over 35 words": (
            f"{100 * sum(length > 35 for length in lengths) / max(len(lengths), 1):.1f} %"
        ),
        "import floors": ", ".join(f"{name} {floor}" for name, floor in floors.items()),
    }


def main(arguments: Sequence[str]) -> int:
    """Print the figures of a checkout."""
    root = Path(arguments[0]) if arguments else Path.cwd()
    for what, figure in figures(root).items():
        sys.stdout.write(f"{what:40} {figure}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
