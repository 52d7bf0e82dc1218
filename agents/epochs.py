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
    """Have an epoch on disk, whole, before anything of it is carried out."""
    fresh = root / "epoch.new"
    with fresh.open("w", encoding="ascii") as stream:
        stream.write(str(epoch))
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(root / "epoch")
