"""Which files differ between two commits, found in the objects themselves.

A commit that changes one file touches one tree at each level of its path. Asking the process that
hands out objects for these costs less than starting ``git diff-tree``, and what is new in git is
what everybody waits for. Where much differs, git is asked after all: it is made for that.
"""

import re
from collections.abc import Iterator

import msgspec

from reconciler.desired import gitobjects

#: The most trees that are compared at one level; from there on git does it faster.
TREES_MAX = 64
_TREE = b"40000"
_ID_CHARACTERS_SHA256 = 64


class Side(msgspec.Struct, frozen=True):
    """A file at one of the two commits: its mode as six digits, and the id of its content."""

    mode: str
    id: str


class Difference(msgspec.Struct, frozen=True):
    """A file that differs; a side is None where it is not there at that commit."""

    path: bytes
    before: Side | None
    after: Side | None


class TooManyError(Exception):
    """More differs, or a tree is larger, than is compared here."""


def differing(
    objects: gitobjects.Objects, before: str, after: str, below: str = ""
) -> list[Difference]:
    """Everything but folders that differs between two commits below a folder, by path.

    Args:
        objects: where trees are read from.
        before, after: ids of commits.
        below: a folder of both, ``""`` for all; one where it is missing has no files.

    Raises:
        TooManyError: ask git.
        GitError: an object is missing, or git does not answer.
    """
    size = 32 if len(after) == _ID_CHARACTERS_SHA256 else 20
    # Old writers of git filled the modes of folders up with zeros.
    entry = re.compile(rb"0*(\d+) ([^\0]+)\0(.{%d})" % (size,), re.DOTALL)
    roots = [_folder(objects, commit, below, entry) for commit in (before, after)]
    level = [(below.encode(), roots[0], roots[1])] if roots[0] != roots[1] else []
    found: list[Difference] = []
    while level:
        if len(level) > TREES_MAX:
            raise TooManyError(f"more than {TREES_MAX} folders differ")
        sides = _read(objects, [one for _, *pair in level for one in pair])
        deeper = []
        for number, (path, _, _) in enumerate(level):
            old, new = (set(entry.findall(data)) for data in sides[2 * number : 2 * number + 2])
            for difference in _paired(path, old - new, new - old):
                deeper += difference[0]
                found += difference[1]
        level = deeper
    return sorted(found, key=lambda one: one.path)


def _folder(objects: gitobjects.Objects, commit: str, below: str, entry: re.Pattern[bytes]) -> str:
    """The tree of a folder of a commit; empty where the commit has no such folder.

    Raises:
        TooManyError, GitError: as :func:`differing`.
    """
    root = objects.read(f"{commit}^{{tree}}")
    if root is None:
        raise gitobjects.GitError(f"the tree of {commit} is missing")
    found = root[0]
    for part in below.encode().split(b"/") if below else []:
        (data,) = _read(objects, [found])
        inside = {name: (mode, identity) for mode, name, identity in entry.findall(data)}
        mode, identity = inside.get(part, (b"", b""))
        if mode != _TREE:
            return ""
        found = identity.hex()
    return found


_Pairs = tuple[list[tuple[bytes, str, str]], list[Difference]]


def _paired(
    path: bytes,
    old: set[tuple[bytes, bytes, bytes]],
    new: set[tuple[bytes, bytes, bytes]],
) -> Iterator[_Pairs]:
    """Of each name that differs in a folder: the folders to compare, and the file that differs."""
    before = {name: (mode, identity) for mode, name, identity in old}
    after = {name: (mode, identity) for mode, name, identity in new}
    nothing = (b"", b"")
    for name in before.keys() | after.keys():
        pair = before.get(name, nothing), after.get(name, nothing)
        below = path + b"/" + name if path else name
        trees = [identity.hex() if mode == _TREE else "" for mode, identity in pair]
        files = [
            Side(mode.decode().zfill(6), identity.hex()) if mode and mode != _TREE else None
            for mode, identity in pair
        ]
        yield (
            [(below, trees[0], trees[1])] if any(trees) else [],
            [Difference(below, files[0], files[1])] if any(files) else [],
        )


def _read(objects: gitobjects.Objects, ids: list[str]) -> list[bytes]:
    """The bytes of trees; of none where the id is empty.

    Raises:
        TooManyError: one is so large that only its beginning is given.
        GitError: one is missing.
    """
    wanted = [identity for identity in ids if identity]
    data = {"": b""}
    for identity, found in zip(wanted, objects.read_many(wanted), strict=True):
        if found is None:
            raise gitobjects.GitError(f"the tree {identity} is missing")
        if len(found[2]) >= gitobjects.OBJECT_BYTES_MAX:
            raise TooManyError(f"the tree {identity} is larger than 8 MiB")
        data[identity] = found[2]
    return [data[identity] for identity in ids]


def told(output: bytes) -> Iterator[Difference]:
    """What ``git diff-tree -r -z --raw`` prints."""
    parts = output.split(b"\0")[:-1]
    for head, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, mode, old, new, _ = head.decode("ascii").removeprefix(":").split(" ")
        sides = [
            None if set(identity) == {"0"} else Side(of, identity)
            for of, identity in ((old_mode, old), (mode, new))
        ]
        yield Difference(path, sides[0], sides[1])
