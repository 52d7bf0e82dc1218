"""``python -m bench.api_readers``: people who read the API, for ``bench.api``.

A process of its own, so that what they cost is not counted as the server's. Its plan comes as JSON
on the standard input; answers' times by kind, and its own CPU time, go out as JSON. A user asks,
reads the whole answer, thinks for a time drawn at random, and asks for something else on the same
connection.
"""

import asyncio
import collections
import json
import random
import sys
import time
from typing import Any

import msgspec

from bench.latency import percentile

#: How long an answer may take.
_ANSWER_S_MAX = 120.0
_STREAM_BYTES = 64 * 2**20
#: What a reader asks for, how often: (share, kind).
_MIX = (
    (40, "job"),
    (35, "page"),
    (7, "counts"),
    (5, "queues"),
    (4, "nodes"),
    (5, "events"),
    (4, "explain"),
)


class Plan(msgspec.Struct, frozen=True):
    """A plan of what readers ask for.

    Attributes:
        host: of the server.
        port: of the server.
        tokens: one for each user.
        jobs: how many jobs wait, named ``wait-NUMBER``.
        seconds: how long they ask.
        think_s: mean time between an answer and the next question; 0: none.
        flood: connections of the last user, who asks for lists of a thousand without a pause.
    """

    host: str
    port: int
    tokens: list[str]
    jobs: int
    seconds: float
    think_s: float
    flood: int = 0


class Found(msgspec.Struct):
    """Times of answers by kind in milliseconds, other answers than 200, and CPU time of readers."""

    taken_ms: dict[str, list[float]]
    refused: dict[str, int]
    cpu_s: float
    passed_s: float


class Connection:
    """One user's connection, opened again when it was closed."""

    def __init__(self, plan: Plan, token: str) -> None:
        self._plan = plan
        self._token = token
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        """Ask for a path and read all of the answer; status and body."""
        if self._open is None:
            self._open = await asyncio.open_connection(
                self._plan.host, self._plan.port, limit=_STREAM_BYTES
            )
        reader, writer = self._open
        host = f"{self._plan.host}:{self._plan.port}"
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        writer.write(head.encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        return int(answer.split(None, 2)[1]), await reader.readexactly(length)

    def close(self) -> None:
        """Leave."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


class Readers:
    """All users, and what they saw."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.taken_ms: dict[str, list[float]] = collections.defaultdict(list)
        self.refused: collections.Counter[str] = collections.Counter()

    async def run(self) -> None:
        """Have all of them ask until the time is up."""
        ends_at = time.monotonic() + self._plan.seconds
        users = [self._user(number, ends_at) for number in range(len(self._plan.tokens))]
        floods = [self._flood(ends_at) for _ in range(self._plan.flood)]
        await asyncio.gather(*users, *floods)

    async def _user(self, number: int, ends_at: float) -> None:
        choose = random.Random(number)
        connection = Connection(self._plan, self._plan.tokens[number])
        await asyncio.sleep(choose.uniform(0.0, self._plan.think_s))
        after = ""
        while time.monotonic() < ends_at:
            (kind,) = choose.choices([kind for _, kind in _MIX], [share for share, _ in _MIX])
            body = await self._ask(connection, kind, _path(kind, choose, self._plan.jobs, after))
            if kind == "page":
                after = _next(body) if choose.random() < 0.5 else ""
            if self._plan.think_s:
                think_s = choose.expovariate(1.0 / self._plan.think_s)
                await asyncio.sleep(min(think_s, max(0.0, ends_at - time.monotonic())))
        connection.close()

    async def _flood(self, ends_at: float) -> None:
        connection = Connection(self._plan, self._plan.tokens[-1])
        while time.monotonic() < ends_at:
            await self._ask(connection, "flood", "/v1/jobs?limit=1000")
        connection.close()

    async def _ask(self, connection: Connection, kind: str, path: str) -> bytes:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                status, body = await connection.get(path)
        except (OSError, EOFError, TimeoutError) as error:
            self.refused[f"{kind} {type(error).__name__}"] += 1
            connection.close()
            await asyncio.sleep(1.0)
            return b""
        if status != 200:
            self.refused[f"{kind} {status}"] += 1
            if status == 429:  # shorter than the server asks for
                await asyncio.sleep(0.05)
            return b""
        self.taken_ms[kind].append(1e3 * (time.monotonic() - began))
        return body


def _path(kind: str, choose: random.Random, jobs: int, after: str) -> str:
    """What somebody asks for."""
    name = f"wait-{choose.randrange(jobs):06d}"
    match kind:
        case "job":
            return f"/v1/jobs/{name}"
        case "explain":
            return f"/v1/jobs/{name}/explain"
        case "page":
            return f"/v1/jobs?limit=50{f'&after={after}' if after else ''}"
        case "counts":
            return "/v1/job-counts"
        case _:
            return f"/v1/{kind}"


def _next(body: bytes) -> str:
    """Where the next page begins; the last value of an answer is the one that says it."""
    found = body.rpartition(b'"next":"')[2].partition(b'"')[0] if b'"next":"' in body else b""
    return found.decode()


def summary(taken_ms: list[float]) -> dict[str, Any]:
    """How many there were, and how long they took, in milliseconds."""
    if not taken_ms:
        return {"count": 0, "p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    marks = {f"p{mark}": percentile(taken_ms, mark / 100) for mark in (50, 95, 99)}
    return {"count": len(taken_ms), **marks, "max": max(taken_ms)}


def main() -> int:
    """Entry point."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    readers = Readers(plan)
    began, spent = time.monotonic(), time.process_time()
    asyncio.run(readers.run())
    found = Found(
        dict(readers.taken_ms),
        dict(readers.refused),
        time.process_time() - spent,
        time.monotonic() - began,
    )
    json.dump(msgspec.to_builtins(found), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
