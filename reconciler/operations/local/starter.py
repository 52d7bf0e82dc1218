"""The starter repository: files of a small cluster, in one commit.

If it can't be made, for example because git has no identity, everything that was made is removed,
so that the user can correct the cause and try again.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from reconciler import package_data
from reconciler.desired.git import git_commands

_COMMANDS = (
    ("git", "init", "--quiet", "--initial-branch", "main"),
    ("git", "add", "--all"),
    ("git", "commit", "--quiet", "--message", "Start a cluster with Muster"),
)
#: Variables that point git to objects elsewhere: a server's hook has them.
_OBJECTS_ELSEWHERE = ("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES")


class StarterError(Exception):
    """Error: the repository can't be made, and nothing of it is left."""


def begin(folder: Path) -> None:
    """Make the repository in a folder that is not there, or empty.

    Raises:
        StarterError: something is there, it can't be written, or git refuses.
    """
    try:
        _begin(folder)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise StarterError(f"{folder}: {why}") from error


def _begin(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise StarterError(f"{folder} exists and is not empty; name a new folder")
    with _whole(folder):
        shutil.copytree(package_data.starter(), folder, dirs_exist_ok=True)
        (folder / ".gitignore").write_text(".muster/\n", encoding="utf-8")
        own = git_commands.environment()
        for name in _OBJECTS_ELSEWHERE:
            own.pop(name, None)
        for command in _COMMANDS:
            done = subprocess.run(
                command, cwd=folder, env=own, capture_output=True, text=True, check=False
            )
            if done.returncode:
                if git_commands.lacks_identity(done.stderr):
                    raise StarterError(git_commands.UNKNOWN_IDENTITY)
                output = done.stderr.strip() or done.stdout.strip()
                raise StarterError(f"`{' '.join(command)}` failed: {output}")


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Leave what there was as it was where not all can be done: the folder, and those above it."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        with contextlib.suppress(OSError):  # another process has added or removed a file there
            for one in missing:
                one.rmdir()
        raise
