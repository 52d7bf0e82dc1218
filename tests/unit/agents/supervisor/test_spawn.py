"""What root writes for a task is written before the task's user can put anything in its way."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.host import processes
from agents.supervisor import orders, record_table, spawn, start_queue

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
UID = 12345


def order(*, user: bool = False, **more: Any) -> orders.StartOrder:
    other = orders.UserIds("ada", UID, UID, ()) if user else None
    files = {"hosts": "h\n"}
    return orders.StartOrder("a.1", script="#!/bin/sh\n", files=files, user=other, **more)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "attempts").mkdir(mode=0o711)
    return tmp_path


def owners(folder: Path) -> dict[str, int]:
    """User by name of all that a directory holds, and of itself."""
    found = {path.name: path.lstat().st_uid for path in folder.iterdir()}
    return found | {".": folder.stat().st_uid}


@needs_root
def test_a_directory_is_its_users_only_when_all_is_in_it(root: Path) -> None:
    given = order(user=True, secrets={"token": "s3cret"})
    folder = root / "attempts/a.1"
    spawn.make_folder(str(root), given)
    spawn.write_secrets(str(root), given)
    assert set(owners(folder).values()) == {0}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert owners(folder / "secrets") == {"token": UID, ".": 0}
    spawn.hand_over(str(root), given)
    kept = owners(folder)
    assert kept.pop("secrets") == 0
    assert kept == dict.fromkeys((".", "work", "tmp", "script", "hosts"), UID)
    assert (folder / "secrets/token").stat().st_mode & 0o777 == 0o400


def test_secrets_are_not_written_through_a_link(root: Path) -> None:
    given = order(secrets={"token": "s3cret"})
    spawn.make_folder(str(root), given)
    (root / "elsewhere").mkdir()
    (root / "attempts/a.1/secrets").rmdir()
    (root / "attempts/a.1/secrets").symlink_to(root / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        spawn.write_secrets(str(root), given)
    assert not list((root / "elsewhere").iterdir())


@needs_root
def test_no_link_is_given_away(root: Path) -> None:
    spawn.make_folder(str(root), order())
    (root / "precious").mkdir()
    (root / "attempts/a.1/tmp").rmdir()
    (root / "attempts/a.1/tmp").symlink_to(root / "precious")
    spawn.hand_over(str(root), order(user=True))
    assert (root / "precious").stat().st_uid == 0
    (root / "attempts/a.1").rename(root / "away")
    (root / "attempts/a.1").symlink_to(root / "precious")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        spawn.hand_over(str(root), order(user=True))
    assert (root / "precious").stat().st_uid == 0


def test_a_secret_cannot_leave_its_folder(root: Path) -> None:
    given = order(secrets={"../work/x": "s3cret"})
    spawn.make_folder(str(root), given)
    with pytest.raises(spawn.SpawnError, match="can't be the name of a file"):
        spawn.write_secrets(str(root), given)
    assert not list((root / "attempts/a.1/work").iterdir())


def test_secrets_go_when_an_attempt_is_over(root: Path) -> None:
    given = order(secrets={"token": "s3cret"})
    spawn.make_folder(str(root), given)
    spawn.write_secrets(str(root), given)
    record_table.remove_secrets(str(root), "a.1")
    assert not list((root / "attempts/a.1/secrets").iterdir())
    record_table.remove_secrets(str(root), "none")


def test_nothing_is_removed_through_a_link(root: Path) -> None:
    spawn.make_folder(str(root), order())
    precious = root / "precious"
    precious.mkdir()
    (precious / "id_rsa").write_text("x")
    (root / "attempts/a.1/secrets").symlink_to(precious)
    record_table.remove_secrets(str(root), "a.1")
    assert (precious / "id_rsa").exists()
    (root / "attempts/a.1").rename(root / "away")
    (root / "away/secrets").unlink()
    (root / "away/secrets").mkdir()
    (root / "away/secrets/id_rsa").write_text("x")
    (root / "attempts/a.1").symlink_to(root / "away")
    record_table.remove_secrets(str(root), "a.1")
    assert (root / "away/secrets/id_rsa").exists()


@needs_root
def test_a_folder_that_a_user_put_there_is_left_alone(root: Path) -> None:
    spawn.make_folder(str(root), order())
    folder = root / "attempts/a.1/secrets"
    folder.mkdir()
    (folder / "own").write_text("x")
    os.chown(folder, UID, UID)
    record_table.remove_secrets(str(root), "a.1")
    assert (folder / "own").exists()


def test_a_command_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    folders = ":".join(str(tmp_path / f"folder-{number}") for number in range(50))
    with pytest.raises(spawn.SpawnError, match="'nosuch' was not found in PATH") as told:
        spawn.find_program("nosuch", folders)
    assert (told.value.exit_code, len(str(told.value)) < 80) == (127, True)


#: Begins one task that can't go to its groups before somebody reads there, and then another.
_TWO = """\
import os, sys
from agents.supervisor import orders, spawn

null = os.open(os.devnull, os.O_RDWR)
order = orders.StartOrder("a.1", ("/bin/true",))
first = spawn.spawn_as(order, (null, null, null), [sys.argv[1]])
second = spawn.spawn_as(order, (null, null, null), [])
second.wait_for_program()
assert os.waitpid(second.pid, 0) == (second.pid, 0)
assert os.waitpid(first.pid, os.WNOHANG) == (0, 0)
reader = os.open(sys.argv[1], os.O_RDONLY)
assert first.wait_for_program() == first.pid
assert os.waitpid(first.pid, 0) == (first.pid, 0)
"""


def test_one_is_begun_while_another_is_on_its_way(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "group")
    command = [sys.executable, "-c", _TWO, str(tmp_path / "group")]
    with subprocess.Popen(command, start_new_session=True) as began:
        try:
            assert began.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(began.pid, signal.SIGKILL)


ADA = {"name": "ada", "uid": UID, "gid": UID, "groups": []}
#: Begins one task and says its number. The task waits for whatever comes by the standard input: on
#: its way to its group, or to its folder.
_ONE = """\
import json, os, signal, sys
from agents.supervisor import orders, spawn

class Held:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        os.write(1, b"there\\n")
        os.read(0, 1)
        return self.path

asked = json.loads(sys.argv[1])
order = orders.StartOrder(
    "a.1", ("/bin/sh", "-c", asked["script"]), asked["env"],
    Held("/") if asked["held"] == "folder" else "/",
    asked["user"] and orders.UserIds(**asked["user"]),
)
entries = [Held(os.devnull)] if asked["held"] == "group" else []
child = spawn.spawn_as(order, (0, 1, 2), entries)
os.write(1, b"%d\\n" % child.pid)
signal.pause()
"""
_TRAP = "trap 'echo asked; exit 0' TERM; echo there; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("held", "user", "env", "script", "says"),
    [
        ("group", None, {}, "echo ran", b""),
        ("folder", None, {}, "echo ran", b""),
        # to become another user undoes what was asked of the kernel before
        pytest.param("folder", ADA, {}, "echo ran", b"", marks=needs_root),
        ("", None, {}, "echo there; exec sleep 999", b""),
        ("", None, {processes.RUNTIME: "1"}, _TRAP, b"asked\n"),
    ],
    ids=["to a group", "to a folder", "to a folder as another", "a program", "a runtime"],
)
def test_what_is_on_its_way_ends_with_the_supervisor(
    held: str, user: dict[str, Any] | None, env: dict[str, str], script: str, says: bytes
) -> None:
    """The kernel sees to it: before it has its program nobody else could know it as a task."""
    environment = {"PATH": os.environ["PATH"], **env}
    asked = json.dumps({"held": held, "user": user, "script": script, "env": environment})
    command = [sys.executable, "-c", _ONE, asked]
    with contextlib.ExitStack() as ends:
        supervisor = ends.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        ends.callback(supervisor.kill)
        assert supervisor.stdout is not None
        said = sorted(supervisor.stdout.readline().decode().strip() for _ in range(2))
        assert said[1] == "there"
        task = os.pidfd_open(int(said[0]))
        ends.callback(os.close, task)
        ends.callback(_end, task)
        supervisor.kill()
        supervisor.wait(60)
        rest, _ = supervisor.communicate(b"x", timeout=60)  # whoever lives goes on now
        assert rest == says


def _end(task: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(task, signal.SIGKILL)


#: Forks a child that has another parent than it is told, as if that had ended meanwhile.
_LATE = """\
import os
from agents.supervisor import orders, spawn

pid = os.fork()
if pid == 0:
    order = orders.StartOrder("a.1", ("/bin/sh", "-c", "echo ran"))
    spawn.become(order, (0, 1, 2), 2, [], os.getpid(), privileges=spawn.UNRESTRICTED)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_what_is_forked_when_the_supervisor_is_gone_does_not_begin() -> None:
    command = [sys.executable, "-c", _LATE]
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stdout == b"127\n"


@pytest.mark.parametrize(
    ("begun", "forks", "waits"),
    [
        ([], True, False),
        ([], False, False),
        (["b.1"], True, False),
        (["b.1"], False, True),  # it may be started from within its groups
        (["b.1", "a.1"], True, True),  # the same one again
        ([f"b.{number}" for number in range(start_queue.AT_ONCE - 1)], True, False),
        ([f"b.{number}" for number in range(start_queue.AT_ONCE)], True, True),
    ],
)
def test_who_waits_for_those_that_were_begun(begun: list[str], *, forks: bool, waits: bool) -> None:
    there = [
        start_queue.PendingStart(orders.StartOrder(name), {"id": name}, {}, spawn.SpawnedChild(1))
        for name in begun
    ]
    wanted = orders.StartOrder("a.1")
    assert start_queue.must_wait_for_earlier(there, wanted, forks=forks) is waits
