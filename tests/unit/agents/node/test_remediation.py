"""Orders to make something right are carried out once, and only on what they are about."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.host import processes
from agents.node import remediation
from reconciler.model.observed import devices
from reconciler.model.policy.drift_kinds import DriftRemedy
from tests import sleeping

_DECODE_ORDER = msgspec.msgpack.Decoder(DriftRemedy).decode


class Node:
    """Which processes are on which devices."""

    def __init__(self, *found: devices.GpuProcess) -> None:
        self.found = found

    busy: tuple[str, ...] = ()
    restarted = False
    #: Whether the machine goes down once it is told to.
    goes_down = True
    alone = True
    reset: list[str] | None = None
    parts: frozenset[str] = frozenset()
    #: Is there while nothing of the agent has a device open.
    mark: Path | None = None

    def foreign_processes(self) -> tuple[devices.GpuProcess, ...]:
        return self.found

    def occupants(self) -> list[str]:
        return list(self.busy)

    def gpu_uuids(self) -> dict[int, str]:
        return {0: "GPU-0", 1: "GPU-1"}

    def partial_gpus(self) -> frozenset[str]:
        return self.parts

    @contextlib.contextmanager
    def exclusive_gpus(self, reset: Collection[str]) -> Iterator[None]:
        assert self.mark is not None
        self.mark.touch()
        try:
            yield
            self.reset = list(reset)
        finally:
            self.mark.unlink()

    def restart(self) -> None:
        self.restarted = True

    def owns_machine(self) -> bool:
        return self.alone

    def stops_within(self, limit_s: float) -> bool:
        assert limit_s > 0
        return self.goes_down

    @property
    def actions(self) -> remediation.NodeActions:
        return remediation.NodeActions(
            *(getattr(self, name) for name in remediation.NodeActions._fields)
        )


def on_device(pid: int) -> Node:
    return Node(devices.GpuProcess(pid, 0, "GPU-0"))


def order(pid: int = 0, name: str = "a", **more: Any) -> DriftRemedy:
    values = {"verb": "end-process", "cause": "c", "pool": "p", "at": 0.0, "uuid": "GPU-0", **more}
    return DriftRemedy(id=name, pid=pid, **values)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with sleeping.sleeper() as made:
        yield made


def test_a_process_on_a_device_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    facts = processes.process_facts(sleeper.pid)
    assert facts is not None
    began = time.time() - processes.boottime() + facts[2] / os.sysconf("SC_CLK_TCK")
    asked = order(sleeper.pid, started_at=round(began))
    said = remediation.end_process(asked, on_device(sleeper.pid).actions)
    assert said == f"process {sleeper.pid} ended by SIGTERM"
    assert sleeper.wait(120) == -signal.SIGTERM


def test_one_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remediation, "LEAVE_S", 0.2)
    script = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    command = [sys.executable, "-c", f"{script}; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stubborn:
        try:
            assert stubborn.stdout is not None
            stubborn.stdout.readline()
            said = remediation.end_process(order(stubborn.pid), on_device(stubborn.pid).actions)
            assert said == f"process {stubborn.pid} ended by SIGKILL"
        finally:
            stubborn.kill()


def test_a_process_that_left_the_device_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    assert "not on the device any more" in remediation.end_process(
        order(sleeper.pid), Node().actions
    )
    elsewhere = order(sleeper.pid, uuid="GPU-1")
    assert "not on the device" in remediation.end_process(elsewhere, on_device(sleeper.pid).actions)
    assert sleeper.poll() is None


def test_a_number_that_went_to_another_process_is_left_alone(
    sleeper: subprocess.Popen[bytes],
) -> None:
    with pytest.raises(remediation.RemediationError, match="is not the process that was seen"):
        remediation.end_process(
            order(sleeper.pid, started_at=1000.0), on_device(sleeper.pid).actions
        )
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [1, os.getpid(), os.getppid()], ids=["init", "own", "parent"])
def test_the_agent_and_what_has_started_it_is_left_alone(pid: int) -> None:
    with pytest.raises(remediation.RemediationError, match="the agent itself"):
        remediation.end_process(order(pid), on_device(pid).actions)


def _carry_out(folder: Path, *wanted: DriftRemedy, done: list[str]) -> remediation.RemediationQueue:
    told = threading.Event()

    def handler(one: DriftRemedy, _: remediation.NodeActions) -> str:
        done.append(one.id)
        if one.pid < 0:
            raise remediation.RemediationError("no")
        return "yes"

    made = remediation.RemediationQueue(
        folder, "boot-1", Node().actions, told.set, {"end-process": handler}
    )
    made.take(wanted)
    return made


def test_each_order_is_carried_out_once_and_told_until_it_is_taken_back(tmp_path: Path) -> None:
    done: list[str] = []
    made = _carry_out(tmp_path, order(name="a"), order(-1, "b"), done=done)
    made.work()
    made.work()
    made.take([order(name="a"), order(-1, "b")])
    told = [(one.id, one.done, one.message) for one in made.reports()]
    assert told == [("a", True, "yes"), ("b", False, "no")]
    again = _carry_out(tmp_path, order(name="a"), order(-1, "b"), done=done)
    assert [one.id for one in again.reports()] == ["a", "b"]
    assert done == ["a", "b"]
    again.take([])
    assert again.reports() == ()


def test_an_order_over_which_the_agent_died_is_not_begun_again(tmp_path: Path) -> None:
    done: list[str] = []
    _carry_out(tmp_path, order(name="a"), done=done)
    later = _carry_out(tmp_path, order(name="a"), done=done)
    (told,) = later.reports()
    assert not told.done
    assert "the result is unknown" in told.message
    assert done == []


def test_an_order_of_a_newer_controller_is_refused(tmp_path: Path) -> None:
    newer = msgspec.msgpack.encode(order(name="c", verb="polish"))
    made = remediation.RemediationQueue(tmp_path, "boot-1", Node().actions, lambda: None)
    made.take([_DECODE_ORDER(newer)])
    made.work()
    (told,) = made.reports()
    assert "too old for polish" in told.message


def test_a_command_runs_without_a_shell_and_its_status_counts(tmp_path: Path) -> None:
    mark = tmp_path / "$(touch x)"
    good = order(verb="run-command", command=("touch", str(mark)), timeout_s=60.0)
    assert remediation.run_command(good, Node().actions) == "touch has ended with status 0"
    assert mark.exists()
    bad = order(verb="run-command", command=("sh", "-c", "echo no disk; exit 3"), timeout_s=60.0)
    with pytest.raises(remediation.RemediationError, match="sh: no disk"):
        remediation.run_command(bad, Node().actions)
    slow = order(verb="run-command", command=("sleep", "60"), timeout_s=0.1)
    with pytest.raises(remediation.RemediationError, match=r"did not end within 0\.1 s"):
        remediation.run_command(slow, Node().actions)


def test_nothing_is_reset_or_run_where_a_task_runs() -> None:
    busy = Node()
    busy.busy = ("train.1.a.0.main.0.1",)
    for handler in (remediation.run_command, remediation.reset_gpu, remediation.reboot):
        with pytest.raises(
            remediation.RemediationError, match=r"task train\.1.a.0.main.0.1 runs or starts here"
        ):
            handler(order(command=("true",), timeout_s=1.0, devices=(0,)), busy.actions)


def test_devices_are_reset_by_their_uuids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    # the driver resets no device that the agent itself has open
    tool.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/alone ] && echo "$@" > {tmp_path}/asked\n'
        f"[ ! -e {tmp_path}/refuses ]\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    node = Node()
    node.mark = tmp_path / "alone"
    remediation.reset_gpu(order(devices=(1, 0)), node.actions)
    assert not node.mark.exists()
    assert (tmp_path / "asked").read_text() == "--gpu-reset -i GPU-1,GPU-0\n"
    assert node.reset == ["GPU-1", "GPU-0"]
    node.reset = None
    (tmp_path / "refuses").touch()
    with pytest.raises(remediation.RemediationError, match="nvidia-smi: status 1"):
        remediation.reset_gpu(order(devices=(1,)), node.actions)
    assert node.reset is None, "what such a device has told is not over"
    with pytest.raises(remediation.RemediationError, match="no real GPU"):
        remediation.reset_gpu(order(devices=(7,)), Node().actions)
    with pytest.raises(remediation.RemediationError, match="end them first"):
        remediation.reset_gpu(order(devices=(0,)), on_device(1).actions)


def test_a_device_that_is_not_the_nodes_alone_is_not_reset() -> None:
    node = Node()
    node.parts = frozenset({"GPU-1"})
    node.busy = ("train.1.a.0.main.0.1",)  # what is told does not depend on it
    for numbers in ((1,), (0, 1)):
        with pytest.raises(remediation.RemediationError, match="GPU-1 is not this node's to reset"):
            remediation.reset_gpu(order(devices=numbers), node.actions)
    assert node.reset is None


def test_a_reboot_has_not_ended_before_the_machine_goes_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next node of the pool would follow while this one is still on its way."""
    tool = tmp_path / "systemctl"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    node = Node()
    said = remediation.reboot(order(verb="reboot"), node.actions)
    assert said == "systemctl has ended with status 0, and the machine is going down"
    node.goes_down = False
    with pytest.raises(remediation.RemediationError, match="600 s later the machine is still up"):
        remediation.reboot(order(verb="reboot"), node.actions)
    node.alone = False
    with pytest.raises(remediation.RemediationError, match="several nodes share this machine"):
        remediation.reboot(order(verb="reboot"), node.actions)
    assert (tmp_path / "asked").read_text() == "reboot\n" * 2


def test_an_agent_that_starts_anew_has_carried_that_out(tmp_path: Path) -> None:
    node = Node()
    made = remediation.RemediationQueue(tmp_path, "boot-1", node.actions, lambda: None)
    made.take([order(name="restart-agent.1", verb="restart-agent")])
    made.work()
    assert node.restarted
    killed = order(name="restart-agent.2", verb="restart-agent")
    remediation.RemediationQueue(tmp_path, "boot-1", node.actions, lambda: None, {}).take([killed])
    (told,) = remediation.RemediationQueue(tmp_path, "boot-1", node.actions, lambda: None).reports()
    assert (told.id, told.done) == ("restart-agent.2", True)


@pytest.mark.parametrize(
    ("kept", "now", "done", "says"),
    [
        ("boot-1", "boot-2", True, "it was restarted"),
        ("boot-1", "boot-1", False, "the machine has not rebooted since"),
        ("", "boot-2", False, "the result is unknown"),
    ],
    ids=["another boot", "the same boot", "boot not known"],
)
def test_a_reboot_is_done_when_there_was_one(
    tmp_path: Path, kept: str, now: str, *, done: bool, says: str
) -> None:
    asked = order(name="reboot.1", verb="reboot")
    remediation.RemediationQueue(tmp_path, kept, Node().actions, lambda: None).take([asked])
    (told,) = remediation.RemediationQueue(tmp_path, now, Node().actions, lambda: None).reports()
    assert told.done is done
    assert says in told.message


def test_an_order_that_was_taken_back_while_it_waited_is_not_carried_out(tmp_path: Path) -> None:
    done: list[str] = []
    made: remediation.RemediationQueue

    def slow(one: DriftRemedy, _: remediation.NodeActions) -> str:
        done.append(one.id)
        if one.id == "a":  # the controller changes its mind meanwhile
            made.take([order(name="a"), order(name="c")])
        return "yes"

    made = remediation.RemediationQueue(
        tmp_path, "boot-1", Node().actions, lambda: None, {"end-process": slow}
    )
    made.take([order(name="a"), order(name="b"), order(name="c")])
    for _ in range(3):
        made.work()
    assert done == ["a", "c"]
    assert [one.id for one in made.reports()] == ["a", "c"]
    later = remediation.RemediationQueue(tmp_path, "boot-1", Node().actions, lambda: None)
    assert [one.id for one in later.reports()] == ["a", "c"]  # nothing of b is left behind


def test_an_order_that_was_taken_back_and_comes_again_is_carried_out_once(tmp_path: Path) -> None:
    done: list[str] = []
    made = _carry_out(tmp_path, order(name="a"), done=done)
    made.take([])
    made.take([order(name="a")])
    made.work()
    made.take([order(name="a")])
    assert done == ["a"]
    made.take([])
    made.take([order(name="a"), order(name="b")])
    made.take([order(name="b")])
    for _ in range(2):
        made.work()
    assert done == ["a", "b"]
