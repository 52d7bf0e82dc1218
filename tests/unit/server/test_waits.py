"""Requests that follow what happens wake for news, for the end of the server, and in time."""

import asyncio

import pytest

from reconciler.server import waits

#: Far longer than a test takes.
LONG_S = 60.0


async def _woken(wait: asyncio.Task[None]) -> None:
    """Fail unless the wait ends."""
    await asyncio.wait_for(wait, 10.0)


def test_news_wakes_everybody_who_waits_for_it() -> None:
    async def follow() -> None:
        news = waits.CycleNews(waits.Stopping())
        both = [asyncio.create_task(news.wait(news.next, LONG_S)) for _ in range(2)]
        await asyncio.sleep(0)
        news.announce()
        for wait in both:
            await _woken(wait)
        assert not news.ended

    asyncio.run(follow())


def test_news_that_comes_between_the_look_and_the_wait_is_not_missed() -> None:
    async def follow() -> None:
        news = waits.CycleNews(waits.Stopping())
        taken = news.next
        news.announce()
        await _woken(asyncio.create_task(news.wait(taken, LONG_S)))
        assert not news.next.is_set(), "who waits from now on waits for the next"

    asyncio.run(follow())


def test_a_wait_ends_when_its_time_is_up() -> None:
    async def follow() -> None:
        news = waits.CycleNews(waits.Stopping())
        await _woken(asyncio.create_task(news.wait(news.next, 0.0)))
        assert not news.next.is_set()

    asyncio.run(follow())


@pytest.mark.parametrize("before", [True, False])
def test_the_end_of_the_server_ends_every_wait(*, before: bool) -> None:
    async def follow() -> None:
        stopping = waits.Stopping()
        news = waits.CycleNews(stopping)
        if before:
            stopping.begin()
        wait = asyncio.create_task(news.wait(news.next, LONG_S))
        await asyncio.sleep(0)
        stopping.begin()
        await _woken(wait)
        assert (stopping.begun, news.ended) == (True, True)

    asyncio.run(follow())
