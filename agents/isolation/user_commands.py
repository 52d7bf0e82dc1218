"""Runs what is no task as another user than the agent's: within limits, and leaving nothing behind.

Commands of container runtimes follow the user's own configuration, which can name any program. So
each is started from inside a control group of its own, with limits that all commands of its user
share, and whatever is in that group is killed when the command has ended. Where the node has no
control groups, or the user is the agent's own, a command runs as any child does.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from agents.host import session_keyring
from agents.isolation import command_cgroups, command_start, task_limits
from reconciler import child_process
from reconciler.model.state.records import Gpu

#: Beginning of the owners of groups that stay after their command: of daemons.
_DAEMONS = "daemons-"
#: Added to what a command has written that the kernel has ended.
_TOO_MUCH_MEMORY = (
    f"\nits user's commands needed more than {command_cgroups.MEMORY_BYTES_MAX // 2**30} GiB of "
    "memory, which is their limit"
).encode()


class JobPlace(NamedTuple):
    """The control groups of commands around one job on a node.

    Attributes:
        owner: name of the group with the limits.
        denied: rules of devices that they must not use.
        restricts: privileges that are taken from them, by name.
    """

    owner: str
    limits: command_cgroups.CommandLimits = command_cgroups.USER_LIMITS
    denied: Sequence[str] = ()
    restricts: Sequence[str] = ()


class UserCommands:
    """The commands of one node that run as users and are no tasks. Any thread may use it.

    Args:
        bases: returns the folders of the node's control groups, one in each hierarchy.
        gpus: returns the node's GPUs, which no command may use unless it is given them.
    """

    def __init__(
        self,
        bases: Callable[[], Iterable[str]] = lambda: (),
        gpus: Callable[[], tuple[Gpu, ...]] = lambda: (),
    ) -> None:
        self._gpus = gpus
        self._groups = command_cgroups.CommandCgroups(bases)

    def run(
        self,
        program: child_process.ChildProgram,
        limits: child_process.ChildLimits,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        daemon: str = "",
        gpus: Collection[int] = (),
    ) -> child_process.ChildResult:
        """Run a program as its user to its end, and end all that it has started.

        Args:
            daemon: a name for what it starts in the background and what runs on if it succeeds,
                until :meth:`end_daemon`.
            gpus: indexes of GPUs that it may use.

        Raises:
            OSError: it cannot be started.
        """
        user = program.user
        if user is None:
            return child_process.run_child(program, limits, is_wanted=is_wanted)
        argv = [_find(program), *program.argv[1:]]
        group, stays = self._take(user.uid, daemon, gpus), False
        if group is None:
            return child_process.run_child(program, limits, is_wanted=is_wanted)
        try:
            result = child_process.run_child(
                program._replace(argv=[*_start(group, user), *argv], user=None),
                limits,
                is_wanted=is_wanted,
            )
            stays = bool(daemon) and result.status == 0
            if result.status != 0 and group.has_exceeded_memory():
                result = result._replace(stderr=result.stderr + _TOO_MUCH_MEMORY)
        finally:
            if not stays:
                self._groups.give_back(group)
        return result

    def run_for_job(
        self,
        program: child_process.ChildProgram,
        limits: child_process.ChildLimits,
        place: "JobPlace",
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        on_start: Callable[[int], None] = lambda _: None,
    ) -> child_process.ChildResult:
        """Run a program around a job to its end, within limits of its own, and end its processes.

        Its environment is the program's alone: no process of another user gets any of it.

        Args:
            place: where its control groups stand.
            on_start: called with its pid.

        Raises:
            OSError: it cannot be started.
        """
        session_keyring.join_new()
        group = self._groups.take(place.owner, "", place.denied, place.limits)
        start = _start(group, program.user, "stdin", place.restricts)
        environment = program.environment or {}
        text = b"".join(
            f"{name}={value}\0".encode("utf-8", "surrogateescape")
            for name, value in environment.items()
        )
        try:
            return child_process.run_child(
                program._replace(
                    argv=[*start, *program.argv],
                    user=None,
                    environment={"PATH": "/usr/bin:/bin"},
                    given=text,
                ),
                limits,
                is_wanted=is_wanted,
                on_start=on_start,
            )
        finally:
            if group is not None:
                self._groups.give_back(group)

    @contextlib.contextmanager
    def held(self, uid: int) -> Iterator[list[str]]:
        """Give the beginning of a command line by which a program is started in groups for a user.

        The program becomes the user by itself. All that it has started ends with the context.

        Raises:
            OSError: the groups cannot be made.
        """
        group = self._take(uid)
        if group is None:
            yield []
            return
        try:
            yield _start(group, None)
        finally:
            self._groups.give_back(group)

    def end_daemon(self, user: child_process.ChildUser | None, daemon: str) -> None:
        """Kill what :meth:`run` has left running under a name."""
        if user is not None:
            self._groups.end(f"{_DAEMONS}{user.uid}", daemon)

    def clear(self) -> list[str]:
        """End what commands of an earlier agent have left, but no daemons.

        Returns:
            What could not be ended, as messages.
        """
        return self._groups.clear(lambda owner: owner.startswith(_DAEMONS))

    def leave(self) -> None:
        """Remove the groups that are there for commands alone, when the node ends."""
        self._groups.leave()

    def _take(
        self, uid: int, daemon: str = "", gpus: Collection[int] = ()
    ) -> command_cgroups.CommandCgroup | None:
        """Return groups for a command of a user, which this thread starts next."""
        session_keyring.join_new()
        owner = f"{_DAEMONS}{uid}" if daemon else str(uid)
        denied = task_limits.denied_gpus(self._gpus(), tuple(gpus))
        return self._groups.take(owner, daemon, list(denied.values()))


def _start(
    group: command_cgroups.CommandCgroup | None,
    user: child_process.ChildUser | None,
    environment: str = "-",
    restricts: Iterable[str] = (),
) -> list[str]:
    """Return the beginning of a command line that starts a program in groups, and as a user."""
    ids = ["-", "-", ""]
    if user is not None:
        ids = [str(user.uid), str(user.gid), ",".join(map(str, user.groups))]
    entries = [] if group is None else group.entries()
    return [
        sys.executable, "-I", "-S", command_start.__file__, *ids, environment, ",".join(restricts),
        str(len(entries)), *entries,
    ]  # fmt: skip


def _find(program: child_process.ChildProgram) -> str:
    """Return the path of a program; raise FileNotFoundError if it is not installed."""
    path = None if program.environment is None else program.environment.get("PATH")
    found = shutil.which(program.argv[0], path=path)
    if found is None:
        raise FileNotFoundError(2, "No such file or directory", program.argv[0])
    return found
