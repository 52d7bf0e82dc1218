"""A node that can't provide what each task needs: its attempts cost no retry, and it says so."""

from reconciler.model.observed.health_checks import FULL_DISK, CheckResult
from reconciler.model.state.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller


def found(controller: Controller) -> list[CheckResult]:
    """What the check of starts has found last."""
    inventory = controller.inventory
    return [one for one in inventory.checks if one.name == "task-start"] if inventory else []


def test_a_node_that_can_start_nothing_says_so_before_the_attempt_ends(
    agent: Node, controller: Controller
) -> None:
    """Its folder of logs is gone, which no job can have done; a restart does not make it well."""
    controller.checks = FULL_DISK
    controller.assign("a.1", "true")
    assert controller.ended("a.1").exit_code == 0
    logs = agent.root / "logs"
    logs.rename(agent.root / "logs-away")
    controller.assign("a.2", "true")
    report = controller.ended("a.2")
    assert (report.end_reason, report.exit_code) == (EndReason.CHECK_FAILED, None)
    for part in ("node n1", "log of the attempt: ", "a.2.stdout", "no retry", "To fix: "):
        assert part in report.message
    (result,) = found(controller)
    assert result.verdict == "failed"
    assert "log of the attempt" in result.message

    (agent.root / "logs-away").rename(logs)
    agent.kill_agent()
    controller.inventory = None
    agent.start()
    controller.wait(lambda: bool(found(controller)), "the same from the next agent")
    assert found(controller) == [result]


def test_the_fault_of_a_job_takes_no_node_out(agent: Node, controller: Controller) -> None:
    controller.checks = FULL_DISK
    controller.assign("a.1", "/no/such/program")
    report = controller.ended("a.1")
    assert (report.end_reason, report.exit_code) == (EndReason.START_FAILED, 127)
    controller.assign("a.2", "true")
    assert controller.ended("a.2").exit_code == 0
    assert not found(controller)
