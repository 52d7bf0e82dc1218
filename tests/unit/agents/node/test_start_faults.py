"""How long a fault of a node that kept a task from starting counts, and what is said of it."""

from agents.node import start_faults
from reconciler.model.observed.health_checks import FULL_DISK, CheckPlan

PROBLEM = "control group of the task: Invalid argument"


def test_a_fault_counts_for_a_while_in_every_pool_and_says_how_to_fix_it() -> None:
    fault = start_faults.later(start_faults.StartFault(), PROBLEM, at=1000.0, now=1001.0)
    for plan in (FULL_DISK, CheckPlan()):
        (result,) = fault.result(plan, 1000.0 + start_faults.OUT_S - 0.1)
        assert (result.name, result.verdict) == ("task-start", "failed")
        assert PROBLEM in result.message
        assert "To fix: " in result.message
        assert fault.result(plan, 1000.0 + start_faults.OUT_S) == ()
    assert fault.result(CheckPlan(off=("task-start",)), 1001.0) == ()
    assert fault.result(None, 1001.0) == ()


def test_an_older_fault_does_not_shorten_a_newer_one() -> None:
    newer = start_faults.later(start_faults.StartFault(), PROBLEM, at=1000.0, now=1000.0)
    assert start_faults.later(newer, "older", at=990.0, now=1000.0) == newer
    assert start_faults.later(newer, "newest", at=1010.0, now=1010.0).problem == "newest"


def test_a_clock_that_was_set_back_keeps_no_node_out_for_longer() -> None:
    fault = start_faults.later(start_faults.StartFault(), PROBLEM, at=9e9, now=1000.0)
    assert fault.until == 1000.0 + start_faults.OUT_S


def test_an_attempt_says_which_node_and_that_it_costs_nothing() -> None:
    told = start_faults.told(PROBLEM, "n1", is_out=True)
    for part in ("node n1", PROBLEM, "no retry", "5m", "To fix: "):
        assert part in told
    assert "takes no task" not in start_faults.told(PROBLEM, "n1", is_out=False)
