"""Whose results are copied out, for how long, and that copies that hang keep no others waiting."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.data import (
    copy_queue,
    copy_runner,
    copy_worker,
    data_cache,
    secret_store,
    staging,
    worker_process,
)
from agents.deletion import deleter
from agents.host import processes
from reconciler.model.observed import storage
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

LONG_S = 60.0
ENDED = AttemptReport(
    "a.1", AttemptState.ENDED, exit_code=0, end_reason=EndReason.EXITED, started_at=1, ended_at=2
)
#: In the place of a stagehand: notes that it is there, and is done when a file is there.
HAND = """\
import json, os, sys, time
order = json.loads(sys.stdin.readline())
with open({here!r} + "/pids", "a") as stream:
    stream.write(str(os.getpid()) + "\\n")
while not os.path.exists({here!r} + "/gate"):
    time.sleep(0.01)
print(json.dumps({{"done": {{"entries": {{}}, "moved": 1}}}}))
"""


def wait_for(said: Callable[[], Any]) -> None:
    until = time.monotonic() + LONG_S
    while not said():
        assert time.monotonic() < until
        time.sleep(0.01)


class Bed:
    """A stager of a node, whose copies wait for a file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = root / "target"
        self.target.mkdir()
        (root / "pids").touch()
        self.cache = data_cache.DataCache(root, deleter.Deleter(), 2**20)
        self.stager = staging.Stager(str(root), self.cache, secret_store.SecretStore(None, ()))
        self.told: list[AttemptReport] = []

    def prepare(self, name: str = "a.1", lease_s: float | None = None) -> None:
        work = self.root / "attempts" / name / "work"
        work.mkdir(parents=True)
        (work / "out").write_text("of the first")
        out = storage.Out("out", storage.VolumeStore("v", str(self.target)), "x", "always")
        wanted = staging.StagingRequest(
            storage.StagingPlan(outs=(out,)),
            None,
            "me",
            os.geteuid(),
            os.getegid(),
            {},
            lease_s,
            3600.0,
        )
        self.stager.prepare(name, wanted)

    def hold(self, **more: Any) -> AttemptReport:
        report = msgspec.structs.replace(ENDED, **more)
        (held,) = self.stager.hold([report], self.told.append)
        return held

    def pids(self) -> list[int]:
        return [int(line) for line in (self.root / "pids").read_text().splitlines()]

    def open(self) -> None:
        (self.root / "gate").touch()

    def end(self) -> AttemptReport:
        wait_for(lambda: self.told)
        (report,) = self.told
        return report


@pytest.fixture
def real(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


@pytest.fixture
def bed(real: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    hand = real.root / "hand.py"
    hand.write_text(HAND.format(here=str(real.root)))
    monkeypatch.setattr(copy_worker, "__file__", str(hand))
    yield real
    real.open()


@pytest.mark.parametrize("reason", sorted(staging.GIVEN_AWAY))
def test_an_attempt_that_was_given_away_overwrites_nothing(real: Bed, reason: EndReason) -> None:
    (real.target / "x").mkdir()
    result = real.target / "x" / "out"
    result.write_text("of the one in its place")
    real.prepare()
    assert real.hold(end_reason=reason, exit_code=None).state is AttemptState.ENDED
    # the same folder, of one that nobody else has: this would copy
    assert real.hold().state is AttemptState.STOPPING
    assert real.end().end_reason is EndReason.EXITED
    assert result.read_text() == "of the first"
    assert real.hold(end_reason=reason).state is AttemptState.ENDED


def test_a_copy_out_ends_with_the_lease_and_is_done_again_after(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(processes, "boottime", lambda: now[0])
    bed.prepare(lease_s=30.0)
    assert bed.hold().state is AttemptState.STOPPING
    # nothing goes out before the controller has said that the attempt is this node's
    assert not bed.pids()
    bed.stager.renewed(1000.0)
    wait_for(bed.pids)
    (first,) = bed.pids()
    now[0] = 1031.0
    wait_for(lambda: processes.process_facts(first) is None)
    assert not bed.told
    bed.open()
    bed.stager.renewed(1031.0)
    assert bed.end() == ENDED
    assert len(bed.pids()) == 2


def test_results_of_a_task_that_did_well_may_leave_within_its_grace(bed: Bed) -> None:
    bed.prepare()
    bed.hold()
    wait_for(bed.pids)
    bed.stager.stop("a.1", EndReason.PREEMPTED, LONG_S)
    assert bed.hold().state is AttemptState.STOPPING
    assert not bed.told
    bed.open()
    assert bed.end() == ENDED


@pytest.mark.parametrize("grace_s", [0, 0.2, None])
def test_what_takes_longer_is_the_end_that_was_ordered(bed: Bed, grace_s: float | None) -> None:
    bed.prepare()
    bed.hold()
    wait_for(bed.pids)
    bed.stager.stop("a.1", EndReason.PREEMPTED, grace_s)
    end = bed.end()
    assert (end.end_reason, end.exit_code) == (EndReason.PREEMPTED, 0)
    assert "could not be copied out" in end.message
    # another agent tells the same
    again = data_cache.DataCache(bed.root, deleter.Deleter(), 2**20)
    (told,) = staging.Stager(str(bed.root), again, secret_store.SecretStore(None, ())).hold(
        [ENDED], print
    )
    assert told == end


@pytest.mark.parametrize("grace_s", [0, 0.2, None])
def test_after_an_eviction_devices_are_held_for_the_grace_alone(
    bed: Bed, grace_s: float | None
) -> None:
    bed.prepare()
    bed.stager.stop("a.1", EndReason.PREEMPTED, grace_s)
    bed.hold(end_reason=EndReason.PREEMPTED, exit_code=None)
    end = bed.end()
    assert end.end_reason is EndReason.PREEMPTED
    assert "the task's time to stop was over" in end.message


class Unkillable(subprocess.Popen[bytes]):
    """As one that waits for storage that hangs."""

    def kill(self) -> None:
        pass


def test_copies_that_can_not_be_killed_keep_no_turn(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "LAST_S", 0.1)
    names = [f"a.{number}" for number in range(1, copy_queue.OF_ONE_USER_MAX + 2)]
    for name in names:
        bed.prepare(name)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Unkillable)
        for name in names[:-1]:
            bed.hold(id=name)
        wait_for(lambda: len(bed.pids()) == copy_queue.OF_ONE_USER_MAX)
        bed.hold(id=names[-1])
        for name in names[:-1]:
            bed.stager.stop(name, EndReason.CANCELLED, None)
        # who waits is woken by its own stop; it has not begun
        wait_for(lambda: len(bed.told) == copy_queue.OF_ONE_USER_MAX)
    wait_for(lambda: len(bed.pids()) == len(names))
    assert all(processes.process_facts(pid) is not None for pid in bed.pids())
    monkeypatch.setattr(copy_runner, "HUNG_MAX", copy_queue.OF_ONE_USER_MAX)
    bed.prepare("b.1")
    bed.hold(id="b.1")
    wait_for(lambda: len(bed.told) == len(names))
    assert "hang and can't be killed" in bed.told[-1].message
    for pid in bed.pids()[:-1]:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all(child.is_gone() for child in bed.stager._runner._hung))
    bed.open()
    wait_for(lambda: len(bed.told) == len(names) + 1)
    assert bed.told[-1] == msgspec.structs.replace(ENDED, id=names[-1])


def test_who_waits_for_a_turn_is_woken_by_its_stop(bed: Bed) -> None:
    names = [f"a.{number}" for number in range(1, copy_queue.OF_ONE_USER_MAX + 2)]
    for name in names:
        bed.prepare(name)
        bed.hold(id=name)
    wait_for(lambda: len(bed.pids()) == copy_queue.OF_ONE_USER_MAX)
    waiting = names[-1]
    bed.stager.stop(waiting, EndReason.CANCELLED, None)
    end = bed.end()
    assert (end.id, end.end_reason) == (waiting, EndReason.CANCELLED)
    bed.open()
    wait_for(lambda: len(bed.told) == len(names))


def test_a_child_that_sends_no_end_of_a_line_is_not_read_for_ever(tmp_path: Path) -> None:
    talk = ["head", "-c", "1000000", "/dev/zero"]
    child = worker_process.WorkerProcess(talk, lambda: False, 1000)
    try:
        with pytest.raises(ValueError, match="more than 1000 bytes"):
            child.hear()
    finally:
        assert child.end()
    deaf = worker_process.WorkerProcess(["sleep", str(LONG_S)], iter([False, True]).__next__, 1000)
    try:
        with pytest.raises(worker_process.OverError):
            deaf.say(json.dumps("x" * 2**20).encode())
    finally:
        assert deaf.end()
