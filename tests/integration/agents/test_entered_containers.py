"""Commands, terminals, ports and copies in tasks that are containers, by a real podman."""

import asyncio
import io
import itertools
import os
import signal
import socket
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.interactive import supervisor_link
from reconciler.cli.interactive import file_copy
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState
from reconciler.operations.local import free_ports
from tests.integration.agents import containers
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller
from tests.integration.interactive import people

pytestmark = [
    pytest.mark.needs("podman"),
    pytest.mark.skipif(not containers.can_run(), reason="no podman here, or not root"),
]
PORT = free_ports.free_port()
TASK = f"""#!/bin/sh
cd /tmp
echo served > index.html
busybox httpd -f -p 127.0.0.1:{PORT} -h /tmp
"""
#: As of the controller, no two sessions have the same name.
NAMES = (f"5e55{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Controller]]:
    """A node with a container that serves a page, of which nothing is left at the end."""
    podman, controller = containers.Podman(), Controller()
    node = Node(tmp_path_factory.mktemp("entered") / "root", controller)
    try:
        node.start("--podman", " ".join(podman.command), "--image-timeout", "20")
        template = TaskTemplate(
            "job", 1, "g", script=TASK, runtime="podman", image=containers.IMAGE, grace_s=1,
            environment={"MY": "a b"},
        )  # fmt: skip
        controller.assign("a.1", template=template)
        controller.running("a.1")
        people.until(lambda: _listens(PORT), "the server")
        yield node, controller
        if controller.seen["a.1"].state is not AttemptState.ENDED:
            controller.stop("a.1", grace_s=1)
        people.until(lambda: not podman.containers(), "the end of its container")
        left = podman.left()
    finally:
        node.tear_down()
        controller.close()
        podman.remove()
    assert left == []


@pytest.fixture
def contained(bed: tuple[Node, Controller]) -> Node:
    return bed[0]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _ask(node: Node, **request: Any) -> tuple[supervisor_link.SupervisorLink, list[int]]:
    link = supervisor_link.SupervisorLink(node.root)
    name = next(NAMES)
    environment = {"MUSTER_SESSION": name, "TERM": "vt100"}
    asked = {"attempt": "a.1", "session": name, "env": environment, **request}
    return link, await link.ask({"op": "exec", **asked})


def _run(node: Node, *argv: str, given: bytes = b"") -> tuple[bytes, bytes, dict[str, Any]]:
    """What a command writes, and how it ends."""

    async def run() -> tuple[bytes, bytes, dict[str, Any]]:
        link, handles = await _ask(node, argv=list(argv))
        os.write(handles[0], given)
        os.close(handles[0])
        said = [await asyncio.to_thread(_all, handle) for handle in handles[1:]]
        supervisor_link.close_all(handles[1:])
        ended = await link.end()
        link.close()
        return said[0], said[1], ended

    return asyncio.run(run())


def _all(handle: int) -> bytes:
    said = b""
    while piece := os.read(handle, 65_536):
        said += piece
    return said


def test_a_command_is_in_the_container(contained: Node) -> None:
    look = "ls /; pwd; echo my=$MY job=$MUSTER_JOB s=$MUSTER_SESSION; ls /proc/self/fd"
    said, errors, ended = _run(contained, "sh", "-c", f"{look}; cat; exit 7", given=b"typed\0in")
    assert ended == {"exit": 7}, errors
    text = said.decode(errors="replace")
    assert "home" not in text.split()  # the host's is not there
    assert f"{contained.root}/attempts/a.1/work" in text
    assert "my=a b job=job s=5e55" in text  # its own name behind it
    assert said.endswith(b"typed\0in")
    folder = text.partition("s=5e55")[2].split("\n")[1:]
    assert folder[:4] == ["0", "1", "2", "3"]  # the fourth is the folder that is listed
    assert "4" not in folder[:5]


def test_what_is_not_there_is_said_to_be(contained: Node) -> None:
    said, errors, ended = _run(contained, "no-such-program")
    assert (said, ended) == (b"", {"exit": 127})
    assert b"no-such-program" in errors


def test_its_rights_are_those_of_the_container(contained: Node) -> None:
    look = "grep -E 'Uid|Gid|Cap|Seccomp:' /proc/self/status"
    mine = _run(contained, "busybox", "sh", "-c", f"busybox {look}")[0]
    assert mine
    its = _run(contained, "busybox", "sh", "-c", f"busybox {look.replace('self', '1')}")[0]
    assert mine == its


def test_a_terminal_has_a_size_and_keys(contained: Node) -> None:
    async def run() -> bytes:
        argv = ["sh", "-c", "busybox stty size; echo $TERM; cat; echo over"]
        link, (terminal,) = await _ask(contained, argv=argv, size=[33, 111])
        said = b""
        for expected, key in ((b"vt100", b"typed\r"), (b"typed\r\ntyped", b"\x04"), (b"over", b"")):
            while expected not in said:
                said += await asyncio.to_thread(os.read, terminal, 65_536)
            os.write(terminal, key)
        assert await link.end() == {"exit": 0}
        link.close()
        os.close(terminal)
        return said

    assert b"33 111" in asyncio.run(run())


@pytest.mark.parametrize("size", [None, [24, 80]])
def test_nothing_is_left_of_a_session_that_breaks_off(
    contained: Node, size: list[int] | None
) -> None:
    mark = "3501.5"
    script = "trap '' HUP TERM; t=35; (setsid sleep ${t}01.5 &); sleep ${t}01.5"

    async def hold() -> None:
        link, handles = await _ask(contained, argv=["sh", "-c", script], size=size)
        await asyncio.to_thread(people.until, lambda: len(people.marked(mark)) == 2, "both")
        link.close()
        supervisor_link.close_all(handles)

    asyncio.run(hold())
    people.until(lambda: not people.marked(mark), "their end")
    assert _run(contained, "true")[2] == {"exit": 0}


def test_nothing_is_left_of_what_is_in_the_background(contained: Node) -> None:
    mark = "3502.5"
    script = "t=35; setsid sleep ${t}02.5 > /dev/null 2>&1 & echo begun"
    assert _run(contained, "sh", "-c", script)[0] == b"begun\n"
    people.until(lambda: not people.marked(mark), "its end")


def test_a_signal_reaches_the_command(contained: Node) -> None:
    async def run() -> dict[str, Any]:
        script = "trap 'echo heard; exit 5' INT; echo begun; while true; do sleep 0.1; done"
        link, handles = await _ask(contained, argv=["sh", "-c", script])
        assert await asyncio.to_thread(os.read, handles[1], 100) == b"begun\n"
        await link.signal(signal.SIGINT)
        assert await asyncio.to_thread(os.read, handles[1], 100) == b"heard\n"
        ended = await link.end()
        link.close()
        supervisor_link.close_all(handles)
        return ended

    assert asyncio.run(run()) == {"exit": 5}


def test_a_port_of_the_container_is_reached(contained: Node) -> None:
    async def fetch() -> bytes:
        link, (handle,) = await _ask(contained, op="connect", port=PORT)
        with socket.socket(fileno=handle) as served:
            served.setblocking(True)
            served.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with served.makefile("rb") as answer:
                said = answer.read()
        link.close()
        return said

    assert asyncio.run(fetch()).endswith(b"served\n")


def test_files_are_copied_there_and_back(contained: Node, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("config")
        entry.size, entry.mtime = 5, int(time.time())
        archive.addfile(entry, io.BytesIO(b"value"))
    unpack = ("sh", "-c", file_copy._UNPACK, "muster-cp", "/tmp/copied", "config")
    assert _run(contained, *unpack, given=packed.getvalue())[1:] == (b"", {"exit": 0})
    said, _, ended = _run(contained, "tar", "-C", "/tmp", "-cf", "-", "--", "copied")
    assert ended == {"exit": 0}
    file_copy.unpack(io.BytesIO(said), tmp_path, "copied", "here")
    assert (tmp_path / "here").read_bytes() == b"value"


def test_a_session_ends_with_its_task(bed: tuple[Node, Controller]) -> None:
    contained, controller = bed

    async def hold() -> dict[str, Any]:
        script = "t=35; exec sleep ${t}03.5"
        link, handles = await _ask(contained, argv=["sh", "-c", script])
        await asyncio.to_thread(people.until, lambda: people.marked("3503.5"), "the command")
        controller.stop("a.1", grace_s=1)
        ended = await link.end()
        link.close()
        supervisor_link.close_all(handles)
        return ended

    assert asyncio.run(hold())
    people.until(lambda: not people.marked("3503.5"), "its end")
    controller.ended("a.1")
