"""A node that says too much is told to come later; the others have budgets of their own."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import records, states
from reconciler.server import agent_sync, errors
from reconciler.server.nodes import report_budgets
from tests.integration.server import parts
from tests.unit.server import test_agent_exchanges


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def over(call: Callable[[], Any]) -> report_budgets.OverBudgetError:
    with pytest.raises(report_budgets.OverBudgetError) as failed:
        call()
    return failed.value


def refused(call: Callable[[], Any]) -> errors.Failure:
    with pytest.raises(errors.Failure) as failed:
        call()
    return failed.value


def test_bytes_a_second_are_bounded_for_each_node() -> None:
    clock = Clock()
    budgets = report_budgets.ReportBudgets(clock)
    sent = 0
    while sent < report_budgets.REPORT_BYTES_BURST:
        budgets.send("n1", 8 * 2**20)
        sent += 8 * 2**20
    error = over(lambda: budgets.send("n1", 1))
    assert budgets.refused["rate"] == 1
    assert "at most 1048576 bytes a second" in str(error)
    budgets.send("n2", 8 * 2**20)
    clock.now += 1 + error.retry_after_s
    budgets.send("n1", 1)


def test_the_history_is_shared_out_by_node() -> None:
    clock = Clock()
    budgets = report_budgets.ReportBudgets(clock)
    day_s, added = 86_400, 0
    for _ in range(day_s // 60):
        clock.now += 60
        with contextlib.suppress(report_budgets.OverBudgetError):
            budgets.record("n1", 2**20)
            added += 2**20
    assert "fills the history" in str(over(lambda: budgets.record("n1", 2**20)))
    assert added < 512 * 2**20 / 2, "one node leaves room in the journal of a day"
    budgets.record("n2", 2**20)


def test_a_node_with_many_tasks_may_tell_of_all_of_them_with_every_poll() -> None:
    def assigned(number: int) -> agent_messages.Assignment:
        name = f"train-{number}.1.0123456789ab.0.main.0.1"
        return agent_messages.Assignment(name, "train.1.0123456789ab.main", "boot")

    tasks = [assigned(number) for number in range(20_000)]
    payload = msgspec.msgpack.encode(agent_messages.AssignmentSet(assignments=tuple(tasks)))
    said = agent_messages.SyncRequest(
        *("n1", "boot", "one"),
        attempts=tuple(
            records.AttemptReport(
                *(one.attempt, states.AttemptState.RUNNING, 1000.0 + number * 0.317),
                max_memory_bytes=(number * 7919) % 2**30,
                cpu_s=number * 0.731,
            )
            for number, one in enumerate(tasks)
        ),
    )
    size = asyncio.run(agent_sync.packed_bytes(said))
    clock = Clock()
    budgets = report_budgets.ReportBudgets(clock)
    for _ in range(7 * 86_400 // 5):
        clock.now += 5.0
        budgets.record("n1", size, len(payload))


def test_an_agent_that_starts_again_and_again_has_to_wait() -> None:
    around = test_agent_exchanges.Surroundings()

    def start(number: int) -> Any:
        session = around.known.get("n1")
        if session is not None:
            session.closed = True  # the one before has gone
        said = agent_messages.SyncRequest("n1", f"boot-{number}", f"agent-{number}")
        return asyncio.run(around.exchanges.answer(said, asyncio.Event().wait))

    for number in range(report_budgets.RESTARTS_BURST + 1):
        start(number)  # the first takes over from nobody
    failure = refused(lambda: start(99))
    assert failure.status == 429
    assert "its agent has started again 20 times" in failure.message
    assert len(around.reports) == report_budgets.RESTARTS_BURST + 1, "the loop hears no more of it"


def test_what_cannot_be_packed_fills_the_history_and_what_repeats_does_not() -> None:
    def size(message: str) -> int:
        reports = tuple(
            records.AttemptReport(f"job-{number}", "Running", message=message)  # type: ignore[arg-type]
            for number in range(1000)
        )
        said = agent_messages.SyncRequest("n1", "boot", "one", attempts=reports)
        return asyncio.run(agent_sync.packed_bytes(said))

    assert size("it runs") < 20_000
    noise = agent_messages.SyncRequest(
        "n1", "boot", "one", inventory=records.Inventory(kernel=os.urandom(2**16).hex())
    )
    assert asyncio.run(agent_sync.packed_bytes(noise)) > 2**16


def test_a_report_is_not_read_before_the_node_may_send_it() -> None:
    around = test_agent_exchanges.Surroundings()
    read: list[str] = []

    async def body() -> bytes:
        read.append("n1")
        return parts.request()

    async def receive(times: int) -> None:
        for _ in range(times):
            await around.exchanges.receive("n1", agent_messages.SYNC_BYTES_MAX, body)

    assert refused(lambda: asyncio.run(receive(9))).status == 429
    assert len(read) == 2


@pytest.mark.parametrize("wait_s", [float("nan"), float("inf"), -1.0])
def test_no_time_that_a_node_names_reaches_a_timer(wait_s: float) -> None:
    around = test_agent_exchanges.Surroundings()
    timers: list[float] = []

    async def unconfirmed(_message: loop_messages.Reported) -> None:
        around.reported.set()

    async def poll() -> None:
        loop = asyncio.get_running_loop()
        before = loop.call_at

        def noted(when: float, *rest: Any, **named: Any) -> Any:
            timers.append(when)
            return before(when, *rest, **named)

        setattr(loop, "call_at", noted)  # noqa: B010 - mypy takes no other
        setattr(around, "report", unconfirmed)  # noqa: B010 - so that the answer has to wait
        task = asyncio.ensure_future(around.answer(wait_s=wait_s, accepts_unrenewed=True))
        await around.reported.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert all(0 <= when <= loop.time() + agent_sync.WAIT_S_MAX for when in timers), timers

    asyncio.run(poll())
