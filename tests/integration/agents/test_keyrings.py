"""Tickets and passwords that a task keeps in its session keyring stay its own."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import session_keyring
from reconciler.model.state.states import AttemptState
from tests.integration.agents import supervised
from tests.integration.agents.supervised import Bed

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls are called by number"),
]

_CALLS = """
import ctypes
call = ctypes.CDLL(None, use_errno=True).syscall
SESSION = ctypes.c_int(-3)
print("keyring", call(250, 0, SESSION, 0), flush=True)
"""
ADDS = f"""exec python3 -c '{_CALLS}
assert call(248, b"user", b"ticket", b"SECRET", 6, SESSION) > 0
print("added", flush=True)
import time
time.sleep(999)
'"""
SEARCHES = f"""exec python3 -c '{_CALLS}
key = call(250, 10, SESSION, b"user", b"ticket", 0)
text = ctypes.create_string_buffer(100)
print("found" if key > 0 and call(250, 11, key, text, 100) > 0 else "nothing", text.value)
'"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    """A supervisor whose parent has a session keyring, as each service of systemd has one."""
    if ctypes.CDLL(None).syscall(250, 1, None) < 0:
        pytest.skip("no keyrings can be made here")
    with supervised.made_in(tmp_path) as made:
        yield made


def words(bed: Bed, name: str, until: str) -> list[str]:
    supervised.wait(lambda: until in bed.output(name), f"{until} in the output of {name}")
    return bed.output(name).split()


@pytest.mark.parametrize("other", ["news", "games", None])
def test_another_task_finds_no_key(bed: Bed, other: str | None) -> None:
    """Neither one of another user, nor of the same, nor of the supervisor's own."""
    bed.start("ada", ADDS, user="games")
    bed.until("ada", AttemptState.RUNNING)
    own = words(bed, "ada", "added")
    report = bed.run(SEARCHES, user=other)
    assert report.exit_code == 0
    theirs = words(bed, report.id, "nothing")
    assert own[1] != theirs[1]


def test_the_keyring_of_who_started_the_supervisor_is_not_the_tasks(tmp_path: Path) -> None:
    script = f"""
import os, sys, threading
from pathlib import Path
{_CALLS}
call(250, 1, None)
assert call(248, b"user", b"ticket", b"SECRET", 6, SESSION) > 0
from tests.integration.agents import supervised
with supervised.made_in(Path(sys.argv[1])) as bed:
    for user in (None, "games"):
        report = bed.run(os.environ["SEARCHES"], user=user)
        print(bed.output(report.id))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "SEARCHES": SEARCHES}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.count("nothing b''") == 2, done.stdout


def test_only_the_thread_that_joins_has_the_new_one() -> None:
    script = """
import threading
from agents.host import session_keyring
import ctypes
call = session_keyring._SYSCALL
serial = lambda: call(250, 0, ctypes.c_int(-3), 0)
before, seen = serial(), []
thread = threading.Thread(target=lambda: (session_keyring.join_new(), seen.append(serial())))
thread.start(); thread.join()
assert seen[0] != before and serial() == before, (before, seen, serial())
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert session_keyring._NUMBERS["aarch64"] == 219
