"""What becomes of a task that starts but can't be held, and what one inherits and is told to have
used: with a real supervisor."""

from typing import Any

from agents import processes
from reconciler.model.states import EndReason
from tests.integration.agents.test_isolation import Bed, bed, controller

__all__ = ["bed"]

#: No kernel takes this for a number of bytes.
WRONG = 1e18


def together(bed: Bed, names: list[str], script: str, **order: Any) -> None:
    """Order tasks in one breath: all but the first are started without a fork."""
    orders: list[dict[str, Any]] = []
    send, bed.keeper.send = bed.keeper.send, orders.extend  # type: ignore[assignment,method-assign]
    for name in names:
        bed.start(name, script, **order)
    bed.keeper.send = send  # type: ignore[method-assign]
    assert bed.keeper.send(orders)


@controller("memory")
def test_a_task_whose_limit_is_refused_ends_before_its_end_is_told(bed: Bed) -> None:
    names = [f"w.{number}" for number in range(6)]
    together(bed, names, "setsid sleep 999 & sleep 999", limits={"memory_bytes": WRONG})
    for name in names:
        report = bed.ended(name)
        left = [p for p in processes.processes() if processes.attempt_of(p, str(bed.root)) == name]
        assert not left, name
        assert (report.end_reason, report.exit_code) == (EndReason.START_FAILED, 126)
        assert "control group of the task: Invalid argument" in report.message
    assert bed.run("exit 3").exit_code == 3, "the supervisor goes on"
