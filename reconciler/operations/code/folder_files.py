"""The files of a folder that travel with a job: what git tracks and what it does not ignore.

Outside of git it is everything. ``.musterignore`` takes files out, in the form of ``.gitignore``.
Git itself reads both, so that patterns mean what they mean there. Nothing here reads a file.
"""

import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reconciler.model.values.folder_identity import MARKER_FOLDER
from reconciler.operations import local_git

IGNORE_FILE = ".musterignore"
#: How long git may take.
TIMEOUT_S = 120.0
#: Nested repositories that are looked into.
DEPTH_MAX = 8
_NEVER = frozenset({".git", MARKER_FOLDER})


class PackingError(Exception):
    """Error: a folder can't be packed, and why; ``details`` name what is in the way."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


def paths_of(folder: Path) -> list[str]:
    """Return the paths of a folder's files below it, in order.

    Raises:
        PackingError: it is no folder, or git refuses it.
    """
    if why := _why_no_folder(folder):
        raise PackingError(f"--code {folder}: {why}")
    return sorted(_below(folder, "", DEPTH_MAX), key=os.fsencode)


def _why_no_folder(folder: Path) -> str:
    """Return why a path is no folder that can be packed, and how to fix it; empty if it is one."""
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return "found no such folder"
    except OSError as error:
        return f"the folder can't be read: {error.strerror}"
    if not is_folder:
        return (
            "found a file, expected a folder. To fix: name the folder that it is in, as --code "
            f"{shlex.quote(str(folder.parent))}; only that goes along"
        )
    if not os.access(folder, os.R_OK | os.X_OK):
        return "the folder can't be read: you have no rights to it (ls -ld shows them)"
    return ""


def _below(top: Path, inner: str, depth: int) -> set[str]:
    """Return paths below ``top`` that are in the folder ``inner`` of it."""
    folder = top / inner
    names = _listed(folder, ["--cached", "--others"]) - _listed(
        folder, ["--ignored", "--cached", "--others"], ignore_file=IGNORE_FILE
    )
    found: set[str] = set()
    for name in names:
        path = f"{inner}{name}"
        if not _NEVER.isdisjoint(path.split("/")):
            continue
        if name.endswith("/") or _is_folder(top / path):  # a repository in this one
            if depth == 0:
                raise PackingError(f"{top / path}: repositories are nested too deeply")
            found |= _below(top, f"{path.rstrip('/')}/", depth - 1)
        else:
            found.add(path)
    return found


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _listed(folder: Path, options: list[str], ignore_file: str = "") -> set[str]:
    """Return what git lists of a folder, with the patterns of git or those of a file alone."""
    patterns = f"--exclude-per-directory={ignore_file}" if ignore_file else "--exclude-standard"
    command = ["ls-files", "-z", *options, patterns]
    done = _git(folder, command)
    if done.returncode != 0 and b"not a git repository" in done.stderr:
        with tempfile.TemporaryDirectory() as empty:
            place = [f"--git-dir={empty}", f"--work-tree={folder}"]
            _require(_git(folder, ["init", "--quiet", "--bare", empty]), folder)
            if not ignore_file:  # without a repository git's own patterns count for nobody
                command = ["ls-files", "-z", "--others"]
            done = _git(folder, [*place, *command])
    _require(done, folder)
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _git(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**local_git.environment(), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise PackingError(f"--code {folder}: git did not list it in {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise PackingError(f"--code {folder}: git can't be run: {error.strerror}") from None


def _require(done: subprocess.CompletedProcess[bytes], folder: Path) -> None:
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="backslashreplace").split())
        raise PackingError(f"--code {folder}: git can't list its files: {said}")
