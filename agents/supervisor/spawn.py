"""Turns an order into a process of its own session, under this or another user. Stdlib only.

The fast way changes the working directory of the whole process before it spawns, and waits for the
program: it requires a single thread and paths that cannot hang. Otherwise a child is forked, and
only the child waits.
"""

# No pathlib or contextlib here: they would cost the supervisor memory.
# ruff: noqa: PTH102, PTH104, PTH112, PTH118, PTH208, SIM105

import ctypes
import errno
import os
import select
import signal
import stat
from typing import Any

from agents.host import failpoints, processes, session_keyring
from agents.isolation import task_privileges
from agents.supervisor import orders
from agents.supervisor.interactive.joined_task import NOTHING, JoinedTask

Record = dict[str, Any]

#: Signals that the supervisor ignores, so that only its socket or SIGKILL ends it.
IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
#: Signals that tasks get at their default, whatever the agent's parent ignored. A shell cannot trap
#: signals that were ignored at its start.
RESET_SIGNALS = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))

#: Flags to open a folder where somebody may have put a link.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
#: The same number on every architecture with GPUs. The flag needs Linux 5.7.
_CLONE3, _CLONE_INTO_CGROUP = 435, 0x2_0000_0000
#: ``struct clone_args``: eleven numbers, of which three are used here.
_FLAGS_AT, _EXIT_SIGNAL_AT, _CGROUP_AT, _CLONE_ARGS = 0, 4, 10, 11
#: Missing before glibc 2.28; file systems that cannot do it report that.
_LIBC: Any = getattr(ctypes.CDLL(None), "renameat2", None)
_SYSCALL: Any = ctypes.PyDLL(None, use_errno=True).syscall
#: Needs Linux 5.9; the same number everywhere, too.
_CLOSE_RANGE, _HANDLES_MAX = 436, 2**32 - 1
#: A library whose calls keep the interpreter's lock: the caller may be a forked child.
_PRCTL: Any = ctypes.PyDLL(None).prctl
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
#: For a task from which nothing is taken.
UNRESTRICTED = task_privileges.Privileges()


class Attempt:
    """An attempt whose process lives or has just ended."""

    __slots__ = (
        "deadline", "exited", "gone_by", "kill_at", "lease_s", "message", "order", "pid", "record",
        "rest_until", "saves_on", "stopped", "to", "why",
    )  # fmt: skip

    def __init__(self, order: orders.StartOrder, record: Record) -> None:
        self.order = order
        self.record = record
        self.pid = int(record["pid"])
        self.lease_s: float | None = order.lease_s
        self.why = ""
        #: Message of its end, besides the reason.
        self.message = ""
        #: Message of whoever had it stopped.
        self.stopped = ""
        self.kill_at: float | None = None
        #: Number of the signal that asks it to save, and to whom it goes; 0: it is not asked.
        self.saves_on, self.to = 0, ""
        #: Until when the rest goes on, because its first process died of that very signal.
        self.rest_until = 0.0
        #: When to give up an attempt that was killed before its program started and has not ended.
        self.gone_by: float | None = None
        self.exited = False
        self.deadline = 0.0


class SpawnError(Exception):
    """A task that could not be started, with the exit code that a shell would return."""

    def __init__(self, exit_code: int, message: str) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class SpawnedChild:
    """A process that becomes a task, and the pipe by which it reports errors; -1 if the program
    runs.
    """

    __slots__ = ("_said", "pid")

    def __init__(self, pid: int, said: int = -1) -> None:
        self.pid = pid
        self._said = said

    @property
    def said(self) -> int:
        """Handle by which it reports that it has started or why not; -1 if it has started."""
        return self._said

    def has_started(self, wait_s: float = 0.0) -> bool:
        """Wait up to that long. Return True if it has started its program, failed or ended."""
        if self._said < 0:
            return True
        poller = select.poll()
        poller.register(self._said, select.POLLIN)
        return bool(poller.poll(wait_s * 1000))

    def let_go(self) -> None:
        """Stop listening to it."""
        if self._said >= 0:
            os.close(self._said)
            self._said = -1

    def wait_for_program(self) -> int:
        """Wait until the program has started. Return its process id.

        Raises:
            SpawnError: it could not start; the process is gone.
        """
        if self._said < 0:
            return self.pid
        try:
            problem = os.read(self._said, 4096)
        finally:
            self.let_go()
        if problem:
            os.waitpid(self.pid, 0)
            code, _, message = problem.decode().partition(" ")
            if int(code) == _OF_NODE:
                raise NodeFaultError(message)
            raise SpawnError(int(code), message)
        return self.pid


class NodeFaultError(SpawnError):
    """A task that could not be started because of its node, which is no fault of its job's.

    Attributes:
        lacks_room: True if the node's disk took nothing more, which its checks find by themselves.
    """

    def __init__(self, message: str, *, lacks_room: bool = False) -> None:
        super().__init__(126, message)
        self.lacks_room = lacks_room


#: How much of a program is read for its first line; the kernel reads as much (BINPRM_BUF_SIZE).
_HEAD_BYTES = 256
#: Errors of a file system that lacks room, or that is read-only after errors of its disk.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
#: Errors of a node that can make no more processes; of a program they are none.
_NO_PROCESS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE})
#: What a child says in place of an exit code if its node is at fault.
_OF_NODE = 0


def node_fault(problem: OSError, what: str, *, on_disk: bool = False) -> NodeFaultError:
    """Return the error for something that a node has to provide for each task and could not.

    Args:
        on_disk: True if it is a file or a folder on the node's own disk.
    """
    lacks_room = on_disk and problem.errno in _NO_ROOM
    where = f"{what}: {problem.filename}" if problem.filename else what
    return NodeFaultError(f"{where}: {problem.strerror or problem}", lacks_room=lacks_room)


def refused(problem: OSError, what: str) -> SpawnError:
    """Return the error for a command, folder or user that the system refused."""
    missing = problem.errno in {errno.ENOENT, errno.ENOTDIR}
    return SpawnError(127 if missing else 126, f"{what}: {os.strerror(problem.errno or 0)}")


def refused_program(problem: OSError, program: str) -> SpawnError:
    """Return the error for a program that the system refused; of a script, with what it lacks."""
    what = f"command {program}"
    try:
        handle = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return refused(problem, what)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return refused(problem, what)
        head = os.read(handle, _HEAD_BYTES)
        noexec = bool(os.fstatvfs(handle).f_flag & os.ST_NOEXEC)
    except OSError:
        return refused(problem, what)
    finally:
        os.close(handle)
    if problem.errno == errno.EACCES and noexec:
        return SpawnError(126, f"{what}: its file system is mounted noexec on this node")
    line, _, _ = head.partition(b"\n")
    if problem.errno != errno.ENOENT or not line.startswith(b"#!"):
        return refused(problem, what)
    if line.endswith(b"\r"):
        why = "its first line ends as in Windows (CR LF): save it with LF alone"
    else:
        interpreter = b" ".join(line[2:].split()[:1]).decode(errors="backslashreplace")
        why = f"its interpreter {interpreter} is not on this node"
    return SpawnError(127, f"{what}: {why}")


def find_program(name: str, path: str) -> str:
    """Return the file that a command names, as a shell would find it."""
    if "/" in name:
        return name
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise SpawnError(127, f"command {name!r} was not found in PATH; write its full path")


def spawn(order: orders.StartOrder, standard: tuple[int, int, int]) -> int:
    """Start a task as the supervisor's own user, the fast way.

    This changes the working directory, and hangs if a file system does: use it only for what
    ``LocalPaths`` accepts.
    """
    argv, environment = order.argv, order.env
    try:
        os.chdir(order.cwd)
    except OSError as problem:
        raise refused(problem, f"working directory {order.cwd}") from None
    program = find_program(argv[0], environment.get("PATH", os.defpath))
    actions = [(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate(standard)]
    try:
        return os.posix_spawn(
            program, argv, environment, file_actions=actions, setsid=True,
            setsigmask=(), setsigdef=RESET_SIGNALS,
        )  # fmt: skip
    except OSError as problem:
        if problem.errno in _NO_PROCESS:
            raise node_fault(problem, "process of the task") from None
        raise refused_program(problem, program) from None


def fork_into(folder: str) -> int:
    """Fork a child that is born in a control group of version 2. Return as ``fork`` does.

    Entering such a group and returning takes some 6 ms each time, for this and all waiting tasks.
    The child may do what any forked one may, and has one thread.

    Raises:
        OSError: the kernel refuses; ENOSYS if a filter does not know ``clone3``.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        arguments = (ctypes.c_uint64 * _CLONE_ARGS)()
        arguments[_FLAGS_AT], arguments[_EXIT_SIGNAL_AT] = _CLONE_INTO_CGROUP, signal.SIGCHLD
        arguments[_CGROUP_AT] = handle
        # the interpreter's lock is kept, so that the child has it as well
        pid: int = _SYSCALL(_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
        if pid < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(handle)
    return pid


def spawn_as(
    order: orders.StartOrder,
    standard: tuple[int, int, int],
    entries: list[str],
    born_in: str = "",
    privileges: task_privileges.Privileges = UNRESTRICTED,
    *,
    around: JoinedTask = NOTHING,
) -> SpawnedChild:
    """Start a task by a fork, as another user if the order names one, and restricted.

    The child's pipe closes at ``exec``, or reports an error. Nobody waits for that here, so several
    children can start at the same time.

    Args:
        entries: files by which it enters its control groups.
        born_in: folder of a group that it is already in.
        privileges: what is taken from it.
        around: what it takes over of a task that runs.
    """
    parent = os.getpid()
    read, write = os.pipe()
    try:
        pid = fork_into(born_in) if born_in else os.fork()
        if pid == 0:
            become(order, standard, write, entries, parent, privileges=privileges, around=around)
    except BaseException:  # whatever it is: a pipe left open would stay open for good
        os.close(read)
        raise
    finally:
        os.close(write)
    return SpawnedChild(pid, read)


def die_with(parent: int, number: int) -> None:
    """Make the kernel signal this process when its parent ends; end at once if the parent is gone.

    Switching to another user cancels this.
    """
    _PRCTL(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def _let_go_but(kept: list[int]) -> list[int]:
    """Close all files but the standard ones and ``kept``. Return the new handles of these.

    The supervisor's lock, its reaper's pipe and its connections must end with the supervisor,
    whatever this process waits for.
    """
    first, ranks = 3, {handle: rank for rank, handle in enumerate(sorted(kept))}
    for handle, rank in ranks.items():  # from the lowest on, no copy hits one that is to come
        if handle != first + rank:
            os.dup2(handle, first + rank, inheritable=False)
    last = first + len(ranks)
    if _SYSCALL(_CLOSE_RANGE, last, ctypes.c_uint(_HANDLES_MAX), 0) != 0:
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= last:
                try:
                    os.close(int(name))
                except OSError:
                    pass  # the folder could not be read
    return [first + ranks[handle] for handle in kept]


def become(
    order: orders.StartOrder,
    standard: tuple[int, int, int],
    write: int,
    entries: list[str],
    parent: int,
    *,
    privileges: task_privileges.Privileges,
    around: JoinedTask = NOTHING,
) -> None:
    """Become the task, in the child of :func:`spawn_as`. Never returns.

    Tasks of a dead supervisor are found by their environment, which only the program's start sets.
    So until then the child dies with its parent. If it hangs beyond the reach of SIGKILL, it at
    least holds none of the supervisor's files, so that another supervisor can start. A container
    runtime that has started is asked to end, not killed.
    """
    what, of_node = "files of the task", True
    try:
        die_with(parent, signal.SIGKILL)
        failpoints.orphan("forked-not-begun")
        _PRCTL(_PR_SET_NAME, processes.BEGINS)
        signal.set_wakeup_fd(-1)
        for target, handle in enumerate(standard):
            os.dup2(handle, target)
        write, *namespaces = _let_go_but([write, *around.namespaces])
        what = "control group of the task"
        _enter_groups(entries)
        what = "namespaces of the task"
        around.enter(namespaces)
        os.setsid()
        around.take_terminal()
        _reset_signals()
        what = "privileges of the task"
        privileges.restrict_as_root()
        if order.user is not None:
            what = "session keyring of the task"
            session_keyring.join_new()
            what, of_node = f"user {order.user.name}", False
            _switch_to(order.user)
            die_with(parent, signal.SIGKILL)
        what, of_node = "privileges of the task", True
        privileges.restrict_as_user()
        of_node = False
        what = f"working directory {order.cwd}"
        os.chdir(order.cwd)
        program = find_program(order.argv[0], order.env.get("PATH", os.defpath))
        what = ""
        if processes.RUNTIME in order.env:
            die_with(parent, signal.SIGTERM)
        os.execve(program, order.argv, order.env)  # noqa: S606 - what a task is
    except OSError as problem:
        error = refused(problem, what) if what else refused_program(problem, program)
        os.write(write, f"{_OF_NODE if of_node else error.exit_code} {error}".encode())
    except SpawnError as problem:
        os.write(write, f"{problem.exit_code} {problem}".encode())
    except Exception as problem:  # this is the child: nobody above may go on with it
        os.write(write, f"126 could not be started: {problem!r}".encode())
    finally:
        os._exit(127)


def _enter_groups(entries: list[str]) -> None:
    """Enter control groups by their files."""
    for path in entries:
        handle = os.open(path, os.O_WRONLY)
        os.write(handle, b"0")
        os.close(handle)


def _reset_signals() -> None:
    """Give every signal its default, and block none."""
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _switch_to(user: orders.UserIds) -> None:
    """Become a user, for good."""
    os.setgroups(user.groups)
    os.setgid(user.gid)
    os.setuid(user.uid)


def take_over(source: str, folder: str) -> bool:
    """Rename an existing folder to one that must not exist. Return False if that is impossible."""
    if _LIBC is None:
        return False
    names = os.fsencode(source), os.fsencode(folder)
    found: int = _LIBC(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE)
    return found == 0


def make_folder(root: str, order: orders.StartOrder) -> None:
    """Create the attempt's folder exclusively, with its inner folders and its script.

    It belongs to the supervisor until :func:`hand_over`, so nobody else can put a link in the way.
    ``spare`` in an order names a folder in the trash that can be reused. With ``code``, the agent
    has filled a folder of the task's user that becomes its working folder.
    """
    folder = f"{root}/attempts/{order.id}"
    spare = order.spare
    if spare is None or not take_over(f"{root}/trash/{spare}", folder):
        for inner in (folder, f"{folder}/work", f"{folder}/tmp"):  # noqa: S108 - nobody else's
            os.mkdir(inner, 0o700)
    if order.code:  # in place of the empty folder
        os.rename(f"{root}/code/ready/{order.id}", f"{folder}/work")
    for name, text in _files_of(order).items():
        handle = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
    if order.secrets:
        # it stays the supervisor's own, so that nobody can add to what is removed from it
        os.mkdir(f"{folder}/secrets", 0o700 if order.user is None else 0o755)


def _files_of(order: orders.StartOrder) -> dict[str, str]:
    """Return the files for an attempt's folder, by name."""
    script = {} if order.script is None else {"script": order.script}
    return {**script, **order.files}


def hand_over(root: str, order: orders.StartOrder) -> None:
    """Give the attempt's folder to its user.

    The folder itself goes last: afterwards anything in it may be a link, and nothing there may be
    accessed by its path.
    """
    user = order.user
    if user is None:
        return
    uid, gid = user.uid, user.gid
    folder = os.open(f"{root}/attempts/{order.id}", FOLDER)
    try:
        for name in ("work", "tmp", *_files_of(order)):
            os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        os.fchown(folder, uid, gid)
    finally:
        os.close(folder)


def write_secrets(root: str, order: orders.StartOrder) -> None:
    """Write the files of a task's secrets, which only its user can read."""
    user, secrets = order.user, order.secrets
    if not secrets:
        return
    folder = os.open(f"{root}/attempts/{order.id}/secrets", FOLDER)
    try:
        for name, value in secrets.items():
            if "/" in name:
                raise SpawnError(126, f"secret {name!r} can't be the name of a file")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            handle = os.open(name, flags, 0o400, dir_fd=folder)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(value)
                if user is not None:
                    os.fchown(handle, user.uid, user.gid)
    finally:
        os.close(folder)


def open_log(root: str, order: orders.StartOrder, stream: str) -> int:
    """Return the file that a task writes to, which belongs to its user."""
    path = f"{root}/logs/{order.id}.{stream}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    handle = os.open(path, flags, 0o600)
    user = order.user
    if user is not None:
        os.fchown(handle, user.uid, user.gid)
    return handle
