"""Git on this machine, for commands: the user's address and the branch of a clone."""

import os
import subprocess
from pathlib import Path

from reconciler.desired.git import git_commands
from reconciler.model.values.text_lines import split_lines


def environment() -> dict[str, str]:
    """Return the environment for git: no questions, and no repository chosen by the caller's."""
    return git_commands.environment()


def user_email(folder: Path | None = None) -> str | None:
    """Return the e-mail address of the author of this person's commits in ``folder``, or None.

    Git takes it from its environment or configuration. An address that git would only guess from
    the names of user and machine is none. A name is not needed here, so one is supplied.
    """
    given = ["-c", "user.name=unknown"]
    if not os.environ.get("EMAIL"):  # git takes it before a guess, unless only its own count
        given += ["-c", "user.useConfigOnly=true"]
    where = () if folder is None else ("-C", str(folder))
    identity = _output(*where, *given, "var", "GIT_AUTHOR_IDENT")
    return identity.rpartition("<")[2].partition(">")[0].strip() or None


def signs(folder: Path) -> bool:
    """Return True if git signs the commits that are made in a folder."""
    return _output("-C", str(folder), "config", "--type=bool", "--get", "commit.gpgsign") == "true"


def current_branch(address: str) -> str:
    """Return the current branch of a repository on this machine, or ``main`` for others."""
    if not Path(address).is_dir():
        return "main"
    return _output("-C", address, "symbolic-ref", "--short", "HEAD") or "main"


def branches(address: str) -> list[str]:
    """Return the branches of a repository on this machine. Others have none."""
    if not Path(address).is_dir():
        return []
    return split_lines(_output("-C", address, "branch", "--list", "--format=%(refname:short)"))


def _output(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], env=environment(), capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
