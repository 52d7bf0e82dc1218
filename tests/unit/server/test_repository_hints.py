"""The loop gets a hint at once, and one for all that come soon after it."""

import asyncio

import pytest

from reconciler.server import loop_link, repository_hints


class Loop:
    """Counts hints; may be away."""

    def __init__(self) -> None:
        self.now = 0.0
        self.got = 0
        self.got_late = asyncio.Event()
        self.is_away = False
        self.hints = repository_hints.RepositoryHints(self.send, lambda: self.now)

    def send(self) -> None:
        """Take a hint."""
        if self.is_away:
            raise loop_link.LinkDownError("the loop is away")
        self.got += 1
        if self.now:
            self.got_late.set()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(repository_hints, "HINT_EVERY_S", 0.02)
    return Loop()


def test_a_flood_is_two_hints(loop: Loop) -> None:
    async def flood() -> None:
        assert loop.hints.hint()
        assert not any(loop.hints.hint() for _ in range(5))
        assert loop.got == 1
        loop.now = 1.0  # the late one finds that it is time
        await asyncio.wait_for(loop.got_late.wait(), 10.0)
        assert loop.got == 2
        loop.now = 2.0
        assert loop.hints.hint()
        assert loop.got == 3

    asyncio.run(flood())


def test_who_asks_is_told_that_the_loop_is_away(loop: Loop) -> None:
    loop.is_away = True
    with pytest.raises(loop_link.LinkDownError):
        loop.hints.hint()
    loop.now = 1.0
    loop.hints.pushed()  # it looks by itself
    assert loop.got == 0


def test_a_server_that_stops_sends_no_late_hint(loop: Loop) -> None:
    async def stop() -> None:
        loop.hints.hint()
        loop.hints.hint()
        loop.now = 1.0
        loop.hints.stop()
        later = asyncio.Event()  # timers fire in the order of their times
        running = asyncio.get_running_loop()
        running.call_later(2 * repository_hints.HINT_EVERY_S, later.set)
        await later.wait()
        assert loop.got == 1

    asyncio.run(stop())
