"""Threads answer people in turns: whoever has taken the least time of them comes first."""

import asyncio
import collections
import contextlib
import contextvars
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from reconciler.server import errors
from reconciler.server.process import fair_turns

CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("test_caller", default="")
WAIT_S = 20.0
Call = Callable[[], None]


def _run(queue: fair_turns.TurnQueue[Call], order: list[str], cost_s: dict[str, float]) -> None:
    """Take calls one after the other until none waits."""
    while (found := queue.take()) is not None:
        order.append(found[0])
        queue.end(found[0], cost_s.get(found[0], 1.0))


def _call() -> None:
    """Do nothing."""


def test_who_asks_once_waits_for_one_call_of_who_asks_over_and_over() -> None:
    queue, order = fair_turns.TurnQueue[Call](), list[str]()
    for _ in range(20):
        assert queue.add("flood", _call)
    first = queue.take()
    assert first is not None
    assert queue.add("ada", _call)
    queue.end("flood", 5.0)
    _run(queue, order, {})
    assert order[0] == "ada"


def test_turns_are_by_time_and_not_by_number() -> None:
    queue = fair_turns.TurnQueue[Call](waiting_max=1000)
    cost_s = {"slow": 0.5, "quick": 0.05}
    for name in cost_s:
        for _ in range(500):
            queue.add(name, _call)
    order = list[str]()
    for _ in range(110):
        found = queue.take()
        assert found is not None
        order.append(found[0])
        queue.end(found[0], cost_s[found[0]])
    taken = collections.Counter(order)
    assert taken["quick"] == pytest.approx(100, abs=2)


def test_a_long_report_keeps_its_caller_out_for_a_bounded_time() -> None:
    queue = fair_turns.TurnQueue[Call]()
    queue.add("ada", _call)
    assert queue.take() is not None
    queue.end("ada", 600.0)
    people = [f"person-{number}" for number in range(5)]
    for caller in ("ada", *people):
        queue.add(caller, _call)
    taken_s = 0.0
    while (found := queue.take()) is not None and found[0] != "ada":
        taken_s += 0.25
        queue.end(found[0], 0.25)
        queue.add(found[0], _call)
        assert taken_s <= len(people) * (fair_turns.DEBT_S_MAX + 0.25)
    assert taken_s >= len(people) * fair_turns.DEBT_S_MAX, "others do go first"


def test_nobody_saves_up_turns_by_asking_for_nothing() -> None:
    queue, order = fair_turns.TurnQueue[Call](), list[str]()
    queue.add("idle", _call)
    _run(queue, order, {})
    for _ in range(50):
        queue.add("steady", _call)
        _run(queue, order, {})
    for _ in range(10):
        queue.add("idle", _call)
        queue.add("steady", _call)
    order.clear()
    _run(queue, order, {})
    assert collections.Counter(order[:10])["idle"] in {5, 6}


def test_one_caller_leaves_threads_to_others() -> None:
    queue = fair_turns.TurnQueue[Call](each_max=1)
    for _ in range(3):
        queue.add("flood", _call)
    assert queue.take() is not None
    assert queue.take() is None, "one of its calls is under way"
    queue.add("ada", _call)
    found = queue.take()
    assert found is not None
    assert found[0] == "ada"


def test_so_many_calls_of_one_caller_wait_and_no_more() -> None:
    queue = fair_turns.TurnQueue[Call](waiting_max=2)
    assert [queue.add("flood", _call) for _ in range(3)] == [True, True, False]
    assert queue.add("ada", _call)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_kept_of_callers_that_have_left(seed: int) -> None:
    queue, choose = fair_turns.TurnQueue[Call](), random.Random(seed)
    under_way: list[str] = []
    for number in range(2000):
        queue.add(f"user{number % 700}", _call)
        if (found := queue.take()) is not None:
            under_way.append(found[0])
        if under_way and choose.random() < 0.9:
            queue.end(under_way.pop(choose.randrange(len(under_way))), choose.random())
    for name in under_way:
        queue.end(name, 0.1)
    order: list[str] = []
    _run(queue, order, {})
    queue.add("last", _call)
    _run(queue, order, {"last": 0.0})
    assert len(queue._taken_s) <= 700
    for _ in range(2000):  # whoever has a debt is forgotten once others have caught up
        queue.add("last", _call)
        _run(queue, order, {})
    assert set(queue._taken_s) <= {"last"}


@contextlib.contextmanager
def _executor(**options: int) -> Iterator[fair_turns.FairExecutor]:
    made = fair_turns.FairExecutor(CALLER.get, threads=2, queue=fair_turns.TurnQueue(**options))
    try:
        yield made
    finally:
        made.end()


def _as(caller: str) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(CALLER.set, caller)
    return context


def test_a_slow_call_holds_up_nobody_else() -> None:
    over = threading.Event()
    with _executor() as executor:
        slow = _as("ada").run(executor.submit, over.wait, WAIT_S)
        quick = _as("bob").run(executor.submit, lambda: 7)
        try:
            assert quick.result(WAIT_S) == 7
            assert not slow.done()
        finally:
            over.set()
        assert slow.result(WAIT_S)


def test_slow_calls_of_several_hold_up_nobody_else() -> None:
    over = threading.Event()
    with _executor() as executor:
        slow = [_as(f"user{one}").run(executor.submit, over.wait, WAIT_S) for one in range(4)]
        quick = _as("bob").run(executor.submit, lambda: 7)
        try:
            assert quick.result(WAIT_S) == 7
            assert not any(one.done() for one in slow)
        finally:
            over.set()
        assert all(one.result(WAIT_S) for one in slow)


def test_too_many_calls_are_told_to_come_again() -> None:
    over = threading.Event()
    with _executor(waiting_max=1) as executor:
        began = threading.Event()

        def slow() -> None:
            began.set()
            over.wait(WAIT_S)

        ada = _as("ada")
        ada.run(executor.submit, slow)
        assert began.wait(WAIT_S)
        ada.run(executor.submit, _call)
        try:
            with pytest.raises(errors.Failure) as refused:
                ada.run(executor.submit, _call)
        finally:
            over.set()
    assert (refused.value.status, refused.value.retry_after_s) == (429, fair_turns.RETRY_AFTER_S)
    assert "calls of ada wait already" in refused.value.message


def test_what_a_call_raises_is_its_callers() -> None:
    async def ask(executor: fair_turns.FairExecutor) -> None:
        def fail() -> None:
            raise errors.Failure(404, "there is no Job/train")

        with pytest.raises(errors.Failure, match="there is no Job/train"):
            await asyncio.get_running_loop().run_in_executor(executor, fail)  # type: ignore[arg-type]

    with _executor() as executor:
        asyncio.run(ask(executor))
        assert _as("ada").run(executor.submit, lambda: 1).result(WAIT_S) == 1
