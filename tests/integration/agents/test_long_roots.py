"""Nodes whose folder has a long name: each Unix socket below it finds room all the same.

The folder has 200 characters and more, of which the path of a socket holds 107.
"""

import os
import shutil
import socket
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.preflight import finding, host_findings
from reconciler.model.protocol.agent_messages import TaskTemplate
from tests.integration import beds
from tests.integration.agents import containers
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

#: What a task's temporary folder may need of the path of a socket.
TMPDIR_BYTES_MAX = 40
#: Binds a socket where data loaders of PyTorch do, and says how long the name of the folder is.
BINDS = f"""#!{shutil.which("python3")}
import os, socket
folder = os.environ["TMPDIR"]
os.mkdir(folder + "/pymp-0123456789")
socket.socket(socket.AF_UNIX).bind(folder + "/pymp-0123456789/listener-" + "x" * 20)
print(len(folder), folder)
"""
#: The longest name that a job and its attempt can have.
ATTEMPT = f"{'j' * 63}.1.0123456789abcdef.12345.{'g' * 40}.12"


@pytest.fixture
def long_root(node: Node) -> Iterator[Node]:
    """A node in a folder with a long name, whose agent is not started yet."""
    node.root = node.root / ("d" * 200)
    node.root.mkdir()
    yield node
    node.tear_down()


def said(node: Node, controller: Controller, attempt: str = ATTEMPT) -> str:
    """What the task says, which has to end well."""
    report = controller.ended(attempt)
    log = node.root / "logs" / attempt
    errors = log.with_name(f"{log.name}.stderr").read_text()
    assert report.exit_code == 0, f"{report.message} {errors}"
    return log.with_name(f"{log.name}.stdout").read_text()


@pytest.mark.parametrize("options", [(), ("--isolation", "process-group")])
def test_a_task_has_room_for_sockets(
    long_root: Node, controller: Controller, options: tuple[str, ...]
) -> None:
    long_root.start(*options)
    controller.assign(ATTEMPT, template=TaskTemplate("j", 1, "g", script=BINDS))
    length, folder = said(long_root, controller).split()
    assert int(length) <= TMPDIR_BYTES_MAX
    assert (long_root.root / "attempts" / ATTEMPT / "tmp/pymp-0123456789").is_dir(), folder


@pytest.mark.skipif(os.geteuid() != 0, reason="starts an agent as another user")
def test_a_task_of_an_agent_without_rights_has_room_and_its_name_goes(
    everybodys: Node, controller: Controller
) -> None:
    node = everybodys
    node.root = node.root / ("d" * 200)
    node.root.mkdir()
    shutil.chown(node.root, "nobody")
    node.start_as("nobody")
    command = (node.python, "-c", BINDS)
    controller.assign(ATTEMPT, template=TaskTemplate("j", 1, "g", command))
    length, folder = said(node, controller).split()
    assert int(length) <= TMPDIR_BYTES_MAX
    assert Path(folder).is_symlink()
    assert Path(folder).parent.stat().st_mode & 0o777 == 0o700
    controller.acknowledge = True
    controller.wait(lambda: not os.path.lexists(folder), "the end of the short name")


@pytest.mark.needs("podman")
@pytest.mark.skipif(not containers.can_run(), reason="no podman here")
def test_a_container_has_room_for_sockets(long_root: Node, controller: Controller) -> None:
    podman = containers.Podman()
    try:
        long_root.start("--podman", " ".join(podman.command), "--image-timeout", "60")
        script = "#!/bin/sh\ntouch $TMPDIR/there && echo $TMPDIR\n"
        template = TaskTemplate(
            "job", 1, "g", script=script, runtime="podman", image=containers.IMAGE, grace_s=20
        )
        controller.assign(ATTEMPT, template=template)
        assert len(said(long_root, controller).strip()) <= TMPDIR_BYTES_MAX
        assert (long_root.root / "attempts" / ATTEMPT / "tmp/there").exists()
    finally:
        long_root.tear_down()
        podman.remove()


def test_a_check_before_the_start_finds_nothing_wrong(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX) as plain:
        plain.bind(f"{folder}/s")
    (found,) = host_findings.folder(folder)
    assert found.level != finding.FAILED, found


def test_a_whole_cluster_gets_ready_and_its_tasks_have_room(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    with beds.Bed(folder, nodes=1) as bed:
        script = textwrap.indent(BINDS, "    ")
        bed.commit({"job.yaml": beds.job("a-long-name-of-a-job", f"  script: |\n{script}")})
        job = bed.until_state("a-long-name-of-a-job", "Succeeded", "Failed")
        assert job["state"] == "Succeeded", job
        assert int(bed.output("a-long-name-of-a-job").split()[0]) <= TMPDIR_BYTES_MAX
