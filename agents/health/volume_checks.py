"""Checks that the volumes of this node are mounted as declared, and answer.

The mount table is judged first. Then a child process checks that each volume answers. Results are
reported with the node, so that jobs go where their volumes work.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from agents.health import checks
from agents.host import processes
from reconciler.model.observed.storage import VolumeState, WantedVolume
from reconciler.model.values.text_lines import split_lines

#: Age of a result that is still used for the start of a task.
FRESH_S = 5.0
EVERY_S = 60.0
VOLUMES_MAX = 256
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mounted(msgspec.Struct, frozen=True):
    """A line of the mount table."""

    source: str
    path: str
    file_system: str
    options: frozenset[str] = frozenset()


def table(text: str) -> list[Mounted]:
    """Return the mounts in ``/proc/self/mounts``; the newest of a path is last."""
    found = []
    for line in split_lines(text):
        words = [_ESCAPE.sub(lambda m: chr(int(m[1], 8)), word) for word in line.split(" ")]
        if len(words) >= 4:
            found.append(Mounted(words[0], words[1], words[2], frozenset(words[3].split(","))))
    return found


def judge(wanted: WantedVolume, mounts: list[Mounted]) -> str:
    """Return what is wrong with a volume according to the mount table; empty if nothing is."""
    path = wanted.path.rstrip("/") or "/"
    here = [mount for mount in mounts if mount.path == path]
    if wanted.file_system or wanted.source:
        if not here:
            return f"{path} is not mounted"
        if wanted.file_system and here[-1].file_system != wanted.file_system:
            return f"{path} is mounted as {here[-1].file_system}, not as {wanted.file_system}"
        if wanted.source and here[-1].source != wanted.source:
            return f"{path} is mounted from {here[-1].source}, not from {wanted.source}"
    if wanted.writable:
        above = [mount for mount in mounts if path == mount.path or _is_below(path, mount.path)]
        longest = max((len(mount.path) for mount in above), default=0)
        last = [mount for mount in above if len(mount.path) == longest][-1:]
        if last and "ro" in last[0].options:
            return f"{path} is mounted read-only"
    return ""


def _is_below(path: str, other: str) -> bool:
    return path.startswith(other if other.endswith("/") else f"{other}/")


class VolumeChecker:
    """The volumes of one node. ``found`` is called with all results when one changes."""

    def __init__(
        self, mounts: checks.MountChecker, found: Callable[[tuple[VolumeState, ...]], None]
    ) -> None:
        self._mounts = mounts
        self._found = found
        self._wanted: dict[str, WantedVolume] = {}
        self._known: dict[str, tuple[float, VolumeState]] = {}
        #: Locks by volume: checking a volume must not wait for another one, which may hang.
        self._turns: dict[str, threading.Lock] = {}
        self._lock, self._telling = threading.Lock(), threading.Lock()
        self._asked = threading.Event()

    def follow(self, wanted: tuple[WantedVolume, ...]) -> None:
        """Check these volumes from now on."""
        self._wanted = {volume.name: volume for volume in wanted[:VOLUMES_MAX]}
        self._asked.set()

    def turn(self, wait_s: float = EVERY_S) -> None:
        """Check all volumes once. A thread calls it again and again."""
        self._asked.wait(wait_s)
        self._asked.clear()
        for name in list(self._wanted):
            self._look(name, math.inf)
        self._tell()

    def problem(self, names: Iterable[str]) -> str:
        """Return why a task that needs these volumes cannot start here; empty if it can.

        The result is fresh or a moment old, and is reported before this returns. Unknown volumes
        prevent nothing.
        """
        problem, looked = "", False
        for name in names:
            looked |= self._look(name, time.monotonic() - FRESH_S)
            known = self._known.get(name)  # it may not be in the plan any more
            if known is not None and known[1].problem:
                problem = f"volume {name}: {known[1].problem}"
                break
        if looked or problem:
            self._tell()
        return problem

    def _look(self, name: str, older_than: float) -> bool:
        """Check one volume if the last check is old enough. Return True if it was checked."""
        if name not in self._wanted:
            return False
        with self._lock:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            wanted = self._wanted.get(name)
            known = self._known.get(name)
            if wanted is None or (known is not None and known[0] > older_than):
                return False
            text = processes.read_file("/proc/self/mounts").decode("utf-8", "replace")
            problem = judge(wanted, table(text)) or self._answer(wanted.path)
            with self._lock:
                self._known[name] = time.monotonic(), VolumeState(name, problem)
        return True

    def _tell(self) -> None:
        """Report all results."""
        with self._telling:  # newer results are reported later
            with self._lock:
                wanted = self._wanted
                self._known = {name: one for name, one in self._known.items() if name in wanted}
                self._turns = {name: one for name, one in self._turns.items() if name in wanted}
                known = sorted(self._known.values(), key=_by_name)
            self._found(tuple(state for _, state in known))

    def _answer(self, path: str) -> str:
        problem = self._mounts.answer(f"{path.rstrip('/')}/.")
        return f"{path} {problem}" if problem else ""


def _by_name(known: tuple[float, VolumeState]) -> str:
    return known[1].name
