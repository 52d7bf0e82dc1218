"""The text of a task's output: what its nodes send, and what is to say about it between.

Errors after the answer has begun are said in the text, on a line of their own that begins with
``muster:``.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence

import msgspec
from litestar.concurrency import sync_to_thread

from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import (
    ELEMENT_CODES,
    FINISHED_JOB_STATES,
    AttemptState,
    EndReason,
    NodeState,
)
from reconciler.model.values import quantities, times
from reconciler.server.logs import line_times
from reconciler.server.nodes import log_relay
from reconciler.server.waits import CycleNews
from reconciler.store import StoreReader

#: How often a reader that follows looks for a further attempt, if no cycle says so before.
LOOK_EVERY_S = 2.0
#: How long a place at a node is waited for, after the attempt has ended.
PLACE_S_MAX = 60.0
#: Pieces of less than this end what a node has for now.
FULL_PIECE_BYTES = 64 * 1024
#: Why a part of a long log is missing.
WHY_CUT = "a node keeps the newest part of a long log (--log-limit)"


class LogSelection(msgspec.Struct, frozen=True):
    """Selection of output to read, of the run with the key ``run``.

    ``every`` selects all attempts at the task that ran between ``since`` and ``until``, oldest
    first, and their lines of that time; otherwise the newest attempt, or ``attempt``.
    ``any_element`` and ``any_task`` extend that to all elements and all tasks. With ``timestamps``
    each line begins with the time at which it was written.
    """

    job: str
    run: str
    element: int
    group: str
    index: int
    attempt: int | None
    stream: str
    follow: bool
    every: bool = False
    since: float | None = None
    until: float | None = None
    any_element: bool = False
    any_task: bool = False
    array: bool = False
    timestamps: bool = False

    @property
    def timed(self) -> bool:
        """True if times of lines matter."""
        asked = self.timestamps or self.since is not None or self.until is not None
        return asked and self.stream != "metrics"


def newest_try(reader: StoreReader, wanted: LogSelection) -> records.AttemptRecord | None:
    """Return the requested attempt, or the newest of the task."""
    found = None
    for attempt in reader.attempts(wanted.run, element=wanted.element, limit=10_000):
        if (attempt.group, attempt.index) == (wanted.group, wanted.index) and (
            wanted.attempt in {None, attempt.try_number}
        ):
            found = attempt
    return found


def tries_between(reader: StoreReader, wanted: LogSelection) -> list[records.AttemptRecord]:
    """Return the attempts that ran within the requested span: by element, oldest first."""
    since = -math.inf if wanted.since is None else wanted.since
    until = math.inf if wanted.until is None else wanted.until
    element = None if wanted.any_element else wanted.element
    return [
        attempt
        for attempt in reader.attempts(wanted.run, element=element, limit=10_000)
        if (wanted.any_task or (attempt.group, attempt.index) == (wanted.group, wanted.index))
        and (attempt.started_at or attempt.assigned_at) <= until
        and (attempt.ended_at is None or attempt.ended_at >= since)
    ]


def is_over(reader: StoreReader, wanted: LogSelection) -> bool:
    """Return True if no further attempt at the task can follow."""
    job = reader.run(wanted.run)
    if job is None or job.finished or wanted.attempt is not None:
        return True
    return ELEMENT_CODES[job.elements[wanted.element]] in FINISHED_JOB_STATES


def heading(attempt: records.AttemptRecord, *, array: bool) -> str:
    """Return the heading of an attempt's output: number, node, times and end."""
    words = f"[{attempt.element}] " if array else ""
    words += f"{attempt.group}-{attempt.index}, try {attempt.try_number} on {attempt.node}"
    if attempt.started_at is not None:
        words += f", {_second(attempt.started_at)}"
        if attempt.ended_at is not None:
            words += f", {times.format_span(max(0.0, attempt.ended_at - attempt.started_at))}"
    return f"{words}, {_end(attempt)}" if attempt.end_reason is not None else words


def _end(attempt: records.AttemptRecord) -> str:
    """``status 1``, ``signal 9``, ``Preempted``."""
    if attempt.end_reason is not EndReason.EXITED:
        return attempt.end_reason.value if attempt.end_reason is not None else ""
    return f"signal {attempt.signal}" if attempt.signal else f"status {attempt.exit_code or 0}"


def _what(wanted: LogSelection) -> str:
    return "any task of" if wanted.any_task else "this task of"


def _second(at: float) -> str:
    """Return a time without its milliseconds."""
    return times.format_time(at)[:19] + "Z"


def _line(text: str) -> bytes:
    return f"muster: {text}\n".encode()


def unreachable(reader: StoreReader, attempt: records.AttemptRecord) -> str | None:
    """Return why an attempt's node can't be asked, if known; a reader that follows waits for it."""
    node = reader.node(attempt.node)
    if node is None:
        return f"the output of this try is on Node/{attempt.node}, which no longer exists"
    if node.state not in {NodeState.UNKNOWN, NodeState.GONE}:
        return None
    heard = f"was last heard at {_second(node.last_report_at)}" if node.last_report_at else ""
    why = ", ".join(filter(None, (f"is {node.state.value}", heard)))
    return f"node {attempt.node} {why}: it has the output of this try, once it is back"


def _timed(wanted: LogSelection, attempt: records.AttemptRecord) -> line_times.TimedLines | None:
    """Return what finds the times of an attempt's lines; None if times do not matter."""
    if not wanted.timed:
        return None
    began = attempt.started_at or attempt.assigned_at
    return line_times.TimedLines(
        began, since=wanted.since, until=wanted.until, shown=wanted.timestamps
    )


async def _with_gaps(
    pieces: AsyncIterator[agent_messages.LogChunk], offset: int
) -> AsyncIterator[tuple[agent_messages.LogChunk, int]]:
    """Yield pieces from an offset on, each with the bytes that are missing before it."""
    async for piece in pieces:
        yield piece, max(0, piece.offset - offset) if piece.data else 0
        offset = piece.offset + len(piece.data) if piece.data else offset


class LogOutput:
    """The output that one request selects.

    Args:
        reader: the store, with the attempts.
        relay: asks nodes for what they have.
        news: tells of cycles, after which there may be a further attempt.
        wanted: the selection.
        identity: who reads.
    """

    def __init__(
        self,
        reader: StoreReader,
        relay: log_relay.Relay,
        news: CycleNews,
        wanted: LogSelection,
        identity: str,
    ) -> None:
        self._identity = identity
        self._reader = reader
        self._relay = relay
        self._news = news
        self._wanted = wanted
        #: The nodes that did not answer in time.
        self._silent: set[str] = set()

    async def pieces(self, tail: int | None) -> AsyncIterator[bytes]:
        """Yield the output, piece by piece; ``tail``: of what is there only the last lines."""
        wanted = self._wanted
        seen: set[str] = set()
        if wanted.every:
            found = await sync_to_thread(tries_between, self._reader, wanted)
            seen.update(attempt.id for attempt in found)
            async for data in self._of_all(found, tail):
                yield data
            if not wanted.follow:
                return
        while not self._news.ended:
            attempt = await asyncio.to_thread(newest_try, self._reader, wanted)
            if attempt is not None and attempt.id not in seen:
                seen.add(attempt.id)
                if len(seen) > 1:
                    yield _line(f"try {attempt.try_number} on {attempt.node}")
                async for data in self._of_attempt(attempt, tail, follow=wanted.follow):
                    yield data
                tail = None
                if not wanted.follow:
                    return
                continue
            if attempt is None and not wanted.follow:
                yield _line(f"no attempt at this task of job {wanted.job} was made yet")
                return
            changed = self._news.next
            over = await asyncio.to_thread(is_over, self._reader, wanted)
            newer = await asyncio.to_thread(newest_try, self._reader, wanted)
            if over and (newer is None or newer.id in seen):
                return
            if newer is None or newer.id in seen:
                await self._news.wait(changed, LOOK_EVERY_S)

    async def _of_all(
        self, attempts: Sequence[records.AttemptRecord], tail: int | None
    ) -> AsyncIterator[bytes]:
        """Yield the output of attempts, each under its heading."""
        wanted = self._wanted
        for attempt in attempts:
            yield _line(heading(attempt, array=wanted.array))
            # only what still runs can be followed; the others have ended
            alive = wanted.follow and attempt.state is not AttemptState.ENDED
            if attempt.node in self._silent and not alive:
                # thousands of tries on a node that died would be waited for one by one
                yield _line(f"node {attempt.node} is not asked again: it has sent nothing")
                continue
            async for data in self._of_attempt(attempt, tail, follow=alive):
                yield data
        if not attempts and not wanted.follow:
            timed = wanted.since is not None or wanted.until is not None
            when = "ran in that time" if timed else "was made yet"
            yield _line(f"no attempt at {_what(wanted)} job {wanted.job} {when}")

    async def _of_attempt(
        self, attempt: records.AttemptRecord, tail: int | None, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """Yield the output of one attempt, from its start or the last ``tail`` lines."""
        wanted = self._wanted
        why_not = None if follow else await asyncio.to_thread(unreachable, self._reader, attempt)
        if why_not is not None:
            yield _line(why_not)
            self._silent.add(attempt.node)
            return
        offset = 0
        held = None if tail is None else log_relay.Tail(tail)
        lines = _timed(wanted, attempt)
        is_told = False
        place_until: float | None = None
        while True:
            try:
                pieces = self._relay.read(
                    attempt,
                    wanted.stream,
                    offset,
                    identity=self._identity,
                    follow=follow,
                    times=wanted.timed,
                )
                async for data, at in self._data(_with_gaps(pieces, offset), held, lines):
                    offset, place_until = at, None
                    if data:
                        is_told = False
                        yield data
            except log_relay.Restarted:
                continue  # the current agent is asked for the rest
            except log_relay.NoPlace as refusal:
                now = asyncio.get_running_loop().time()
                if place_until is None:
                    yield _line(f"{refusal}; waiting for a place")
                if place_until is None or (follow and not await self._is_over(attempt)):
                    place_until = now + PLACE_S_MAX
                elif now > place_until:
                    yield _line(f"node {attempt.node} had no place: this output is missing here")
                    self._silent.add(attempt.node)
                    return
                if self._news.ended:
                    return
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            except log_relay.Silent:
                if not is_told:  # once, however long it lasts
                    yield _line(
                        f"node {attempt.node} has sent nothing for {log_relay.SILENCE_S_MAX:.0f} s"
                    )
                is_told = True
                self._silent.add(attempt.node)
            else:
                return
            if not follow or self._news.ended or await self._is_over(attempt):
                return

    async def _is_over(self, attempt: records.AttemptRecord) -> bool:
        """Return True if an attempt has ended, or another one has taken its place."""
        latest = await asyncio.to_thread(newest_try, self._reader, self._wanted)
        return latest is None or latest.id != attempt.id or latest.state is AttemptState.ENDED

    async def _data(
        self,
        pieces: AsyncIterator[tuple[agent_messages.LogChunk, int]],
        held: log_relay.Tail | None,
        lines: line_times.TimedLines | None,
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield bytes to show, and the offset behind them."""
        async for piece, lost in pieces:
            after = piece.offset + len(piece.data)
            if lost and held is None and self._wanted.stream != "metrics":
                size = quantities.short_memory(lost)
                yield _line(f"its {self._wanted.stream} lacks {size}: {WHY_CUT}"), piece.offset
            data = piece.data if lines is None else lines.add(piece)
            if held is not None:
                held.add(data)
                # a node sends what is there in pieces of full size: a small one is the last for now
                complete = piece.end or len(piece.data) < FULL_PIECE_BYTES
                data = held.take() if complete else b""
                held = None if complete else held
            if data:
                yield data, after
            if piece.error:
                yield _line(piece.error), after
            if self._news.ended:
                return
