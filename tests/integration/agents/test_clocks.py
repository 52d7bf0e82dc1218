"""A node whose clock is not its controller's says so, and that it is again."""

from reconciler.model.observed.health_checks import CheckPlan, CheckResult
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

BEHIND = CheckResult("clock", "degraded", "the clock is more than 10 s behind the controller's")


def test_a_clock_that_is_behind_is_told_until_it_is_set(
    agent: Node, controller: Controller
) -> None:
    def told() -> tuple[CheckResult, ...]:
        found = controller.inventory
        return tuple(one for one in found.checks if one.name == "clock") if found else ()

    controller.clock_ahead_s = 60.0
    controller.checks = CheckPlan(interval_s=0.2)
    controller.change()
    controller.wait(lambda: told() == (BEHIND,), "the clock's check")
    controller.clock_ahead_s = 0.0
    controller.change()
    controller.wait(lambda: not told(), "that the clock is well")
