"""Looks at the program of a command before it is sent: a file of this folder that can't be run so.

The words of a command come in; a refusal or a note with what to type instead goes out. A command
that starts in another folder, or in a container, is left to its node.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from reconciler.cli import terminal
from reconciler.cli.changes import sbatch_lines, submit_options

#: No more of a file is read for its first lines.
HEAD_BYTES_MAX = 2**16


def check(verb: str, words: Sequence[str]) -> None:
    """Exit if the program of a command is a file here that its name does not start.

    Args:
        verb: of the command line, for what to type instead.
        words: the command, at least one word.
    """
    path = Path(words[0])
    is_found = shutil.which(words[0]) is not None
    if not path.is_file() or (is_found and "/" not in words[0]):
        return
    is_script = path.suffix.lower() in submit_options.INTERPRETERS or _head(path)[:2] == "#!"
    is_script = is_script or "/" in words[0]
    if not is_found and not is_script:
        terminal.note(f"{path} is a file here, and no program in PATH: its node has to have one")
        return
    if not is_found:
        runner = submit_options.INTERPRETERS.get(path.suffix.lower(), "sh")
        why = "is not executable" if "/" in words[0] else "is a file here, and no program in PATH"
        meant = shlex.join(["muster", verb, "--", runner, *words])
        terminal.fail(f"{path} {why}", terminal.USAGE, [f"To run it by {runner}: {meant}"])
    if sbatch_lines.options_in(_head(path)):
        meant = shlex.join(["muster", "submit", *words])
        terminal.note(
            f"the #SBATCH lines of {path} do not count where it is a command; to submit the "
            f"script with them: {meant}"
        )


def _head(path: Path) -> str:
    """Return the beginning of a file; empty if it can't be read or is no text."""
    try:
        with path.open("rb") as stream:
            return stream.read(HEAD_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def is_here(chdir: str | None, code: Path | None, image: str | None) -> bool:
    """Return True if a command with these options starts in this folder, as far as is known."""
    is_same = code is None or os.path.realpath(code) == os.path.realpath(".")
    return chdir is None and image is None and is_same
