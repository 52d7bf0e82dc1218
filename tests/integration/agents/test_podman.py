"""Containers by podman: a real agent, a real image without a registry, and nothing left behind."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import shutdown
from agents.host import processes
from agents.isolation import cgroups
from agents.supervisor import task_isolation
from reconciler.model.observed import job_code
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration.agents import containers
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import DEADLINE_S, Controller

pytestmark = [
    pytest.mark.needs("podman"),
    pytest.mark.skipif(not all(map(shutil.which, containers.PROGRAMS)), reason="no podman here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the test's storage needs root"),
]


@pytest.fixture
def podman() -> Iterator[containers.Podman]:
    made = containers.Podman()
    yield made
    until = time.monotonic() + DEADLINE_S
    while made.containers() and time.monotonic() < until:  # its agent is at it
        time.sleep(0.2)
    left = made.left()
    made.remove()
    assert left == []


@pytest.fixture
def contained(node: Node, podman: containers.Podman) -> Node:
    node.start("--podman", " ".join(podman.command), "--image-timeout", "20")
    return node


def template(script: str, **fields: Any) -> TaskTemplate:
    return TaskTemplate(
        "job", 1, "g", script=script, runtime="podman",
        **{"image": containers.IMAGE, "grace_s": 20, "environment": {"MY": "a b"}, **fields},
    )  # fmt: skip


def test_a_task_in_a_container(contained: Node, controller: Controller) -> None:
    script = (
        "#!/bin/sh\nls / ; echo my=$MY job=$MUSTER_JOB; pwd; touch here $TMPDIR/x; "
        "ls -d /etc/passwd; exit 7"
    )
    controller.assign("a.1", template=template(script, checkpoint_path="c"))
    report = controller.ended("a.1")
    said = (contained.root / "logs/a.1.stderr").read_text()
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 7), said
    found = (contained.root / "logs/a.1.stdout").read_text()
    assert "my=a b job=job" in found
    assert f"{contained.root}/attempts/a.1/work" in found
    assert "home" not in found.split()
    assert "/etc/passwd" not in found  # the host's are not there
    assert (contained.root / "attempts/a.1/work/here").exists()


def test_code_that_travels_is_in_the_container(
    contained: Node, controller: Controller, tmp_path: Path
) -> None:
    work = tmp_path / "origin"
    (work / "part").mkdir(parents=True)
    (work / "part" / "a.txt").write_text("of the commit")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"], ["rev-parse", "HEAD"]):
        done = subprocess.run(
            ["git", *who, *words], cwd=work, check=True, capture_output=True, text=True, timeout=60
        )
    code = job_code.JobCode(git=f"file://{work}", revision=done.stdout.strip(), folder="part")
    controller.assign("a.1", template=template("#!/bin/sh\npwd; cat a.txt\n", code=code))
    report = controller.ended("a.1")
    said = (contained.root / "logs/a.1.stderr").read_text()
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0), (report.message, said)
    found = (contained.root / "logs/a.1.stdout").read_text()
    assert found == f"{contained.root}/attempts/a.1/work/part\nof the commit"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all there is")
def test_where_cores_are_given_out_it_stays_on_its_own(
    node: Node, podman: containers.Podman, controller: Controller
) -> None:
    """Else it would run on those that others were given for themselves."""
    node.start("--podman", " ".join(podman.command), "--pin-cpus")
    script = "#!/bin/sh\ncat /proc/self/status\nsleep 9999\n"
    for name in ("a.1", "a.2"):
        controller.assign(name, template=template(script, cpu_milli=1000))

    def cores() -> list[str]:
        logs = [node.root / f"logs/{name}.stdout" for name in ("a.1", "a.2")]
        said = "".join(log.read_text() for log in logs if log.exists()).splitlines()
        return [line.split()[1] for line in said if line.startswith("Cpus_allowed_list:")]

    controller.wait(lambda: len(cores()) == 2, "both tasks")
    assert all(core.isdigit() for core in cores()), cores()
    assert len(set(cores())) == 2
    for name in ("a.1", "a.2"):
        controller.stop(name, grace_s=0)
        controller.ended(name)


def test_it_ends_with_all_that_it_has_started(
    contained: Node, controller: Controller, podman: containers.Podman
) -> None:
    script = "#!/bin/sh\ntrap '' TERM\nsetsid env -i /bin/sleep 998855 &\necho ready\nsleep 9999\n"
    controller.assign("a.1", template=template(script))
    log = contained.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and "ready" in log.read_text(), "the container")
    controller.acknowledge = True
    controller.stop("a.1", grace_s=1)
    assert controller.ended("a.1").end_reason is EndReason.CANCELLED
    assert not [p for p in processes.processes() if "998855" in started.command_of(p)]
    controller.wait(lambda: podman.ask("ps", "--all", "--quiet") == "", "the container's removal")
    groups = f"*/**/{cgroups.token_of(str(contained.root))}/run/a.1"
    controller.wait(lambda: not list(Path("/sys/fs/cgroup").glob(groups)), "its groups' removal")


def test_an_image_that_cannot_be_had(contained: Node, controller: Controller) -> None:
    controller.assign("a.1", template=template("true", image="localhost:1/no/such:1"))
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert "image localhost:1/no/such:1" in report.message
    assert "pull" in report.message


def test_a_pull_that_hangs_is_seen_and_ends(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    """A stand-in for the registry's slowness: a program that takes its time over ``pull``."""
    slow = tmp_path / "slow-podman"
    slow.write_text("#!/bin/sh\n[ $1 = image ] && exit 1\nexec sleep 9999\n")
    slow.chmod(0o755)
    node.start("--podman", str(slow), "--image-timeout", "3")
    controller.poll_s = 0.2
    controller.assign("a.1", template=template("true"))
    controller.wait(
        lambda: "a.1" in controller.seen and "fetching image" in controller.seen["a.1"].message,
        "word of the image",
    )
    assert controller.seen["a.1"].state is AttemptState.FETCHING
    controller.assign("a.2", template=template("true", image="other"))
    report = controller.ended("a.1")
    assert "was not there after 3 s of pulling" in report.message
    controller.ended("a.2")


def test_one_that_is_held_starts_when_its_gang_is_ready(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    """A stand-in whose image is there at once, and that runs nothing but says so."""
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\n[ $1 = image ] || echo started\n")
    program.chmod(0o755)
    node.start("--podman", str(program))
    for name in ("a.1", "a.2"):
        controller.assign(name, template=template("true"), hold=True)
    for name in ("a.1", "a.2"):
        controller.wait(
            lambda name=name: (  # type: ignore[misc]
                name in controller.seen and controller.seen[name].state is AttemptState.READY
            ),
            "word that it is ready",
        )
    log = node.root / "logs" / "a.1.stdout"
    assert not log.exists()
    controller.stop("a.2")
    report = controller.ended("a.2")
    assert (report.end_reason, report.started_at) == (EndReason.CANCELLED, None)
    assert not log.exists()
    controller.assign("a.1", template=template("true"))
    assert controller.ended("a.1").exit_code == 0
    assert log.read_text() == "started\n"


def test_a_job_says_how_long_a_pull_may_take(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    slow = tmp_path / "slow-podman"
    slow.write_text("#!/bin/sh\n[ $1 = image ] && exit 1\nexec sleep 9999\n")
    slow.chmod(0o755)
    node.start("--podman", str(slow), "--image-timeout", "600")
    controller.assign("a.1", template=template("true", image_timeout_s=1.0))
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert "was not there after 1 s of pulling" in report.message


def test_one_that_is_cancelled_while_it_waits(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    slow = tmp_path / "slow-podman"
    slow.write_text("#!/bin/sh\n[ $1 = image ] && exit 1\nexec sleep 9999\n")
    slow.chmod(0o755)
    node.start("--podman", str(slow), "--image-timeout", "60")
    controller.poll_s = 0.2
    controller.assign("a.1", template=template("true"))
    controller.wait(lambda: "a.1" in controller.seen, "a report")
    controller.stop("a.1")
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.CANCELLED
    assert report.started_at is None


def test_none_is_left_when_agent_and_supervisor_die_at_once(
    contained: Node, controller: Controller, podman: containers.Podman
) -> None:
    controller.acknowledge = True
    controller.assign("a.1", template=template("#!/bin/sh\necho ready\nsleep 9999\n"))
    log = contained.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and "ready" in log.read_text(), "the container")
    assert (contained.root / "containers/a.1").exists()
    contained.kill_agent()
    contained.kill_supervisor()
    # the reaper kills the tasks, the monitor of the container too: nobody removes it then
    controller.wait(lambda: not contained.tasks(), "the end of its processes")
    assert podman.containers()
    contained.start("--podman", " ".join(podman.command))
    assert controller.ended("a.1").end_reason is EndReason.LOST
    controller.wait(lambda: not podman.left(), "the container's removal")
    controller.wait(lambda: not list((contained.root / "containers").iterdir()), "its note's")


def test_a_node_that_leaves_with_its_tasks_leaves_no_container(
    node: Node, controller: Controller, podman: containers.Podman
) -> None:
    node.start("--podman", " ".join(podman.command), "--stop-tasks-on-exit", "--stop-grace", "1")
    controller.assign("a.1", template=template("#!/bin/sh\ntrap '' TERM\necho ready\nsleep 9999\n"))
    log = node.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and "ready" in log.read_text(), "the container")
    assert node.agent is not None
    node.agent.terminate()
    node.agent.wait(120)
    assert podman.left() == []
    assert not node.tasks()


def test_no_group_is_left_where_runtimes_alone_make_them(
    contained: Node, controller: Controller, podman: containers.Podman
) -> None:
    """A runtime makes a container's groups in hierarchies that the node does not use, too."""
    controller.assign("a.1", template=template("#!/bin/sh\necho ready\nsleep 9999\n"))
    log = contained.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and "ready" in log.read_text(), "the container")
    token = cgroups.token_of(str(contained.root))
    mounts = cgroups.mounts()
    contained.kill_agent()
    contained.kill_supervisor()
    controller.wait(lambda: not contained.tasks(), "the end of its processes")
    contained.start("--podman", " ".join(podman.command), "--stop-tasks-on-exit")
    assert controller.ended("a.1").end_reason is EndReason.LOST
    kept = set(task_isolation.remembered(str(contained.root)))
    found = {path for top in mounts for path, _, _ in os.walk(top) if path.endswith(f"/{token}")}
    assert found <= kept
    assert contained.agent is not None
    contained.agent.terminate()
    contained.agent.wait(120)
    assert not [path for top in mounts for path, _, _ in os.walk(top) if token in path]


@pytest.mark.parametrize("by", ["reaper", "next supervisor", "agent that leaves"])
def test_a_runtime_is_asked_before_it_is_killed(
    by: str, node: Node, controller: Controller, tmp_path: Path
) -> None:
    """A stand-in for a runtime that is about to make a container, and has to end it in order."""
    program, asked = tmp_path / "podman", tmp_path / "asked"
    program.write_text(
        "#!/bin/sh\ncase $1 in image | rm) exit 0 ;; esac\n"
        f"trap 'echo $2 > {asked}; exit 1' TERM\necho making\nwhile :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    node.start("--podman", str(program), "--stop-tasks-on-exit")
    controller.assign("a.1", template=template("true"))
    log = node.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and "making" in log.read_text(), "the runtime")
    assert node.agent is not None
    node.kill_agent()
    if by != "reaper":
        os.kill(node.supervisor(), signal.SIGSTOP)  # lest it start another reaper
        for pid in processes.processes():
            if "muster-reaper" in (words := started.command_of(pid)) and str(node.root) in words:
                processes.kill(pid)
    if by != "agent that leaves":
        node.kill_supervisor()
    if by == "next supervisor":
        node.start("--podman", str(program))
        assert controller.ended("a.1").end_reason is EndReason.LOST
    if by == "agent that leaves":
        assert shutdown.end_everything(node.root) == []
    controller.wait(lambda: asked.exists() and not node.tasks(), "its end")
    assert asked.read_text() == "run\n"
