"""Many short tasks while agent and supervisor are killed at seeded moments: none runs twice."""

import random
import time

import pytest

from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

SCRIPT = "echo $MUSTER_ATTEMPT >> $MUSTER_NODE_ROOT/trace; sleep 0.$0; exit 3"


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_runs_twice_and_nothing_is_forgotten(
    agent: Node, controller: Controller, seed: int
) -> None:
    dice = random.Random(seed)
    controller.acknowledge = True
    names = [f"s.{i}" for i in range(150)]
    pending = list(names)
    ends: dict[str, EndReason | None] = {}
    kills = 0
    until = time.monotonic() + 300
    while len(ends) < len(names):
        assert time.monotonic() < until, f"missing: {set(names) - ends.keys()}"
        with controller.news:
            for name in list(controller.seen):
                report = controller.seen[name]
                if report.state is AttemptState.ENDED:
                    # Told again after a crash or not: an end never changes.
                    assert ends.setdefault(name, report.end_reason) is report.end_reason
        for _ in range(min(len(pending), dice.randrange(12))):
            controller.assign(pending.pop(), "sh", "-c", SCRIPT, str(dice.randrange(30)))
        if kills < 8:
            kills += 1
            victim = dice.choice(["agent", "supervisor", "both"])
            if victim != "supervisor":
                agent.kill_agent()
            if victim != "agent":
                agent.kill_supervisor()
            if victim != "supervisor":
                agent.start()
        controller.wait(lambda: True, "a moment")
        time.sleep(dice.random() * 0.2)
    lines = (agent.root / "trace").read_text().split()
    assert len(lines) == len(set(lines))
    assert set(ends.values()) <= {EndReason.EXITED, EndReason.LOST}
    exited = {name for name, reason in ends.items() if reason is EndReason.EXITED}
    assert exited <= set(lines)
    controller.wait(lambda: not list((agent.root / "attempts").iterdir()), "an empty folder")
    assert not agent.tasks()
