"""The right to follow a log, judged again while output comes.

Who has lost the token or the right reads on for ``AGAIN_S`` at most.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request

from reconciler.server.auth import authentication, read_rights, tokens
from reconciler.store import StoreReader

#: How long output goes on without another look at the right to read it.
AGAIN_S = 5.0


class Reading(msgspec.Struct, frozen=True):
    """Output that somebody reads: of a job with a queue and an owner; ``token`` is their header."""

    caller: tokens.Caller
    token: str | None
    job: str
    queue: str
    owner: str


def reading_of(request: Request[Any, Any, Any], job: str, queue: str, owner: str) -> Reading:
    """Return what a request reads."""
    caller = authentication.identity_of(request)
    return Reading(caller, request.headers.get("authorization"), job, queue, owner)


async def why_ended(
    gate: authentication.Authenticator, reader: StoreReader, reading: Reading
) -> str | None:
    """Return why somebody may not read on; None if they may.

    Raises:
        StoreError: the store can't be read.
    """
    try:
        gate.identify_again(reading.token, reading.caller)
    except authentication.UnauthenticatedError as error:
        return error.message

    def why_not() -> str:
        rights = read_rights.ReadRights(reader, reading.caller)
        return rights.why_not(reading.job, reading.queue, reading.owner)

    return await asyncio.to_thread(why_not) or None


async def while_allowed(
    pieces: AsyncIterator[bytes],
    why_ended: Callable[[], Awaitable[str | None]],
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[bytes]:
    """Yield pieces until their reader may not read on; then a line says why.

    Args:
        pieces: the output.
        why_ended: looks at the right.
        clock: seconds.
    """
    judged_at = clock()
    async for piece in pieces:
        if clock() - judged_at >= AGAIN_S:
            why = await why_ended()
            if why is not None:
                yield f"muster: this output ends here: {why}\n".encode()
                return
            judged_at = clock()
        yield piece
