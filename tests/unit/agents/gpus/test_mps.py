"""MPS daemons, by a stand-in for the control program that leaves its traces."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.gpus import mps
from agents.isolation import user_commands
from agents.tasks import start_commands, task_users
from agents.tasks.node_context import NodeContext
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import Gpu
from tests import ordering

#: Is there from ``-d`` to ``quit``, and says what it was told and of which device.
PROGRAM = """#!/bin/sh
words=$(cat)
echo "$CUDA_VISIBLE_DEVICES ${1:-$words}" >> %s
pid=$CUDA_MPS_PIPE_DIRECTORY/control.pid
case "$1$words" in
-d) [ ! -e %s ] || exit 3; touch "$pid" ;;
quit) rm "$pid" ;;
*) [ -e "$pid" ] ;;
esac
"""
NOBODYS = user_commands.UserCommands()
ONE = mps.MpsShare(0, "GPU-a", None)


class Bench:
    """Daemons in a folder, and what the program was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "nvidia-cuda-mps-control"
        self.log, self.broken = folder / "log", folder / "broken"
        self.program.write_text(PROGRAM % (self.log, self.broken))
        self.program.chmod(0o755)

    def daemons(self) -> mps.MpsDaemons:
        return mps.MpsDaemons(self.folder / "mps", user_commands.UserCommands(), str(self.program))

    def told(self) -> list[str]:
        return self.log.read_text().splitlines()

    def runs(self, wanted: mps.MpsShare = ONE) -> bool:
        return (self.folder / "mps" / wanted.name / "pipe" / "control.pid").exists()


@pytest.fixture
def bench(short_folder: Path) -> Bench:
    return Bench(short_folder)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_daemon_is_there_from_the_first_task_to_the_last(bench: Bench) -> None:
    daemons = bench.daemons()
    daemons.want("a", ONE)
    daemons.want("b", ONE)
    assert bench.told() == ["GPU-a get_server_list", "GPU-a -d", "GPU-a get_server_list"]
    daemons._leave("a")
    assert bench.runs()
    daemons.leave("b")
    until(lambda: not bench.runs())
    daemons.want("c", ONE)
    assert bench.runs()


def test_devices_have_daemons_of_their_own(bench: Bench) -> None:
    daemons, other = bench.daemons(), mps.MpsShare(1, "GPU-b", None)
    daemons.want("a", ONE)
    daemons.want("b", other)
    daemons._leave("b")
    assert bench.runs()
    assert not bench.runs(other)
    assert bench.told()[-1] == "GPU-b quit"


def test_another_agent_finds_them_again(bench: Bench) -> None:
    first = bench.daemons()
    for name in ("a", "b"):
        first.want(name, ONE)
    second = bench.daemons()
    second.keep({"a"})
    until(lambda: not (bench.folder / "mps" / ONE.name / "tasks" / "b").exists())
    assert bench.runs()
    third = bench.daemons()
    third.keep(set())
    until(lambda: not bench.runs())


def test_what_can_not_be_had_says_why(bench: Bench, tmp_path: Path, short_folder: Path) -> None:
    bench.broken.touch()
    daemons = bench.daemons()
    with pytest.raises(mps.MpsError, match=r"MPS on GPU 0: .* ended with status 3"):
        daemons.want("a", ONE)
    assert not daemons._folder_of_attempt
    with pytest.raises(mps.MpsError, match="is not installed"):
        mps.MpsDaemons(short_folder / "mps", NOBODYS, "/nowhere/control").want("a", ONE)
    (tmp_path / ("x" * 100)).mkdir()
    with pytest.raises(mps.MpsError, match="too long for sockets"):
        mps.MpsDaemons(tmp_path / ("x" * 100) / "mps", NOBODYS, str(bench.program)).want("a", ONE)


def test_a_daemon_that_hangs_keeps_those_of_other_devices_from_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "ANSWER_S", 1.0)
    # killed in vain, as one is that waits in the kernel for its device
    monkeypatch.setattr("os.killpg", lambda *_: None)
    gone = bench.folder / "gone"
    text = bench.program.read_text()
    waits = f"[ $CUDA_VISIBLE_DEVICES = GPU-b ] && until [ -e {gone} ]; do sleep 0.05; done\n"
    bench.program.write_text(text.replace("words=$(cat)\n", f"words=$(cat)\n{waits}"))
    daemons, other = bench.daemons(), mps.MpsShare(1, "GPU-b", None)
    try:
        with pytest.raises(mps.MpsError, match=r"MPS on GPU 1: .* has not answered after 1 s"):
            daemons.want("b", other)
        with pytest.raises(mps.MpsError, match="hangs and can't be killed"):
            daemons.want("b", other)
        daemons.want("a", ONE)
        assert bench.runs()
    finally:
        gone.touch()

    def answers() -> bool:
        try:
            daemons.want("b", other)
        except mps.MpsError:
            return False
        return True

    until(answers)
    assert bench.runs(other)


GPUS = (
    Gpu(0, "GPU-a", "H200", 80 * 2**30),
    Gpu(1, "GPU-b", "H200", 80 * 2**30),
    Gpu(2, "sim", "H200", 80 * 2**30, simulated=True),
)


@pytest.mark.parametrize(
    ("devices", "share", "on", "wanted"),
    [
        ((0,), 250, True, True),
        ((0,), 1000, True, False),
        ((0,), 250, False, False),
        ((0, 1), 500, True, False),
        ((2,), 250, True, False),
    ],
)
def test_a_task_is_told_its_share(
    tmp_path: Path, devices: tuple[int, ...], share: int, on: bool, wanted: bool
) -> None:
    place = NodeContext("n", str(tmp_path), str(tmp_path), GPUS)
    template = TaskTemplate("j", 1, "g", command=("true",), mps=on)
    assignment = Assignment("a.1", "t", "b", devices=devices, share_milli=share)
    order = ordering.order_for(assignment, template, place)
    user = task_users.find_user(template, place)
    found = start_commands.mps_share(assignment, template, GPUS, user)
    assert found == (ONE if wanted else None)
    told = {name: value for name, value in order["env"].items() if name.startswith("CUDA_MPS")}
    folder = f"{tmp_path}/mps/0-{os.geteuid()}"
    expected = {
        "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
    }
    assert told == (expected if wanted else {})
