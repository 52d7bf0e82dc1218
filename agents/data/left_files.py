"""Names the files that a task leaves in its work folder, which is deleted after its end.

The folder is the task's: whatever is in it may be a link, and may change while it is read. Only
names are read, from folders that are no links.
"""

import os
from collections.abc import Collection
from typing import NamedTuple

from reconciler.model.observed import job_code

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: How many entries are counted, how many are named, and the most characters of a name.
ENTRIES_MAX = 1000
NAMED_MAX = 5
NAME_CHARACTERS_MAX = 60
#: How many entries of the job's code are looked at, and how deep; what is beyond counts as it came.
LOOKED_AT_MAX, DEPTH_MAX = 2000, 16
_TO_KEEP = "To keep files: submit in a folder that nodes share, or name them in `stage.outputs`"


class _Entry(NamedTuple):
    """An entry of the work folder."""

    name: str
    is_folder: bool


def left_text(root: str, attempt: str, copied: Collection[str] = ()) -> str:
    """Return what people are told of the files that an ended attempt leaves; empty for none.

    Args:
        root: the node's folder.
        copied: paths below the work folder that are kept elsewhere.
    """
    kept = {path.partition("/")[0] for path in copied}
    found = sorted(one for one in _entries(root, attempt) if one.name not in kept)
    if not found:
        return ""
    named = ", ".join(_shown(one) for one in found[:NAMED_MAX])
    more = len(found) - NAMED_MAX
    others = "" if more <= 0 else f" and {more}{'+' if len(found) >= ENTRIES_MAX else ''} more"
    return f"what it left in its work folder is deleted at its end: {named}{others}. {_TO_KEEP}"


def _entries(root: str, attempt: str) -> list[_Entry]:
    """Return entries of an attempt's work folder, at most as many as are counted."""
    handles: list[int] = []
    looked = _CodeLook()
    try:
        handles.append(os.open(f"{root}/attempts/{attempt}", _FOLDER))
        handles.append(os.open("work", _FOLDER, dir_fd=handles[0]))
        with os.scandir(handles[1]) as entries:
            chosen = [
                _Entry(one.name, one.is_dir(follow_symlinks=False))
                for one, _ in zip(entries, range(ENTRIES_MAX), strict=False)
                if looked.is_changed(handles[1], one)
            ]
    except (OSError, ValueError):  # it is gone, or no folder any more
        return []
    finally:
        for handle in handles:
            os.close(handle)
    return chosen


class _CodeLook:
    """A look for what a task has changed of the code that came with its job."""

    def __init__(self) -> None:
        self._left = LOOKED_AT_MAX

    def is_changed(self, folder: int, entry: os.DirEntry[str], depth: int = 0) -> bool:
        """Return False if an entry of an open folder is as it came with the code, with all in it.

        What is gone, or may not be read, was not changed as far as anybody can say.
        """
        try:
            return self._is_other(folder, entry, depth)
        except OSError:
            return False

    def _is_other(self, folder: int, entry: os.DirEntry[str], depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_MAX:
            return False
        if entry.stat(follow_symlinks=False).st_mtime != job_code.PACKED_AT:
            return True
        if not entry.is_dir(follow_symlinks=False):
            return False
        handle = os.open(entry.name, _FOLDER, dir_fd=folder)
        try:
            with os.scandir(handle) as entries:
                return any(self.is_changed(handle, one, depth + 1) for one in entries)
        finally:
            os.close(handle)


def _shown(entry: _Entry) -> str:
    """Return a name for people, whatever it contains."""
    name = entry.name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    plain = "".join(one if one.isprintable() else "?" for one in name)
    cut = plain if len(plain) <= NAME_CHARACTERS_MAX else f"{plain[:NAME_CHARACTERS_MAX]}…"
    return f"{cut}/" if entry.is_folder else cut
