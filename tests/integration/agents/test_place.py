"""What a task finds around itself, and what an agent insists on before it starts."""

import os
import pwd
import signal
import subprocess
from pathlib import Path

import pytest

from reconciler.model import desired
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.records import RankPlacement
from reconciler.model.state.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller


def environment_of(node: Node, attempt: str) -> dict[str, str]:
    """What ``env -0`` wrote as the task's output."""
    text = (node.root / "logs" / f"{attempt}.stdout").read_text()
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def test_environment(node: Node, controller: Controller) -> None:
    node.start("--simulated-gpus", "4", "--gpu-model", "h100", "--gpu-memory", "80Gi")
    template = TaskTemplate(
        "train", 3, "workers", command=("env", "-0"), checkpoint_path="checkpoints/train/3",
        environment={"MY": "own", "MUSTER_ATTEMPT": "x", "CUDA_VISIBLE_DEVICES": "7", "RANK": "9"},
        framework="torchrun",
    )  # fmt: skip
    rank = RankPlacement(5, 8, 1, 4, 1, "10.0.0.1", 29500)
    controller.assign(
        "a.1", template=template, element=2, index=5, try_number=4, array_count=10,
        devices=(1, 3), rank=rank,
    )  # fmt: skip
    assert controller.ended("a.1").exit_code == 0
    found = environment_of(node, "a.1")
    expected = {
        "MY": "own",
        "MUSTER_JOB": "train",
        "MUSTER_RUN": "3",
        "MUSTER_GROUP": "workers",
        "MUSTER_TASK_INDEX": "5",
        "MUSTER_ARRAY_INDEX": "2",
        "MUSTER_ARRAY_COUNT": "10",
        "MUSTER_ATTEMPT": "a.1",
        "MUSTER_TRY": "4",
        "MUSTER_NODE": "n1",
        "MUSTER_NODE_ROOT": str(node.root),
        "MUSTER_CHECKPOINT_DIR": str(node.root / "shared/checkpoints/train/3"),
        "MUSTER_GPUS": "1,3",
        "CUDA_VISIBLE_DEVICES": "GPU-sim-n1-1,GPU-sim-n1-3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "5",
        "MUSTER_LOCAL_RANK": "1",
        "MUSTER_LOCAL_WORLD_SIZE": "4",
        "MUSTER_NODE_RANK": "1",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "MUSTER_CRASH_POINTS" not in found
    assert Path(expected["MUSTER_CHECKPOINT_DIR"]).is_dir()
    inventory = controller.inventory
    assert inventory is not None
    assert [(g.uuid, g.model, g.simulated) for g in inventory.gpus][3] == (
        "GPU-sim-n1-3", "h100", True,
    )  # fmt: skip
    assert inventory.capacity.gpu_milli == 4000


def test_a_simulated_instance_is_shown_and_given_like_others(
    node: Node, controller: Controller
) -> None:
    controller.mig = desired.MigPlan((desired.MigLayout(1, (("1g.10gb", 2), ("3g.40gb", 1))),))
    node.start("--simulated-gpus", "2", "--gpu-memory", "80Gi", "--gpu-interval", "0.1")
    controller.assign("a.1", "env", "-0", mig_profile="1g.10gb", instances=(1,))
    assert controller.ended("a.1").exit_code == 0
    assert environment_of(node, "a.1")["CUDA_VISIBLE_DEVICES"] == "MIG-sim-n1-1-2"
    assert environment_of(node, "a.1")["MUSTER_MIG_INSTANCES"] == "1"
    controller.assign("a.2", "sleep", "300", mig_profile="3g.40gb", instances=(0,))
    controller.wait(lambda: held_instances(controller) == {"MIG-sim-n1-1-3": "a.2"}, "its usage")
    controller.wait(lambda: bool(told_instances(controller)), "the instances")
    inventory = controller.inventory
    assert inventory is not None
    whole, cut = inventory.gpus
    assert whole.mig == ()
    assert [(one.profile, one.slices, one.memory_bytes // 2**30) for one in cut.mig] == [
        ("1g.10gb", 1, 10), ("1g.10gb", 1, 10), ("3g.40gb", 3, 40),
    ]  # fmt: skip
    assert inventory.capacity.gpu_milli == 2000, "what it offers is counted as before"
    driver = inventory.gpu_driver
    assert driver is not None
    assert (driver.state, driver.version) == ("ok", ""), "none that a pool could find to be another"
    node.kill_agent()
    controller.mig, controller.inventory = None, None
    lives = len(controller.lives)
    node.start("--simulated-gpus", "2", "--gpu-memory", "80Gi", "--gpu-interval", "0.1")
    controller.wait(lambda: len(controller.lives) > lives, "the next agent")
    looked = len([one for one in controller.requests if one.gpu_usage])
    controller.wait(
        lambda: len([one for one in controller.requests if one.gpu_usage]) > looked, "a look"
    )
    assert held_instances(controller) == {"MIG-sim-n1-1-3": "a.2"}
    assert len(told_instances(controller)) == 3, "while nobody says anything they are as they were"
    controller.mig = desired.MigPlan()
    controller.change()
    controller.wait(lambda: not told_instances(controller), "whole devices")


def told_instances(controller: Controller) -> list[str]:
    """Instances as the node's inventory has them."""
    gpus = controller.inventory.gpus if controller.inventory is not None else ()
    return [part.uuid for gpu in gpus for part in gpu.mig]


def held_instances(controller: Controller) -> dict[str, str]:
    """Who has instances, as the node has told last."""
    told = [one.gpu_usage for one in controller.requests if one.gpu_usage]
    parts = [part for gpu in (told[-1] if told else ()) for part in gpu.instances]
    return {part.uuid: part.attempt for part in parts if part.attempt}


def test_without_devices_none_is_visible(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "env", "-0")
    controller.ended("a.1")
    found = environment_of(agent, "a.1")
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert "MUSTER_ARRAY_INDEX" not in found


@pytest.mark.parametrize("first", ["#!/usr/bin/env -S sh -e\n", ""])
def test_script(agent: Node, controller: Controller, first: str) -> None:
    script = f"{first}echo $MUSTER_JOB; pwd; exit 6"
    controller.assign("a.1", template=TaskTemplate("job", 1, "g", script=script))
    assert controller.ended("a.1").exit_code == 6
    folder = agent.root / "attempts" / "a.1"
    assert (agent.root / "logs/a.1.stdout").read_text() == f"job\n{folder}/work\n"


def test_a_link_does_not_lead_out_of_the_shared_folder(agent: Node, controller: Controller) -> None:
    controller.boot_id()
    (agent.root / "shared" / "escape").symlink_to("/tmp")
    template = TaskTemplate("job", 1, "g", command=("true",), checkpoint_path="escape/x")
    controller.assign("a.1", template=template)
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert "links are not followed" in report.message


def test_the_token_is_shown(node: Node, controller: Controller, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc123\n")
    token.chmod(0o600)
    node.start("--token-file", str(token))
    controller.boot_id()
    assert controller.headers[0]["Authorization"] == "Bearer abc123"


def test_a_token_that_others_can_read_is_refused(node: Node, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc123\n")
    token.chmod(0o640)
    assert node.start("--token-file", str(token)).wait(120) == 1
    assert "chmod 600" in node.log.read_text()


def test_wrong_usage_is_64(node: Node) -> None:
    assert node.start("--memory", "much").wait(120) == 64
    assert "much" in node.log.read_text()


def test_a_second_agent_is_turned_away(agent: Node, controller: Controller) -> None:
    controller.boot_id()
    second = subprocess.run(
        agent.command(), capture_output=True, text=True, check=False, timeout=120
    )
    assert second.returncode == 1
    assert "another agent uses" in second.stderr


def test_a_root_with_a_long_name(tmp_path: Path, controller: Controller) -> None:
    root = Path(os.path.realpath(tmp_path)) / ("r" * 120) / "root"
    node = Node(root, controller)
    try:
        node.start()
        controller.assign("a.1", "true")
        assert controller.ended("a.1").exit_code == 0
    finally:
        node.tear_down()


def test_terminated_agent_leaves_tasks(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    assert agent.agent is not None
    agent.agent.terminate()
    assert agent.agent.wait(120) == 0
    assert agent.tasks()


def test_terminated_agent_ends_tasks_when_asked_to(node: Node, controller: Controller) -> None:
    process = node.start("--stop-tasks-on-exit")
    controller.assign("a.1", "sh", "-c", "setsid sleep 3600 & exec sleep 3600")
    controller.running("a.1")
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert not node.tasks()
    assert not node.supervisor()
    assert controller.ended("a.1").end_reason is EndReason.NODE_STOPPED


def test_dies_with_its_parent(node: Node, controller: Controller) -> None:
    arguments = node.command("--stop-tasks-on-exit", "--die-with-parent")
    parent = subprocess.Popen(["sh", "-c", '"$@" & wait', "sh", *arguments])
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    parent.kill()
    parent.wait()
    controller.ended("a.1")
    controller.wait(lambda: not node.supervisor(), "the end of the supervisor")
    assert not node.tasks()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
class TestUsers:
    """Tasks of other users, which take an agent that is root."""

    def test_runs_as_its_user(self, agent: Node, controller: Controller) -> None:
        for folder in [agent.root, *agent.root.parents]:
            if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        script = "id -un; touch work here $TMPDIR/x $MUSTER_CHECKPOINT_DIR/y && pwd && echo $HOME"
        template = TaskTemplate("job", 1, "g", script=script, user="nobody", checkpoint_path="c")
        controller.assign("a.1", template=template)
        assert controller.ended("a.1").exit_code == 0
        home = pwd.getpwnam("nobody").pw_dir
        work = agent.root / "attempts" / "a.1" / "work"
        assert (agent.root / "logs/a.1.stdout").read_text() == f"nobody\n{work}\n{home}\n"

    def test_unknown_user(self, agent: Node, controller: Controller) -> None:
        template = TaskTemplate("job", 1, "g", command=("true",), user="no-such-user")
        controller.assign("a.1", template=template)
        report = controller.ended("a.1")
        assert report.end_reason is EndReason.START_FAILED
        assert "no-such-user" in report.message

    def test_missing_command_as_user(self, agent: Node, controller: Controller) -> None:
        template = TaskTemplate("job", 1, "g", command=("no-such",), user="nobody",
                                working_directory="/")  # fmt: skip
        controller.assign("a.1", template=template)
        report = controller.ended("a.1")
        assert (report.end_reason, report.exit_code) == (EndReason.START_FAILED, 127)

    def test_root_is_refused(self, agent: Node, controller: Controller) -> None:
        template = TaskTemplate("job", 1, "g", command=("true",), user="root")
        controller.assign("a.1", template=template, allow_root=False)
        report = controller.ended("a.1")
        assert report.end_reason is EndReason.START_FAILED
        assert "root" in report.message
