"""A task that takes more of its node's disk than it may ends, and says why."""

import os

import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

#: Writes, and goes on for ever.
FILLS = "head -c 6000000 /dev/urandom > {place}; exec sleep 998812"


@pytest.mark.parametrize(
    ("place", "named"),
    [("$PWD/file", "work 5.7Mi"), ("$TMPDIR/file", "tmp 5.7Mi"), ("/dev/stdout", "output 5.7Mi")],
)
def test_what_fills_its_folders_ends_and_others_do_not(
    agent: Node, controller: Controller, place: str, named: str
) -> None:
    def template(limit_bytes: int) -> TaskTemplate:
        script = FILLS.format(place=place)
        return TaskTemplate("j", 1, "g", script=script, scratch_bytes=limit_bytes)

    for name, limit_bytes in (("small.1", 4 * 2**20), ("large.1", 2**30), ("free.1", 0)):
        controller.assign(name, template=template(limit_bytes))
    end = controller.ended("small.1")
    assert end.end_reason is EndReason.DISK_LIMIT
    assert "its pool allows 4Mi (scratchLimit)" in end.message
    assert named in end.message
    controller.running("large.1")
    controller.running("free.1")
    pid = agent.supervisor()
    assert pid
    os.kill(pid, 0)
