"""Starts that an agent ordered before it died, and that its successor has to know of."""

import json
import socket
from pathlib import Path

from agents import state
from agents.supervisor import __main__, connections, orders
from reconciler.model.protocol.agent_messages import AssignmentSet, SyncResponse
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason


def test_a_new_agent_hears_of_starts_that_wait(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    keeping = __main__.Supervisor(str(tmp_path))
    ours, theirs = socket.socketpair()
    client = connections.ClientConnection(ours)
    keeping.on_start(orders.StartOrder("a.1"))
    keeping.on_hello(client)
    (line,) = theirs.recv(2**16).splitlines()
    (told,) = json.loads(line)["records"]
    assert (told["id"], told["state"]) == ("a.1", "Starting")
    ours.close()
    theirs.close()


def test_a_task_that_comes_up_unwanted_is_stopped_at_once_and_once() -> None:
    made = state.AgentState("boot", epoch=1)
    made.supervisor_up([])
    made.answered(SyncResponse(1, 1, AssignmentSet()), 0.0)
    late = AttemptReport("a.1", AttemptState.RUNNING)
    stop = state.EndAttempt("a.1", EndReason.CANCELLED)
    assert stop in made.attempts_changed([late])
    assert stop not in made.attempts_changed([late])


def test_nothing_is_unwanted_before_the_controller_has_said_what_is() -> None:
    made = state.AgentState("boot", epoch=1)
    made.supervisor_up([])
    steps = made.attempts_changed([AttemptReport("a.1", AttemptState.RUNNING)])
    assert steps == [state.ReportNow()]
