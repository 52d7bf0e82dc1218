"""Why a copy failed, in words: what programs in the task said, or the error of this machine.

Output of tar, mktemp and mv comes in, in the C locale; sentences with place and remedy go out.
"""

import errno
import os
import posixpath
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from reconciler.model.values import quantities, text_lines

#: The most bytes of messages that are read, and the most sentences that are told.
MESSAGES_BYTES_MAX, TOLD_MAX = 2**16, 10
#: What tar says beside the reason, in its own words.
_ASIDE = re.compile(r"Wrote only|Exiting with failure|Error is not recoverable|Removing leading")
#: What failed, by who says it: tar names a member, the others a path of their own.
_MEMBER = re.compile(r"tar: (?P<path>.+?): (?:Cannot|Wrote|Read|File) ")
#: Texts of the system, from which reason and remedy follow.
_KNOWN = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT),
    *(errno.EROFS, errno.ENOTDIR, errno.EISDIR),
)


class TaskPlace(NamedTuple):
    """A path in a task, as `muster cp` names it; ``folder``: what is copied is below it."""

    job: str
    path: str
    folder: str = ""


def here(path: object, error: OSError) -> str:
    """Return a sentence about an error on this machine; its own path counts if it has one."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)
    folder = str(Path(name).parent)
    look = f"ls -ld {shlex.quote(folder)}"
    return f"{name} here: {_reason(error.errno or 0, f'df -h {shlex.quote(folder)}', look)}"


def in_task(said: bytes, place: TaskPlace, status: int) -> list[str]:
    """Return sentences about a copy that failed in a task.

    Args:
        said: messages of its programs.
        place: what was copied from or to.
        status: its exit code.
    """
    text = said[:MESSAGES_BYTES_MAX].decode(errors="backslashreplace")
    lines = [
        line.strip()
        for line in text_lines.split_lines(text)
        if line.strip() and not _ASIDE.search(line)
    ]
    found = list(dict.fromkeys(_in_task(line, place) for line in lines))
    if not found:
        found = [f"{place.job}:{place.path}: the copy ended with exit code {status} in the task"]
    more = len(found) - TOLD_MAX
    return found[:TOLD_MAX] + ([f"and {quantities.counted(more, 'more message')}"] * (more > 0))


def _in_task(line: str, place: TaskPlace) -> str:
    """Return a sentence about one message of a program in a task."""
    number = next((one for one in _KNOWN if line.endswith(f": {os.strerror(one)}")), None)
    if number is None:
        text = re.sub(r"^(tar|mktemp|mv|sh): ", "", line)
        return f"{place.job}:{place.path}: the copy failed in the task: {text}"
    member = _MEMBER.match(line)
    path = place.path
    if member is not None and place.folder:
        path = posixpath.normpath(posixpath.join(place.folder, member["path"]))
    elif line.startswith("mktemp: "):
        path = posixpath.dirname(place.path) or "."
    within = f"muster exec {shlex.quote(place.job)} --"
    folder = shlex.quote(posixpath.dirname(path) or ".")
    look = f"{within} ls -la {folder}"
    return f"{place.job}:{path}: {_reason(number, f'{within} df -h {folder}', look)}"


def _reason(number: int, disk: str, look: str) -> str:
    """Return what an error of the system means, and what to do.

    Args:
        number: of the error.
        disk: shows how full the disk is.
        look: shows what is there, and who may do what.
    """
    if number == errno.ENOENT:
        return f"there is no such file or folder. To fix: see what is there ({look})"
    if number in {errno.EACCES, errno.EPERM}:
        return (
            "permission denied: who copies has no right to it. To fix: have it given "
            f"({look} shows whose it is), or choose another place"
        )
    if number == errno.EROFS:
        return "it can only be read. To fix: choose another place"
    if number in {errno.ENOSPC, errno.EDQUOT}:
        which = "the disk is full" if number == errno.ENOSPC else "the quota of the disk is used up"
        return f"{which}. To fix: make room ({disk} shows it), or choose another place"
    if number == errno.ENOTDIR:
        return f"a part of the path is a file, not a folder. To fix: see what is there ({look})"
    if number == errno.EISDIR:
        return "a folder is there, where a file would go. To fix: choose another name"
    return os.strerror(number).lower() if number else "it can't be read or written"
