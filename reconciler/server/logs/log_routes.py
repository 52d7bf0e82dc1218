"""``/v1/jobs/NAME/logs``: a task's output as text, over all attempts at it where it is followed.

What goes wrong after the answer has begun is said in the text, on a line of its own that begins
with ``muster:``.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, Parameter
from litestar.response import Stream

from reconciler.model.state import records
from reconciler.model.state.states import (
    ELEMENT_CODES,
    FINISHED_JOB_STATES,
    AttemptState,
    EndReason,
    NodeState,
)
from reconciler.model.values import times
from reconciler.server import errors, services
from reconciler.server.api import queries
from reconciler.server.auth import authentication, csrf
from reconciler.server.logs import line_times
from reconciler.server.nodes import log_relay

#: How often a reader that follows looks for a further attempt, if no cycle says so before.
LOOK_EVERY_S = 2.0
TAIL_MAX = 100_000
#: Pieces of less than this end what a node has for now.
FULL_PIECE_BYTES = 64 * 1024


class LogSelection(msgspec.Struct, frozen=True):
    """Selection of output to read.

    ``every`` selects all attempts at the task that ran between ``since`` and ``until``, oldest
    first, and their lines of that time; otherwise the newest attempt, or ``attempt``.
    ``any_element`` and ``any_task`` extend that to all elements and all tasks. With ``timestamps``
    each line begins with the time at which it was written.
    """

    job: str
    run: int
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


def task_of(job: records.JobRecord, task: str | None) -> tuple[str, int]:
    """Group and index of a task as people write it: ``worker-3``, ``worker.3``, ``worker``, ``3``.

    Raises:
        Failure: 404, when the job has no such task.
    """
    groups = {group.name: group.count for group in job.spec.groups}
    first = job.spec.groups[0].name
    if task is None:
        return first, 0
    if task in groups:
        return task, 0
    if task.isascii() and task.isdigit() and int(task) < groups[first]:
        return first, int(task)
    match = re.fullmatch(r"(?P<group>.+)[-./](?P<index>[0-9]{1,6})", task)
    if match is not None:
        group, index = match["group"], int(match["index"])
        if index < groups.get(group, 0):
            return group, index
    known = ", ".join(
        f"{name}-0 to {name}-{count - 1}" if count > 1 else f"{name}-0"
        for name, count in groups.items()
    )
    raise errors.Failure(404, f"job {job.name} has no task {task!r}; it has {known}")


def newest_try(service: services.Services, wanted: LogSelection) -> records.AttemptRecord | None:
    """Return the requested attempt, or the newest of the task."""
    found = None
    for attempt in service.reader.attempts(
        wanted.job, wanted.run, element=wanted.element, limit=10_000
    ):
        if (attempt.group, attempt.index) == (wanted.group, wanted.index) and (
            wanted.attempt in {None, attempt.try_number}
        ):
            found = attempt
    return found


def tries_between(service: services.Services, wanted: LogSelection) -> list[records.AttemptRecord]:
    """Return the attempts that ran within the requested span: by element, oldest first."""
    since = -math.inf if wanted.since is None else wanted.since
    until = math.inf if wanted.until is None else wanted.until
    element = None if wanted.any_element else wanted.element
    return [
        attempt
        for attempt in service.reader.attempts(
            wanted.job, wanted.run, element=element, limit=10_000
        )
        if (wanted.any_task or (attempt.group, attempt.index) == (wanted.group, wanted.index))
        and (attempt.started_at or attempt.assigned_at) <= until
        and (attempt.ended_at is None or attempt.ended_at >= since)
    ]


def is_over(service: services.Services, wanted: LogSelection) -> bool:
    """Return True if no further attempt at the task can follow."""
    job = service.reader.job(wanted.job, wanted.run)
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


async def text(
    service: services.Services, wanted: LogSelection, tail: int | None
) -> AsyncIterator[bytes]:
    """Yield the output, piece by piece."""
    seen: set[str] = set()
    silent: set[str] = set()
    if wanted.every:
        found = await asyncio.to_thread(tries_between, service, wanted)
        for one in found:
            seen.add(one.id)
            yield _line(heading(one, array=wanted.array))
            # only what still runs can be followed; the others have ended
            alive = wanted.follow and one.state is not AttemptState.ENDED
            if one.node in silent and not alive:
                # thousands of tries on a node that died would be waited for one by one
                yield _line(f"node {one.node} is not asked again: it has sent nothing")
                continue
            async for data in one_attempt(
                service, msgspec.structs.replace(wanted, follow=alive), one, tail, silent
            ):
                yield data
        if not found and not wanted.follow:
            timed = wanted.since is not None or wanted.until is not None
            when = "ran in that time" if timed else "was made yet"
            yield _line(f"no attempt at {_what(wanted)} job {wanted.job} {when}")
        if not wanted.follow:
            return
    while not service.stopping.is_set():
        attempt = await asyncio.to_thread(newest_try, service, wanted)
        if attempt is not None and attempt.id not in seen:
            seen.add(attempt.id)
            if len(seen) > 1:
                yield _line(f"try {attempt.try_number} on {attempt.node}")
            async for data in one_attempt(service, wanted, attempt, tail, silent):
                yield data
            tail = None
            if not wanted.follow:
                return
            continue
        if attempt is None and not wanted.follow:
            yield _line(f"no attempt at this task of job {wanted.job} was made yet")
            return
        changed = service.published_changed
        over = await asyncio.to_thread(is_over, service, wanted)
        newer = await asyncio.to_thread(newest_try, service, wanted)
        if over and (newer is None or newer.id in seen):
            return
        if newer is None or newer.id in seen:
            await service.wait_any(changed, LOOK_EVERY_S)


def unreachable(service: services.Services, attempt: records.AttemptRecord) -> str | None:
    """Return why an attempt's node can't be asked, if known; a reader that follows waits for it."""
    node = service.reader.node(attempt.node)
    if node is None:
        return f"the output of this try is on Node/{attempt.node}, which no longer exists"
    if node.state not in {NodeState.UNKNOWN, NodeState.GONE}:
        return None
    heard = f"was last heard at {_second(node.last_report_at)}" if node.last_report_at else ""
    why = ", ".join(filter(None, (f"is {node.state.value}", heard)))
    return f"node {attempt.node} {why}: it has the output of this try, once it is back"


async def one_attempt(
    service: services.Services,
    wanted: LogSelection,
    attempt: records.AttemptRecord,
    tail: int | None,
    silent: set[str],
) -> AsyncIterator[bytes]:
    """Yield the output of one attempt, from its start or the last ``tail`` lines.

    Adds the attempt's node to ``silent`` if it did not answer in time.
    """
    why_not = None if wanted.follow else await asyncio.to_thread(unreachable, service, attempt)
    if why_not is not None:
        yield _line(why_not)
        silent.add(attempt.node)
        return
    offset = 0
    held = None if tail is None else log_relay.Tail(tail)
    began = attempt.started_at or attempt.assigned_at
    lines = line_times.TimedLines(
        began, since=wanted.since, until=wanted.until, shown=wanted.timestamps
    )
    is_told = False
    while True:
        try:
            pieces = service.relay.read(
                attempt, wanted.stream, offset, follow=wanted.follow, times=wanted.timed
            )
            async for data, at in _data(service, pieces, held, lines if wanted.timed else None):
                offset = at
                if data:
                    is_told = False
                    yield data
        except log_relay.Restarted:
            continue  # the current agent is asked for the rest
        except log_relay.Silent:
            if not is_told:  # once, however long it lasts
                yield _line(
                    f"node {attempt.node} has sent nothing for {log_relay.SILENCE_S_MAX:.0f} s"
                )
            is_told = True
            silent.add(attempt.node)
        else:
            return
        latest = await asyncio.to_thread(newest_try, service, wanted)
        gone = latest is None or latest.id != attempt.id or latest.state is AttemptState.ENDED
        if not wanted.follow or gone or service.stopping.is_set():
            return


async def _data(
    service: services.Services,
    pieces: AsyncIterator[Any],
    held: log_relay.Tail | None,
    lines: line_times.TimedLines | None,
) -> AsyncIterator[tuple[bytes, int]]:
    """Bytes to show, and the offset behind them."""
    async for piece in pieces:
        after = piece.offset + len(piece.data)
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
        if service.stopping.is_set():
            return


def _moment(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else times.parse_time(text)
    except ValueError as error:
        raise errors.Failure(400, f"{name}: {error}") from None


def _check(
    service: services.Services,
    job: records.JobRecord,
    element: int | None,
    *,
    follow: bool,
    widely: bool,
) -> None:
    """Refuse what can't be read, or not by one more reader.

    Raises:
        Failure: says which, and why.
    """
    if (element or 0) >= job.spec.element_count:
        raise errors.Failure(
            404, f"job {job.name} has the elements 0 to {job.spec.element_count - 1}, not {element}"
        )
    if widely and follow:
        raise errors.Failure(
            400, "only one task of one element can be followed: leave out `widely`"
        )
    if service.relay.full:
        raise errors.Failure(
            429, f"{log_relay.CHANNELS_MAX} readers follow logs already", retry_after_s=10
        )


@get(
    "/v1/jobs/{name:str}/logs",
    media_type=MediaType.TEXT,
    responses=errors.responses(400, 401, 403, 404, 429, 503),
    summary="A task's output as text",
)
async def logs(
    *,
    name: queries.Name,
    state: State,
    request: Request[Any, Any, State],
    task: queries.Filter = None,
    element: Annotated[int | None, Parameter(ge=0, le=2**31)] = None,
    attempt: Annotated[int | None, Parameter(ge=1, le=2**31)] = None,
    stream: FromQuery[Literal["stdout", "stderr", "metrics"]] = "stdout",
    follow: FromQuery[bool] = False,
    tail: Annotated[int | None, Parameter(ge=0, le=TAIL_MAX)] = None,
    run: Annotated[int | None, Parameter(ge=1, le=2**31)] = None,
    every: FromQuery[bool] = False,
    since: Annotated[str | None, Parameter(description="RFC 3339; `every` from then on.")] = None,
    until: Annotated[str | None, Parameter(description="RFC 3339; `every` up to then.")] = None,
    widely: Annotated[
        bool, Parameter(description="`every` of all tasks and elements that are not named.")
    ] = False,
    timestamps: FromQuery[bool] = False,
) -> Stream:
    """Stream the output of the newest attempt, or the one named; ``follow`` continues with the next
    ones.

    ``every`` attempt that ran between ``since`` and ``until`` is shown under a heading, with its
    lines of that time; with ``widely`` at any task of any element, unless one is named.
    ``timestamps``: lines begin with the time at which they were written. With roles in ``Access``,
    output of other people's jobs takes a role that allows ``read`` in their queue.
    """
    service: services.Services = state.services
    refused = await asyncio.to_thread(queries.refused_or_none, service, name, run)
    if refused is not None:
        raise errors.Failure(404, f"nothing of job {name} has run: {refused.message}")
    job = await asyncio.to_thread(queries.job_or_404, service, name, run)
    rights = await asyncio.to_thread(queries.rights_of, service, request)
    rights.require(name, job.spec.queue, job.spec.owner)
    if rights.is_of_another(job.spec.owner):
        authentication.note(service.access_audit, "LogsRead", request, f"of {job.spec.owner}")
    group, index = task_of(job, task)
    _check(service, job, element, follow=follow, widely=widely)
    begins, ends = _moment("since", since), _moment("until", until)
    wanted = LogSelection(
        name,
        job.spec.run,
        element or 0,
        group,
        index,
        attempt,
        stream,
        follow,
        every=every or begins is not None or ends is not None,
        since=begins,
        until=ends,
        any_element=widely and element is None,
        any_task=widely and task is None,
        array=job.spec.array_count is not None,
        timestamps=timestamps and stream != "metrics",
    )
    if attempt is not None and await asyncio.to_thread(newest_try, service, wanted) is None:
        raise errors.Failure(404, f"job {name} has no attempt {attempt} at {group}-{index}")
    return Stream(text(service, wanted, tail), media_type="text/plain; charset=utf-8")


@post(
    "/v1/nodes/{node:str}/logs/{request_id:str}",
    status_code=204,
    opt={authentication.OPTION: authentication.NODES, csrf.OPTION: csrf.MSGPACK},
    request_max_body_size=log_relay.PIECE_BYTES_MAX,
    include_in_schema=False,
)
async def post_log(
    node: FromPath[str], request_id: FromPath[str], request: Request[Any, Any, State], state: State
) -> Response[None]:
    """Take a piece of output from a node (msgpack); 410 if nobody reads any more."""
    service: services.Services = state.services
    try:
        piece = log_relay.decode_piece(await request.body())
    except msgspec.DecodeError as error:
        raise errors.Failure(400, f"part of log {request_id} can't be read: {error}") from None
    if not await service.relay.post(node, request_id, piece):
        raise errors.Failure(410, f"nobody reads log {request_id} any more")
    return Response(None, status_code=204)


HANDLERS = [logs, post_log]
