"""Commands of container runtimes: what comes of them, and how those end that take too long."""

import contextlib
import os
import queue
import signal
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from agents.host import disk_space
from agents.isolation import user_commands
from agents.tasks import container_runtimes, images

ENVIRONMENT = dict(os.environ)


def run(
    script: str, folder: Path, limit_s: float = 60.0, commands: images.RuntimeCommands | None = None
) -> tuple[int | None, str]:
    execute = (commands or images.RuntimeCommands(user_commands.UserCommands())).execute
    return execute(["sh", "-c", script], None, {**ENVIRONMENT, "HERE": str(folder)}, limit_s)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    ends_at = time.monotonic() + 60
    while is_there(pid):
        assert time.monotonic() < ends_at, pid
        time.sleep(0.01)


def test_the_status_and_the_last_words(tmp_path: Path) -> None:
    assert run("echo out; echo one >&2; echo two >&2; exit 3", tmp_path) == (3, "two")
    assert run("exit 0", tmp_path) == (0, "")
    status, said = images.RuntimeCommands(user_commands.UserCommands()).execute(
        ["/nosuch/runtime"], None, ENVIRONMENT, 1.0
    )
    assert (status, "No such file" in said) == (127, True)


def test_what_takes_too_long_may_tidy_up_before_it_is_over(tmp_path: Path) -> None:
    """A pull that is killed leaves a layer without a name."""
    script = """
    touch $HERE/layer
    sleep 3600 & child=$!
    echo $child > $HERE/pid
    trap 'kill $child; rm $HERE/layer; exit 1' TERM
    touch $HERE/begun
    wait
    """
    until = 2.0  # long enough to begin on a busy machine; if not, it is tried for longer
    while True:
        assert run(script, tmp_path, until) == (None, "")
        if (tmp_path / "begun").exists():
            break
        until *= 2
    assert not (tmp_path / "layer").exists()
    until_gone(int((tmp_path / "pid").read_text()))


def test_who_does_not_end_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "ENDING_S", 0.2)
    script = """
    trap '' TERM
    sleep 3600 & echo $! > $HERE/pid
    echo words >&2
    while :; do sleep 0.1; done
    """
    until = 1.0
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert run(script, tmp_path, until) == (None, "")
        until *= 2
    until_gone(int((tmp_path / "pid").read_text()))


def test_one_that_not_even_a_kill_ends_holds_nobody_and_many_of_them_are_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands here are killed in vain, as those are that wait in the kernel for a dead disk."""
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    monkeypatch.setattr(images, "ENDING_S", 0.05)
    monkeypatch.setattr(images, "HUNG_MAX", 2)
    gone, commands = tmp_path / "gone", images.RuntimeCommands(user_commands.UserCommands())
    script = "echo $$ >> $HERE/begun; until [ -e $HERE/gone ]; do sleep 0.05; done"
    try:
        for _ in range(2):
            assert run(script, tmp_path, 0.2, commands) == (None, "")
        status, said = run("exit 0", tmp_path, commands=commands)
        assert status == 126
        assert said.startswith("2 commands hang and can't be killed, as process ")
    finally:
        gone.touch()
    ends_at = time.monotonic() + 60
    while commands._stuck.pids():
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    assert run("exit 0", tmp_path, commands=commands) == (0, "")


# Who waits for an image ---------------------------------------------------------------------------

#: Says that it has begun, and goes on until it is asked to end, unless ``done`` is there.
PULL = """
trap 'kill $child; echo ended >> $HERE/ended; exit 1' TERM
echo $$ >> $HERE/begun
[ -e $HERE/done ] || { sleep 3600 & child=$!; wait; }
"""
#: The same, and ends no sooner than ``done`` is there.
SLOW_TO_END = """
trap 'echo ending >> $HERE/ending; until [ -e $HERE/done ]; do sleep 0.05; done; exit 1' TERM
echo $$ >> $HERE/begun
until [ -e $HERE/done ]; do sleep 0.05; done
"""


class Registry(msgspec.Struct, frozen=True):
    """A runtime whose pull takes as long as a test says."""

    script: str

    def present(self, image: str) -> list[str]:
        return ["false", image]

    def pull(self, image: str) -> list[str]:
        return ["sh", "-c", self.script, "pull", image]

    def run(self, box: container_runtimes.ContainerTask) -> list[str]:
        return ["true", box.image]

    def environment(self, box: container_runtimes.ContainerTask) -> dict[str, str]:
        return box.environment

    def enter(self, box: container_runtimes.ContainerTask, *, terminal: bool) -> list[str] | None:
        return ["true", box.name, str(terminal)]

    def remove(self, name: str) -> list[str] | None:
        return ["true", name]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("there.sif", ""),
        ("none.sif", "image {0}/none.sif: no such file on this node"),
    ],
)
def test_an_image_that_is_a_file_is_there_or_not(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "there.sif").touch()
    image = f"{tmp_path}/{name}"
    assert file_image(image, tmp_path) == says.format(tmp_path)


def test_an_image_on_a_file_system_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "test"
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    monkeypatch.setattr(images, "LOOK_S", 0.5)
    monkeypatch.setitem(ENVIRONMENT, "PATH", f"{tmp_path}:{ENVIRONMENT['PATH']}")
    said = "image /far/x.sif: the file system it is on has not answered in 0.5 s"
    assert file_image("/far/x.sif", tmp_path) == said


def file_image(image: str, folder: Path) -> str:
    """What is told of an image of Apptainer's that is a file."""
    told: queue.Queue[str | Exception] = queue.Queue()
    wanted = images.ImageRequest(
        container_runtimes.Apptainer(), image, None, tuple(ENVIRONMENT.items())
    )
    images.Images(600.0, str(folder), user_commands.UserCommands()).want("a.1", wanted, told.put)
    return str(told.get(timeout=60))


class Bench:
    """Images of a node, and what is told of them."""

    def __init__(self, folder: Path, script: str = PULL) -> None:
        self.folder = folder
        self.runtime = Registry(script)
        self.images = images.Images(600.0, str(folder), user_commands.UserCommands())
        self.told: queue.Queue[tuple[str, str | Exception]] = queue.Queue()

    def want(self, attempt: str, image: str = "a:1", limit_s: float | None = None) -> None:
        environment = (*ENVIRONMENT.items(), ("HERE", str(self.folder)))
        wanted = images.ImageRequest(self.runtime, image, None, environment, limit_s)
        self.images.want(attempt, wanted, lambda problem: self.told.put((attempt, problem)))

    def begun(self, count: int) -> list[int]:
        """Pulls, from when there are as many."""
        lines = self.lines("begun", count)
        return [int(line) for line in lines]

    def lines(self, name: str, count: int) -> list[str]:
        path = self.folder / name
        ends_at = time.monotonic() + 60
        while True:
            lines = path.read_text().splitlines() if path.exists() else []
            if len(lines) >= count:
                return lines
            assert time.monotonic() < ends_at, (name, lines)
            time.sleep(0.01)


def test_a_pull_is_ended_once_nobody_waits_for_it_and_not_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.want("a.1")
    bench.want("b.1")
    (pid,) = bench.begun(1)
    assert bench.images.give_up("a.1")
    assert not bench.images.give_up("a.1"), "it does not wait any more"
    assert bench.images.waiting() == {"b.1": "a:1"}
    assert is_there(pid)
    assert bench.images.give_up("b.1")
    bench.lines("ended", 1)
    until_gone(pid)
    assert bench.images.waiting() == {}
    (tmp_path / "done").touch()
    bench.want("c.1")
    assert bench.told.get(timeout=60) == ("c.1", ""), "who comes later has it pulled anew"
    assert len(bench.begun(2)) == 2
    assert bench.told.empty(), "those that gave up are told nothing"


def test_who_comes_while_a_pull_is_ended_has_it_begun_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script=SLOW_TO_END)
    bench.want("a.1")
    bench.begun(1)
    assert bench.images.give_up("a.1")
    bench.lines("ending", 1)
    bench.want("b.1")
    (tmp_path / "done").touch()
    assert bench.told.get(timeout=60) == ("b.1", "")
    assert len(bench.begun(2)) == 2


def test_each_waits_as_long_as_its_job_says_and_a_pull_that_hangs_is_begun_anew(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.want("a.1", limit_s=3.0)
    bench.begun(1)
    bench.want("b.1", limit_s=3600.0)
    (tmp_path / "done").touch()
    said = "image a:1 was not there after 3 s of pulling"
    assert bench.told.get(timeout=60) == ("a.1", said)
    assert bench.told.get(timeout=60) == ("b.1", "")
    assert len(bench.begun(2)) == 2


@pytest.mark.parametrize(
    ("said", "is_lack"),
    [
        ("Error: writing blob: no space left on device", True),
        ("FATAL: Disk quota exceeded", False),
        ("Error: manifest unknown", False),
    ],
)
def test_a_pull_without_room_is_told_as_such(tmp_path: Path, said: str, *, is_lack: bool) -> None:
    bench = Bench(tmp_path, f"echo '{said}' >&2; exit 125")
    bench.want("a.1")
    attempt, problem = bench.told.get(timeout=60)
    assert attempt == "a.1"
    assert isinstance(problem, disk_space.FullDiskError) is is_lack
    of_quota = f"; {disk_space.OVER_QUOTA}" if "quota" in said else ""
    assert str(problem) == f"image a:1 can't be pulled: {said}{of_quota}"


def test_pulls_that_nobody_waits_for_take_no_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for number in range(images.TOGETHER_MAX):
        bench.want(f"a.{number}", f"slow:{number}")
    bench.begun(images.TOGETHER_MAX)
    (tmp_path / "done").touch()
    bench.want("b.1", "quick:1")
    for number in range(images.TOGETHER_MAX):
        assert bench.images.give_up(f"a.{number}")
    assert bench.told.get(timeout=60) == ("b.1", "")
    bench.lines("ended", images.TOGETHER_MAX)  # none is left to itself


def test_what_an_agent_left_that_was_killed_is_ended_before_the_next_begins(
    tmp_path: Path,
) -> None:
    environment = {**ENVIRONMENT, "HERE": str(tmp_path), images.FETCHES_FOR: str(tmp_path)}
    kept = {**environment, images.FETCHES_FOR: f"{tmp_path}/other"}
    left, others, helper = (
        subprocess.Popen(["sh", "-c", PULL, word], env=env, start_new_session=True)
        for word, env in (("pull", environment), ("pull", kept), ("pause", environment))
    )
    with left, others, helper:
        try:
            Bench(tmp_path).begun(3)
            assert images.end_left(str(tmp_path)) == []
            assert left.wait(60) == 1, "it was asked, and could tidy up"
            assert others.poll() is None
            assert helper.poll() is None, "what podman keeps for its user is let be"
        finally:
            for one in (left, others, helper):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
