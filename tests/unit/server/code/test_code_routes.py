"""What comes of a pack is passed on in blocks, and who goes silent is not waited for."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from reconciler.server.auth import tokens
from reconciler.server.code import code_routes


async def _pieces(*sent: bytes, hangs: bool = False) -> AsyncIterator[bytes]:
    for piece in sent:
        yield piece
    if hangs:
        await asyncio.Event().wait()


async def _taken(pieces: AsyncIterator[bytes]) -> list[bytes]:
    return [block async for block in code_routes.in_blocks(pieces)]


def test_pieces_become_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_routes, "BLOCK_BYTES", 4)
    found = asyncio.run(_taken(_pieces(b"ab", b"c", b"defg", b"h")))
    assert found == [b"abcdefg", b"h"]
    assert b"".join(asyncio.run(_taken(_pieces()))) == b""


def test_who_goes_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_routes, "SILENCE_S", 0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(_taken(_pieces(b"a", hangs=True)))


@pytest.mark.parametrize(
    ("caller", "owner", "people"),
    [
        (("ada@x.org", "user"), "", ("ada@x.org",)),
        (("ada@x.org", "user"), "bob@x.org", ("ada@x.org",)),
        (("ada@x.org", "admin"), "bob@x.org", ("ada@x.org", "bob@x.org")),
        (("ada@x.org", "admin"), "ada@x.org", ("ada@x.org",)),
        (("ci", "user"), "bob@x.org", ("bob@x.org",)),
        (("ci", "user"), "", ("",)),
    ],
)
def test_whose_jobs_a_pack_is_for(
    caller: tuple[str, str], owner: str, people: tuple[str, ...]
) -> None:
    assert code_routes.people_of(tokens.Caller(*caller), owner) == people
