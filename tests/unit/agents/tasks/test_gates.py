"""Tasks at the gate of a node: let in, turned away, given up."""

import threading

import pytest

from agents.tasks import gates
from reconciler.model.observed.health_checks import CheckPlan, CheckResult

FAILED = CheckResult("b", "failed", "it is broken")


class Node:
    """Answers checks as it is told, and remembers which were made."""

    def __init__(self, *results: CheckResult) -> None:
        self.results = results
        self.made: list[tuple[str, ...]] = []

    def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
        self.made.append(names)
        return tuple(one for one in self.results if one.name in names)


def gate(node: Node, plan: CheckPlan | None) -> gates.StartGate:
    made = gates.StartGate(node.check_now, threading.RLock())
    made.follow(plan)
    return made


def test_nobody_waits_where_nothing_is_checked() -> None:
    for plan in (None, CheckPlan(), CheckPlan(after=("a",))):
        assert not gate(Node(), plan).enter("x", lambda _: None)


def test_those_that_wait_are_let_in_by_one_look() -> None:
    told: list[str] = []
    node = Node(CheckResult("b", "degraded", "so so"))
    made = gate(node, CheckPlan(before=("b",)))
    for name in ("x", "y"):
        assert made.enter(name, told.append)
    assert made.waiting() == dict.fromkeys(("x", "y"), "checking the node: b")
    made.turn(0)
    assert (told, node.made, made.waiting()) == (["", ""], [("b",)], {})
    made.turn(0)
    assert node.made == [("b",)]


def test_a_failed_check_turns_away() -> None:
    told: list[str] = []
    made = gate(Node(FAILED), CheckPlan(before=("b",)))
    made.enter("x", told.append)
    made.turn(0)
    assert told == ["check b failed here: it is broken"]


def test_who_was_given_up_is_not_decided_upon() -> None:
    told: list[str] = []
    made = gate(Node(), CheckPlan(before=("b",)))
    made.enter("x", told.append)
    assert made.give_up("x")
    assert not made.give_up("x")
    made.turn(0)
    assert told == []


def test_what_has_ended_is_looked_after_before_others_start() -> None:
    told: list[str] = []
    node = Node(FAILED)
    made = gate(node, CheckPlan(after=("b",)))
    made.leave()
    assert made.enter("x", told.append)
    made.turn(0)
    assert (node.made, told) == ([("b",)], ["check b failed here: it is broken"])
    assert not made.enter("y", told.append)


def test_a_plan_that_was_dropped_lets_all_in() -> None:
    told: list[str] = []
    made = gate(Node(FAILED), CheckPlan(before=("b",)))
    made.enter("x", told.append)
    made.follow(None)
    made.turn(0)
    assert told == [""]


def test_what_ends_during_a_look_is_looked_after_by_the_next() -> None:
    class Busy(Node):
        def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
            if not self.made:
                made.leave()
            return super().check_now(plan, names)

    node = Busy()
    made = gate(node, CheckPlan(after=("b",)))
    made.leave()
    made.turn(0)
    made.turn(0)
    made.turn(0)
    assert node.made == [("b",), ("b",)]


def test_who_comes_during_a_look_that_fails_is_turned_away() -> None:
    told: list[str] = []

    class Busy(Node):
        def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
            assert made.enter("x", told.append)
            return super().check_now(plan, names)

    made = gate(Busy(FAILED), CheckPlan(after=("b",)))
    made.leave()
    made.turn(0)
    assert told == ["check b failed here: it is broken"]


def test_ends_that_were_heard_before_the_plan_count() -> None:
    node = Node()
    made = gate(node, None)
    made.leave()
    made.turn(0)
    assert node.made == []
    made.follow(CheckPlan(after=("b",)))
    assert made.enter("x", lambda _: None)
    made.turn(0)
    assert node.made == [("b",)]


def test_a_look_that_breaks_off_is_made_again() -> None:
    class Broken(Node):
        def check_now(self, plan: CheckPlan, names: tuple[str, ...]) -> tuple[CheckResult, ...]:
            super().check_now(plan, names)
            if len(self.made) == 1:
                raise OSError("no")
            return ()

    node = Broken()
    made = gate(node, CheckPlan(after=("b",)))
    made.leave()
    with pytest.raises(OSError, match="no"):
        made.turn(0)
    made.turn(0)
    assert node.made == [("b",), ("b",)]
