"""What is asked while a call is under way is answered by the next one, together."""

import asyncio
import contextvars
import threading
from collections.abc import Sequence

import pytest

from reconciler.server import errors
from reconciler.server.process import batching

CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("test_caller", default="")


class Work:
    """Doubles numbers; the first call goes on until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        """An even one is wrong, and one of 1000 costs all who ask with it."""
        self.calls.append(list(asked))
        if len(self.calls) == 1:
            self.begun.set()
            self.go_on.wait()
        if 1000 in asked:
            raise RuntimeError("all")
        return [2 * one if one % 2 else ValueError(str(one)) for one in asked]


async def _settled(work: Work, first: int, others: Sequence[int]) -> list[int | BaseException]:
    """Ask for one, and for the others once its call is under way."""
    gathered = batching.StoreReadBatcher(work, CALLER.get)
    asked = [asyncio.ensure_future(gathered.ask(first))]
    await asyncio.to_thread(work.begun.wait)
    asked += [asyncio.ensure_future(gathered.ask(one)) for one in others]
    await asyncio.sleep(0)  # they have come as far as to wait
    work.go_on.set()
    return await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([3, 5], [6, 10]),
        ([3, 4, 5], [6, "ValueError('4')", 10]),
        ([3, 1000, 5], ["RuntimeError('all')"] * 3),
    ],
)
def test_what_comes_meanwhile_is_one_call(others: list[int], expected: list[object]) -> None:
    work = Work()
    found = asyncio.run(_settled(work, 1, others))
    assert work.calls == [[1], others]
    assert [repr(one) if isinstance(one, Exception) else one for one in found] == [2, *expected]


def test_a_call_has_a_bound() -> None:
    work = Work()
    others = list(range(3, 3 + 4 * batching.CALL_MAX, 2))
    assert asyncio.run(_settled(work, 1, others)) == [2, *(2 * one for one in others)]
    assert [len(call) for call in work.calls] == [1, batching.CALL_MAX, batching.CALL_MAX]


def test_who_leaves_costs_the_others_nothing() -> None:
    async def run() -> tuple[list[list[int]], int]:
        work = Work()
        gathered = batching.StoreReadBatcher(work, CALLER.get)
        first = asyncio.ensure_future(gathered.ask(1))
        await asyncio.to_thread(work.begun.wait)
        leaving, staying = (asyncio.ensure_future(gathered.ask(one)) for one in (3, 5))
        await asyncio.sleep(0)
        first.cancel()
        leaving.cancel()
        work.go_on.set()
        return work.calls, await staying

    calls, found = asyncio.run(run())
    assert (calls, found) == ([[1], [3, 5]], 10)


def test_who_finds_too_many_waiting_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WAITING_MAX", 2)
    *_, third = asyncio.run(_settled(Work(), 1, [3, 5, 7]))
    assert isinstance(third, errors.Failure)
    assert third.status == 503


async def _asked_by(gathered: batching.StoreReadBatcher[int, int], caller: str, what: int) -> int:
    CALLER.set(caller)  # of this task alone
    return await gathered.ask(what)


@pytest.mark.parametrize("call_max", [1, 4, batching.CALL_MAX])
def test_who_asks_once_does_not_wait_for_all_that_another_asks(call_max: int) -> None:
    """The texts of one person wait for each other, and not those of others for them."""

    async def run() -> list[list[int]]:
        work = Work()
        gathered = batching.StoreReadBatcher(work, CALLER.get, call_max)
        flood = [asyncio.create_task(_asked_by(gathered, "flood", 1)) for _ in range(200)]
        await asyncio.to_thread(work.begun.wait)
        others = [
            asyncio.create_task(_asked_by(gathered, f"person-{one}", one)) for one in (3, 5, 7)
        ]
        await asyncio.sleep(0)
        work.go_on.set()
        await asyncio.gather(*flood, *others)
        return work.calls

    calls = asyncio.run(run())
    assert max(map(len, calls)) <= call_max
    in_order = [one for call in calls[1:] for one in call]
    assert {3, 5, 7} <= set(in_order[:4]), "each comes before the second of the one who asks much"


def test_one_caller_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WAITING_EACH_MAX", 2)

    async def run() -> tuple[list[int | BaseException], int]:
        work = Work()
        gathered = batching.StoreReadBatcher(work, CALLER.get)
        flood = [asyncio.create_task(_asked_by(gathered, "flood", 1))]
        await asyncio.to_thread(work.begun.wait)
        flood += [asyncio.create_task(_asked_by(gathered, "flood", one)) for one in (3, 5, 7)]
        other = asyncio.create_task(_asked_by(gathered, "ada", 9))
        await asyncio.sleep(0)
        work.go_on.set()
        return await asyncio.gather(*flood, return_exceptions=True), await other

    (*_, refused), other = asyncio.run(run())
    assert other == 18
    assert isinstance(refused, errors.Failure)
    assert (refused.status, "of flood wait already" in str(refused)) == (429, True)


def test_a_server_that_stops_leaves_nobody_waiting() -> None:
    async def run() -> list[int | BaseException]:
        work = Work()
        gathered = batching.StoreReadBatcher(work, CALLER.get)
        asked = [asyncio.create_task(gathered.ask(1))]
        await asyncio.to_thread(work.begun.wait)
        asked += [asyncio.create_task(gathered.ask(one)) for one in (3, 5)]
        await asyncio.sleep(0)
        assert gathered._calls is not None
        gathered._calls.cancel()
        work.go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in asyncio.run(run())] == [asyncio.CancelledError] * 3
