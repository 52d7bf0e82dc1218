"""Ids that users have for their containers: files with them are the user's own."""

import contextlib
import pwd
from pathlib import Path
from typing import NamedTuple

from reconciler.model.values.text_lines import split_lines

SUBUID = Path("/etc/subuid")


class _Range(NamedTuple):
    """A line: whose ids it lists, by name or number."""

    owner: str
    ids: range


def ids_of(uid: int, source: Path = SUBUID) -> tuple[range, ...]:
    """Return the subordinate ids of a user; none if the file does not list them.

    This may ask a directory service for the user's name.
    """
    listed = _read(source)
    names = {str(uid)}
    if any(not line.owner.isdecimal() for line in listed):
        with contextlib.suppress(KeyError):
            names.add(pwd.getpwuid(uid).pw_name)
    return tuple(line.ids for line in listed if line.owner in names)


def holder_of(uid: int, source: Path = SUBUID) -> str:
    """Return the holder of a subordinate id, as the file writes it; the id itself if none."""
    return next((line.owner for line in _read(source) if uid in line.ids), str(uid))


def user_of(uid: int, source: Path = SUBUID) -> int:
    """Return the user who holds a subordinate id; the id itself if there is none.

    This may ask a directory service for the user.
    """
    holder = holder_of(uid, source)
    try:
        return int(holder) if holder.isdecimal() else pwd.getpwnam(holder).pw_uid
    except KeyError:
        return uid


def holders(source: Path) -> tuple[str, ...]:
    """Return who has subordinate ids, as the file writes them; none if it can't be read."""
    return tuple(line.owner for line in _read(source))


def _read(source: Path) -> list[_Range]:
    try:
        text = source.read_bytes().decode("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in split_lines(text):
        owner, *numbers = line.strip().split(":")
        if owner and not owner.startswith("#") and len(numbers) == 2:
            first, count = numbers
            if first.isdecimal() and count.isdecimal() and int(first) > 0:
                found.append(_Range(owner, range(int(first), int(first) + int(count))))
    return found
