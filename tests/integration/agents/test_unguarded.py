"""A root agent follows no controller that takes orders from anybody."""

import os

import pytest

from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs a root agent")


def test_a_root_agent_waits_until_strangers_are_refused(node: Node, controller: Controller) -> None:
    controller.is_guarded = False
    node.start()
    refusal = "answered 200 to a call without a token"
    controller.wait(lambda: refusal in node.log.read_text(), "the refusal")
    assert controller.requests == [], "it reported nothing, and would take no order"
    controller.is_guarded = True
    controller.assign("a.1", "sh", "-c", "exit 7")
    assert controller.ended("a.1").exit_code == 7
