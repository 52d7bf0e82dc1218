"""Whoever asks for an override hears what the loop made of it, or that it is not known."""

import asyncio

import pytest

from reconciler.model.protocol import loop_messages
from reconciler.model.state import records
from reconciler.server import errors, loop_link, override_requests


def _request(number: int) -> records.ClearOverride:
    return records.ClearOverride(f"r{number}", "drain", f"n{number}", "a@example.org")


def _answer(number: int, refused: str = "") -> loop_messages.OverrideAnswered:
    return loop_messages.OverrideAnswered(f"r{number}", refused)


def test_each_gets_its_own_answer() -> None:
    async def ask() -> list[str]:
        sent: list[str] = []
        requests = override_requests.OverrideRequests(lambda asked: sent.append(asked.request.id))
        asked = [asyncio.create_task(requests.ask(_request(number))) for number in (1, 2)]
        await asyncio.sleep(0)
        assert sent == ["r1", "r2"]
        requests.answered(_answer(2, "there is none"))
        requests.answered(_answer(3))  # nobody asked, or nobody waits any more
        requests.answered(_answer(1))
        requests.answered(_answer(1, "said twice"))
        return [await answer for answer in asked]

    assert asyncio.run(ask()) == ["", "there is none"]


def _refused(requests: override_requests.OverrideRequests) -> errors.Failure:
    with pytest.raises(errors.Failure) as refused:
        asyncio.run(requests.ask(_request(1)))
    return refused.value


def test_a_loop_that_is_away_is_told() -> None:
    def send(_asked: loop_messages.OverrideAsked) -> None:
        raise loop_link.LinkDownError("the loop is not connected")

    failure = _refused(override_requests.OverrideRequests(send))
    assert (failure.status, failure.message) == (503, "the loop is not connected")


def test_a_loop_that_does_not_answer_in_time_may_have_done_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(override_requests, "ANSWER_S_MAX", 0.0)
    requests = override_requests.OverrideRequests(lambda _asked: None)
    failure = _refused(requests)
    assert failure.status == 503
    assert "`muster overrides` shows if it was done" in failure.message
    requests.answered(_answer(1))  # too late for anybody
