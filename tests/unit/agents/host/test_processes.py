"""Whose process is whose, by what ``/proc`` says of them."""

import os
import subprocess
import sys
from pathlib import Path

from agents.host import processes
from tests import started

#: Bears the command line of a supervisor, and so does what it forks, until its input is closed.
_FORKS = """\
import os, sys
pid = os.fork()
if pid:
    os.write(1, b"%d\\n" % pid)
    os.waitpid(pid, 0)
else:
    os.read(0, 1)
"""


def test_what_a_supervisor_has_forked_is_no_supervisor(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    command = [sys.executable, "-c", _FORKS, "/x/agents/supervisor/__main__.py", root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        forked = int(supervisor.stdout.readline())
        try:
            assert started.command_of(forked) == started.command_of(supervisor.pid)
            assert processes.supervisors_of(root) == [supervisor.pid]
        finally:
            supervisor.stdin.close()
    assert processes.supervisors_of(root) == []
