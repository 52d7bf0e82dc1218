"""Of what computes for long one runs at a time, and nobody has all places to wait for it."""

import asyncio

from reconciler.server import errors
from reconciler.server.auth.authentication import CALLER
from reconciler.server.process import worker_processes


class Held(worker_processes.WorkerSlots):
    """Runs nothing, until it is let go."""

    def __init__(self) -> None:
        super().__init__("", "plans", 1.0, CALLER.get)
        self.go_on = asyncio.Event()
        self.ran: list[str] = []

    async def _run(self, module: str, *arguments: str) -> tuple[int, bytes]:
        await self.go_on.wait()
        self.ran.append(module)
        return 0, b""


async def _ask(slots: Held, callers: str) -> list[asyncio.Task[tuple[int, bytes]]]:
    """Begin a call of each caller, in order."""
    asked = []
    for caller in callers:
        CALLER.set(caller)
        asked.append(asyncio.create_task(slots.run(caller)))
        await asyncio.sleep(0)
    return asked


def _refusals(told: list[tuple[int, bytes] | BaseException]) -> list[errors.Failure | None]:
    assert all(one == (0, b"") or isinstance(one, errors.Failure) for one in told)
    return [one if isinstance(one, errors.Failure) else None for one in told]


def test_one_caller_leaves_places_for_others() -> None:
    async def run() -> None:
        slots = Held()
        asked = await _ask(slots, "bbbbbbbbbaac")
        slots.go_on.set()
        told = _refusals(await asyncio.gather(*asked, return_exceptions=True))
        assert slots.ran == list("bbbaac")
        assert [one is None for one in told] == [True] * 3 + [False] * 6 + [True] * 3
        refused = told[3]
        assert refused is not None
        assert (refused.status, refused.retry_after_s) == (429, worker_processes.RETRY_AFTER_S)
        assert "2 plans of b wait already" in refused.message

    asyncio.run(run())


def test_who_leaves_gives_the_place_back() -> None:
    async def run() -> None:
        slots = Held()
        gone = await _ask(slots, "bbb")
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        asked = await _ask(slots, "bbbb")
        slots.go_on.set()
        told = _refusals(await asyncio.gather(*asked, return_exceptions=True))
        assert [one is None for one in told] == [True, True, True, False]

    asyncio.run(run())


def test_all_together_have_only_so_many_places() -> None:
    async def run() -> None:
        slots = Held()
        callers = "abcdefghijk"
        asked = await _ask(slots, callers)
        slots.go_on.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert slots.ran == list(callers[: worker_processes.WAITING_MAX])

    asyncio.run(run())
