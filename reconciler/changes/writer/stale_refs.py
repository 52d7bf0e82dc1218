"""What writers that were killed have left in a repository: names of commits that nobody uses.

A writer gives such a name up in the breath in which it makes the commit. What is there is of one
that did so in two, and goes the first time that somebody writes.
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
    """Take them away; where that fails they stay, and it is logged."""
    try:
        listed = git_commands.run(
            folder, "for-each-ref", f"--count={NAMES_MAX}", "--format=delete %(refname)", WRITING
        )
        if listed.stdout:
            git_commands.run(folder, "update-ref", "--stdin", data=listed.stdout)
    except git_commands.GitError as error:
        _LOG.warning("names of commits that nobody uses stay: %s", error)
