"""Ends of tasks that were asked to save wait for one look at their checkpoints, and no more."""

import os
import queue
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.job_data import checkpoints, last_looks
from reconciler.model.observed.task_reports import CheckpointRule
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state.records import AttemptReport, StopOrder
from reconciler.model.state.states import AttemptState, EndReason

NOW = 1_000_000.0
WAIT_S = 60


class Scene:
    """Looks into a folder, at a moment."""

    def __init__(self, folder: Path, pattern: str = "step-*") -> None:
        self.shared = folder / "shared"
        self.folder = self.shared / "c"
        self.folder.mkdir(parents=True, mode=0o700)
        self.ends: queue.Queue[AttemptReport] = queue.Queue()
        task = checkpoints.Watched("a", str(self.shared), "c", CheckpointRule(pattern), 0, None)
        self.looks = last_looks.LastLooks(lambda _: task, lambda report: report, lambda: NOW)

    def saved(self, name: str, at: float) -> None:
        path = self.folder / name
        path.write_text("w")
        os.utime(path, (at, at))

    def hold(self, report: AttemptReport, *, to: str = "main") -> AttemptReport:
        stop = StopOrder(EndReason.PREEMPTED, "SIGUSR1", 60, at=NOW - 30, to=to)
        given = {"a": Assignment("a", "t", "b", stop=stop)}
        (found,) = self.looks.hold([report], given, self.ends.put)
        return found


def ended(**more: Any) -> AttemptReport:
    report = AttemptReport(
        "a", AttemptState.ENDED, started_at=NOW - 900, ended_at=NOW, end_reason=EndReason.PREEMPTED
    )
    return msgspec.structs.replace(report, **more)


@pytest.mark.parametrize(
    ("at", "killed", "path", "said"),
    [
        (NOW - 10, False, "step-1", False),
        # it may have been writing when it was killed
        (NOW - 10, True, None, False),
        (NOW - 600, False, "step-1", True),
        (NOW - 600, True, "step-1", True),
    ],
)
def test_the_end_has_the_newest_and_says_if_it_is_old(
    tmp_path: Path, at: float, killed: bool, path: str | None, said: bool
) -> None:
    scene = Scene(tmp_path)
    scene.saved("step-1", at)
    report = ended(signal=signal.SIGKILL if killed else None, message="why")
    held = scene.hold(report)
    assert (held.state, held.end_reason) == (AttemptState.STOPPING, None)
    found = scene.ends.get(timeout=WAIT_S)
    assert (found.checkpoint.path if found.checkpoint else None) == path
    assert found.message == (f"why; {last_looks.NOT_WRITTEN}" if said else "why")
    # told again, as a new agent or supervisor does
    assert scene.hold(report) == found
    assert scene.ends.empty()
    scene.looks.forget(["a"])
    assert scene.hold(report).state is AttemptState.STOPPING


@pytest.mark.parametrize("reason", [EndReason.EXITED, EndReason.SIBLING_ENDED])
def test_it_is_not_said_of_what_ended_otherwise(tmp_path: Path, reason: EndReason) -> None:
    scene = Scene(tmp_path)
    scene.hold(ended(end_reason=reason))
    assert scene.ends.get(timeout=WAIT_S).message == ""


def test_what_was_not_asked_or_never_ran_is_told_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.hold(ended(), to="") == ended()
    never = ended(started_at=None)
    assert scene.hold(never) == never
    assert scene.looks.hold([ended()], {}, scene.ends.put) == [ended()]


def test_a_folder_that_does_not_answer_delays_an_end_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    hangs: queue.Queue[None] = queue.Queue()

    def named(report: AttemptReport) -> AttemptReport:
        hangs.get(timeout=WAIT_S)
        return report

    monkeypatch.setattr(last_looks, "LOOK_S", 0.1)
    task = checkpoints.Watched("a", str(scene.shared), "c", CheckpointRule("*"), 0, None)
    scene.looks = last_looks.LastLooks(lambda _: task, named, lambda: NOW)
    scene.hold(ended())
    assert scene.ends.get(timeout=WAIT_S) == ended()
    hangs.put(None)
    assert scene.hold(ended()) == ended()
    assert scene.ends.empty()
