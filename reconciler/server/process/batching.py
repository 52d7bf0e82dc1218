"""Answers many requests by one call in a thread, and what they read of the store by one read.

A request that has to look into the store costs a change of threads and a query or two, which is
more than the question itself. Under load there are many at once: what comes while a call is under
way waits for the next one, which takes them all. Each read begins after the request came, so that
nobody is judged by what stood before.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from reconciler.server import errors

#: The most requests of one call: the next call waits for all of them.
CALL_MAX = 64
#: The most requests that wait; further ones are refused with a retry time.
WAITING_MAX = 10_000
Asked = TypeVar("Asked")
Made = TypeVar("Made")


class StoreReadBatcher(Generic[Asked, Made]):
    """Calls ``work`` with all that was asked meanwhile.

    Args:
        work: runs in a thread, one call at a time; one result for each question, in order. An
            exception as a result is raised where it was asked; one that is raised concerns all.
    """

    def __init__(self, work: Callable[[Sequence[Asked]], Sequence[Made | Exception]]) -> None:
        self._work = work
        self._waiting: deque[tuple[Asked, asyncio.Future[Made]]] = deque()
        self._calls: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Made:
        """Return the result of ``work`` for one request.

        Raises:
            Failure: too many wait.
        """
        if len(self._waiting) >= WAITING_MAX:
            message = f"{WAITING_MAX} requests already wait; try again"
            raise errors.Failure(503, message, retry_after_s=1.0)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Made] = loop.create_future()
        self._waiting.append((asked, future))
        if self._calls is None:
            self._calls = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), CALL_MAX)
                await self._call([self._waiting.popleft() for _ in range(count)])
        finally:
            self._calls = None
            for _, future in self._waiting:  # only if it was cancelled, because the server stops
                future.cancel()
            self._waiting.clear()

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
