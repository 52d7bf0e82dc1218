"""Watches what tasks with a limit take of the node's disk: their folders and their output.

Limits by attempt come in; those above theirs come out, with a message. Files that are deleted while
they are open count no more, and files elsewhere never do.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from agents.host import disk_space, file_tree

#: How often tasks are looked at, unless a look takes longer than a tenth of this.
EVERY_S = 5.0
_PAUSES = 10
#: Folders in the folder of an attempt, and endings of its files below ``logs``.
_FOLDERS, _OUTPUTS = ("work", "tmp"), ("stdout", "stderr", "metrics")


class ScratchLimits(Protocol):
    """The part of an agent that knows its running attempts."""

    def scratch_limits(self) -> Mapping[str, int]:
        """Return what files of attempts may take of the disk, for those with a limit."""


class LimitEnds(Protocol):
    """The part of an agent that ends attempts."""

    def over_limit(self, attempt: str, message: str) -> None:
        """End a task whose files take more of the disk than they may."""


class DiskWatch:
    """The disk space of tasks below one root.

    Args:
        limits: knows what running attempts may take.
        ends: ends attempts.
    """

    def __init__(
        self, root: Path, limits: ScratchLimits, ends: LimitEnds, leaving: threading.Event
    ) -> None:
        self._root = root
        self._limits = limits
        self._ends = ends
        self._leaving = leaving
        #: Attempts whose folder could not be measured at the last look.
        self._unmeasured: set[str] = set()

    def turn(self) -> None:
        """Look once, end what takes too much, and wait until the next time."""
        began = time.monotonic()
        for name, message in self.look(self._limits.scratch_limits()):
            self._ends.over_limit(name, message)
        self._leaving.wait(max(EVERY_S, _PAUSES * (time.monotonic() - began)))

    def look(self, limits: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield each attempt that takes more than its limit, with a message that says where."""
        unmeasured = set()
        for name, limit_bytes in limits.items():
            folder = self._root / "attempts" / name
            if not folder.is_dir():  # it has just ended
                continue
            size_bytes = file_tree.measure(str(folder)).size_bytes
            if size_bytes is None:
                unmeasured.add(name)
                if name in self._unmeasured:  # not only because files came and went
                    yield name, _UNMEASURED
            elif size_bytes + (output_bytes := self._output_bytes(name)) > limit_bytes:
                yield name, _message(folder, size_bytes + output_bytes, output_bytes, limit_bytes)
        self._unmeasured = unmeasured

    def _output_bytes(self, name: str) -> int:
        total = 0
        for ending in _OUTPUTS:
            try:
                total += os.lstat(self._root / "logs" / f"{name}.{ending}").st_blocks * 512
            except OSError:
                continue
        return total


_UNMEASURED = (
    "its folder on the node can't be measured, and its pool has a limit (scratchLimit): it has "
    f"more than {file_tree.NAMES_MAX:,} names, folders deeper than {file_tree.DEPTH_MAX}, or "
    "folders that are closed to the agent"
)


def _message(folder: Path, size_bytes: int, output_bytes: int, limit_bytes: int) -> str:
    """Return how much a task takes, and where."""
    parts = {name: file_tree.measure(str(folder / name)).size_bytes or 0 for name in _FOLDERS}
    parts["output"] = output_bytes
    listed = ", ".join(
        f"{name} {disk_space.amount(part)}"
        for name, part in sorted(parts.items(), key=lambda pair: -pair[1])
        if part
    )
    return (
        f"its files on the node take {disk_space.amount(size_bytes)}, and its pool allows "
        f"{disk_space.amount(limit_bytes)} (scratchLimit): {listed}"
    )
