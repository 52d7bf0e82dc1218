"""Orders to make something right are carried out once, and only on what they are about."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agents import orders, processes
from reconciler.model import devices
from reconciler.model.drift import Remedy


class Node:
    """Which processes are on which devices."""

    def __init__(self, *found: devices.GpuProcess) -> None:
        self.found = found

    def foreign(self) -> tuple[devices.GpuProcess, ...]:
        return self.found


def on_device(pid: int) -> Node:
    return Node(devices.GpuProcess(pid, 0, "GPU-0"))


def order(pid: int = 0, name: str = "a", **more: object) -> Remedy:
    values = {"verb": "end-process", "cause": "c", "pool": "p", "at": 0.0, "uuid": "GPU-0", **more}
    return Remedy(id=name, pid=pid, **values)  # type: ignore[arg-type]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "600"])
    yield made
    made.kill()
    made.wait()


def test_a_process_on_a_device_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    facts = processes.process_facts(sleeper.pid)
    assert facts is not None
    began = time.time() - processes.boottime() + facts[2] / os.sysconf("SC_CLK_TCK")
    asked = order(sleeper.pid, started_at=round(began))
    said = orders.end_process(asked, on_device(sleeper.pid))
    assert said == f"process {sleeper.pid} ended by SIGTERM"
    assert sleeper.wait(10) == -signal.SIGTERM


def test_one_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "LEAVE_S", 0.2)
    script = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    command = [sys.executable, "-c", f"{script}; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        said = orders.end_process(order(stubborn.pid), on_device(stubborn.pid))
        assert said == f"process {stubborn.pid} ended by SIGKILL"


def test_a_process_that_left_the_device_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    assert "not on the device any more" in orders.end_process(order(sleeper.pid), Node())
    elsewhere = order(sleeper.pid, uuid="GPU-1")
    assert "not on the device" in orders.end_process(elsewhere, on_device(sleeper.pid))
    assert sleeper.poll() is None


def test_a_number_that_went_to_another_process_is_left_alone(
    sleeper: subprocess.Popen[bytes],
) -> None:
    with pytest.raises(orders.OrderError, match="another one than was seen"):
        orders.end_process(order(sleeper.pid, started_at=1000.0), on_device(sleeper.pid))
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [1, os.getpid(), os.getppid()], ids=["init", "own", "parent"])
def test_the_agent_and_what_has_started_it_is_left_alone(pid: int) -> None:
    with pytest.raises(orders.OrderError, match="the agent itself"):
        orders.end_process(order(pid), on_device(pid))


def _carry_out(folder: Path, *wanted: Remedy, done: list[str]) -> orders.Orders:
    told = threading.Event()

    def handler(one: Remedy, _: orders.Node) -> str:
        done.append(one.id)
        if one.pid < 0:
            raise orders.OrderError("no")
        return "yes"

    made = orders.Orders(folder, Node(), told.set, {"end-process": handler})
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
    assert "does not know what came of it" in told.message
    assert done == []


def test_an_order_of_a_newer_controller_is_refused(tmp_path: Path) -> None:
    newer = msgspec.msgpack.encode(order(name="c", verb="polish"))
    made = orders.Orders(tmp_path, Node(), lambda: None)
    made.take([msgspec.msgpack.decode(newer, type=Remedy)])
    made.work()
    (told,) = made.reports()
    assert "does not know how to polish" in told.message
