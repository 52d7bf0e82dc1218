"""``POST /v1/jobs/NAME/sessions``: a command, a terminal or a port in a task that runs."""

from typing import Annotated, Any

import msgspec
from litestar import Request, post
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import JSONBody

from reconciler.model.protocol import session_messages
from reconciler.model.rules import past_runs
from reconciler.model.state import records, states
from reconciler.operations.views import json_format
from reconciler.server import errors
from reconciler.server.api import queries
from reconciler.server.auth import authentication
from reconciler.server.interactive import relay_link, session_desk, session_rights
from reconciler.server.logs import log_routes
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreReader

#: The largest request: a command line has at most so many bytes.
BODY_BYTES_MAX = 2**19
ARGUMENT_BYTES_MAX = 2**17
ARGUMENTS_MAX = 4096
RETRY_AFTER_S = 2.0

_Cells = Annotated[int, msgspec.Meta(ge=1, le=session_messages.CELLS_MAX)]


class SessionAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=json_format.name):
    """A session to open: `argv` for the kinds exec and copy, `port` for forward.

    With `term`, as in the variable TERM, the command gets a terminal of that kind.
    """

    kind: session_messages.SessionKind
    argv: list[str] = []
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    task: Annotated[str, msgspec.Meta(max_length=253)] | None = None
    element: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    run: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    term: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9._+-]*$")] = ""
    rows: _Cells = 24
    columns: _Cells = 80


class SessionTicket(json_format.View, frozen=True):
    """A session that may be opened once, within `expires_in_s`.

    The ticket goes into the header `Authorization` of a WebSocket to `path` at `port` of the host
    of this API, with the `subprotocol`.
    """

    id: str
    task: str
    attempt: str
    node: str
    ticket: str
    port: int
    path: str
    subprotocol: str
    expires_in_s: float


def _check(asked: SessionAsk) -> None:
    """Refuse what no session can be.

    Raises:
        Failure: says what is wrong.
    """
    if (asked.kind == "forward") != bool(asked.port) or bool(asked.argv) == bool(asked.port):
        raise errors.Failure(
            400, "a session has `argv` (kind exec or copy) or a `port` above 0 (kind forward)"
        )
    size = sum(len(word.encode(errors="replace")) + 1 for word in asked.argv)
    if size > ARGUMENT_BYTES_MAX or len(asked.argv) > ARGUMENTS_MAX:
        raise errors.Failure(
            400,
            f"argv: found {len(asked.argv)} words of {size} bytes, expected at most "
            f"{ARGUMENTS_MAX} of {ARGUMENT_BYTES_MAX}. To fix: put them into a file",
        )
    if any("\0" in word for word in asked.argv) or (asked.argv and not asked.argv[0]):
        raise errors.Failure(400, "argv: a word is empty at its beginning, or has a NUL in it")


def _found(
    reader: StoreReader, name: str, asked: SessionAsk
) -> tuple[records.JobRecord, records.AttemptRecord]:
    """Return the job and the attempt that runs at the task.

    Raises:
        Failure: there is none.
    """
    job = queries.job_or_404(reader, name, asked.run)
    if asked.element >= job.spec.element_count:
        last = job.spec.element_count - 1
        raise errors.Failure(404, f"job {name} has the elements 0 to {last}, not {asked.element}")
    group, index = log_routes.task_of(job, asked.task)
    alive = reader.attempts(job.key, element=asked.element, alive=True, limit=10_000)
    of_task = [one for one in alive if (one.group, one.index) == (group, index)]
    running = [one for one in of_task if session_desk.is_running(one)]
    if not running:
        state = (
            f"its task {group}-{index} is {of_task[-1].state}" if of_task else f"it is {job.state}"
        )
        again = past_runs.again_text(name, is_removed=job.removed)
        fix = (
            f"see what it wrote (muster logs {name}), or {again}"
            if job.state in states.FINISHED_JOB_STATES
            else f"wait until it runs (muster wait {name} --until started), or see muster explain "
            f"{name}"
        )
        raise errors.Failure(
            409, f"nothing of job {name} runs that could be entered: {state}. To fix: {fix}"
        )
    return job, running[-1]


@post(
    "/v1/jobs/{name:str}/sessions",
    status_code=201,
    request_max_body_size=BODY_BYTES_MAX,
    responses=errors.responses(400, 401, 403, 404, 409, 413, 415, 429, 503),
    summary="Open a command, a terminal or a port in a task that runs",
)
async def open_session(
    *,
    name: queries.Name,
    data: JSONBody[SessionAsk],
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    desk: NamedDependency[session_desk.SessionDesk],
) -> SessionTicket:
    """Takes the right `exec` in the job's queue, and `impersonate` of the owner for another's."""
    _check(data)
    caller = authentication.identity_of(request)

    def find() -> tuple[records.JobRecord, records.AttemptRecord]:
        reader = store.reader
        job = queries.job_or_404(reader, name, data.run)
        why = session_rights.why_not(reader, caller, name, job.spec.queue, job.spec.owner)
        if why:
            raise errors.Failure(403, why)
        return _found(reader, name, data)

    job, attempt = await sync_to_thread(find)
    wish = session_desk.SessionWish(
        caller,
        authentication.address_of(request),
        job,
        attempt,
        data.kind,
        tuple(data.argv),
        data.port,
        data.term,
        data.rows,
        data.columns,
    )
    try:
        granted = desk.grant(wish)
    except session_desk.TooManySessionsError as error:
        raise errors.Failure(429, str(error), retry_after_s=RETRY_AFTER_S) from None
    except (session_desk.AwayError, relay_link.RelayDownError) as error:
        raise errors.Failure(503, str(error), retry_after_s=RETRY_AFTER_S) from None
    return SessionTicket(
        granted.id,
        f"{attempt.group}-{attempt.index}",
        attempt.id,
        attempt.node,
        granted.ticket,
        granted.relay_port,
        session_messages.PATH,
        session_messages.SUBPROTOCOL,
        session_messages.TICKET_S,
    )


HANDLERS = [open_session]
