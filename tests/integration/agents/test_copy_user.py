"""The process that copies as a task's user: that user's tasks can't get at it."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from agents.data import copy_worker
from tests.integration.agents.supervised import wait

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
NOBODY = pwd.getpwnam("nobody")


def may_trace(pid: int) -> bool:
    """True if a task of the user could change what a process does."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY.pw_gid)
        os.setuid(NOBODY.pw_uid)
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_copy_runs_as_the_user_and_cannot_be_traced_by_it() -> None:
    argv = [sys.executable, "-I", copy_worker.__file__, str(NOBODY.pw_uid), str(NOBODY.pw_gid), ""]
    plain = subprocess.Popen(["sleep", "99"], user="nobody", group=NOBODY.pw_gid, extra_groups=[])
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as copy:
        try:
            assert may_trace(plain.pid)  # else this would try nothing
            status = Path(f"/proc/{copy.pid}/status")
            wait(lambda: f"Uid:\t{NOBODY.pw_uid}\t" in status.read_text(), "the user")
            assert not may_trace(copy.pid)
            wait(lambda: "NoNewPrivs:\t1" in status.read_text(), "that it gains no rights")
            assert not may_trace(copy.pid)
        finally:
            assert copy.stdin is not None
            copy.stdin.close()
            plain.kill()
            plain.wait()
    assert copy.returncode == 3
