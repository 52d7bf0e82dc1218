"""Starts that wait for something: each by itself, and told as what it is."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agents import state
from agents.data import staging
from agents.deletion import deleter, trash
from agents.health import checks, volume_checks
from agents.settings import AgentSettings
from agents.tasks import gates, launcher, task_data
from agents.tasks.node_context import NodeContext
from reconciler.model.observed.health_checks import CheckPlan, CheckResult
from reconciler.model.observed.storage import In, StagingPlan, VolumeStore
from reconciler.model.observed.task_reports import CheckpointRule
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.states import AttemptState, EndReason

LONG_S = 60.0


class Starts:
    """A carrier, and the orders that came later."""

    def __init__(self, root: Path, lock: threading.RLock, **parts: Any) -> None:
        self.lock = lock
        self.shared = root / "shared"
        self.shared.mkdir()
        (root / "trash").mkdir()
        settings = AgentSettings(name="n", root=root, server="http://127.0.0.1:1")
        place = NodeContext("n", str(root), str(self.shared))
        self.carrier = launcher.Launcher(
            settings, place, trash.Trash(root / "trash", deleter.Deleter()), self.lock, **parts
        )
        self.orders: list[Any] = []
        self.came = threading.Event()

    def later(self, order: Any) -> None:
        self.orders.append(order)
        self.came.set()

    def begin(self, name: str, **more: Any) -> list[Any]:
        template = TaskTemplate("j", 1, "g", command=("true",), **more)
        with self.lock:
            step = state.Start(Assignment(name, "t", "b"), template)
            return self.carrier.start(step, self.later)


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path, threading.RLock())


def test_no_task_may_take_all_processes_of_the_machine(starts: Starts) -> None:
    all_of_them = int(Path("/proc/sys/kernel/pid_max").read_text())
    starts.carrier.supervisor_connected({})
    assert 4 * starts.carrier.node.isolation.pids_max <= max(all_of_them, 4 * 4096)


def test_checkpoints_are_looked_for_beside_the_lock(starts: Starts) -> None:
    (starts.shared / "c").mkdir()
    (starts.shared / "c" / "step-3").write_text("weights")
    rule = CheckpointRule("step-*", settle_s=-LONG_S)
    with starts.lock:  # whoever holds it is not kept waiting
        assert starts.begin("a.1", checkpoint_path="c", saves=rule) == []
        assert starts.carrier.stages() == {
            "a.1": (AttemptState.FETCHING, "looking for its checkpoints")
        }
        assert [one["op"] for one in starts.begin("a.2")] == ["start"]
    assert starts.came.wait(LONG_S)
    (order,) = starts.orders
    assert order["env"]["MUSTER_CHECKPOINT"] == f"{starts.shared}/c/step-3"
    assert starts.carrier.stages() == {}


def test_a_folder_that_hangs_ends_one_start(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    make = os.mkdir
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", lambda *a, **k: (answers.wait(LONG_S), make(*a, **k)))
        patch.setattr(task_data, "SEARCH_TIMEOUT_S", 0.05)
        assert starts.begin("a.1", checkpoint_path="c") == []
        assert starts.came.wait(LONG_S)
    answers.set()
    (order,) = starts.orders
    assert (order["op"], order["reason"]) == ("refuse", EndReason.START_FAILED.value)
    assert "below" in order["message"]
    assert "did not answer in 0.05 s" in order["message"]


def test_who_is_stopped_during_the_look_never_starts(starts: Starts) -> None:
    with starts.lock:
        starts.begin("a.1", checkpoint_path="c")
        order = starts.carrier.stop_command(state.EndAttempt("a.1", EndReason.CANCELLED))
        assert order["op"] == "refuse"
        assert order["reason"] == EndReason.CANCELLED.value
        # the same again: the look that was given up is no part of it
        starts.begin("a.1", checkpoint_path="c")
    assert starts.came.wait(LONG_S)
    assert [one["op"] for one in starts.orders] == ["start"]


def test_a_path_that_leads_out_ends_its_start(starts: Starts) -> None:
    (starts.shared / "c").symlink_to("/")
    starts.begin("a.1", checkpoint_path="c")
    assert starts.came.wait(LONG_S)
    (order,) = starts.orders
    assert (order["op"], order["reason"]) == ("refuse", EndReason.START_FAILED.value)


def test_a_task_at_the_gate_is_not_told_as_one_that_has_its_image(tmp_path: Path) -> None:
    def check(_plan: CheckPlan, _names: tuple[str, ...]) -> tuple[CheckResult, ...]:
        return ()

    lock = threading.RLock()
    gate = gates.StartGate(check, lock)
    starts = Starts(tmp_path, lock, gate=gate)
    gate.follow(CheckPlan(before=("b",)))
    assert starts.begin("a.1") == []
    assert starts.carrier.stages() == {"a.1": (AttemptState.FETCHING, "checking the node: b")}
    # a gang that is released in the meantime stays so
    assert starts.carrier.release("a.1") == []
    gate.turn(0)
    assert [one["op"] for one in starts.orders] == ["start"]
    assert starts.carrier.stages() == {}
    (start,) = starts.orders
    assert start["op"] == "start"
    start["hold"] = True
    assert starts.carrier.pass_or_hold(start) == [start]


def test_a_defect_in_what_a_start_needs_is_its_end(tmp_path: Path) -> None:
    class Broken(volume_checks.VolumeChecker):
        def problem(self, names: Iterable[str]) -> str:
            raise KeyError("v")

    volumes = Broken(checks.MountChecker(), lambda _: None)
    starts = Starts(tmp_path, threading.RLock(), volumes=volumes)
    assert starts.begin("a.1", volumes=("v",)) == []
    assert starts.came.wait(LONG_S)
    (order,) = starts.orders
    assert (order["op"], order["reason"]) == ("refuse", EndReason.START_FAILED.value)
    assert starts.carrier.stages() == {}


def test_who_is_stopped_while_it_is_prepared_is_copied_nothing(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = threading.Event()
    stager = starts.carrier.stager
    prepare = stager.prepare

    def note(name: str, wanted: staging.StagingRequest) -> None:
        prepare(name, wanted)
        prepared.set()

    monkeypatch.setattr(stager, "prepare", note)
    plan = StagingPlan(ins=(In("x", VolumeStore("v", str(starts.shared))),))
    with starts.lock:
        starts.begin("a.1", stage=plan)
        assert prepared.wait(LONG_S)
        # whatever the thread does next, it has to wait for who stops it now
        assert starts.carrier.stages()["a.1"] == (AttemptState.FETCHING, "getting what it needs")
        order = starts.carrier.stop_command(state.EndAttempt("a.1", EndReason.CANCELLED))
        assert order["op"] == "refuse"
        assert order["reason"] == EndReason.CANCELLED.value
    starts.begin("a.2", stage=plan)
    assert starts.came.wait(LONG_S)
    assert [one["id"] for one in starts.orders] == ["a.2"]
    assert stager.waiting() == {}
