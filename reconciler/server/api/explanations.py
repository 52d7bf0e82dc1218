"""Explanations of a job, now or at a moment in the past.

For now, the store is read. For the past, the cycle is decided again, which takes as long as the
cycles took: it runs in another process, so that agents are answered quickly, one at a time, and
with a time limit.
"""

import time
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import Parameter

from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.model.values import times
from reconciler.operations.history import past_reasons
from reconciler.operations.views import job_views, stored_views
from reconciler.server import errors
from reconciler.server.api import envelopes, queries
from reconciler.server.auth import authentication, read_rights
from reconciler.server.loop_link import LinkClient
from reconciler.server.process import worker_processes
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreReader

#: The longest that one replay may take.
REPLAY_S_MAX = 75.0
#: How far a caller's clock may be ahead.
AHEAD_S = 5.0
#: The most silent nodes to list for one job.
SILENT_MAX = 50
_DECODE_EXPLAINED = msgspec.json.Decoder(past_reasons.Explained).decode


class Replays(worker_processes.WorkerSlots):
    """Runs one replay at a time for the server of one store."""

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url, "replays", REPLAY_S_MAX, authentication.CALLER.get)

    async def explain(self, name: str, at: float, limit: int) -> past_reasons.Explained:
        """Return a job at a moment.

        Raises:
            Failure: there is nothing to show, or it can't be computed now.
        """
        status, output = await self.run(
            past_reasons.__name__, "--job", name, "--at", repr(at), "--limit", str(limit)
        )
        if status == past_reasons.DONE:
            return _DECODE_EXPLAINED(output)
        if status in (past_reasons.NOTHING_THERE, past_reasons.UNREADABLE):
            code = 404 if status == past_reasons.NOTHING_THERE else 503
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
    limit: queries.Limit = 100,
) -> envelopes.Explanation:
    """Reasons in order of precedence, and the newest events.

    What its tasks write is shown as in the list of jobs.
    """
    rights = await sync_to_thread(queries.rights_of, store.reader, request)
    if at is None:
        return await sync_to_thread(_now, store.reader, link, name, limit, rights)
    explained = await replays.explain(name, _moment(at), limit)
    return envelopes.Explanation(
        job=rights.job(explained.job),
        reasons=explained.job.reasons,
        queue=explained.queue,
        events=await sync_to_thread(rights.events, explained.events),
        borrowers=explained.borrowers,
        not_reclaimed=explained.not_reclaimed,
        silent=explained.silent,
        replayed=explained.replayed,
        as_of=explained.replayed.decided,
        revision=explained.replayed.revision,
    )


def _now(
    reader: StoreReader,
    link: LinkClient,
    name: str,
    limit: int,
    rights: read_rights.ReadRights,
) -> envelopes.Explanation:
    found = reader.job(name)
    refused = queries.refused_or_none(reader, name) if found is None else None
    if refused is not None:
        return envelopes.Explanation(
            job=refused,
            reasons=refused.reasons,
            queue=None,
            events=[],
            **envelopes.head(link.published),
        )
    if found is None:
        raise queries.unknown_job(reader, name, None)
    (shown,) = queries.show_jobs(reader, [found], job_views.ATTEMPTS_IN_JOB, rights)
    events = map(job_views.event_view, reader.events(job=name, limit=limit))
    usages = stored_views.stored_queues(reader.view(stored_views.QUEUES))
    queue = next((job_views.queue_view(one) for one in usages if one.name == shown.queue), None)
    return envelopes.Explanation(
        job=shown,
        reasons=shown.reasons,
        queue=queue,
        events=rights.events(events),
        borrowers=past_reasons.borrowers(usages, shown.queue) if shown.reasons else [],
        not_reclaimed=past_reasons.not_reclaimed(found.spec, shown, usages),
        silent=[] if found.finished else _silent(reader, found),
        **envelopes.head(link.published),
    )


def _silent(reader: StoreReader, job: records.JobRecord) -> list[past_reasons.SilentNode]:
    """Return the silent nodes with tasks of a job; for a large job those of its first tasks."""
    doubtful = [
        one for one in reader.attempts(job.key, alive=True) if one.state is AttemptState.UNKNOWN
    ]
    names = sorted({one.node for one in doubtful})[:SILENT_MAX]
    nodes = {name: reader.node(name) for name in names}
    return past_reasons.silent(doubtful, {name: node for name, node in nodes.items() if node})


HANDLERS = [explain]
