"""One user's readers of logs are bounded, and leave room for others."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from reconciler.server import errors
from reconciler.server.logs import log_readers


async def _pieces() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


def test_a_user_who_reads_too_much_is_told_and_others_read_on() -> None:
    readers = log_readers.LogReaders(lambda: 5.0)
    own = [readers.admit("bob", "train") for _ in range(log_readers.READERS_OF_USER_MAX)]
    with pytest.raises(errors.Failure) as failed:
        readers.admit("bob", "train")
    assert (failed.value.status, failed.value.retry_after_s) == (429, 10.0)
    assert failed.value.message == (
        "bob reads 80 logs already, the most for one user; `GET /v1/log-readers` lists them. To "
        "fix: end one"
    )
    ada = readers.admit("ada", "news", task="main-0", stream="stdout", follows=True)
    assert readers.of("ada") == [ada]
    assert (ada.job, ada.task, ada.follows, ada.since) == ("news", "main-0", True, 5.0)
    readers.leave(own[0])
    readers.leave(own[0])
    readers.admit("bob", "train")
    with pytest.raises(errors.Failure):
        readers.admit("bob", "train")


def test_all_readers_together_are_bounded() -> None:
    readers = log_readers.LogReaders()
    for number in range(log_readers.READERS_MAX):
        readers.admit(f"user-{number // 60}", "train")
    with pytest.raises(errors.Failure, match="256 readers read logs already, the most in all"):
        readers.admit("ada", "train")
    assert len(readers.of(None)) == log_readers.READERS_MAX


def test_a_reader_leaves_at_the_end_of_the_answer_and_if_it_never_begins() -> None:
    readers = log_readers.LogReaders()

    async def read() -> list[bytes]:
        pieces = readers.counted(readers.admit("bob", "train"), _pieces())
        return [one async for one in pieces]

    assert asyncio.run(read()) == [b"a", b"b"]
    assert readers.of(None) == []
    begun = readers.counted(readers.admit("bob", "train"), _pieces())
    assert len(readers.of("bob")) == 1
    del begun
    gc.collect()
    assert readers.of("bob") == []
