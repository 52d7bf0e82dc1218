"""Answers many requests by one call in a thread, and what they read of the store by one read.

A request that has to look into the store costs a change of threads and a query or two, which is
more than the question itself. Under load there are many at once: what comes while a call is under
way waits for the next one, which takes them all, or as many as it may: in fair turns of who asks.
Each read begins after the request came, so that nobody is judged by what stood before.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from reconciler.server import errors
from reconciler.server.process import fair_turns

#: The most requests of one call: the next call waits for all of them.
CALL_MAX = 64
#: The most requests that wait; further ones are refused with a retry time.
WAITING_MAX = 10_000
#: How many of these may be one caller's, who may be a portal of many people.
WAITING_EACH_MAX = 4000
Asked = TypeVar("Asked")
Made = TypeVar("Made")


class StoreReadBatcher(Generic[Asked, Made]):
    """Calls ``work`` with all that was asked meanwhile.

    Args:
        work: runs in a thread, one call at a time; one result for each question, in order. An
            exception as a result is raised where it was asked; one that is raised concerns all.
        caller: returns who asks, in the context of the request.
        call_max: the most requests of one call. One if each costs more than the change of threads:
            then who comes next waits for one, whoever asked for many.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Asked]], Sequence[Made | Exception]],
        caller: Callable[[], str],
        call_max: int = CALL_MAX,
    ) -> None:
        self._work = work
        self._caller = caller
        self._call_max = call_max
        self._waiting: fair_turns.TurnQueue[tuple[Asked, asyncio.Future[Made]]] = (
            fair_turns.TurnQueue(each_max=WAITING_MAX, waiting_max=WAITING_EACH_MAX)
        )
        self._count = 0
        self._calls: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Made:
        """Return the result of ``work`` for one request.

        Raises:
            Failure: too many wait, of all or of this caller.
        """
        if self._count >= WAITING_MAX:
            message = f"{WAITING_MAX} requests already wait; try again"
            raise errors.Failure(503, message, retry_after_s=fair_turns.RETRY_AFTER_S)
        caller = self._caller()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Made] = loop.create_future()
        if not self._waiting.add(caller, (asked, future)):
            message = f"{WAITING_EACH_MAX} requests of {caller} wait already; try again"
            raise errors.Failure(429, message, retry_after_s=fair_turns.RETRY_AFTER_S)
        self._count += 1
        if self._calls is None:
            self._calls = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while batch := self._taken(self._call_max):
                began_at = time.monotonic()
                await self._call([one for _, one in batch])
                for caller, _ in batch:
                    self._waiting.end(caller, (time.monotonic() - began_at) / len(batch))
        finally:
            self._calls = None
            # there are any only if it was cancelled, because the server stops
            for _, (_, future) in self._taken(WAITING_MAX):
                future.cancel()

    def _taken(self, count_max: int) -> list[tuple[str, tuple[Asked, asyncio.Future[Made]]]]:
        """Return who comes next, with what they asked."""
        batch: list[tuple[str, tuple[Asked, asyncio.Future[Made]]]] = []
        while len(batch) < count_max and (found := self._waiting.take()) is not None:
            batch.append(found)
        self._count -= len(batch)
        return batch

    async def _call(self, batch: list[tuple[Asked, asyncio.Future[Made]]]) -> None:
        found: Sequence[Made | Exception]
        try:
            found = await asyncio.to_thread(self._work, [asked for asked, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            found = [error] * len(batch)
        for (_, future), made in zip(batch, found, strict=True):
            with contextlib.suppress(asyncio.InvalidStateError):  # the client has gone
                if isinstance(made, Exception):
                    future.set_exception(made)
                else:
                    future.set_result(made)
