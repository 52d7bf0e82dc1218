"""What runs as a user and is no task, such as pulls, and all that its configuration names."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.gpus import mps
from agents.host import processes
from agents.isolation import cgroups, command_cgroups, user_commands
from agents.supervisor import task_isolation
from reconciler import child_process
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from tests import started
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller
from tests.integration.agents.supervised import Bed, wait

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users"),
    pytest.mark.skipif(
        cgroups.offers(cgroups.discover())[0] == "process-group", reason="no control groups here"
    ),
]
NOBODY = pwd.getpwnam("nobody")
USER = child_process.ChildUser(NOBODY.pw_uid, NOBODY.pw_gid, ())
LIMITS = child_process.ChildLimits(60.0, 2**16, grace_s=1.0)
#: Does what a daemon does to be found by nobody, and says its pid in a file.
DAEMON = """
setsid env -i /bin/sh -c 'echo $$ >> {pids}; trap "" TERM; while :; do sleep 1; done' \
  > /dev/null 2>&1 < /dev/null &
until [ -s {pids} ]; do sleep 0.02; done
"""


def is_there(pid: int) -> bool:
    return processes.process_facts(pid) is not None


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def left_of(root: Path) -> list[str]:
    """The node's groups that have groups of commands."""
    bases = task_isolation.remembered(str(root))
    return [base for base in bases if Path(base, cgroups.COMMANDS_GROUP).exists()]


@pytest.fixture
def home(tmp_path: Path, everybodys: Node) -> Path:
    """A folder of the user, who can reach it."""
    assert everybodys
    made = tmp_path / "home"
    made.mkdir()
    os.chown(made, NOBODY.pw_uid, NOBODY.pw_gid)
    return made


def template(home: Path, **fields: Any) -> TaskTemplate:
    return TaskTemplate(
        "job", 1, "g", script="#!/bin/sh\n", runtime="podman", user="nobody",
        **{"image": "localhost/none", "environment": {"HOME": str(home)}, **fields},
    )  # fmt: skip


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("at", ["image", "pull", "rm"])
def test_nothing_outlives_a_command_that_has_ended(
    at: str, everybodys: Node, controller: Controller, home: Path, tmp_path: Path
) -> None:
    """A stand-in for a runtime that starts what its user's configuration names."""
    pids, over = home / "pids", tmp_path / "over"
    over.mkdir(mode=0o777)
    over.chmod(0o777)
    text = f"if [ $1 = {at} ]; then {DAEMON.format(pids=pids)}\ntouch {over}/{at}; fi\n"
    text += "[ $1 = image ] && exit 1\nexit 0\n"
    everybodys.start("--podman", str(program(tmp_path / "podman", text)))
    controller.acknowledge = True
    controller.assign("a.1", template=template(home))
    controller.ended("a.1")
    controller.wait((over / at).exists, "the command")
    controller.wait(lambda: not any(map(is_there, pids_in(pids))), "the end of its daemon")
    assert len(pids_in(pids)) == 1
    controller.wait(lambda: not left_of(everybodys.root), "the removal of its groups")


@pytest.mark.needs("podman")
@pytest.mark.skipif(shutil.which("podman") is None, reason="no podman here")
def test_what_a_users_configuration_names_ends_with_the_command(
    everybodys: Node, controller: Controller, home: Path
) -> None:
    pids = home / "pids"
    evil = program(home / "evil", DAEMON.format(pids=pids) + "exit 1\n")
    folder = home / ".config" / "containers"
    folder.mkdir(parents=True)
    (folder / "containers.conf").write_text(
        f'[engine]\nconmon_path = ["{evil}"]\nruntime = "evil"\n'
        f'[engine.runtimes]\nevil = ["{evil}"]\n'
    )
    for path in (home / ".config", folder, evil):
        os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    everybodys.start("--podman", "podman")
    controller.assign("a.1", template=template(home))
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert pids_in(pids), report.message  # else this would try nothing
    controller.wait(lambda: not any(map(is_there, pids_in(pids))), "the end of its daemons")
    controller.wait(lambda: not left_of(everybodys.root), "the removal of its groups")


def test_what_an_earlier_agent_has_left_goes_when_the_next_one_starts(
    everybodys: Node, controller: Controller, home: Path, tmp_path: Path
) -> None:
    pids = home / "pids"
    text = f"[ $1 = image ] && exit 1\n{DAEMON.format(pids=pids)}\nexec sleep 9999\n"
    podman = str(program(tmp_path / "podman", text))
    everybodys.start("--podman", podman)
    controller.assign("a.1", template=template(home))
    controller.wait(lambda: bool(pids_in(pids)), "the pull")
    everybodys.kill_agent()
    assert all(map(is_there, pids_in(pids)))
    controller.assignments.clear()
    everybodys.start("--podman", podman)
    controller.wait(lambda: not any(map(is_there, pids_in(pids))), "the end of its daemon")
    controller.wait(lambda: not left_of(everybodys.root), "the removal of its groups")


# Limits --------------------------------------------------------------------------------------


@pytest.fixture
def bed(tmp_path: Path, everybodys: Node) -> Iterator[Bed]:
    """A supervisor, by whose groups commands are held."""
    made = Bed(tmp_path / "bed")
    assert everybodys
    yield made
    left = left_of(made.root)
    made.close()
    assert left == []


@pytest.fixture
def users(bed: Bed) -> user_commands.UserCommands:
    return user_commands.UserCommands(bed.bases)


def shell(script: str, **more: Any) -> child_process.ChildProgram:
    return child_process.ChildProgram(
        ["/bin/sh", "-c", script], environment={"PATH": os.environ["PATH"]}, folder="/", user=USER,
        stdout=child_process.ChildOutput.READ, stderr=child_process.ChildOutput.READ, **more,
    )  # fmt: skip


def test_it_runs_as_its_user_with_what_it_was_given(users: user_commands.UserCommands) -> None:
    script = "read word; echo $word; id -u; id -g; id -G; grep SigIgn /proc/self/status; exit 5"
    result = users.run(shell(script, given=b"said\n"), LIMITS)
    word, uid, gid, groups, ignored = result.stdout.decode().splitlines()
    assert (word, int(uid), int(gid), groups) == ("said", USER.uid, USER.gid, gid)
    # the first 31: what is above may come from whoever started the tests
    assert int(ignored.split()[1], 16) & 0x7FFFFFFF == 0
    assert result.status == 5
    with pytest.raises(FileNotFoundError):
        users.run(shell("")._replace(argv=["/no/such/program"]), LIMITS)


def test_what_its_user_may_not_run_is_said(
    users: user_commands.UserCommands, tmp_path: Path
) -> None:
    own = program(tmp_path / "own", "exit 0\n")
    own.chmod(0o700)
    result = users.run(shell("")._replace(argv=[str(own)]), LIMITS)
    assert (result.status, result.stderr.decode()) == (126, f"{own}: Permission denied\n")


def test_its_memory_is_bounded(
    users: user_commands.UserCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_cgroups, "USER_LIMITS", command_cgroups.CommandLimits(64 * 2**20))
    script = "head -c 300000000 /dev/zero | tail -c 299999999 | wc -c; exit 1"
    result = users.run(shell(script), LIMITS)
    assert result.stdout.strip() != b"299999999"
    assert b"which is their limit" in result.stderr
    assert users.run(shell("echo again"), LIMITS).stdout == b"again\n"


def test_what_forks_without_end_is_bounded_and_ends(
    users: user_commands.UserCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_cgroups, "PIDS_MAX", 40)
    forks = "i=0; while [ $i -lt 200 ]; do setsid sleep 998877 & i=$((i+1)); done; echo all"
    result = users.run(shell(forks), LIMITS)
    assert (result.stdout, b"fork" in result.stderr) == (b"", True)
    assert not [p for p in processes.processes() if "998877" in started.command_of(p)]
    assert users.run(shell("echo again"), LIMITS).stdout == b"again\n"


def test_what_it_writes_to_a_disk_does_not_end_it(
    users: user_commands.UserCommands, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """Pages of files count against its memory, but go when there is too much of them."""
    monkeypatch.setattr(command_cgroups, "USER_LIMITS", command_cgroups.CommandLimits(64 * 2**20))
    script = f"head -c 300000000 /dev/zero > {home}/file && cat {home}/file | wc -c"
    result = users.run(shell(script), LIMITS)
    assert (result.status, result.stdout.strip()) == (0, b"300000000"), result.stderr


@pytest.mark.skipif("devices" not in cgroups.discover(), reason="no device rules here")
def test_a_device_that_is_denied_is_not_opened(bed: Bed) -> None:
    groups = command_cgroups.CommandCgroups(bed.bases)
    script = "head -c 1 /dev/zero > /dev/null && head -c 1 /dev/full > /dev/null"
    for denied, status in (((), 0), (("c 1:7 rwm",), 1)):
        group = groups.take(str(USER.uid), denied=denied)
        assert group is not None
        start = user_commands._start(group, USER)
        assert subprocess.run([*start, "/bin/sh", "-c", script], check=False).returncode == status
        assert groups.give_back(group)


def test_the_limits_are_of_all_commands_of_a_user(
    users: user_commands.UserCommands, bed: Bed
) -> None:
    """One that ends takes nothing of another."""
    first = users.held(USER.uid)
    start = first.__enter__()
    entries = [word for word in start if word.endswith(("/tasks", "/cgroup.procs"))]
    assert len(entries) > 0
    assert users.run(shell("exit 0"), LIMITS).status == 0
    with subprocess.Popen([*start, shutil.which("sleep") or "", "9999"]) as one:
        wait(lambda: Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n", "its program")
        assert all(one.pid in pids_in_group(Path(entry).parent) for entry in entries)
        assert users.run(shell("exit 0"), LIMITS).status == 0
        first.__exit__(None, None, None)
        assert one.wait(60) == -9


def pids_in_group(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "cgroup.procs").read_text().split()]


def test_a_daemon_stays_until_it_is_not_needed(
    users: user_commands.UserCommands, tmp_path: Path, bed: Bed
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    os.chown(folder, USER.uid, USER.gid)
    pids = folder / "pids"
    assert users.run(shell(DAEMON.format(pids=pids)), LIMITS, daemon="0").status == 0
    (pid,) = pids_in(pids)
    assert users.clear() == []  # as the next agent does
    assert users.run(shell("exit 0"), LIMITS).status == 0
    assert is_there(pid)
    users.end_daemon(USER, "0")
    assert not is_there(pid)
    assert left_of(bed.root) == []
    assert users.run(shell(DAEMON.format(pids=pids) + "exit 1"), LIMITS, daemon="0").status == 1
    assert not any(map(is_there, pids_in(pids)))


def test_a_daemon_of_mps_and_all_it_has_started_goes_with_the_last_task(
    users: user_commands.UserCommands, tmp_path: Path, short_folder: Path, bed: Bed
) -> None:
    """By a stand-in that ends nothing when it is told to."""
    folder = tmp_path / "own"
    folder.mkdir()
    os.chown(folder, USER.uid, USER.gid)
    pids = folder / "pids"
    text = f"if [ $# -gt 0 ]; then {DAEMON.format(pids=pids)}\nfi\n[ -s {pids} ]\n"
    control = program(tmp_path / "nvidia-cuda-mps-control", text)
    short_folder.chmod(0o711)
    daemons = mps.MpsDaemons(short_folder / "mps", users, str(control))
    share = mps.MpsShare(0, "GPU-a", {"uid": USER.uid, "gid": USER.gid, "groups": []})
    for name in ("a.1", "a.2"):
        daemons.want(name, share)
    (pid,) = pids_in(pids)
    daemons.keep({"a.2"})
    assert is_there(pid)
    daemons.keep(set())
    wait(lambda: not is_there(pid), "its end")
    wait(lambda: left_of(bed.root) == [], "the removal of its groups")


def test_where_the_supervisor_has_ended_they_are_held_all_the_same(bed: Bed) -> None:
    """As the last removals of containers are, when a node leaves."""
    known = bed.bases()
    now = [known, []]
    users = user_commands.UserCommands(lambda: now.pop(0) if now else [])
    assert users.run(shell("exit 0"), LIMITS).status == 0
    bed.supervisor.end_all(0, lambda _: None)
    wait(lambda: not any(map(os.path.exists, known)), "the end of the supervisor")
    text = users.run(shell("cat /proc/self/cgroup"), LIMITS).stdout.decode()
    assert f"/{cgroups.token_of(str(bed.root))}/{cgroups.COMMANDS_GROUP}/" in text
    users.leave()
    assert not any(map(os.path.exists, known))


@pytest.mark.needs("podman")
@pytest.mark.skipif(not all(map(shutil.which, ("podman", "busybox"))), reason="no podman here")
def test_podman_fetches_an_image_within_the_limits(
    users: user_commands.UserCommands, home: Path
) -> None:
    tree = home / "image"
    (tree / "bin").mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", tree / "bin/busybox")
    with (tree / "much").open("wb") as stream:
        for _ in range(64):
            stream.write(os.urandom(2**20))
    subprocess.run(["tar", "-C", str(tree), "-cf", str(home / "image.tar"), "."], check=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "nobody"}

    def podman(*words: str) -> int | None:
        result = users.run(
            shell("")._replace(argv=["podman", *words], environment=environment),
            child_process.ChildLimits(300.0, 2**16, child_process.Excess.KEEP_END, grace_s=10.0),
        )
        assert result.status is not None
        return result.status

    assert podman("image", "exists", "localhost/much") == 1
    assert podman("import", str(home / "image.tar"), "localhost/much") == 0
    assert podman("image", "exists", "localhost/much") == 0
    assert podman("save", "--output", str(home / "saved.tar"), "localhost/much") == 0
    assert podman("rmi", "localhost/much") == 0
    assert podman("pull", "--quiet", "--", f"docker-archive:{home}/saved.tar") == 0
    assert podman("image", "exists", "localhost/much") == 0

    def left() -> list[int]:
        return [p for p in processes.processes() if owner_of(p) == USER.uid]

    # tests beside this one have the same user
    wait(lambda: not left(), "the end of the user's processes")


def owner_of(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return -1
