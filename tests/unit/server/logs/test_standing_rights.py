"""Output that is followed ends when its reader may not read it any more."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from reconciler.server.logs import standing_rights


async def _pieces(times: Iterator[float]) -> AsyncIterator[bytes]:
    for at in times:
        yield f"{at:g}\n".encode()


def _shown(at: list[float], answers: list[str | None]) -> bytes:
    """What a reader gets of pieces at these times, with the answers to each look at the right."""
    now, told = iter([0.0, *at]), iter(answers)
    current = [0.0]

    def clock() -> float:
        current[0] = next(now)
        return current[0]

    async def why_ended() -> str | None:
        return next(told)

    async def read() -> bytes:
        found = standing_rights.while_allowed(_pieces(iter(at)), why_ended, clock)
        return b"".join([piece async for piece in found])

    return asyncio.run(read())


def test_the_right_is_judged_again_and_output_goes_on_while_it_stands() -> None:
    assert _shown([1, 4.9], []) == b"1\n4.9\n"
    assert standing_rights.AGAIN_S == 5.0


def test_output_ends_with_the_reason_before_anything_is_given_away() -> None:
    reason = "the token of this call is not valid any more"
    assert _shown([1, 6], [reason]) == f"1\nmuster: this output ends here: {reason}\n".encode()
