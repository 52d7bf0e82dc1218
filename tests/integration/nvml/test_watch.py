"""What takes more than one look: drivers that hang, events, and what outlives an agent."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from agents.gpus import gpu_watcher, nvml_client, samples
from agents.settings import AgentSettings
from reconciler.model.observed import devices
from tests.integration.nvml.conftest import Scene
from tests.nvml import standin
from tests.nvml.standin import machine, uuid

HANGS = ["sleep:nvmlDeviceGetUtilizationRates 1 600000", *machine(2)]


def test_a_driver_that_hangs_is_given_up_and_named(scene: Scene) -> None:
    scene.say(HANGS)
    source = scene.probe(start_s=1.0, answer_s=0.2)
    first = source.sample(usage=True)
    assert first.driver == devices.UNRESPONSIVE
    assert first.message.endswith("it did not answer in 1 s; last at GPU 1")
    assert source.pid == 0


def test_its_devices_take_no_work_until_it_answers_again(scene: Scene) -> None:
    scene.say(machine(2))
    watch = scene.watch()
    scene.probes[-1].answer_s = 0.2
    assert [gpu.usable for gpu in watch.look({}).gpus] == [True, True]
    scene.say(HANGS)
    look = watch.look({})
    assert [gpu.state for gpu in look.gpus] == [devices.UNRESPONSIVE] * 2
    assert "GPU 1" in look.gpus[0].message
    scene.say(machine(2))
    assert [gpu.usable for gpu in watch.look({}).gpus] == [True, True]


def test_no_second_process_is_started_beside_one_that_can_not_be_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.say(machine(2))
    source = scene.probe(answer_s=0.5)
    assert source.sample(usage=True).driver == devices.OK
    scene.say(HANGS)
    with monkeypatch.context() as patched:
        # a process in the kernel does not end by being killed: this one does not hear of it
        patched.setattr("subprocess.Popen.kill", lambda _process: None)
        assert source.sample(usage=True).driver == devices.UNRESPONSIVE
    scene.say(machine(2))
    stuck = source._stuck
    assert stuck is not None
    again = source.sample(usage=True)
    assert again.message.endswith("has not answered since, and is still stuck; last at GPU 1")
    assert source.pid == 0
    os.kill(stuck.pid, signal.SIGKILL)
    stuck.wait()
    assert source.sample(usage=True).driver == devices.OK


def test_the_process_ends_with_the_agent(scene: Scene) -> None:
    scene.say(machine(1))
    source = scene.probe()
    assert source.sample(usage=False).driver == devices.OK
    process = source._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(120) == 0


def test_where_there_is_no_library_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    source = nvml_client.NvmlClient()
    found = source.sample(usage=True)
    source.close()
    if found.driver == devices.OK:
        pytest.skip("this machine has a driver")
    assert (found.driver, found.message) == ("absent", "libnvidia-ml.so.1 is not installed")


def test_xids_are_counted_by_device_and_number(scene: Scene) -> None:
    scene.say(machine(2))
    watch = scene.watch()
    watch.look({})
    events = ["xid 1 0 31 0", "xid 1 1 31 0", "xid 0 2 79 0", "xid 1 3 48 0"]
    scene.say([*machine(2), *events])
    found: dict[str, dict[int, int]] = {}
    for _ in range(1000):
        usage = watch.look({}).usage
        found = {one.uuid: {xid.number: xid.count for xid in one.xids} for one in usage}
        if sum(sum(counts.values()) for counts in found.values()) == len(events):
            break
    assert found == {uuid(0): {79: 1}, uuid(1): {31: 2, 48: 1}}
    newest = watch.look({}).usage[1].xids[0]
    assert newest.number == 48
    assert newest.last_at > 0


def test_devices_keep_their_numbers_over_a_new_agent_but_not_over_a_new_boot(scene: Scene) -> None:
    scene.say(machine(3))
    scene.watch().look({})
    two = ["count * 2", *standin.device(0), *standin.device(1, number=2), *machine(3)]
    scene.say(two)
    after = scene.watch().look({}).gpus
    assert [(gpu.index, gpu.state) for gpu in after] == [(0, "ok"), (1, "missing"), (2, "ok")]
    anew = scene.watch(boot_id="another").look({}).gpus
    assert [(gpu.index, gpu.uuid) for gpu in anew] == [(0, uuid(0)), (1, uuid(2))]


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": 1}', "\x00"])
def test_a_broken_memory_of_devices_costs_nothing(scene: Scene, text: str) -> None:
    (scene.folder / "gpus.json").write_text(text)
    scene.say(machine(1))
    assert [gpu.index for gpu in scene.watch().look({}).gpus] == [0]


def test_nothing_of_the_agent_has_a_device_open_while_one_is_reset(scene: Scene) -> None:
    scene.say(machine(2))
    watch, looks = scene.watch(), list[gpu_watcher.GpuLook]()
    settings = AgentSettings("http://127.0.0.1:1", "n1", scene.folder)
    leaving = threading.Event()
    leaving.set()  # each turn is one look
    watcher = gpu_watcher.GpuWatcher(
        settings, watch, tasks=dict, take=looks.append, leaving=leaving
    )
    watcher.turn()
    source = scene.probes[-1]
    pid = source.pid
    assert pid
    with watcher.leave_alone():
        assert source.pid == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        other = threading.Thread(target=watcher.turn)
        other.start()
        other.join(0.3)
        assert other.is_alive(), "who looks waits"
        assert (source.pid, len(looks)) == (0, 1)
    other.join(60)
    assert [gpu.usable for gpu in looks[1].gpus] == [True, True]


def test_what_a_device_told_before_it_was_reset_is_over(scene: Scene) -> None:
    """A device that was reset for an XID would have failed by it for ever."""
    scene.say([*machine(2), "xid 1 1 79 0", "xid 0 0 79 0"])
    watch, looks = scene.watch(), list[gpu_watcher.GpuLook]()
    settings = AgentSettings("http://127.0.0.1:1", "n1", scene.folder)
    leaving = threading.Event()
    leaving.set()
    watcher = gpu_watcher.GpuWatcher(
        settings, watch, tasks=dict, take=looks.append, leaving=leaving
    )

    def told() -> list[list[int]]:
        watcher.turn()
        return [[xid.number for xid in one.xids] for one in looks[-1].usage]

    deadline = time.monotonic() + 60
    while told() != [[79], [79]]:
        assert time.monotonic() < deadline, looks[-1]
    scene.say(machine(2))
    with pytest.raises(OSError, match="refused"), watcher.leave_alone([uuid(1)]):
        raise OSError("refused")
    assert told() == [[79], [79]]
    with watcher.leave_alone([uuid(1)]):
        pass
    assert told() == [[79], []]


def test_an_answer_of_another_version_is_told_and_nothing_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of an agent may be newer than the agent itself: it is upgraded under its tasks."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nprintf '\\000\\000\\000\\001\\301'\nexec sleep 3600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    source = nvml_client.NvmlClient()
    found = source.sample(usage=True)
    assert found.driver == "failed"
    assert "start the agent anew" in found.message
    assert source.pid == 0
    outcome = source.cut(samples.MigOrder("GPU-0", ()))
    assert outcome.state == devices.CUT_FAILED
    assert "start the agent anew" in outcome.message
