"""Becomes a command of a user, from inside its control groups.

It is started as ``python -I -S PATH UID GID GROUPS ENVIRONMENT RESTRICTS COUNT ENTRIES... ARGV``:
the ids, where UID is ``-`` for a program that becomes the user by itself; ``stdin`` to read the
program's environment from there, or ``-`` to leave it as it is; the privileges that are taken from
it; so many files by which the groups are entered; and the command, with the full path of its
program. A user's environment must not be that of this interpreter, which still is the agent's user:
it could name a library to load. What cannot be started ends with 126 or 127 and says why on
standard error. Standard library only, and little of it, because each command waits for this.
"""

import os
import signal
import sys
from typing import Any


def main() -> int:
    """Enter the groups, become the user, and run the program."""
    # from the switch on nothing can be imported: the user may not be able to read the interpreter
    uid, gid, groups, given, restricts, count = sys.argv[1:7]
    entries, argv = sys.argv[7 : 7 + int(count)], sys.argv[7 + int(count) :]
    environment = _environment() if given == "stdin" else dict(os.environb)
    privileges = _privileges(restricts) if restricts else None
    what = "control group of the command"
    try:
        for path in entries:
            handle = os.open(path, os.O_WRONLY)
            os.write(handle, b"0")
            os.close(handle)
        if privileges is not None:
            what = "privileges of the command"
            privileges.restrict_as_root()
        if uid != "-":
            what = f"uid {uid}"
            os.setgroups([int(group) for group in groups.split(",") if group])
            os.setgid(int(gid))
            os.setuid(int(uid))
        if privileges is not None:
            what = "privileges of the command"
            privileges.restrict_as_user()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # which the interpreter ignores
        what = argv[0]
        os.execve(argv[0], argv, environment)  # noqa: S606 - what it is for
    except OSError as problem:
        sys.stderr.write(f"{what}: {os.strerror(problem.errno or 0)}\n")
        return 127 if isinstance(problem, FileNotFoundError | NotADirectoryError) else 126


def _privileges(restricts: str) -> Any:
    """Return what takes privileges, by their names as a node reports them."""
    sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}agents{os.sep}")[0])  # noqa: PTH100
    from agents.isolation import task_privileges  # noqa: PLC0415 - most commands are not restricted

    return task_privileges.Privileges(tuple(restricts.split(",")))


def _environment() -> dict[bytes, bytes]:
    """Read the program's environment from standard input, in the form of ``/proc/PID/environ``."""
    text = b""
    while part := os.read(0, 65_536):
        text += part
    pairs = (one.partition(b"=") for one in text.split(b"\0") if one)
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main())
