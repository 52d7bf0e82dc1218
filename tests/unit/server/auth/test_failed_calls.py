"""Failed calls are counted, logged at a bounded rate, and wait alone."""

import asyncio
import functools
import logging

import pytest

from reconciler.server.auth import authentication, failed_calls


class Bed:
    """Failed calls with a time that waits move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.written: list[tuple[str, ...]] = []
        self.failed = failed_calls.FailedCalls(
            lambda: self.now,
            self.sleep,
            functools.partial(authentication.note_unauthenticated, self),
        )

    async def sleep(self, wait_s: float) -> None:
        """Note a wait."""
        self.waits.append(wait_s)

    def note(self, *words: str) -> None:
        """Take an entry of the audit."""
        self.written.append(words)

    def fail(
        self,
        address: str = "10.0.0.1",
        times: int = 1,
        path: str = "/v1/jobs",
        reason: str = "unknown",
    ) -> None:
        """Fail so often."""
        for _ in range(times):
            asyncio.run(self.failed.note(address, "GET", path, reason))


def test_an_address_waits_longer_with_each_failure_up_to_a_second() -> None:
    bed = Bed()
    bed.fail(times=failed_calls.FREE)
    assert bed.waits == []
    bed.fail(times=20)
    assert bed.waits[0] == pytest.approx(0.1)
    assert bed.waits == sorted(bed.waits)
    assert bed.waits[-1] == 1.0
    assert bed.failed.counts == {
        "missing": 0,
        "unknown": failed_calls.FREE + 20,
        "expired": 0,
        "signature": 0,
    }


def test_calls_that_try_no_token_do_not_wait() -> None:
    bed = Bed()
    bed.fail(times=50, reason="missing")
    assert bed.waits == []
    bed.fail(times=failed_calls.FREE)
    assert bed.waits == []


def test_other_addresses_do_not_wait() -> None:
    bed = Bed()
    bed.fail(times=20)
    bed.waits.clear()
    bed.fail("10.0.0.2")
    assert bed.waits == []


def test_an_address_that_was_quiet_begins_anew() -> None:
    bed = Bed()
    bed.fail(times=20)
    bed.waits.clear()
    bed.now += failed_calls.FORGET_S + 1
    bed.fail(times=failed_calls.FREE)
    assert bed.waits == []


def test_the_addresses_of_one_ipv6_network_are_one() -> None:
    bed = Bed()
    for number in range(10):
        bed.fail(f"2001:db8::{number:x}")
    assert bed.waits
    assert failed_calls.network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert failed_calls.network_of("fe80::1%eth0") == "fe80::/64"
    assert failed_calls.network_of("unknown") == "unknown"


def test_what_is_kept_of_addresses_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    with caplog.at_level(logging.WARNING):
        for number in range(2 * failed_calls.ADDRESSES_MAX):
            bed.fail(f"10.0.{number // 250}.{number % 250}")
    assert len(bed.failed._by_address) == failed_calls.ADDRESSES_MAX
    assert len(caplog.messages) == failed_calls.LOG_LINES_MAX


def test_only_so_many_wait_at_once() -> None:
    async def many() -> int:
        held = asyncio.Event()
        waiting = 0

        async def wait(_s: float) -> None:
            nonlocal waiting
            waiting += 1
            await held.wait()

        failed = failed_calls.FailedCalls(lambda: 0.0, wait)
        calls = [
            asyncio.create_task(failed.note("10.0.0.1", "GET", "/", "unknown"))
            for _ in range(2 * failed_calls.WAITING_MAX)
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        found = waiting
        held.set()
        await asyncio.gather(*calls)
        return found

    assert asyncio.run(many()) == failed_calls.WAITING_MAX


def test_a_flood_is_one_line_a_minute_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    with caplog.at_level(logging.WARNING):
        bed.fail(times=50, path="/v1/jobs\nERROR forged")
        bed.now += failed_calls.LOG_EVERY_S
        bed.fail()
    first, second = caplog.messages
    assert first.startswith("1 call without a valid token from 10.0.0.1, the last: GET ")
    assert "\n" not in first
    assert second.startswith("50 calls without a valid token from 10.0.0.1, the last: GET '/v1/j")


def test_each_line_of_the_log_is_an_entry_of_the_audit() -> None:
    bed = Bed()
    bed.fail(times=3)
    bed.now += failed_calls.LOG_EVERY_S
    bed.fail(reason="expired")
    told = [(action, who, address, what) for action, who, address, what, _ in bed.written]
    assert told == [("Unauthenticated", "", "10.0.0.1", "GET /v1/jobs")] * 2
    assert [why for *_, why in bed.written] == [
        "a call without a valid token (unknown)",
        "3 calls without a valid token (expired)",
    ]
