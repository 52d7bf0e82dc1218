"""What tasks use of a node is told while they run, and in all when they have ended."""

import subprocess

from reconciler.model.observed.task_usage import TaskUse
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

MIB = 2**20
#: Six children that have the same 48 MiB as their parent, a daemon, and 24 MiB on disk.
SCRIPT = """
import os, signal, time
shared = bytearray(os.urandom(2**20) * 48)
for _ in range(6):
    if os.fork() == 0:
        signal.pause()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
with open("out", "wb") as stream:
    stream.write(shared[: 24 * 2**20])
    stream.flush()
    os.fsync(stream.fileno())
signal.pause()
"""


def test_use_is_told_while_a_task_runs_and_when_it_has_ended(
    agent: Node, controller: Controller
) -> None:
    template = TaskTemplate(
        "job", 1, "g", command=("python3", "-c", SCRIPT), memory_bytes=512 * MIB, grace_s=1
    )
    controller.assign("a.1", template=template)
    controller.running("a.1")

    def told() -> TaskUse | None:
        uses = [one for request in controller.requests for one in request.task_use or ()]
        whole = [one for one in uses if one.processes >= 8 and one.written_bytes]
        return whole[-1] if whole else None

    on_disk = subprocess.run(
        ["stat", "-f", "-c", "%T", str(agent.root)], check=True, capture_output=True, text=True
    ).stdout.strip() not in {"tmpfs", "ramfs", "overlayfs"}
    if on_disk:
        controller.wait(lambda: told() is not None, "what the task uses")
        use = told()
        assert use is not None
        assert use.processes == 8  # the one that made the daemon has left
        assert (use.written_bytes or 0) >= 24 * MIB
        assert use.cpu_s > 0
        if "memory" in _enforced(controller):
            assert 48 * MIB <= use.memory_bytes <= 2 * 48 * MIB  # once, not for each of them
    controller.stop("a.1", grace_s=1)
    report = controller.ended("a.1")
    assert report.state is AttemptState.ENDED
    assert report.max_memory_bytes >= 48 * MIB
    assert report.cpu_s > 0
    if on_disk:
        assert report.written_bytes >= 24 * MIB


def _enforced(controller: Controller) -> tuple[str, ...]:
    found = controller.inventory
    return found.isolation.enforces if found is not None and found.isolation is not None else ()
