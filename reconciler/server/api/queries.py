"""Read access over HTTP: each call reads the store once and shows what it holds."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.datastructures import State
from litestar.params import JSONBody, Parameter, QueryParameter

from reconciler.model.protocol import loop_messages
from reconciler.model.rules import redaction
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import Reason
from reconciler.model.state.states import JobState
from reconciler.model.values import suggestions, times
from reconciler.operations.views import attempt_views, job_views, quota_views, view_types
from reconciler.server import errors, services
from reconciler.server.api import envelopes
from reconciler.server.auth import authentication, authorization, read_rights, tokens
from reconciler.server.loop_link import LinkDownError
from reconciler.store.statements import cursor, parse_cursor

LIMIT_MAX = 1000
#: The most job names to compare with an unknown one.
ALIKE_MAX = 200
#: How long a reader of events may wait for news.
FOLLOW_S_MAX = 60.0

Limit = Annotated[int, Parameter(ge=1, le=LIMIT_MAX, description="The most items of one page.")]
NAME = r"^[A-Za-z0-9._-]{1,253}$"
Name = Annotated[str, Parameter(pattern=NAME)]
Filter = Annotated[str | None, Parameter(max_length=253, pattern=r"^[^\x00]*$")]

_NOT_FOUND = errors.responses(400, 401, 403, 404, 503)
FAILS = errors.responses(400, 401, 403, 503)


def rights_of(
    service: services.Services, request: Request[Any, Any, State]
) -> read_rights.ReadRights:
    """Return what the caller of a request may read."""
    return read_rights.ReadRights(service.reader, authentication.identity_of(request))


def show_jobs(
    service: services.Services,
    jobs: Sequence[records.JobRecord],
    attempts_max: int,
    rights: read_rights.ReadRights,
) -> list[view_types.JobView]:
    """Jobs with their reasons, places and attempts, as far as the caller may read them."""
    reader = service.reader
    reasons = reader.reasons([job.reason_key for job in jobs])
    attempts = reader.attempts_of(jobs, attempts_max)
    running = reader.tasks_running(jobs)
    places = reader.places([job.name for job in jobs if job.state is JobState.PENDING])
    expected = job_views.stored_expected(reader.view(job_views.EXPECTED)) if places else {}
    undecided = undecided_jobs(service)
    return [
        rights.job(
            job_views.job_view(
                job,
                attempts=attempts.get(job.key, ()),
                reasons=(*undecided.get(job.name, ()), *reasons.get(job.reason_key, ())),
                place=places.get(job.name),
                expected=expected.get(job.name),
                running=running.get(job.key, 0),
            )
        )
        for job in jobs
    ]


def undecided_jobs(service: services.Services) -> dict[str, tuple[Reason, ...]]:
    """Return messages about jobs that are known and not decided as written, to show first."""
    sync = job_views.stored_sync(service.reader.view(job_views.SYNC))
    return {name: (reason,) for name, reason in job_views.undecided_jobs(sync).items()}


def job_or_404(service: services.Services, name: str, run: int | None) -> records.JobRecord:
    """Return a job, or raise the answer that there is none."""
    found = service.reader.job(name, run)
    if found is None:
        if run is not None and service.reader.job(name) is not None:
            raise errors.Failure(404, f"there is no run {run} of Job/{name}")
        # those that begin alike come first; a slip may be in the second letter too
        alike = {
            job.name: None
            for length in (2, 1)
            for job in service.reader.jobs(name_prefix=name[:length], limit=ALIKE_MAX)
        }
        refused = job_views.stored_refused(service.reader.view(job_views.REFUSED))
        hint = suggestions.hint(name, [*alike, *(one for one in refused if one not in alike)])
        raise errors.Failure(404, f"there is no Job/{name}{hint or '; `muster jobs` lists them'}")
    return found


def show_refused(service: services.Services, prefix: str) -> list[view_types.JobView]:
    """Jobs that are written but so that they can't run, and never could."""
    refused = job_views.stored_refused(service.reader.view(job_views.REFUSED))
    names = sorted(name for name in refused if name.startswith(prefix))[:LIMIT_MAX]
    known = {name for name in names if service.reader.job(name) is not None}
    sync = job_views.stored_sync(service.reader.view(job_views.SYNC))
    at, undecided = sync.checked_at or 0.0, job_views.undecided_jobs(sync)
    return [
        job_views.refused_view(name, refused[name], at, is_undecided=name in undecided)
        for name in names
        if name not in known
    ]


def is_structure_refused(service: services.Services) -> bool:
    """Return True if an older structure is in force because that in git has errors."""
    sync = job_views.stored_sync(service.reader.view(job_views.SYNC))
    return sync.sync == "OutOfSync" and sync.structure_revision != sync.attempted_revision


def refused_or_none(
    service: services.Services, name: str, run: int | None = None
) -> view_types.JobView | None:
    """Return a job that is written and never could run, if nothing else is known of it."""
    if run is not None or service.reader.job(name) is not None:
        return None
    return next((one for one in show_refused(service, name) if one.name == name), None)


def parse_labels(labels: list[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` each."""
    parsed = {}
    for label in labels or []:
        key, equals, value = label.partition("=")
        if not equals or not key or "\n" in label or "\0" in label:
            raise errors.Failure(400, f"label: found {label!r}, expected KEY=VALUE")
        parsed[key] = value
    return parsed


@get("/v1/jobs", sync_to_thread=True, responses=FAILS, summary="Jobs, those submitted last first")
def jobs(
    *,
    state: State,
    request: Request[Any, Any, State],
    job_state: Annotated[
        list[JobState] | None,
        QueryParameter(name="state", description="Only jobs in these states."),
    ] = None,
    queue: Filter = None,
    owner: Filter = None,
    prefix: Filter = None,
    label: Annotated[
        list[str] | None, Parameter(max_items=16, description="KEY=VALUE; all must be there.")
    ] = None,
    limit: Limit = 200,
    after: Filter = None,
) -> envelopes.Jobs:
    """Return the newest run of each job.

    With roles in ``Access``, checkpoints, metrics and messages of tasks are shown only to the owner
    of a job and to callers with a role that allows ``read`` in its queue.
    """
    service: services.Services = state.services
    if after is not None:
        try:
            parse_cursor(after)
        except ValueError as error:
            raise errors.Failure(400, f"after: {error}") from None
    found = service.reader.jobs(
        states=[one.value for one in job_state or []],
        queue=queue,
        owner=owner,
        name_prefix=prefix,
        labels=parse_labels(label),
        limit=limit,
        after=after,
    )
    rights = rights_of(service, request)
    shown = show_jobs(service, found, job_views.ATTEMPTS_IN_LIST, rights)
    if not (after or job_state or queue or owner or label):
        shown = show_refused(service, prefix or "") + shown
    return envelopes.Jobs(
        items=shown,
        next=cursor(found[-1]) if len(found) == limit else None,
        **envelopes.head(service),
    )


@get("/v1/jobs/{name:str}", sync_to_thread=True, responses=_NOT_FOUND, summary="One job")
def job(
    *,
    name: Name,
    state: State,
    request: Request[Any, Any, State],
    run: Annotated[int | None, Parameter(ge=1, le=2**31)] = None,
    element: Annotated[
        int | None, Parameter(ge=0, le=2**31, description="Only attempts at this element.")
    ] = None,
    attempts: Annotated[int, Parameter(ge=0, le=LIMIT_MAX)] = job_views.ATTEMPTS_IN_JOB,
) -> envelopes.JobEnvelope:
    """Return one run of a job, the newest unless ``run`` is given.

    What its tasks write is shown as in the list of jobs.
    """
    service: services.Services = state.services
    refused = refused_or_none(service, name, run)
    if refused is not None:
        return envelopes.JobEnvelope(job=refused, **envelopes.head(service))
    found = job_or_404(service, name, run)
    reasons = service.reader.reasons([found.reason_key])
    undecided = undecided_jobs(service).get(name, ())
    tries = service.reader.attempts(
        name, found.spec.run, element=element, limit=attempts, alive_first=True
    )
    written = {
        one.id: told
        for one in tries
        if (told := service.sessions.task_metrics(one.node, one.id)) is not None
    }
    used = {
        one.id: use
        for one in tries
        if (use := service.sessions.task_use(one.node, one.id)) is not None
    }
    shown = job_views.job_view(
        found,
        attempts=tries,
        reports=attempt_views.TaskReports(written, used),
        reasons=(*undecided, *reasons.get(found.reason_key, ())),
        place=service.reader.places([name]).get(name),
        expected=job_views.stored_expected(service.reader.view(job_views.EXPECTED)).get(name),
        running=service.reader.tasks_running([found]).get(found.key, 0),
    )
    shown = rights_of(service, request).job(shown)
    return envelopes.JobEnvelope(job=shown, **envelopes.head(service))


def show_nodes(service: services.Services) -> list[view_types.NodeView]:
    """Return all nodes with their tasks."""
    by_node: dict[str, list[records.AttemptRecord]] = {}
    for attempt in service.reader.attempts_alive():
        by_node.setdefault(attempt.node, []).append(attempt)
    return [
        job_views.node_view(node, by_node.get(node.name, ()), service.sessions.gpu_usage(node.name))
        for node in service.reader.nodes()
    ]


def show_queues(service: services.Services) -> list[view_types.QueueView]:
    """Return all queues, parents first."""
    usages = job_views.stored_queues(service.reader.view(job_views.QUEUES))
    suspended = dict(job_views.stored_sync(service.reader.view(job_views.SYNC)).suspended)
    for one in service.reader.overrides():
        if one.verb == "suspend":
            suspended.setdefault(records.suspended_label(one.subject), one.made_at)
    structure = job_views.stored_structure(service.reader.view(job_views.STRUCTURE))
    said = structure.queues if structure is not None else {}
    return [job_views.queue_view(usage, suspended, said.get(usage.name)) for usage in usages]


def show_pools(service: services.Services) -> list[view_types.PoolView]:
    """Return all pools."""
    declared = job_views.stored_pools(service.reader.view(job_views.POOLS))
    known = {node.name: node for node in service.reader.nodes()}
    instances = service.reader.provisions()
    return [job_views.pool_view(pool, known, instances.get(pool.name)) for pool in declared]


def show_sync(service: services.Services, caller: tokens.Caller) -> view_types.SyncView:
    """Return the sync status; commands of jobs only for callers who may see everybody's."""
    published = service.link.published
    sync = job_views.stored_sync(service.reader.view(job_views.SYNC))
    if authorization.why_not_snapshot(service.reader, caller):
        sync = msgspec.structs.replace(sync, problems=tuple(map(redaction.unquoted, sync.problems)))
    return job_views.sync_view(
        sync,
        service.folder,
        service.branch,
        published.untold if published is not None else (),
    )


@get("/v1/nodes", sync_to_thread=True, responses=FAILS, summary="Nodes")
def nodes(state: State) -> envelopes.NodesEnvelope:
    """Return all nodes by name."""
    service: services.Services = state.services
    return envelopes.NodesEnvelope(items=show_nodes(service), **envelopes.head(service))


@get("/v1/queues", sync_to_thread=True, responses=FAILS, summary="Queues")
def queues(state: State) -> envelopes.Queues:
    """Return all queues as of the last cycle."""
    service: services.Services = state.services
    return envelopes.Queues(items=show_queues(service), **envelopes.head(service))


@get("/v1/quotas", sync_to_thread=True, responses=FAILS, summary="Quotas")
def quotas(state: State) -> envelopes.Quotas:
    """Return all quotas and their usage as of the last cycle."""
    service: services.Services = state.services
    structure = job_views.stored_structure(service.reader.view(job_views.STRUCTURE))
    head, items = envelopes.head(service), []
    if structure is not None and structure.quotas:
        as_of = times.parse_time(head["as_of"])
        items = quota_views.quota_views(structure, service.reader.holders(), as_of)
    return envelopes.Quotas(items=items, **head)


@get("/v1/pools", sync_to_thread=True, responses=FAILS, summary="Node pools")
def pools(state: State) -> envelopes.Pools:
    """Return all pools of the structure in force."""
    service: services.Services = state.services
    return envelopes.Pools(items=show_pools(service), **envelopes.head(service))


@get("/v1/drift", sync_to_thread=True, responses=FAILS, summary="What is other than git says")
def drift(
    state: State,
    kind: Filter = None,
    node: Filter = None,
    pool: Filter = None,
    everything: Annotated[bool, QueryParameter(name="all")] = False,  # noqa: FBT002
) -> envelopes.Drifts:
    """Return all differences as of the last cycle; with ``all`` also ignored ones."""
    service: services.Services = state.services
    found = [
        job_views.drift_view(one)
        for one in service.reader.drift()
        if (everything or one.action != "ignore")
        and kind in (None, one.kind)
        and node in (None, one.node)
        and pool in (None, one.pool)
    ]
    return envelopes.Drifts(items=found, **envelopes.head(service))


@get("/v1/sync", sync_to_thread=True, responses=FAILS, summary="How the repository stands")
def git_sync(state: State, request: Request[Any, Any, State]) -> envelopes.Sync:
    """Revisions attempted and in force, and what is wrong with what is written.

    With roles in ``Access``, findings that show commands of jobs are shown only to callers with
    a role that allows ``snapshot``.
    """
    service: services.Services = state.services
    return envelopes.Sync(
        sync=show_sync(service, authentication.identity_of(request)), **envelopes.head(service)
    )


@get("/v1/snapshot", sync_to_thread=True, responses=FAILS, summary="All at once")
def snapshot(state: State, request: Request[Any, Any, State]) -> envelopes.SnapshotEnvelope:
    """Everything that is shown elsewhere; of jobs those submitted last."""
    service: services.Services = state.services
    found = service.reader.jobs(limit=LIMIT_MAX)
    rights = rights_of(service, request)
    return envelopes.SnapshotEnvelope(
        jobs=show_jobs(service, found, job_views.ATTEMPTS_IN_LIST, rights),
        nodes=show_nodes(service),
        queues=show_queues(service),
        pools=show_pools(service),
        drift=[job_views.drift_view(one) for one in service.reader.drift()],
        sync=show_sync(service, authentication.identity_of(request)),
        **envelopes.head(service),
    )


@get("/v1/events", responses=FAILS, summary="What happened; `wait_s` follows")
async def events(
    *,
    state: State,
    request: Request[Any, Any, State],
    after: Annotated[int | None, Parameter(ge=0, le=2**62)] = None,
    job_name: Annotated[str | None, QueryParameter(name="job", max_length=253)] = None,
    node: Filter = None,
    limit: Limit = 200,
    wait_s: Annotated[float, Parameter(ge=0, le=FOLLOW_S_MAX)] = 0.0,
) -> envelopes.Events:
    """Return the newest events, or those after ``after``, waiting up to ``wait_s`` for them.

    What a task said at its end is shown as in the list of jobs.
    """
    service: services.Services = state.services
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait_s
    while True:
        changed = service.published_changed
        found = await asyncio.to_thread(
            service.reader.events, after=after, job=job_name, node=node, limit=limit
        )
        left_s = ends_at - loop.time()
        if found or after is None or left_s <= 0 or service.stopping.is_set():
            break
        await service.wait_any(changed, left_s)
    last = found[-1].sequence if found else after
    if last is None:
        last = await asyncio.to_thread(service.reader.last_event)
    shown = await asyncio.to_thread(
        lambda: rights_of(service, request).events(map(job_views.told_event, found))
    )
    return envelopes.Events(items=shown, next=last, **envelopes.head(service))


class Hooked(msgspec.Struct, frozen=True):
    """Result of a hint: True if the loop gets it at once; otherwise it got one just now."""

    told: bool


@post(
    "/v1/hooks/git",
    opt={authentication.OPTION: None},
    status_code=202,
    responses=errors.responses(503),
    summary="The repository may have changed (the body is not read)",
)
async def git_hook(state: State) -> Hooked:
    """Tell the loop to read the repository. It is a hint, so there is nothing to trust."""
    service: services.Services = state.services
    try:
        return Hooked(told=service.hint())
    except LinkDownError as error:
        raise errors.Failure(503, str(error), retry_after_s=1.0) from None


class AdoptRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to run after the store was lost; ``everything`` means all."""

    names: list[str] = []
    everything: bool = False


def require_written(names: Sequence[str], written: Sequence[str]) -> None:
    """Refuse to adopt jobs that are not in the repository: by a slip in a name all the others
    would count as done, and nothing takes that back."""
    unknown = [name for name in names if name not in set(written)]
    if unknown:
        hints = suggestions.hint(unknown[0], written)
        raise errors.Failure(
            400,
            f"nothing was adopted: found the names {', '.join(unknown)}, expected those of jobs "
            f"that wait for it (`muster jobs` lists them){hints}",
        )


@post(
    "/v1/adopt",
    opt={authentication.OPTION: frozenset()},
    status_code=202,
    responses=errors.responses(400, 401, 403, 409, 415, 503),
    summary="After the store was lost: which jobs are new; the others count as done",
)
async def adopt(data: JSONBody[AdoptRequest], state: State) -> Hooked:
    """Only while the loop waits to be told."""
    service: services.Services = state.services
    published = service.link.published
    if published is None or not published.adopting:
        raise errors.Failure(409, "nothing waits to be adopted: the store knows its jobs")
    if data.names:
        stored = await asyncio.to_thread(service.reader.view, job_views.REFUSED)
        require_written(data.names, list(job_views.stored_refused(stored)))
    try:
        service.link.adopt(loop_messages.Adopt(tuple(data.names), data.everything))
    except LinkDownError as error:
        raise errors.Failure(503, str(error), retry_after_s=1.0) from None
    return Hooked(told=True)


HANDLERS = [
    jobs,
    job,
    nodes,
    queues,
    quotas,
    pools,
    drift,
    git_sync,
    snapshot,
    events,
    git_hook,
    adopt,
]
