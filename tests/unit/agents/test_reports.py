"""What a node's own page is made of follows what the agent knows, and what it was told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import node_agent
from agents.settings import AgentSettings
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason

TEMPLATE = agent_messages.TaskTemplate("train", 1, "main", command=("true",), allow_root=True)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[node_agent.Agent]:
    made = node_agent.Agent(AgentSettings(server="http://127.0.0.1:1", name="n1", root=tmp_path))
    made.prepare()
    yield made
    made.leave()


def told(agent: node_agent.Agent, *attempts: str, version: int = 1, pool: str = "h200") -> None:
    """A controller answers: the node is to have these, and is in that pool."""
    boot = agent.state.boot_id
    wanted = agent_messages.AssignmentSet(
        {"t": TEMPLATE},
        tuple(agent_messages.Assignment(one, "t", boot) for one in attempts),
        pool=pool,
    )
    agent.state.answered(agent_messages.SyncResponse(1, version, wanted), 0.0)


def report(name: str, state: AttemptState = AttemptState.RUNNING) -> records.AttemptReport:
    ended = EndReason.EXITED if state is AttemptState.ENDED else None
    return records.AttemptReport(name, state, started_at=5.0, end_reason=ended)


def shown(agent: node_agent.Agent) -> dict[str, AttemptState]:
    now = agent.dialogue.snapshot()
    assert now is not None
    return {one.assignment.attempt: one.report.state for one in now.attempts}


def test_nothing_is_told_before_the_pool_is_known(agent: node_agent.Agent) -> None:
    assert agent.dialogue.snapshot() is None
    told(agent)
    now = agent.dialogue.snapshot()
    assert now is not None
    assert (now.node, now.pool, now.attempts) == ("n1", "h200", ())
    told(agent, version=2, pool="other")
    now = agent.dialogue.snapshot()
    assert now is not None
    assert now.pool == "other"


def test_attempts_are_there_from_when_they_are_given_until_they_have_ended(
    agent: node_agent.Agent,
) -> None:
    told(agent, "a.1", "a.2")
    assert shown(agent) == dict.fromkeys(("a.1", "a.2"), AttemptState.STARTING)
    agent.state.attempts_changed([report("a.1"), report("a.2")])
    assert shown(agent) == dict.fromkeys(("a.1", "a.2"), AttemptState.RUNNING)
    told(agent, "a.1", version=2)  # the other is wanted no more, and still there
    agent.state.attempts_changed([report("a.2", AttemptState.STOPPING)])
    assert shown(agent) == {"a.1": AttemptState.RUNNING, "a.2": AttemptState.STOPPING}
    agent.state.attempts_changed([report("a.2", AttemptState.ENDED)])
    assert shown(agent) == {"a.1": AttemptState.RUNNING}


def test_what_an_earlier_agent_was_given_and_nobody_wants_is_left_out(
    agent: node_agent.Agent,
) -> None:
    agent.state.attempts_changed([report("a.0")])
    told(agent)
    assert shown(agent) == {}


def test_when_the_controller_last_answered_is_told(agent: node_agent.Agent) -> None:
    told(agent)
    before = agent.dialogue.snapshot()
    agent.dialogue.answered(
        agent.dialogue.request(0.0, complete=True), agent_messages.SyncResponse(1, 1), 0.0
    )
    after = agent.dialogue.snapshot()
    assert before is not None
    assert after is not None
    assert before.reported_at == 0.0 < after.reported_at
