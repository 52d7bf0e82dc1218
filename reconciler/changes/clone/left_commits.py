"""Remembers commits of commands that could not be pushed, so that the next command pushes them.

The ids stand in a file of the git folder. A commit of a command is told from a person's own by it:
those are published only if the person asks for it.
"""

import contextlib
from pathlib import Path

#: The file's name.
FILE = "muster-unpushed"
#: The most commits that are remembered; the oldest are forgotten first.
COMMITS_MAX = 1000


def read(git_folder: Path) -> tuple[str, ...]:
    """Return the ids of commits that commands have left, the oldest first.

    Ids of what was pushed meanwhile are among them. None if the file cannot be read.
    """
    try:
        return tuple((git_folder / FILE).read_text(encoding="ascii").split())
    except (OSError, UnicodeDecodeError):
        return ()


def add(git_folder: Path, commits: list[str]) -> None:
    """Remember commits. If that fails, a person has to push them, as the next error says."""
    known = [*dict.fromkeys((*read(git_folder), *commits))]
    with contextlib.suppress(OSError):
        (git_folder / FILE).write_text("\n".join(known[-COMMITS_MAX:]) + "\n", encoding="ascii")
