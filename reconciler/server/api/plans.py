"""The plan of a revision, and the snapshot that such a plan is made against.

Both read the whole store, and a plan decides many cycles: each runs in another process, so that
agents are answered quickly, one at a time, and with a time limit.
"""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import Parameter

from reconciler.operations.audit import access_audit
from reconciler.operations.plan import plan_types, plan_worker, snapshot_worker
from reconciler.server import errors
from reconciler.server.auth import authentication, authorization
from reconciler.server.process import worker_processes
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.server_store import ServerStore

#: The longest that one may take.
RUN_S_MAX = 120.0
SNAPSHOT = "application/vnd.muster.snapshot"
_DECODE_PLAN = msgspec.json.Decoder(plan_types.Plan).decode
_STATUS = {
    plan_worker.NOT_FOUND: 404,
    plan_worker.NOTHING_IN_FORCE: 409,
    plan_worker.UNREADABLE: 503,
}

Revision = Annotated[str, Parameter(pattern=r"^[0-9a-f]{40}$", description="A commit's id.")]


class Plans(worker_processes.WorkerSlots):
    """Makes one plan or snapshot at a time for the server of one store."""

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url, "plans", RUN_S_MAX, authentication.CALLER.get)


@get(
    "/v1/snapshot/records",
    media_type=SNAPSHOT,
    responses=errors.responses(400, 401, 403, 429, 500, 503),
    summary="All that the controller knows, whole and packed: what `muster plan --against` takes",
)
async def snapshot(
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    access_log: NamedDependency[access_audit.AccessAudit],
    plans: NamedDependency[Plans],
) -> Response[bytes]:
    """Return the state as of the last commit of the store.

    It contains commands and settings of everybody's jobs: with roles in ``Access`` it needs one
    that allows ``snapshot``.
    """
    caller = authentication.identity_of(request)
    why = await sync_to_thread(authorization.why_not_snapshot, store.reader, caller)
    if why:
        raise errors.Failure(403, why)
    authentication.note(access_log, "SnapshotRead", request, "records of all jobs")
    status, body = await plans.run(snapshot_worker.__name__)
    if status:
        raise errors.Failure(503, body.decode(errors="replace") or "no snapshot could be made")
    return Response(body, media_type=SNAPSHOT)


@get(
    "/v1/plan",
    responses=errors.responses(400, 401, 403, 404, 409, 429, 500, 501, 503),
    summary="What a revision would change, what that does to the cluster, and what comes of it",
)
async def plan(
    *,
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    facts: NamedDependency[RepositoryFacts],
    plans: NamedDependency[Plans],
    revision: Revision,
    base: Annotated[
        str | None,
        Parameter(pattern=r"^[0-9a-f]{40}$", description="Else what is in force."),
    ] = None,
) -> plan_types.Plan:
    """Nothing is changed. The revision has to be in the repository that is in force.

    With roles in ``Access``, commands and settings of jobs are shown only to callers with a role
    that allows ``snapshot``.
    """
    if facts.local is None:
        raise errors.Failure(501, "this controller reads no repository on its own machine")
    status, output = await plans.run(
        plan_worker.__name__,
        *("--repository", str(facts.local.path), "--path", facts.local.sub_path),
        *("--head", revision),
        *(("--base", base) if base else ()),
    )
    if status in _STATUS:
        raise errors.Failure(_STATUS[status], output.decode(errors="replace"))
    if status:
        raise errors.Failure(500, "the plan failed; see the server's log")
    found = _DECODE_PLAN(output)
    caller = authentication.identity_of(request)
    why = await sync_to_thread(authorization.why_not_snapshot, store.reader, caller)
    return plan_types.without_settings(found) if why else found


HANDLERS = [snapshot, plan]
