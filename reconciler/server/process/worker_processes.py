"""Runs what computes for long in processes of their own: agents are answered as quickly meanwhile.

A module of operations and its arguments come in; its exit status and what it wrote come out. One
runs at a time for each ``WorkerSlots``, a few may wait for it, fewer of one caller, and none goes
on without end.
"""

import asyncio
import collections
from collections.abc import Callable

from reconciler import interpreter
from reconciler.server import errors

#: How many may wait for the one under way.
WAITING_MAX = 8
#: How many of these may be one caller's, beside the one under way: others find a place, too.
WAITING_EACH_MAX = 2
RETRY_AFTER_S = 5.0


class WorkerSlots:
    """Runs one module at a time.

    Args:
        store_url: passed to each module as ``--store``; empty: it needs none.
        what: what they make, in the plural, for refusals.
        run_s_max: the longest that one may take.
        caller: returns who calls, in the context of the call.
    """

    def __init__(
        self, store_url: str, what: str, run_s_max: float, caller: Callable[[], str]
    ) -> None:
        self._store_url = store_url
        self._what = what
        self._run_s_max = run_s_max
        self._turn = asyncio.Lock()
        self._caller = caller
        #: Calls under way and waiting.
        self._taken = 0
        self._waiting: collections.Counter[str] = collections.Counter()

    async def run(self, module: str, *arguments: str) -> tuple[int, bytes]:
        """Run a module and return its exit status and output.

        Raises:
            Failure: too many wait already, of all or of this caller, or it took too long.
        """
        if self._taken >= WAITING_MAX:
            message = f"{WAITING_MAX} {self._what} wait already"
            raise errors.Failure(429, message, retry_after_s=RETRY_AFTER_S)
        caller = self._caller()
        if self._waiting[caller] >= WAITING_EACH_MAX:
            message = (
                f"{WAITING_EACH_MAX} {self._what} of {caller} wait already. To fix: ask for fewer "
                "at the same time"
            )
            raise errors.Failure(429, message, retry_after_s=RETRY_AFTER_S)
        self._taken += 1
        try:
            await self._await_turn(caller)
            try:
                return await self._run(module, *arguments)
            finally:
                self._turn.release()
        finally:
            self._taken -= 1

    async def _await_turn(self, caller: str) -> None:
        """Wait for the turn, and count who waits."""
        self._waiting[caller] += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    async def _run(self, module: str, *arguments: str) -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            *interpreter.module_command(module),
            *(("--store", self._store_url) if self._store_url else ()),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), self._run_s_max)
        except TimeoutError:
            raise errors.Failure(
                503, f"the request took longer than {self._run_s_max:.0f} s and was stopped"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output
