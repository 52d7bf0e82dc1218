"""Finds files that differ between two commits, from the objects themselves.

A commit that changes one file touches one tree at each level of its path; reading these costs less
than starting ``git diff-tree``. If much differs, git is asked. A tree that git would never write
can name two files alike, so that readers disagree about a change: such a tree is refused.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from reconciler.desired.git import git_commands

#: The most trees that are compared at one level; from there on git does it faster.
TREES_MAX = 64
_TREE = b"40000"
_MODES = frozenset({_TREE, b"100644", b"100755", b"100664", b"120000", b"160000"})
_ID_CHARACTERS_SHA256 = 64
#: Trees that are asked for at once.
_PORTION = 256
#: Of so many new names in a folder each is looked for by itself.
_FEW = 16


class Side(msgspec.Struct, frozen=True):
    """A file at one of the two commits: its mode as six digits, and the id of its content."""

    mode: str
    id: str


class FileDifference(msgspec.Struct, frozen=True):
    """A file that differs; a side is None if it does not exist at that commit."""

    path: bytes
    before: Side | None
    after: Side | None


class TooManyError(Exception):
    """More differs, or a tree is larger, than is compared here."""


class BrokenTreeError(git_commands.GitError):
    """A commit has a tree that git would never write: its meaning depends on the reader."""


#: Mode as written, name, id.
_Entry = tuple[bytes, bytes, bytes]


def _entries(after: str) -> re.Pattern[bytes]:
    """Return a function that finds the entries of a tree, by the id of a commit."""
    size = 32 if len(after) == _ID_CHARACTERS_SHA256 else 20
    return re.compile(rb"(\d+) ([^\0]+)\0(.{%d})" % (size,), re.DOTALL)


def check(folder: Path, objects: git_commands.Objects, ids: Iterable[str]) -> None:
    """Check that trees are as git writes them: then every reader sees the same.

    Args:
        folder: the git folder, for trees too large to be handed out.
        objects: reader of trees. ids: of trees.

    Raises:
        BrokenTreeError: one is not.
        GitError: one is missing, or git does not answer.
    """
    wanted = list(dict.fromkeys(ids))
    for start in range(0, len(wanted), _PORTION):
        part = wanted[start : start + _PORTION]
        for identity, found in zip(part, objects.read_many(part), strict=True):
            if found is None:
                raise git_commands.GitError(f"the tree {identity} is missing")
            data = found[2]
            if len(data) >= git_commands.OBJECT_BYTES_MAX:
                data = git_commands.run(folder, "cat-file", "tree", identity).stdout
            _check_whole(data, _entries(identity), f"the tree {identity}")


def _check_whole(data: bytes, entry: re.Pattern[bytes], where: str) -> None:
    """Check that one tree is as git writes it: names in order, each once."""
    found = entry.findall(data)
    _check_new(found, where)
    if _size(found) != len(data):
        raise _broken(where, "has bytes that are not an entry")
    if len({name for _, name, _ in found}) != len(found):
        raise _broken(where, "has two entries of one name")
    order = [name + b"/" if _mode(mode) == _TREE else name for mode, name, _ in found]
    if order != sorted(order):
        raise _broken(where, "is not in order")


def _check_changed(
    sides: tuple[bytes, bytes], parts: tuple[list[_Entry], list[_Entry]], path: bytes
) -> None:
    """Check a changed tree against its valid predecessor.

    The common part is valid. So it is enough that new entries are valid, repeat no existing name,
    and account for all added bytes.

    Args:
        sides: its bytes before and after. parts: their entries. path: of the folder.
    """
    where = f"the folder {_text(path)}" if path else "the topmost folder"
    old, new = (set(part) for part in parts)
    added, gone = new - old, old - new
    _check_new(added, where)
    if len(parts[1]) != len(new):
        raise _broken(where, "has two entries of one name")
    if _size(added) - _size(gone) != len(sides[1]) - len(sides[0]):
        raise _broken(where, "has bytes that are not an entry")
    if len(added) <= _FEW and all(sides[1].count(b" %s\0" % (name,)) == 1 for _, name, _ in added):
        return
    if len({name for _, name, _ in new}) != len(new):
        raise _broken(where, "has two entries of one name")


def _check_new(entries: Iterable[_Entry], where: str) -> None:
    for mode, name, _ in entries:
        if _mode(mode) not in _MODES:
            raise _broken(where, f"has {_text(name)} with mode {mode.decode()}")
        if b"/" in name or name in {b".", b".."}:
            raise _broken(where, f"has {_text(name)}, which is no name")


def _size(entries: Iterable[_Entry]) -> int:
    return sum(len(mode) + len(name) + len(identity) + 2 for mode, name, identity in entries)


def _mode(written: bytes) -> bytes:
    """Return the mode of an entry; old versions of git padded the modes of folders with zeros."""
    return written.lstrip(b"0")


def _broken(where: str, what: str) -> BrokenTreeError:
    return BrokenTreeError(
        f"{where} {what}, which git itself never writes (see `git fsck`), so that readers "
        "disagree about it"
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def differing(
    objects: git_commands.Objects, before: str, after: str, below: str = ""
) -> list[FileDifference]:
    """Return everything but folders that differs between two commits below a folder, by path.

    Args:
        objects: reader of trees.
        before, after: ids of commits.
        below: a folder of both, ``""`` for all; a missing one has no files.

    Raises:
        TooManyError: ask git, and :func:`check` what it looked at.
        BrokenTreeError: ``after`` has a tree that git never writes; ``before`` is trusted.
        GitError: an object is missing, or git does not answer.
    """
    entry = _entries(after)
    roots = [_folder(objects, commit, below, entry) for commit in (before, after)]
    level = [(below.encode(), roots[0], roots[1])] if roots[0] != roots[1] else []
    found: list[FileDifference] = []
    while level:
        if len(level) > TREES_MAX:
            raise TooManyError(f"more than {TREES_MAX} folders differ")
        sides = _read(objects, [one for _, *pair in level for one in pair])
        deeper = []
        for number, (path, _, _) in enumerate(level):
            pair = (sides[2 * number], sides[2 * number + 1])
            parts = (entry.findall(pair[0]), entry.findall(pair[1]))
            _check_changed(pair, parts, path)
            old, new = (set(part) for part in parts)
            for difference in _paired(path, old - new, new - old):
                deeper += difference[0]
                found += difference[1]
        level = deeper
    return sorted(found, key=lambda one: one.path)


def _folder(
    objects: git_commands.Objects, commit: str, below: str, entry: re.Pattern[bytes]
) -> str:
    """Return the tree of a folder of a commit; empty if the commit has no such folder.

    Raises:
        TooManyError, GitError: as :func:`differing`.
    """
    root = objects.read(f"{commit}^{{tree}}")
    if root is None:
        raise git_commands.GitError(f"the tree of {commit} is missing")
    found = root[0]
    for part in below.encode().split(b"/") if below else []:
        (data,) = _read(objects, [found])
        _check_whole(data, entry, f"the tree {found}")
        inside = {name: (_mode(mode), identity) for mode, name, identity in entry.findall(data)}
        mode, identity = inside.get(part, (b"", b""))
        if mode != _TREE:
            return ""
        found = identity.hex()
    return found


_Pairs = tuple[list[tuple[bytes, str, str]], list[FileDifference]]


def _paired(
    path: bytes,
    old: set[tuple[bytes, bytes, bytes]],
    new: set[tuple[bytes, bytes, bytes]],
) -> Iterator[_Pairs]:
    """Return for each name that differs: the folders to compare, and the file that differs."""
    before = {name: (_mode(mode), identity) for mode, name, identity in old}
    after = {name: (_mode(mode), identity) for mode, name, identity in new}
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
            [FileDifference(below, files[0], files[1])] if any(files) else [],
        )


def _read(objects: git_commands.Objects, ids: list[str]) -> list[bytes]:
    """Return the bytes of trees. An empty id has none.

    Raises:
        TooManyError: one is so large that only its beginning is given.
        GitError: one is missing.
    """
    wanted = [identity for identity in ids if identity]
    data = {"": b""}
    for identity, found in zip(wanted, objects.read_many(wanted), strict=True):
        if found is None:
            raise git_commands.GitError(f"the tree {identity} is missing")
        if len(found[2]) >= git_commands.OBJECT_BYTES_MAX:
            raise TooManyError(f"the tree {identity} is larger than 8 MiB")
        data[identity] = found[2]
    return [data[identity] for identity in ids]


def without_folders(one: FileDifference) -> FileDifference | None:
    """Return the part of a difference that is about files, or None if there is nothing."""
    sides = [
        None if side is None or side.mode == f"0{_TREE.decode()}" else side
        for side in (one.before, one.after)
    ]
    return FileDifference(one.path, sides[0], sides[1]) if any(sides) else None


def told(output: bytes) -> Iterator[FileDifference]:
    """Parse the output of ``git diff-tree -r -z --raw``, with ``-t`` folders too."""
    parts = output.split(b"\0")[:-1]
    for head, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, mode, old, new, _ = head.decode("ascii").removeprefix(":").split(" ")
        sides = [
            None if set(identity) == {"0"} else Side(of, identity)
            for of, identity in ((old_mode, old), (mode, new))
        ]
        yield FileDifference(path, sides[0], sides[1])
