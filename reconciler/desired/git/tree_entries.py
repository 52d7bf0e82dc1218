"""Sorts the entries of a commit's tree into desired state and others.

Path, mode and blob of each come in. The YAML files go out, by path, and warnings about entries that
look like one and are not read: symbolic links, submodules, names that are not text.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from reconciler.desired.git.git_commands import GitError
from reconciler.model import desired

_SUFFIXES = (".yaml", ".yml")
_SYMLINK, _SUBMODULE = "120000", "160000"
#: Modes of what is never followed.
LINKS = frozenset({_SYMLINK, _SUBMODULE})
#: Mode of a folder.
FOLDER = "040000"
#: The most entries of a tree that are looked at.
FILES_MAX = 500_000

#: Path, mode, and blob; None: it is gone.
Entry = tuple[bytes, str, str | None]


class TreeChange(msgspec.Struct, frozen=True):
    """A file after a change; ``blob`` None: it is deleted."""

    path: str
    blob: str | None


class Changes(msgspec.Struct, frozen=True):
    """Changes of a revision: files, and entries that are ignored with a warning.

    ``ignored`` maps paths to the warning, or to None if the cause is gone.
    """

    files: tuple[TreeChange, ...]
    ignored: dict[str, desired.Problem | None]


def of_tree(output: bytes) -> Iterator[Entry]:
    """Parse the output of ``git ls-tree -r -z``, with ``-t`` folders too."""
    for entry in output.split(b"\0")[:-1]:
        head, _, path = entry.partition(b"\t")
        mode, _, blob = head.decode("ascii").split(" ")
        yield path, mode, blob


def sort_out(entries: Iterable[Entry], sub_path: str) -> Changes:
    """Return the entries that are read, and warnings about others that look like them.

    Raises:
        GitError: there are too many.
    """
    files: list[TreeChange] = []
    ignored: dict[str, desired.Problem | None] = {}
    skipped = len(sub_path) + 1 if sub_path else 0
    for count, (name, mode, blob) in enumerate(entries):
        if count >= FILES_MAX:
            raise GitError(f"more than {FILES_MAX} files below {sub_path or 'the root'}")
        path = text(name)
        if path is None:
            shown = name.decode("utf-8", "backslashreplace")
            if is_read(shown[skipped:]):
                ignored[shown] = None if blob is None else _ignored(shown, "name")
            continue
        below = path[skipped:]
        if _is_hidden(below):
            continue
        if mode in LINKS:
            ignored[path] = _ignored(path, "symlink" if mode == _SYMLINK else "submodule")
            blob = None  # noqa: PLW2901 - what was a file before is none now
        else:
            ignored[path] = None
        if path.endswith(_SUFFIXES):
            files.append(TreeChange(path, blob))
        elif ignored[path] is None and blob is not None and path.lower().endswith(_SUFFIXES):
            ignored[path] = _ignored(path, "suffix")
    return Changes(tuple(files), ignored)


def text(path: bytes) -> str | None:
    """Return a path as text; None if it is no text, so that two files could look alike."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None


def _is_hidden(below: str) -> bool:
    return below.startswith(".") or "/." in below


def is_read(below: str) -> bool:
    """Return True if a file, by its path below the folder, can hold desired state."""
    return below.endswith(_SUFFIXES) and not _is_hidden(below)


_WHY_IGNORED = {
    "symlink": "a symlink is never followed: put the files themselves here or remove it",
    "submodule": "a submodule is never followed: put the files themselves here or remove it",
    "suffix": "only .yaml and .yml in small letters are read: rename it",
    "name": "its name is not UTF-8, and it is not read: rename it",
}


def _ignored(path: str, what: Literal["symlink", "submodule", "name", "suffix"]) -> desired.Problem:
    return desired.Problem(f"ignored-{what}", "warning", path, _WHY_IGNORED[what])
