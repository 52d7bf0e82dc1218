"""Deletes references that killed writers have left in a repository.

A writer normally deletes such a reference in the same command that makes the commit. Left-over ones
are deleted the first time that somebody writes.
"""

import logging
from pathlib import Path

from reconciler.desired.git import git_commands

_LOG = logging.getLogger(__name__)

#: Below which commits have a name while they are made.
WRITING = "refs/muster/writing/"
#: The most names that are taken away at once.
NAMES_MAX = 1_000


def tidy(folder: Path) -> None:
    """Delete left-over references; a failure is logged and changes nothing."""
    try:
        listed = git_commands.run(
            folder, "for-each-ref", f"--count={NAMES_MAX}", "--format=delete %(refname)", WRITING
        )
        if listed.stdout:
            git_commands.run(folder, "update-ref", "--stdin", data=listed.stdout)
    except git_commands.GitError as error:
        _LOG.warning("names of commits that nobody uses stay: %s", error)
