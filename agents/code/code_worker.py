"""Fills the folder of one task with its code, in a process of its own under the task's user.

Run as ``python -I code_worker.py [UID GID GROUPS]``. It starts as the agent's user and becomes the
task's by itself, before it reads anything. Standard input brings one order as a JSON line: a pack
by the number of its open file, or a repository with a commit. Standard output is why it failed. A
pack is not trusted: nothing is made outside the folder, and no more than a pack may hold.
"""

import errno
import json
import os
import signal
import sys
import time
from typing import Any

if __package__ in {None, ""}:
    sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}agents{os.sep}")[0])  # noqa: PTH100

from agents.host import disk_space
from agents.isolation import user_switch
from reconciler import child_process
from reconciler.safe_tar import tarfile, why_unsafe

#: Exit statuses: a fault of the code, and a lack of room on this node.
FAULT, NO_ROOM = 1, 2
#: What a pack may hold: files, folders and links. Anything else could be a device, or larger than
#: it seems.
_TYPES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE})
#: How often the size of what git fetches is looked at.
LOOK_S = 1.0
#: How long a repository may be silent before the first of its content comes. Later git may work for
#: long on what has come.
SILENCE_S = 120.0
SAID_BYTES_MAX = 4096
#: What an entry of a folder counts besides its content, so that many empty files end it too.
ENTRY_BYTES = 16 * 1024
#: Errors of a disk that takes nothing more. That a user's quota is used up is none of them.
_LACKS = frozenset({errno.ENOSPC, errno.EROFS})


class CodeError(Exception):
    """A reason that a task can't have its code."""


class SilentError(CodeError):
    """A repository that does not answer."""


def unpack(handle: int, folder: str, entries_max: int, bytes_max: int) -> None:
    """Unpack a pack into a folder.

    Raises:
        CodeError: it is no pack, or holds what no pack may hold.
        OSError: it can't be written.
    """
    if problem := why_unsafe():
        raise CodeError(problem)
    entries = size = 0
    try:
        with os.fdopen(handle, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as pack:
            for one in pack:
                entries, size = entries + 1, size + one.size
                if entries > entries_max or size > bytes_max:
                    raise CodeError(
                        f"the pack holds more than {entries_max} files or {bytes_max} bytes"
                    )
                if one.type not in _TYPES or one.sparse is not None:
                    raise CodeError(f"{one.name!a}: found no file, folder or link in the pack")
                pack.extract(one, folder, filter="data")
                pack.members = []  # type: ignore[attr-defined] # else it keeps all of them
    except tarfile.FilterError as problem:
        raise CodeError(f"the pack leads out of its folder: {problem}") from None
    except tarfile.TarError as problem:
        raise CodeError(f"the pack can't be read: {problem}") from None


def check_out(
    folder: str,
    url: str,
    revision: str,
    *,
    bytes_max: int,
    timeout_s: float,
    silence_s: float = SILENCE_S,
) -> None:
    """Fetch one commit of a repository into a folder, with all of git's own settings.

    Raises:
        SilentError: nothing came of it for too long.
        CodeError: it can't be fetched, or is too large.
    """
    git = _GitRuns(folder, bytes_max, time.monotonic() + timeout_s, silence_s)
    git.run("init", "--quiet")
    try:
        git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--", url, revision)
    except SilentError:
        raise
    except CodeError as problem:
        # some servers give only what a branch or tag names
        heads = ["+refs/heads/*:refs/muster/heads/*", "+refs/tags/*:refs/muster/tags/*"]
        try:
            git.run("fetch", "--quiet", "--", url, *heads)
            git.run("cat-file", "-e", f"{revision}^{{commit}}")
        except CodeError:
            raise problem from None
    git.run("checkout", "--quiet", "--force", "--detach", revision)


class _GitRuns:
    """Runs of git in one folder, within limits of time and size."""

    def __init__(self, folder: str, bytes_max: int, ends_at: float, silence_s: float) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._ends_at = ends_at
        self._silence_s = silence_s
        self._looked_at = 0.0
        self._is_small = True
        #: When a run began that has not brought anything yet; None if one has, or none fetches.
        self._silent_since: float | None = None
        self._is_silent = False

    def run(self, *words: str) -> None:
        """Run git.

        Raises:
            SilentError: a fetch brought nothing for too long.
            CodeError: it failed, took too long, or the folder has become too large.
        """
        self._silent_since = time.monotonic() if words[0] == "fetch" else None
        before = self._fetched() if words[0] == "fetch" else 0
        program = child_process.ChildProgram(
            ["git", "-c", "gc.auto=0", "-c", "advice.detachedHead=false", *words],
            folder=self._folder,
            stderr=child_process.ChildOutput.READ,
        )
        limits = child_process.ChildLimits(
            max(0.1, self._ends_at - time.monotonic()),
            SAID_BYTES_MAX,
            excess=child_process.Excess.KEEP_END,
            leftovers=child_process.Leftovers.KILL,
        )
        try:
            result = child_process.run_child(
                program, limits, is_wanted=lambda: self._goes_well(before)
            )
        except FileNotFoundError:
            raise CodeError("git is not installed on this node") from None
        self._looked_at = 0.0
        if not self._looks_small():
            raise CodeError(f"the repository has more than {self._bytes_max} bytes")
        if self._is_silent:
            raise SilentError(
                f"the repository sent nothing in {self._silence_s:g} s. To fix: check that its "
                "server answers this node"
            )
        if result.end is child_process.ChildEnd.TIMED_OUT:
            raise CodeError(f"`git {words[0]}` took too long")
        if result.status != 0:
            said = " ".join(result.stderr.decode(errors="backslashreplace").split())
            raise CodeError(f"`git {words[0]}`: {said or f'status {result.status}'}")

    def _goes_well(self, before: int) -> bool:
        """Return True unless the folder is too large, or nothing was fetched for too long.

        ``before`` are the bytes that were fetched before this run.
        """
        if not self._looks_small():
            return False
        since = self._silent_since
        if since is not None and time.monotonic() >= since + self._silence_s:
            self._silent_since = None
            self._is_silent = self._fetched() <= before
        return not self._is_silent

    def _fetched(self) -> int:
        return _size(f"{self._folder}/.git/objects", self._bytes_max)

    def _looks_small(self) -> bool:
        """Return True unless the folder was too large when it was looked at, now and then."""
        if self._is_small and time.monotonic() >= self._looked_at + LOOK_S:
            self._looked_at = time.monotonic()
            self._is_small = _size(self._folder, self._bytes_max) <= self._bytes_max
        return self._is_small


def _size(folder: str, most: int) -> int:
    """Return the bytes below a folder; more than ``most`` are not counted on.

    Each entry takes room besides what it contains.
    """
    total, folders = 0, [folder]
    while folders and total <= most:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    total += ENTRY_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                    if total > most:
                        break
        except OSError:  # git removes what it does not need
            continue
    return total


def date(folder: str, at: int) -> None:
    """Give all below a folder one time, by which what a task changes is told from its code.

    Raises:
        OSError: it can't be done.
    """
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            os.utime(f"{place}/{name}", (at, at), follow_symlinks=False)


def require_folder(folder: str, path: str) -> None:
    """Do nothing if a task can start in a folder of its code.

    Raises:
        CodeError: there is none, or a link leads out of the code.
    """
    top = os.path.realpath(folder)
    found = os.path.realpath(f"{folder}/{path}")
    if not os.path.isdir(found) or os.path.commonpath([top, found]) != top:  # noqa: PTH112
        raise CodeError(f"the code has no folder {path}")


def carry_out(order: dict[str, Any]) -> None:
    """Fill the folder of an order.

    Raises:
        CodeError: it can't be filled.
        OSError: it can't be written.
    """
    folder = order["folder"]
    if order["do"] == "unpack":
        unpack(order["handle"], folder, order["entries_max"], order["bytes_max"])
    else:
        check_out(
            folder, order["url"], order["revision"],
            bytes_max=order["bytes_max"], timeout_s=order["timeout_s"],
        )  # fmt: skip
    require_folder(folder, order["path"])
    date(folder, order["packed_at"])


def of_system(problem: OSError) -> tuple[int, str]:
    """Return exit status and message for an error of the system."""
    if problem.errno == errno.EDQUOT:
        return FAULT, f"{problem}; {disk_space.OVER_QUOTA}"
    return NO_ROOM if problem.errno in _LACKS else FAULT, str(problem)


def main() -> int:
    """Carry out the order on standard input."""
    if not user_switch.begin(sys.argv[1:4]):
        return 3
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that git ends too
    try:
        carry_out(json.loads(sys.stdin.readline()))
    except CodeError as problem:
        sys.stdout.write(str(problem))
        return FAULT
    except OSError as problem:
        status, said = of_system(problem)
        sys.stdout.write(said)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
