"""Overrides on their way to the loop, and its answers on their way back."""

import asyncio
from collections.abc import Callable

from reconciler.model.protocol import loop_messages
from reconciler.model.state import records
from reconciler.server import errors
from reconciler.server.loop_link import LinkDownError

#: How long the loop may take to make an override durable.
ANSWER_S_MAX = 15.0


class OverrideRequests:
    """Requests for overrides that wait for the loop's answer, by their id.

    Args:
        send: tells the loop; raises ``LinkDownError`` if it can't be reached.
    """

    def __init__(self, send: Callable[[loop_messages.OverrideAsked], None]) -> None:
        self._send = send
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def ask(self, request: records.OverrideRequest) -> str:
        """Send an override to the loop. Return why it was refused; empty once it is durable.

        Raises:
            Failure: the loop can't be told, or does not answer in time.
        """
        answer = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(loop_messages.OverrideAsked(request))
            return await asyncio.wait_for(answer, ANSWER_S_MAX)
        except LinkDownError as error:
            raise errors.Failure(503, str(error), retry_after_s=1.0) from None
        except TimeoutError:
            raise errors.Failure(
                503,
                f"the controller's loop has not answered within {ANSWER_S_MAX:.0f} s; "
                "`muster overrides` shows if it was done",
                retry_after_s=1.0,
            ) from None
        finally:
            del self._waiting[request.id]

    def answered(self, message: loop_messages.OverrideAnswered) -> None:
        """Give the loop's answer to whoever waits for it; nobody may."""
        answer = self._waiting.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message.refused)
