"""Explanations of a job, now or at a moment in the past.

For now, the store is read. For the past, the cycle is decided again, which takes as long as the
cycles took: it runs in another process, so that agents are answered quickly, one at a time, and
with a time limit.
"""

import time
from typing import Annotated, Any, NamedTuple

import msgspec
from litestar import Request, get
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import Parameter

from reconciler.model.state import events, records
from reconciler.model.state.states import AttemptState
from reconciler.model.values import times
from reconciler.operations.views import (
    array_views,
    attempt_views,
    explanation_views,
    job_views,
    stored_jobs,
    stored_views,
    view_types,
)
from reconciler.server import errors
from reconciler.server.api import envelopes, job_filters, queries
from reconciler.server.auth import authentication, read_rights
from reconciler.server.loop_link import LinkClient
from reconciler.server.process import worker_processes
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreReader

#: The module that replays, in a process of its own. Here it would take long to import.
_REPLAY = "reconciler.operations.history.past_reasons"
#: The longest that one replay may take.
REPLAY_S_MAX = 75.0
#: How far a caller's clock may be ahead.
AHEAD_S = 5.0
#: The most silent nodes to list for one job.
SILENT_MAX = 50
_DECODE_EXPLAINED = msgspec.json.Decoder(explanation_views.Explained).decode


class Replays(worker_processes.WorkerSlots):
    """Runs one replay at a time for the server of one store."""

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url, "replays", REPLAY_S_MAX, authentication.CALLER.get)

    async def explain(
        self, name: str, at: float, limit: int, element: int | None = None
    ) -> explanation_views.Explained:
        """Return a job at a moment, or the newest run then that had an element of an array.

        Raises:
            Failure: there is nothing to show, or it can't be computed now.
        """
        which = ["--job", name, "--at", repr(at), "--limit", str(limit)]
        which += [] if element is None else ["--element", str(element)]
        status, output = await self.run(_REPLAY, *which)
        if status == explanation_views.DONE:
            return _DECODE_EXPLAINED(output)
        if status in (explanation_views.NOTHING_THERE, explanation_views.UNREADABLE):
            code = 404 if status == explanation_views.NOTHING_THERE else 503
            raise errors.Failure(code, output.decode(errors="replace"))
        raise errors.Failure(500, "the replay failed; see the server's log")


def _moment(written: str) -> float:
    try:
        at = times.parse_time(written)
    except (ValueError, OverflowError) as error:
        raise errors.Failure(400, f"at: {error}; write a time as RFC 3339 has it") from None
    if at > time.time() + AHEAD_S:
        raise errors.Failure(400, f"at: {written} is in the future; leave it out to ask about now")
    return at


class _Wanted(NamedTuple):
    """A question: the job, its run and element, None if not named, and how many events."""

    name: str
    run: int | None
    element: int | None
    limit: int


@get(
    "/v1/jobs/{name:str}/explain",
    responses=errors.responses(400, 401, 403, 404, 429, 500, 503),
    summary="Why a job is as it is, or was at a moment",
)
async def explain(
    *,
    name: queries.Name,
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    replays: NamedDependency[Replays],
    at: Annotated[
        str | None,
        Parameter(
            max_length=64, description="RFC 3339: after the last cycle at or before this moment."
        ),
    ] = None,
    run: Annotated[
        int | None, Parameter(ge=1, le=2**31, description="A run by its number, without `at`.")
    ] = None,
    element: job_filters.Element = None,
    limit: queries.Limit = 100,
) -> envelopes.Explanation:
    """Reasons in order of precedence, and the newest events, of the newest run unless one is named.

    With ``element`` and no ``run`` it is the newest run, of that moment, that has this element.

    What its tasks write is shown as in the list of jobs.
    """
    rights = await sync_to_thread(queries.rights_of, store.reader, request)
    if at is None:
        wanted = _Wanted(name, run, element, limit)
        return await sync_to_thread(_now, store.reader, link, wanted, rights)
    if run is not None:
        raise errors.Failure(400, "run: `at` is about the run of that moment; leave one out")
    explained = await replays.explain(name, _moment(at), limit, element)
    return envelopes.Explanation(
        job=rights.job(explained.job),
        reasons=explained.job.reasons,
        queue=explained.queue,
        events=await sync_to_thread(rights.events, explained.events),
        borrowers=explained.borrowers,
        not_reclaimed=explained.not_reclaimed,
        silent=explained.silent,
        is_earlier_run=explained.is_earlier_run,
        replayed=explained.replayed,
        as_of=explained.replayed.decided,
        revision=explained.replayed.revision,
    )


def _now(
    reader: StoreReader, link: LinkClient, wanted: _Wanted, rights: read_rights.ReadRights
) -> envelopes.Explanation:
    name = wanted.name
    newest = reader.job(name)
    found = newest if wanted.run is None else reader.job(name, wanted.run)
    refused = queries.refused_or_none(reader, name, wanted.run) if found is None else None
    if refused is not None:
        return envelopes.Explanation(
            job=refused,
            reasons=refused.reasons,
            queue=None,
            events=[],
            **envelopes.head(link.published),
        )
    if found is None or newest is None:
        raise queries.unknown_job(reader, name, wanted.run)
    if wanted.run is None:
        found = array_views.run_of_element(reader, found, wanted.element)
    is_earlier = found.key != newest.key
    shown = _job_view(reader, found, wanted.element, rights)
    happened = _events_of(reader, found, wanted.limit, is_earlier=is_earlier)
    usages = stored_views.stored_queues(reader.view(stored_views.QUEUES))
    queue = next((job_views.queue_view(one) for one in usages if one.name == shown.queue), None)
    return envelopes.Explanation(
        job=shown,
        reasons=shown.reasons,
        queue=queue,
        events=rights.events(map(job_views.event_view, happened)),
        borrowers=explanation_views.borrowers(usages, shown.queue) if shown.reasons else [],
        not_reclaimed=explanation_views.not_reclaimed(found.spec, shown, usages),
        silent=[] if found.finished else _silent(reader, found),
        is_earlier_run=is_earlier,
        **envelopes.head(link.published),
    )


def _job_view(
    reader: StoreReader,
    job: records.JobRecord,
    element: int | None,
    rights: read_rights.ReadRights,
) -> view_types.JobView:
    """Return a run with the attempts that explain it: at the element that is asked for, then at
    those that have not ended.
    """
    most, is_array = job_views.ATTEMPTS_IN_JOB, job.spec.array_count is not None
    tries = reader.attempts(job.key, alive_first=True, limit=most)
    if is_array and element is not None:
        asked_for = reader.attempts(job.key, element=element, alive_first=True, limit=most)
        tries = [*asked_for, *(one for one in tries if one.element != element)]
    (shown,) = stored_jobs.job_rows(reader, [job], 0)
    shown = array_views.with_indexes(shown, job, reader)
    views = [attempt_views.attempt_view(one, array=is_array) for one in tries[:most]]
    return rights.job(msgspec.structs.replace(shown, attempts=views))


def _events_of(
    reader: StoreReader, job: records.JobRecord, limit: int, *, is_earlier: bool
) -> list[events.Event]:
    """Return the newest events of a job; of an earlier run those of its time and its attempts."""
    return reader.events(job=job.name, run=job if is_earlier else None, limit=limit)


def _silent(reader: StoreReader, job: records.JobRecord) -> list[explanation_views.SilentNode]:
    """Return the silent nodes with tasks of a job; for a large job those of its first tasks."""
    doubtful = [
        one for one in reader.attempts(job.key, alive=True) if one.state is AttemptState.UNKNOWN
    ]
    names = sorted({one.node for one in doubtful})[:SILENT_MAX]
    nodes = {name: reader.node(name) for name in names}
    return explanation_views.silent(doubtful, {name: node for name, node in nodes.items() if node})


HANDLERS = [explain]
