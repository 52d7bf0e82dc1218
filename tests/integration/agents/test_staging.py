"""Data of tasks on a real node: copied in before they start, out before their end is told."""

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import processes
from reconciler.model.observed.storage import In, Out, StagingPlan, VolumeStore, WantedVolume
from reconciler.model.protocol import agent_messages
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

KIB = 1024


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A mounted folder with a data set."""
    folder = Path(os.path.realpath(tmp_path)) / "volume"
    (folder / "set" / "deep").mkdir(parents=True)
    (folder / "set" / "a.bin").write_bytes(b"a" * 300 * KIB)
    (folder / "set" / "deep" / "b.bin").write_bytes(b"b" * 100)
    (folder / "one.txt").write_text("one\n")
    return folder


def template(plan: StagingPlan, *command: str) -> agent_messages.TaskTemplate:
    return agent_messages.TaskTemplate("job", 1, "g", command=command, grace_s=20, stage=plan)


def shell(plan: StagingPlan, script: str) -> agent_messages.TaskTemplate:
    return template(plan, "sh", "-ec", script)


def helpers(node: Node) -> list[int]:
    """Copies that go on for a node."""
    found = []
    for pid in processes.processes():
        words = started.command_of(pid)
        if any(word.endswith("/copy_worker.py") for word in words):
            facts = processes.process_facts(pid)
            if facts and node.agent is not None and facts[0] == node.agent.pid:
                found.append(pid)
    return found


def entries(node: Node) -> list[Path]:
    home = node.root / "cache" / str(os.geteuid())
    return sorted(home.iterdir()) if home.exists() else []


def test_a_folder_and_a_file_are_there_when_the_task_starts(
    agent: Node, controller: Controller, source: Path
) -> None:
    (source / "set" / "link").symlink_to("/etc/passwd")
    store = VolumeStore("v", str(source))
    digest = hashlib.sha256(b"one\n").hexdigest()
    plan = StagingPlan(ins=(In("my-set", store, "set"), In("one", store, "one.txt", digest)))
    script = (
        'test "$(stat -c %s $MUSTER_STAGED_MY_SET/a.bin)" = 307200; '
        "cmp $MUSTER_STAGED_MY_SET/deep/b.bin $0/set/deep/b.bin; "
        "cmp $MUSTER_STAGED_ONE $0/one.txt; test ! -e $MUSTER_STAGED_MY_SET/link"
    )
    made = template(plan, "sh", "-exc", script, str(source))
    controller.assign("a.1", template=made)
    assert controller.ended("a.1").exit_code == 0
    # the second one finds it there; data that has changed is other data
    before = entries(agent)
    assert len(before) == 2
    controller.assign("a.2", template=made)
    assert controller.ended("a.2").exit_code == 0
    assert entries(agent) == before
    (source / "set" / "deep" / "b.bin").write_bytes(b"c" * 100)
    controller.assign("a.3", template=made)
    assert controller.ended("a.3").exit_code == 0
    assert len(entries(agent)) == 3
    # what a task of the same user has changed is copied anew
    whole = next(path for path in before if (path / "data" / "one.txt").exists())
    (whole / "data" / "one.txt").chmod(0o600)
    (whole / "data" / "one.txt").write_text("two\n")
    controller.assign("a.4", template=made)
    assert controller.ended("a.4").exit_code == 0
    assert not helpers(agent)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (lambda s: In("x", s, "missing"), "missing"),
        (lambda s: In("x", s, "one.txt", "0" * 64), "its checksum is not the one"),
        (lambda s: In("x", s, "set", "0" * 64), "sha256 is of a single file"),
        (lambda s: In("x", s, "set", checksums="SUMS"), "SUMS, which lists checksums"),
        (lambda s: In("x", s, "out"), "links are not followed"),
        (lambda s: In("x", s, "out/passwd"), "links are not followed"),
        (lambda s: In("x", VolumeStore("w", "/nowhere"), "x"), "/nowhere"),
    ],
)  # fmt: skip
def test_what_can_not_be_copied_ends_the_attempt(
    agent: Node, controller: Controller, source: Path, item: object, message: str
) -> None:
    (source / "out").symlink_to("/etc")
    wanted = item(VolumeStore("v", str(source)))  # type: ignore[operator]
    controller.assign(
        "a.1", template=shell(StagingPlan(ins=(wanted,)), "echo ran > $MUSTER_NODE_ROOT/ran")
    )
    end = controller.ended("a.1")
    assert (end.end_reason, end.started_at) == (EndReason.STAGE_FAILED, None)
    assert message in end.message
    assert not (agent.root / "ran").exists()
    assert not [path for path in entries(agent) if path.name.endswith(".part")]


def test_checksums_of_a_folder(agent: Node, controller: Controller, source: Path) -> None:
    files = {"a.bin": b"a" * 300 * KIB, "deep/b.bin": b"b" * 100}
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    (source / "set" / "SHA256SUMS").write_text("".join(lines))
    plan = StagingPlan(ins=(In("s", VolumeStore("v", str(source)), "set", checksums="SHA256SUMS"),))
    controller.assign("a.1", template=shell(plan, "test -e $MUSTER_STAGED_S/deep/b.bin"))
    assert controller.ended("a.1").exit_code == 0
    (source / "set" / "deep" / "b.bin").write_bytes(b"x" * 100)
    controller.assign("a.2", template=shell(plan, "true"))
    end = controller.ended("a.2")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert "deep/b.bin: its checksum" in end.message


def test_results_are_out_before_the_end_is_told(
    agent: Node, controller: Controller, tmp_path: Path
) -> None:
    target = tmp_path / "results"
    target.mkdir()
    store = VolumeStore("v", str(target))
    plan = StagingPlan(
        outs=(
            Out("out", store, "{job}/{run}/{index}"),
            Out("log.txt", store, "logs/{index}", "always"),
        )
    )
    script = (
        "mkdir -p $MUSTER_OUT_DIR/out/deep; echo $0 > out/deep/x; ln -s /etc/passwd out/link; "
        "echo $0 > log.txt; exit $0"
    )
    made = template(plan, "sh", "-c", script, "0")
    controller.assign("a.1", template=made, index=7)
    assert controller.ended("a.1").end_reason is EndReason.EXITED
    assert (target / "job" / "1" / "7" / "out" / "deep" / "x").read_text() == "0\n"
    assert not (target / "job" / "1" / "7" / "out" / "link").exists()
    assert (target / "logs" / "7" / "log.txt").read_text() == "0\n"
    # of one that failed only what is copied always
    controller.assign("a.2", template=template(plan, "sh", "-c", script, "3"), index=8)
    end = controller.ended("a.2")
    assert (end.end_reason, end.exit_code) == (EndReason.EXITED, 3)
    assert not (target / "job" / "1" / "8").exists()
    assert (target / "logs" / "8" / "log.txt").read_text() == "3\n"


def test_a_task_that_did_well_and_left_nothing_has_failed(
    agent: Node, controller: Controller, tmp_path: Path
) -> None:
    plan = StagingPlan(outs=(Out("out", VolumeStore("v", str(tmp_path)), "x"),))
    controller.assign("a.1", template=shell(plan, "true"))
    end = controller.ended("a.1")
    assert (end.end_reason, end.exit_code) == (EndReason.STAGE_FAILED, 0)
    assert "could not be copied out" in end.message
    controller.assign("a.2", template=shell(plan, "exit 4"))
    end = controller.ended("a.2")
    assert (end.end_reason, end.exit_code) == (EndReason.EXITED, 4)


def test_results_do_not_leave_their_volume(
    agent: Node, controller: Controller, tmp_path: Path
) -> None:
    target, outside = tmp_path / "results", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "x").symlink_to(outside)
    plan = StagingPlan(outs=(Out("out.txt", VolumeStore("v", str(target)), "x/y"),))
    controller.assign("a.1", template=shell(plan, "echo 1 > out.txt"))
    end = controller.ended("a.1")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert "links are not followed" in end.message
    assert not list(outside.iterdir())


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A folder whose file takes for ever: a sparse one that is longer than anybody waits."""
    folder = Path(os.path.realpath(tmp_path)) / "slow"
    folder.mkdir()
    with (folder / "huge").open("wb") as stream:
        stream.truncate(2**40)
    return folder


def test_a_full_disk_is_an_outcome(node: Node, controller: Controller, slow: Path) -> None:
    node.start("--data-cache", "1Mi")
    plan = StagingPlan(ins=(In("x", VolumeStore("v", str(slow))),))
    controller.assign("a.1", template=shell(plan, "true"))
    end = controller.ended("a.1")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert "no room on the node's disk" in end.message
    assert not entries(node)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    disk = Path(os.path.realpath(tmp_path)) / "small"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True,
        check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_others_fill_is_an_outcome_too(
    agent: Node, controller: Controller, small: Path
) -> None:
    plan = StagingPlan(outs=(Out("big", VolumeStore("v", str(small)), "x"),))
    controller.assign("a.1", template=shell(plan, "head -c 6000000 /dev/zero > big"))
    end = controller.ended("a.1")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert "no space is left on the disk" in end.message
    assert not list((small / "x").iterdir())


def huge(slow: Path, timeout_s: float = 3600.0) -> StagingPlan:
    return StagingPlan(ins=(In("x", VolumeStore("v", str(slow))),), timeout_s=timeout_s)


def test_a_copy_has_a_time_limit_and_can_be_stopped(
    node: Node, controller: Controller, slow: Path
) -> None:
    node.start("--data-cache", "900Ti")
    with (slow / "huge").open("wb") as stream:
        stream.truncate(2**33)
    controller.assign("a.1", template=shell(huge(slow, 0.5), "true"))
    end = controller.ended("a.1")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert "it took longer than 0.5 s (stage.timeout)" in end.message
    controller.assign("a.2", template=shell(huge(slow), "true"))
    controller.in_state("a.2", AttemptState.FETCHING)
    controller.wait(lambda: bool(helpers(node)), "a copy")
    controller.stop("a.2")
    assert controller.ended("a.2").end_reason is EndReason.CANCELLED
    controller.wait(lambda: not helpers(node), "no copy")


def test_an_agent_that_is_killed_over_a_copy_leaves_nothing(
    node: Node, controller: Controller, slow: Path, source: Path
) -> None:
    node.start("--data-cache", "900Ti")
    with (slow / "huge").open("wb") as stream:
        stream.truncate(2**33)
    controller.assign("a.1", template=shell(huge(slow), "true"))
    controller.wait(lambda: any(p.name.endswith(".part") for p in entries(node)), "a part")
    (copy,) = helpers(node)
    node.kill_agent()
    until = time.monotonic() + 60
    while processes.process_facts(copy) is not None:
        assert time.monotonic() < until
        time.sleep(0.02)
    controller.remove("a.1")
    node.start("--data-cache", "900Ti")
    controller.assign(
        "a.2", template=shell(StagingPlan(ins=(In("s", VolumeStore("v", str(source))),)), "true")
    )
    assert controller.ended("a.2").exit_code == 0
    assert not [path for path in entries(node) if path.name.endswith(".part")]


def test_another_agent_copies_out_what_one_before_it_could_not(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    node.start()
    target = tmp_path / "results"
    plan = StagingPlan(outs=(Out("out.txt", VolumeStore("v", str(target)), "x"),))
    gate = tmp_path / "gate"
    script = f"echo 1 > out.txt; while [ ! -e {gate} ]; do sleep 0.05; done"
    controller.assign("a.1", template=shell(plan, script))
    controller.running("a.1")
    node.kill_agent()
    gate.touch()
    controller.wait(lambda: not node.tasks(), "the end of the task")
    target.mkdir()
    node.start()
    assert controller.ended("a.1").end_reason is EndReason.EXITED
    assert (target / "x" / "out.txt").read_text() == "1\n"


def test_a_gang_starts_when_all_its_data_is_there(
    agent: Node, controller: Controller, source: Path
) -> None:
    plan = StagingPlan(ins=(In("s", VolumeStore("v", str(source)), "set"),))
    controller.assign("a.1", template=shell(plan, "true"), hold=True)
    ready = controller.in_state("a.1", AttemptState.READY)
    assert ready.started_at is None
    controller.assign("a.1", template=shell(plan, "true"))
    assert controller.ended("a.1").exit_code == 0


def test_a_volume_that_is_not_there_sends_the_task_elsewhere(
    agent: Node, controller: Controller, source: Path
) -> None:
    controller.volumes = (
        WantedVolume("good", str(source)),
        WantedVolume("bad", str(source), "nfs4"),
    )
    controller.change()

    def known() -> bool:
        return controller.inventory is not None and len(controller.inventory.volumes) == 2

    controller.wait(known, "what the node knows of its volumes")
    assert controller.inventory is not None
    bad, good = controller.inventory.volumes
    assert (good.name, good.problem) == ("good", "")
    assert bad.problem == f"{source} is not mounted"
    needs = agent_messages.TaskTemplate("job", 1, "g", command=("true",), volumes=("good",))
    controller.assign("a.1", template=needs)
    assert controller.ended("a.1").exit_code == 0
    needs = agent_messages.TaskTemplate("job", 1, "g", command=("true",), volumes=("good", "bad"))
    controller.assign("a.2", template=needs)
    end = controller.ended("a.2")
    assert end.end_reason is EndReason.CHECK_FAILED
    assert "volume bad" in end.message
