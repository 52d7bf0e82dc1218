"""The newest leader that a node has heard of, across restarts: an older one is refused for ever."""

import os
from pathlib import Path

from agents import voice


def load(root: Path, says: voice.Voice) -> int:
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


def _write(path: Path, epoch: int, flags: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        # numbers only grow, so that nothing of an older one is left behind it
        os.write(handle, str(epoch).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
