"""``/v1/jobs/NAME/logs``: a task's output as text, over all attempts at it where it is followed.

What goes wrong after the answer has begun is said in the text, on a line of its own that begins
with ``muster:``.
"""

import functools
import re
from typing import Annotated, Any, Literal

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, Parameter
from litestar.response import Stream

from reconciler.model.protocol import report_bounds
from reconciler.model.state import records
from reconciler.model.values import index_ranges, times
from reconciler.operations.audit import access_audit
from reconciler.operations.views import array_views, json_format
from reconciler.server import errors
from reconciler.server.api import envelopes, field_choice, queries
from reconciler.server.auth import authentication, authorization, csrf, read_rights
from reconciler.server.logs import log_output, log_readers, standing_rights
from reconciler.server.loop_link import LinkClient
from reconciler.server.nodes import log_relay
from reconciler.server.process import body_lengths
from reconciler.server.server_store import ServerStore
from reconciler.server.waits import CycleNews
from reconciler.store import StoreReader

TAIL_MAX = 100_000


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


def _moment(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else times.parse_time(text)
    except ValueError as error:
        raise errors.Failure(400, f"{name}: {error}") from None


def _check(
    job: records.JobRecord,
    element: int | None,
    *,
    follow: bool,
    widely: bool,
) -> None:
    """Refuse output that can't be read.

    Raises:
        Failure: says which, and why.
    """
    spec = job.spec
    if element is not None and element not in spec.run_elements:
        known = index_ranges.fold(spec.run_elements)
        has = f"run {spec.run} of job {job.name} has" if spec.array_only else f"job {job.name} has"
        raise errors.Failure(404, f"{has} the elements {known}, not {element}")
    if widely and follow:
        raise errors.Failure(
            400, "only one task of one element can be followed: leave out `widely`"
        )


def _readable_run(
    reader: StoreReader,
    rights: read_rights.ReadRights,
    name: str,
    run: int | None,
    element: int | None = None,
) -> records.JobRecord:
    """Return the newest run that the caller may read, of those with a name, or also a number.

    If no number is named, it is the newest that has the ``element``, if one is named.

    Raises:
        Failure: 404, there is none; 403, with the rule that is missing for the newest.
    """
    newest = queries.job_or_404(reader, name, run)
    if not rights.why_not(name, newest.spec.queue, newest.spec.owner):
        if run is not None:
            return newest
        having = array_views.run_of_element(reader, newest, element)
        if having is not newest:
            rights.require(name, having.spec.queue, having.spec.owner)
        return having
    earlier = (
        held.key
        for held in reader.holders_of([name])
        if run in {None, held.run} and not rights.why_not(name, held.queue, held.owner)
    )
    found = reader.run(next(earlier, ""))
    if found is None:
        rights.require(name, newest.spec.queue, newest.spec.owner)
    return found or newest


@get(
    "/v1/jobs/{name:str}/logs",
    media_type=MediaType.TEXT,
    responses=errors.responses(400, 401, 403, 404, 429, 503),
    summary="A task's output as text",
)
async def logs(
    *,
    name: queries.Name,
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    relay: NamedDependency[log_relay.Relay],
    readers: NamedDependency[log_readers.LogReaders],
    news: NamedDependency[CycleNews],
    access_log: NamedDependency[access_audit.AccessAudit],
    gate: NamedDependency[authentication.Authenticator],
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
    output of other people's jobs takes a role that allows ``read`` in their queue. Of several jobs
    that had the name, the output is that of the newest one that the caller may read.
    """
    refused = await sync_to_thread(queries.refused_or_none, store.reader, name, run)
    if refused is not None:
        raise errors.Failure(404, f"nothing of job {name} has run: {refused.message}")
    rights = await sync_to_thread(queries.rights_of, store.reader, request)
    job = await sync_to_thread(_readable_run, store.reader, rights, name, run, element)
    if rights.is_of_another(job.spec.owner):
        authentication.note(access_log, "LogsRead", request, f"of {job.spec.owner}")
    group, index = task_of(job, task)
    _check(job, element, follow=follow, widely=widely)
    chosen = job.spec.run_elements[0] if element is None else element
    begins, ends = _moment("since", since), _moment("until", until)
    wanted = log_output.LogSelection(
        name,
        job.key,
        chosen,
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
    identity = authentication.identity_of(request).name
    found = await sync_to_thread(log_output.newest_try, store.reader, wanted)
    if attempt is not None and found is None:
        raise errors.Failure(404, f"job {name} has no attempt {attempt} at {group}-{index}")
    if found is not None and not wanted.every and (told := relay.refusal(found.node, identity)):
        raise errors.Failure(429, told, retry_after_s=log_readers.RETRY_AFTER_S)
    output = log_output.LogOutput(store.reader, relay, news, wanted, identity)
    reader = readers.admit(
        identity,
        name,
        task=f"{group}-{index}",
        stream=stream,
        follows=follow,
    )
    reading = standing_rights.reading_of(request, name, job.spec.queue, job.spec.owner)
    judge = functools.partial(standing_rights.why_ended, gate, store.reader, reading)
    allowed = standing_rights.while_allowed(output.pieces(tail), judge)
    pieces = readers.counted(reader, allowed)
    return Stream(pieces, media_type="text/plain; charset=utf-8")


class ReaderView(json_format.View, frozen=True):
    """An open reader of a log."""

    identity: str
    job: str
    task: str
    stream: str
    follows: bool
    since: str


class Readers(envelopes.Envelope, frozen=True, kw_only=True):
    """Open readers, the oldest first."""

    items: list[ReaderView]


@get(
    "/v1/log-readers",
    responses=errors.responses(400, 401, 403),
    summary="Readers of logs that are open: one's own, all for admins",
)
async def list_readers(
    request: Request[Any, Any, Any],
    readers: NamedDependency[log_readers.LogReaders],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> Readers:
    """Return open readers. Their number is limited for each user and in all."""
    caller = authentication.identity_of(request)
    found = readers.of(None if caller.role == authorization.ADMIN else caller.name)
    items = [
        ReaderView(
            *(one.identity, one.job, one.task, one.stream, one.follows),
            times.format_time(one.since),
        )
        for one in found
    ]
    return field_choice.listed(Readers, items, link.published, fields)


@post(
    "/v1/nodes/{node:str}/logs/{request_id:str}",
    status_code=204,
    opt={authentication.OPTION: authentication.NODES, csrf.OPTION: csrf.MSGPACK},
    request_max_body_size=log_relay.PIECE_BYTES_MAX,
    include_in_schema=False,
)
async def post_log(
    node: FromPath[str],
    request_id: FromPath[str],
    request: Request[Any, Any, Any],
    relay: NamedDependency[log_relay.Relay],
) -> Response[None]:
    """Take a piece of output from a node (msgpack); 410 if nobody reads any more."""
    what = f"part of log {request_id[:40]}"
    try:
        with relay.posting(node, request_id) as channel:
            body_lengths.declared(request, log_relay.PIECE_BYTES_MAX, what)
            body = await request.body()
            await relay.post(channel, log_relay.read_piece(body), len(body))
    except log_relay.NobodyReadsError as error:
        raise errors.Failure(410, str(error)) from None
    except log_relay.TooManyPostsError as error:
        raise errors.Failure(429, str(error), retry_after_s=1.0) from None
    except report_bounds.ExcessError as error:
        raise errors.Failure(422, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.Failure(400, f"{what} can't be read: {error}") from None
    return Response(None, status_code=204)


HANDLERS = [logs, list_readers, post_log]
