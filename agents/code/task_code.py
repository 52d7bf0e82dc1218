"""Gets the code of each task into a folder that becomes its own, before its command can run.

The folder is made below one of the agent's, filled as the job's user, and moved to its place by the
supervisor (``spawn.make_folder``). Unpacked folders of starts that came to nothing are deleted.
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.code import code_turns, code_worker, pack_cache
from agents.deletion import deleter
from agents.host import disk_space
from agents.isolation import command_cgroups, user_commands
from agents.link import http_client
from agents.settings import AgentSettings
from agents.tasks import preparation, task_users
from agents.tasks.node_context import UnstartableError
from reconciler import child_process
from reconciler.model.observed import job_code
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason

#: How long unpacking, and fetching a commit, may take.
UNPACK_S, GIT_S = 300.0, 600.0
#: The most bytes of a repository with one commit of it checked out.
GIT_BYTES_MAX = 2 * 2**30
#: Helpers that work at the same time: of each kind, and of one person. Those that wait for a
#: repository's server are apart from those that need this node alone.
TOGETHER_MAX, OWN_MAX = 4, 2
#: Time for a helper to end by itself.
GRACE_S = 5.0
_SAID_BYTES_MAX = 8192
STOPPED = "stopped while its code was fetched"


class _Fetch:
    """The code of one start on its way: whether nobody waits any more, and whether it is over."""

    def __init__(self) -> None:
        self.unwanted = threading.Event()
        self.over = threading.Event()


class TaskCode:
    """The code of one node's tasks. ``wait`` and ``stop`` are called under the agent's lock.

    Attributes:
        is_taken: True if the supervisor knows how to take a folder with code.

    Args:
        root: the node's folder.
        users: runs helpers as the users of tasks.
        remover: deletes what is not needed.
    """

    def __init__(
        self,
        root: Path,
        settings: AgentSettings,
        users: user_commands.UserCommands,
        remover: deleter.Deleter,
    ) -> None:
        folder = root / "code"
        self._ready, self._trash = folder / "ready", folder / "trash"
        for one, mode in ((folder, 0o711), (self._ready, 0o711), (self._trash, 0o700)):
            one.mkdir(mode=mode, exist_ok=True)
        target = http_client.ControllerTarget(
            settings.server, settings.token_file, settings.ca_file
        )
        self._packs = pack_cache.PackCache(folder / "packs", settings.name, target)
        self.is_taken = False
        self._users = users
        self._deleter = remover
        self._git_turns = code_turns.CodeTurns(TOGETHER_MAX, OWN_MAX)
        self._pack_turns = code_turns.CodeTurns(TOGETHER_MAX, OWN_MAX)
        #: Attempts whose code is being fetched.
        self._open: dict[str, _Fetch] = {}
        remover.add_left(str(self._trash))
        for left in list(self._ready.iterdir()):  # of an earlier agent's starts
            self.discard(left.name)

    def wait(
        self, attempt: str, template: TaskTemplate, user: task_users.TaskUser
    ) -> preparation.Wait:
        """Return the wait for the code of a task; afterwards its folder is ready to be moved.

        Raises:
            UnstartableError: the supervisor of an older version would start it without its code.
        """
        if not self.is_taken:
            raise UnstartableError(
                "the supervisor of this node is of an older version, which knows no code of jobs. "
                "To fix: drain the node, so that it is replaced when no task runs",
                EndReason.CHECK_FAILED,
            )
        before = self._open.get(attempt)
        fetch = self._open[attempt] = _Fetch()

        def work() -> None:
            try:
                if before is not None:  # the same start began before, and fills the same folder
                    before.unwanted.set()
                    before.over.wait()
                self.discard(attempt)
                self._fill(attempt, template, user, lambda: not fetch.unwanted.is_set())
            except pack_cache.CodeUnwantedError:
                self.discard(attempt)
            except BaseException:  # whatever it is, nothing of it is used
                self.discard(attempt)
                raise
            finally:
                if self._open.get(attempt) is fetch:
                    del self._open[attempt]
                fetch.over.set()

        return preparation.Wait(
            preparation.in_background(work, undo=lambda: self.discard(attempt)),
            STOPPED,
            note="fetching its code",
            cancel=self.stop,
        )

    def stop(self, attempt: str) -> None:
        """Stop fetching for an attempt."""
        fetch = self._open.pop(attempt, None)
        if fetch is not None:
            fetch.unwanted.set()

    def discard(self, attempt: str) -> None:
        """Have a folder deleted that no task has taken."""
        path = self._ready / attempt
        with contextlib.suppress(OSError):
            uid = path.lstat().st_uid
            self._deleter.add(deleter.move(str(path), str(self._trash), attempt, uid), uid)

    def _fill(
        self,
        attempt: str,
        template: TaskTemplate,
        user: task_users.TaskUser,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Make the folder of an attempt, and fill it.

        Raises:
            UnstartableError: its code can't be had.
            FullDiskError: this node has no room for it.
            CodeUnwantedError: nobody waits for it any more.
        """
        folder, code = self._ready / attempt, template.code
        try:
            folder.mkdir(mode=0o700)
            if user.switch:
                os.chown(folder, user.uid, user.gid)
        except OSError as problem:
            if disk_space.is_lack(problem):
                raise disk_space.FullDiskError(f"code: {problem}") from None
            raise UnstartableError(f"code: {problem}", EndReason.STAGE_FAILED) from None
        order: dict[str, Any] = {
            "folder": str(folder), "path": code.folder, "packed_at": job_code.PACKED_AT
        }  # fmt: skip
        if code.git:
            order |= {
                "do": "git", "url": code.git, "revision": code.revision,
                "bytes_max": GIT_BYTES_MAX, "timeout_s": GIT_S,
            }  # fmt: skip
            with self._git_turns.held(template.owner, is_wanted):
                self._run(order, user, (), GIT_S + GRACE_S, is_wanted)
            return
        wanted = pack_cache.WantedPack(code.digest, attempt, template.owner, is_wanted)
        with self._packs.opened(wanted) as handle:
            order |= {
                "do": "unpack", "handle": handle, "entries_max": job_code.PACK_ENTRIES_MAX,
                "bytes_max": job_code.PACK_BYTES_MAX,
            }  # fmt: skip
            with self._pack_turns.held(template.owner, is_wanted):
                self._run(order, user, (handle,), UNPACK_S, is_wanted)

    def _run(
        self,
        order: dict[str, Any],
        user: task_users.TaskUser,
        inherited: tuple[int, ...],
        timeout_s: float,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Run a helper as a user, and raise what it says."""
        argv = [sys.executable, "-I", code_worker.__file__]
        try:
            with contextlib.ExitStack() as held:
                if user.switch:
                    groups = ",".join(map(str, user.groups))
                    argv = [*held.enter_context(self._users.held(user.uid)), *argv]
                    argv += [str(user.uid), str(user.gid), groups]
                result = child_process.run_child(
                    child_process.ChildProgram(
                        argv,
                        environment=_environment(user),
                        folder="/",
                        given=json.dumps(order).encode() + b"\n",
                        stdout=child_process.ChildOutput.READ,
                        inherited=inherited,
                    ),
                    child_process.ChildLimits(
                        timeout_s,
                        _SAID_BYTES_MAX,
                        excess=child_process.Excess.KEEP_BEGINNING,
                        grace_s=GRACE_S,
                        leftovers=child_process.Leftovers.KILL,
                    ),
                    is_wanted=is_wanted,
                )
        except (OSError, command_cgroups.CommandRefusedError) as problem:
            raise UnstartableError(
                f"code: its helper can't be started: {problem}", EndReason.CHECK_FAILED
            ) from None
        _judge(result, timeout_s)


def _judge(result: child_process.ChildResult, timeout_s: float) -> None:
    """Do nothing if a helper has succeeded.

    Raises:
        UnstartableError: it has not, with its reason.
        FullDiskError: this node has no room.
        CodeUnwantedError: it was ended because nobody waits any more.
    """
    if result.end is child_process.ChildEnd.UNWANTED:
        raise pack_cache.CodeUnwantedError
    if result.status == 0:
        return
    said = result.stdout.decode(errors="backslashreplace").strip()
    if result.end is child_process.ChildEnd.TIMED_OUT:
        raise UnstartableError(
            f"code: it was not in place in {timeout_s:g} s: the disk of this node or the "
            "repository hangs",
            EndReason.STAGE_FAILED,
        )
    if result.status == code_worker.NO_ROOM:
        raise disk_space.FullDiskError(f"code: {said}")
    raise UnstartableError(f"code: {said or f'its helper ended with status {result.status}'}")


def _environment(user: task_users.TaskUser) -> dict[str, str]:
    """Return the variables of a helper: the user's, with nothing of the agent's."""
    return {
        "PATH": user.path, "HOME": user.home, "USER": user.name, "LOGNAME": user.name,
        "LANG": os.environ.get("LANG", "C.UTF-8"), "LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0",
    }  # fmt: skip
