"""MPS daemons of shared GPUs: one for each GPU and Unix user, while a task needs it.

Tasks of one user on one GPU then compute at the same time, each with a limit on threads and memory.
A daemon outlives the agent, like tasks, and a new agent finds it. No words of a job reach it. A
task can exceed its limits, so shares are set up, not enforced.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agents.host import short_paths
from reconciler import child_process

PROGRAM = "nvidia-cuda-mps-control"
ANSWER_S = 20.0
#: Room for the name of a daemon's folder.
_NAME_BYTES = 16
#: Longest path of a daemon's folder: below it are ``pipe`` and a socket's own name.
PATH_BYTES_MAX = 83


class MpsShare(msgspec.Struct, frozen=True):
    """A GPU shared by tasks of one user.

    ``user`` has credentials as in start commands; None for the agent's.
    """

    device: int
    uuid: str
    user: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """Name of the daemon's folder."""
        return f"{self.device}-{self.user['uid'] if self.user else os.geteuid()}"


_DECODE_WANTED = msgspec.json.Decoder(MpsShare).decode


class MpsError(Exception):
    """A daemon that cannot be started."""


class UserPrograms(Protocol):
    """Whoever runs programs as users, within limits: see ``isolation.user_commands``."""

    def run(
        self,
        program: child_process.ChildProgram,
        limits: child_process.ChildLimits,
        *,
        daemon: str = "",
        gpus: Collection[int] = (),
    ) -> child_process.ChildResult:
        """Run a program to its end. What it has started runs on if ``daemon`` names it."""

    def end_daemon(self, user: child_process.ChildUser | None, daemon: str) -> None:
        """Kill what runs on under a name."""


def environment(folder: str, share_milli: int, memory_bytes: int) -> dict[str, str]:
    """Return the variables that tell a task its share of a GPU.

    Args:
        folder: folder of the daemon.
        share_milli: share of threads and memory, in thousandths.
        memory_bytes: memory of the GPU; 0 if unknown.
    """
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, share_milli // 10)),
    }
    if memory_bytes:
        mebibytes = max(1, memory_bytes * share_milli // 1000 // 2**20)
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={mebibytes}M"
    return variables


def folder_of(root: str, short: short_paths.ShortPaths) -> str:
    """Return the folder of a node's daemons, by a short name if its own is too long for sockets."""
    folder = f"{root}/mps"
    if len(os.fsencode(folder)) + _NAME_BYTES <= PATH_BYTES_MAX:
        return folder
    Path(folder).mkdir(mode=0o711, exist_ok=True)
    return short.link(folder)


class MpsDaemons:
    """The MPS daemons of one node. Any thread may use them.

    Calls about one daemon wait for each other, but not for other daemons, which may hang.

    Args:
        folder: theirs on this node, by a path that leaves room for sockets.
        users: runs their programs.
        program: the control program.
    """

    def __init__(self, folder: Path, users: UserPrograms, program: str = PROGRAM) -> None:
        self._folder = folder
        self._users = users
        self._program = program
        self._lock = threading.Lock()
        self._turns: dict[Path, threading.Lock] = {}
        #: By daemon, the control program that not even SIGKILL ended.
        self._stuck = child_process.StuckChildren()
        #: Folder of the daemon that each attempt needs, also under earlier agents.
        self._folder_of_attempt = {
            path.name: path.parent.parent for path in self._folder.glob("*/tasks/*")
        }

    def want(self, attempt: str, wanted: MpsShare) -> None:
        """Start the daemon that an attempt needs, if it does not run.

        Raises:
            MpsError: it cannot be started.
        """
        folder = self._folder / wanted.name
        with self._turn(folder):
            with self._lock:
                self._folder_of_attempt[attempt] = folder
            try:
                self._make(folder, wanted)
                (folder / "tasks" / attempt).touch()
                if self._run(folder, wanted, [], "get_server_list\n") != 0:
                    self._begin(folder, wanted)
            except (MpsError, OSError) as problem:
                self._drop(attempt)
                raise MpsError(f"MPS on GPU {wanted.device}: {problem}") from None

    def keep(self, alive: Collection[str]) -> None:
        """Stop daemons that no live attempt needs."""
        with self._lock:
            gone = [name for name in self._folder_of_attempt if name not in alive]
        for attempt in gone:
            self.leave(attempt)

    def leave(self, attempt: str) -> None:
        """Note that an attempt has ended, and stop its daemon if nobody else needs it, in
        a thread.
        """
        if attempt in self._folder_of_attempt:
            threading.Thread(target=self._leave, args=(attempt,), daemon=True).start()

    def _leave(self, attempt: str) -> None:
        folder = self._folder_of_attempt.get(attempt)
        if folder is None:
            return
        with self._turn(folder):
            if not self._drop(attempt):
                return
            with contextlib.suppress(MpsError, OSError, msgspec.MsgspecError):
                wanted = _DECODE_WANTED((folder / "wanted.json").read_bytes())
                try:
                    self._run(folder, wanted, [], "quit\n")
                finally:
                    self._users.end_daemon(
                        child_process.ChildUser.of(wanted.user), str(wanted.device)
                    )

    def _turn(self, folder: Path) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(folder, threading.Lock())

    def _drop(self, attempt: str) -> bool:
        """Forget what an attempt needs. Return True if nobody needs its daemon any more."""
        with self._lock:
            folder = self._folder_of_attempt.pop(attempt, None)
            if folder is None:
                return False
            (folder / "tasks" / attempt).unlink(missing_ok=True)
            return folder not in self._folder_of_attempt.values()

    def _make(self, folder: Path, wanted: MpsShare) -> None:
        if len(os.fsencode(folder)) > PATH_BYTES_MAX:
            raise MpsError(f"{folder} is too long for sockets: give the agent a shorter --root")
        self._folder.mkdir(mode=0o711, exist_ok=True)
        try:
            folder.mkdir(mode=0o711)
        except FileExistsError:
            return
        (folder / "tasks").mkdir(mode=0o700)
        (folder / "wanted.json").write_bytes(msgspec.json.encode(wanted))
        for path in (folder / "pipe", folder / "log"):
            path.mkdir(mode=0o700)
            if wanted.user is not None:
                # the parent folder stays the agent's: no link can be in the way
                os.chown(path, wanted.user["uid"], wanted.user["gid"], follow_symlinks=False)

    def _begin(self, folder: Path, wanted: MpsShare) -> None:
        status = self._run(folder, wanted, ["-d"], "")
        if status != 0:
            raise MpsError(f"`{self._program} -d` ended with status {status}; see {folder}/log")

    def _run(self, folder: Path, wanted: MpsShare, arguments: list[str], words: str) -> int:
        """Run the control program as the user. Return its status.

        The daemon that it starts outlives it, and gets no pipe that it would keep open.
        """
        stuck = self._stuck.pids(folder)
        if stuck:
            raise MpsError(f"process {stuck[0]}, {self._program}, hangs and can't be killed")
        program = child_process.ChildProgram(
            [self._program, *arguments],
            environment={
                "PATH": os.environ.get("PATH", os.defpath),
                "CUDA_VISIBLE_DEVICES": wanted.uuid,
                "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
                "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
            },
            folder="/",
            user=child_process.ChildUser.of(wanted.user),
            given=words.encode(),
        )
        try:
            result = self._users.run(
                program,
                child_process.ChildLimits(ANSWER_S),
                daemon=str(wanted.device) if arguments else "",
                gpus=(wanted.device,),
            )
        except FileNotFoundError:
            raise MpsError(f"{self._program} is not installed") from None
        self._stuck.note(folder, result)
        if result.status is None:
            raise MpsError(f"{self._program} has not answered after {ANSWER_S:g} s")
        return result.status
