"""Becomes a command of a user, from inside its control groups.

It is started as ``python -I -S PATH UID GID GROUPS COUNT ENTRIES... ARGV...``: the ids, where UID
is ``-`` for a program that becomes the user by itself, so many files by which the groups are
entered, and the command, with the full path of its program. What cannot be started ends with 126 or
127 and says why on standard error. Standard library only, and little of it, because each command
waits for this.
"""

import os
import signal
import sys


def main() -> int:
    """Enter the groups, become the user, and run the program."""
    # from the switch on nothing can be imported: the user may not be able to read the interpreter
    uid, gid, groups, count = sys.argv[1:5]
    entries, argv = sys.argv[5 : 5 + int(count)], sys.argv[5 + int(count) :]
    what = "control group of the command"
    try:
        for path in entries:
            handle = os.open(path, os.O_WRONLY)
            os.write(handle, b"0")
            os.close(handle)
        if uid != "-":
            what = f"uid {uid}"
            os.setgroups([int(group) for group in groups.split(",") if group])
            os.setgid(int(gid))
            os.setuid(int(uid))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # which the interpreter ignores
        what = argv[0]
        os.execv(argv[0], argv)  # noqa: S606 - what it is for
    except OSError as problem:
        sys.stderr.write(f"{what}: {os.strerror(problem.errno or 0)}\n")
        return 127 if isinstance(problem, FileNotFoundError | NotADirectoryError) else 126


if __name__ == "__main__":
    sys.exit(main())
