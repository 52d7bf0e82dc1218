"""Looks if the notes that the controller wrote into the repository are still there.

Whoever may push their reference can remove or change them, and with them the hashes of the audit
log. Then they are written again, and that is shown for a day and counted. Used by the git watcher,
in its thread.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from reconciler.changes import notes
from reconciler.desired.git import git_commands, source
from reconciler.model import desired

log = logging.getLogger("muster.controller")

#: How often it is looked if they are there, and how long it is shown if they were not.
LOOK_S = 600.0
SHOWN_S = 86_400.0
RULE = "notes-changed"


class NotesGuard:
    """The notes of a repository, and what became of them.

    Args:
        repository: that holds them.
        changed: called when others have changed them, so that it is shown.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        repository: source.GitSource,
        changed: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._changed = changed
        self._clock = clock
        self._looked_at = -LOOK_S
        self._lost_at = -SHOWN_S
        self._losses = 0

    def look(self, *, is_reached: bool) -> None:
        """Write notes again that others have removed or changed, if it is time to look.

        ``is_reached``: the repository could be read just now.
        """
        if not is_reached or self._clock() < self._looked_at + LOOK_S:
            return
        self._looked_at = self._clock()
        try:
            self._note_loss(was_lost=notes.restore(self._repository))
        except (git_commands.GitError, OSError) as error:
            log.warning("nobody knows if the notes in git are still there: %s", error)

    def write(self, revision: str, text: str) -> None:
        """Put a note on a revision.

        Raises:
            GitError, OSError: it could not be written or pushed.
        """
        self._note_loss(was_lost=notes.write(self._repository, revision, text))

    def shown(self, value: desired.Desired) -> desired.Desired:
        """Return a revision with a warning if others have changed the notes of late."""
        if self._clock() >= self._lost_at + SHOWN_S:
            return value
        problem = desired.Problem(RULE, "warning", "", self._message())
        status = msgspec.structs.replace(value.status, problems=(*value.status.problems, problem))
        return msgspec.structs.replace(value, status=status)

    def take_losses(self) -> int:
        """Return how often others have changed the notes since the last call."""
        found, self._losses = self._losses, 0
        return found

    def _message(self) -> str:
        return (
            f"somebody removed or changed notes in {notes.reference(self._repository)}, which hold "
            "hashes of the audit log; they are there again. To fix: let nobody but the controller "
            "push that reference"
        )

    def _note_loss(self, *, was_lost: bool) -> None:
        if was_lost:
            log.warning("%s", self._message())
            self._losses += 1
            self._lost_at = self._clock()
            self._changed()
