"""The epoch of the newest leader that this node knows, across restarts. Older leaders are
refused.
"""

import os
from pathlib import Path

from agents.host import operator_log


def load(root: Path, says: operator_log.Console) -> int:
    """Return the saved epoch; 0 if there is none."""
    try:
        return int((root / "epoch").read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except ValueError:
        says.say(f"{root}/epoch is not a number; using 0")
        return 0


def save(root: Path, epoch: int) -> None:
    """Write an epoch to disk before anything of its leader is carried out.

    On a full disk it overwrites the previous one in place.

    Raises:
        OSError: it cannot be written.
    """
    fresh, kept = root / "epoch.new", root / "epoch"
    try:
        _write(fresh, epoch, os.O_CREAT | os.O_TRUNC)
    except OSError:
        _write(kept, epoch, 0)
    else:
        fresh.replace(kept)


class LeaderEpoch:
    """The newest epoch that an agent knows, saved as soon as possible.

    If it cannot be saved, its leader's orders are carried out anyway, because they are not
    repeated. Saving is retried with each answer; until then an agent that starts later does not
    know the epoch.
    """

    def __init__(self, root: Path, says: operator_log.Console) -> None:
        self._root = root
        self._says = says
        self._unsaved = 0  # none
        self._complained = False

    def keep(self, epoch: int) -> None:
        """Save a newer epoch."""
        self._unsaved = epoch
        self.retry()

    def retry(self) -> None:
        """Save what could not be saved before, if anything."""
        if not self._unsaved:
            return
        try:
            save(self._root, self._unsaved)
        except OSError as problem:
            if not self._complained:
                self._says.say(f"{self._root}/epoch can't be written: {problem}; retrying")
            self._complained = True
        else:
            self._unsaved, self._complained = 0, False


def _write(path: Path, epoch: int, flags: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        # numbers only grow, so that nothing of an older one is left behind it
        os.write(handle, str(epoch).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
