"""Becomes a command of a user, from inside its control groups: ``python -I -S PATH ORDER ARGV...``.

ORDER is JSON: ``entries`` are the files by which the groups are entered, ``user`` is the ids, or
null for a program that becomes the user by itself. What cannot be started ends with 126 or 127 and
says why on standard error. Standard library only.
"""

import json
import os
import signal
import sys

if __package__ in {None, ""}:
    # Run as a script in isolated mode, it can import nothing but the standard library and this
    # package.
    sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}agents{os.sep}")[0])  # noqa: PTH100 - as the supervisor

from agents.host import session_keyring


def main() -> int:
    """Enter the groups, become the user, and run the program."""
    order, argv = json.loads(sys.argv[1]), sys.argv[2:]
    what = "control group of the command"
    try:
        for path in order["entries"]:
            handle = os.open(path, os.O_WRONLY)
            os.write(handle, b"0")
            os.close(handle)
        what = "session keyring of the command"
        session_keyring.join_new()
        user = order["user"]
        if user is not None:
            what = f"uid {user['uid']}"
            os.setgroups(user["groups"])
            os.setgid(user["gid"])
            os.setuid(user["uid"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # which the interpreter ignores
        what = argv[0]
        os.execvp(argv[0], argv)  # noqa: S606 - what it is for
    except OSError as problem:
        sys.stderr.write(f"{what}: {os.strerror(problem.errno or 0)}\n")
        return 127 if isinstance(problem, FileNotFoundError | NotADirectoryError) else 126


if __name__ == "__main__":
    sys.exit(main())
