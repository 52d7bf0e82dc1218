"""What one bad text costs the agent around it: nothing but itself."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import node_agent, state
from agents.link import http_client
from agents.settings import AgentSettings
from reconciler.model.observed.task_reports import Metric, Saved, TaskMetrics
from reconciler.model.protocol import agent_messages
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState

BAD = "step-\udcff"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[node_agent.Agent]:
    made = node_agent.Agent(AgentSettings(server="http://127.0.0.1:1", name="n", root=tmp_path))
    made.prepare()
    yield made
    made.leave()


def request(**more: Any) -> agent_messages.SyncRequest:
    return agent_messages.SyncRequest(node="n", boot_id="b", incarnation="i", have=(0, 0), **more)


def test_a_text_that_can_not_be_written_keeps_no_report_back() -> None:
    bad = AttemptReport("a", AttemptState.RUNNING, message=BAD, checkpoint=Saved(BAD, 1.0))
    words = TaskMetrics("a", (Metric("loss", 1.0, 1.0),), problem=BAD)
    sent = http_client.packed(request(attempts=(bad,), task_metrics=(words,)))
    got = msgspec.msgpack.decode(sent, type=agent_messages.SyncRequest)
    assert got.attempts[0].message == "step-?"
    assert got.task_metrics is not None
    assert got.task_metrics[0].metrics == words.metrics


def test_what_could_not_be_sent_is_told_again(agent: node_agent.Agent) -> None:
    report = AttemptReport("a", AttemptState.RUNNING)
    agent.state.attempts_changed([report])
    given = agent.dialogue.request(0.0, complete=False)
    assert [one.id for one in given.attempts] == ["a"]
    broken = msgspec.structs.replace(given, gpu_usage=object())
    with pytest.raises(TypeError):
        agent.sync.exchange(http_client.Connection(agent.target), broken, 1.0)
    assert [one.id for one in agent.dialogue.request(0.0, complete=False).attempts] == ["a"]


def test_one_bad_attempt_fails_alone(agent: node_agent.Agent) -> None:
    ours, theirs = socket.socketpair()
    agent.supervisor.link = ours
    plain = agent_messages.TaskTemplate("j", 1, "g", command=("true",), allow_root=True)
    templates = {
        "a.1": plain,
        "a.2": msgspec.structs.replace(plain, environment={"X": BAD}),
        "a.3": msgspec.structs.replace(plain, script=BAD),
        "a.4": plain,
    }
    steps = [
        state.Start(agent_messages.Assignment(n, "t", "b"), one) for n, one in templates.items()
    ]
    with agent.lock:
        agent.steps.carry_out([*steps])
    ours.close()
    agent.supervisor.link = None
    with theirs, theirs.makefile("rb") as stream:
        orders = [msgspec.json.decode(line) for line in stream]
    found = {one["id"]: (one["op"], one.get("reason")) for one in orders}
    assert found == {
        "a.1": ("start", None),
        "a.2": ("refuse", "StartFailed"),
        "a.3": ("refuse", "StartFailed"),
        "a.4": ("start", None),
    }


def test_what_follows_a_step_that_fails_is_carried_out(
    agent: node_agent.Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes no new file; what is asked for is asked for once."""
    ours, theirs = socket.socketpair()
    agent.supervisor.link = ours
    (agent.root / "epoch.new").mkdir()  # neither can be written
    (agent.root / "epoch").mkdir()
    plain = agent_messages.TaskTemplate("j", 1, "g", command=("true",), allow_root=True)
    steps: list[state.Step] = [
        state.SaveEpoch(7),
        state.CarryOutRemedies(()),
        state.Start(agent_messages.Assignment("a.1", "t", "b"), plain),
    ]

    def broken(_: object) -> None:
        raise OSError(28, "No space left on device")

    effects = agent.steps._effects._replace(remediate=broken)
    monkeypatch.setattr(agent.steps, "_effects", effects)
    with agent.lock:
        agent.steps.carry_out(steps)
    (agent.root / "epoch.new").rmdir()
    (agent.root / "epoch").rmdir()
    sent = request()
    agent.dialogue.answered(sent, agent_messages.SyncResponse(epoch=0, version=0), 0.0)
    assert (agent.root / "epoch").read_text() == "7"
    ours.close()
    agent.supervisor.link = None
    with theirs, theirs.makefile("rb") as stream:
        orders = [msgspec.json.decode(line) for line in stream]
    assert ("start", "a.1") in [(one["op"], one.get("id")) for one in orders]


def test_a_virtual_node_is_no_machine_that_could_boot(agent: node_agent.Agent) -> None:
    """It would take along whatever else runs there: other nodes, a controller, somebody's desk."""
    assert agent.owns_machine()
    agent.settings = msgspec.structs.replace(agent.settings, virtual=True)
    assert not agent.owns_machine()


def test_a_task_that_is_about_to_begin_keeps_its_node_from_being_reset(
    agent: node_agent.Agent,
) -> None:
    """The supervisor does not know it before its image, or its data, is there."""
    assert agent.attempts.occupants() == []
    given = agent_messages.Assignment("a.1", "t", agent.boot_id)
    agent.state.assignments["a.1"] = given
    assert agent.attempts.running() == []
    assert agent.attempts.occupants() == ["a.1"]
    agent.state.attempts_changed([AttemptReport("a.1", AttemptState.ENDED)])
    assert agent.attempts.occupants() == []


#: An agent that is asked to end while its main thread sets the event that there is something to
#: tell, as it does for each change of a task.
ASKED = """
import os, signal, sys
from pathlib import Path
from agents import node_agent
from agents.host import shutdown_request
from agents.settings import AgentSettings
settings = AgentSettings(server="http://127.0.0.1:1", name="n", root=Path(sys.argv[1]))
agent = node_agent.Agent(settings)
shutdown_request.call_on_signals(agent.leave)
with agent.changed._cond:
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
assert agent.leaving.wait(60)
agent.leaving.clear()
os.kill(os.getpid(), signal.SIGINT)
assert agent.leaving.wait(60)
"""


def test_an_agent_that_is_asked_to_end_while_it_holds_a_lock_ends(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ASKED, str(tmp_path)]) as process:
        try:
            assert process.wait(120) == 0
        finally:
            process.kill()
