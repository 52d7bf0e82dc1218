"""The copy of a log is its owner's before it has the mode that its owner chose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Tells whose a file is whenever its mode changes; hooks stay, so this is a process of its own.
PROGRAM = """\
import os, pathlib, sys
from agents.logs import rotation

def tell(event, arguments):
    if event == "os.chmod":
        print(os.stat(arguments[0]).st_uid, oct(arguments[1]))

log, copy = map(pathlib.Path, sys.argv[1:])
sys.addaudithook(tell)
rotation.turn_over(log, copy, 100)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_no_file_of_roots_has_a_mode_that_a_user_chose(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "log.1"
    log.write_text("it goes on\n")
    os.chown(log, 65534, 65534)
    log.chmod(0o6777)
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(log), str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("65534 0o6777\n", "")
    found = copy.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (65534, 65534, 0o6777)
    assert (copy.read_text(), log.read_text()) == ("it goes on\n", "")
