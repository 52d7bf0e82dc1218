"""The newest leader that a node has heard of, across restarts: an older one is refused for ever."""

import os
from pathlib import Path

from agents.host import operator_log


def load(root: Path, says: operator_log.Console) -> int:
    """The epoch that was saved; 0 for none."""
    try:
        return int((root / "epoch").read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except ValueError:
        says.say(f"{root}/epoch is not a number; taken for 0")
        return 0


def save(root: Path, epoch: int) -> None:
    """Have an epoch on disk, whole, before anything of it is carried out. Where the disk is full it
    is written over the one before.

    Raises:
        OSError: it can't be kept.
    """
    fresh, kept = root / "epoch.new", root / "epoch"
    try:
        _write(fresh, epoch, os.O_CREAT | os.O_TRUNC)
    except OSError:
        _write(kept, epoch, 0)
    else:
        fresh.replace(kept)


class Newest:
    """The newest epoch that an agent has heard of, brought to disk as soon as that can be.

    Where it can't be, what its leader asks for is done all the same, since it will not be asked for
    again, and saving is tried with each answer; until then only this agent knows the epoch, and not
    one that is started after it.
    """

    def __init__(self, root: Path, says: operator_log.Console) -> None:
        self._root = root
        self._says = says
        self._unsaved = 0  # none
        self._complained = False

    def keep(self, epoch: int) -> None:
        """This is the newest one."""
        self._unsaved = epoch
        self.retry()

    def retry(self) -> None:
        """Save what could not be saved before; nothing where all is."""
        if not self._unsaved:
            return
        try:
            save(self._root, self._unsaved)
        except OSError as problem:
            if not self._complained:
                self._says.say(
                    f"{self._root}/epoch can't be written: {problem}; tried again until it is"
                )
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
