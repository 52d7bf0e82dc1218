"""Read access over HTTP: each call reads the store once and shows what it holds."""

import asyncio
import collections
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import Parameter, QueryParameter

from reconciler.model.protocol import loop_messages
from reconciler.model.rules import redaction
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.model.state.states import JobState
from reconciler.model.values import suggestions, times
from reconciler.operations.views import (
    array_views,
    attempt_views,
    job_views,
    quota_views,
    stored_jobs,
    stored_views,
    submission_views,
    view_types,
)
from reconciler.server import errors
from reconciler.server.api import (
    entity_tags,
    envelopes,
    field_choice,
    job_filters,
    unrecorded_jobs,
)
from reconciler.server.auth import authentication, authorization, read_rights, tokens
from reconciler.server.loop_link import LinkClient
from reconciler.server.nodes.sessions import Sessions
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.server_store import ServerStore
from reconciler.server.waits import CycleNews
from reconciler.store import StoreReader
from reconciler.store.statements import JobChoice, cursor

LIMIT_MAX = 1000
#: The most job names to compare with an unknown one.
ALIKE_MAX = 200
#: How long a reader of events may wait for news.
FOLLOW_S_MAX = 60.0

Limit = Annotated[int, Parameter(ge=1, le=LIMIT_MAX, description="The most items of one page.")]
NAME = r"^[A-Za-z0-9._-]{1,253}$"
Name = Annotated[str, Parameter(pattern=NAME)]
Filter = Annotated[str | None, Parameter(max_length=253, pattern=r"^[^\x00]*$")]

_NOT_FOUND = errors.responses(400, 401, 403, 404, 410, 503)
FAILS = errors.responses(400, 401, 403, 503)


def rights_of(reader: StoreReader, request: Request[Any, Any, Any]) -> read_rights.ReadRights:
    """Return what the caller of a request may read."""
    return read_rights.ReadRights(reader, authentication.identity_of(request))


def show_jobs(
    reader: StoreReader,
    jobs: Sequence[records.JobRecord],
    attempts_max: int,
    rights: read_rights.ReadRights,
) -> list[view_types.JobView]:
    """Jobs with their reasons, places and attempts, as far as the caller may read them."""
    found = stored_jobs.job_rows(reader, jobs, attempts_max)
    return [rights.job(one) for one in array_views.with_whole(found, jobs, reader)]


def job_or_404(reader: StoreReader, name: str, run: int | None) -> records.JobRecord:
    """Return a job, or raise the answer that there is none."""
    found = reader.job(name, run)
    if found is None:
        raise unknown_job(reader, name, run)
    return found


def unknown_job(reader: StoreReader, name: str, run: int | None) -> errors.Failure:
    """Return the answer about a job that is not there, with the names that it may have meant."""
    if run is not None and reader.job(name) is not None:
        return errors.Failure(404, f"there is no run {run} of Job/{name}")
    if waits := submission_views.uncommitted_text(name, reader.overrides()):
        return errors.Failure(404, waits)
    # those that begin alike come first; a slip may be in the second letter too
    alike = {
        job.name: None
        for length in (2, 1)
        for job in reader.jobs(JobChoice(name_prefix=name[:length]), limit=ALIKE_MAX)
    }
    refused = stored_views.stored_refused(reader.view(stored_views.REFUSED))
    hint = suggestions.hint(name, [*alike, *(one for one in refused if one not in alike)])
    return errors.Failure(404, f"there is no Job/{name}{hint or '; `muster jobs` lists them'}")


def show_refused(reader: StoreReader, prefix: str) -> list[view_types.JobView]:
    """Jobs that are written but so that they can't run, and never could."""
    refused = stored_views.stored_refused(reader.view(stored_views.REFUSED))
    names = sorted(name for name in refused if name.startswith(prefix))[:LIMIT_MAX]
    known = {name for name in names if reader.job(name) is not None}
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    at, undecided = sync.checked_at or 0.0, job_views.undecided_jobs(sync)
    return [
        job_views.refused_view(name, refused[name], at, is_undecided=name in undecided)
        for name in names
        if name not in known
    ]


def count_jobs(reader: StoreReader) -> dict[str, int]:
    """Return how many jobs there are by state, as the list of jobs shows it."""
    found = reader.job_counts()
    reasons = reader.reasons([key for _, key, _ in found if key])
    counts: collections.Counter[str] = collections.Counter()
    for state, key, count in found:
        is_invalid = any(one.code is ReasonCode.INVALID for one in reasons.get(key, ()))
        counts["Invalid" if is_invalid else state] += count
    counts["Invalid"] += len(show_refused(reader, ""))
    return dict(+counts)  # without zeros


def is_structure_otherwise(reader: StoreReader) -> bool:
    """Return True if objects may be in force that git does not have like this any more."""
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    return sync.sync == "OutOfSync" and sync.structure_revision != sync.attempted_revision


def is_structure_refused(reader: StoreReader) -> bool:
    """Return True if no change of structure applies: it is held, or none was ever accepted."""
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    held = any(one.part == "structure" for one in sync.held)
    return sync.sync == "OutOfSync" and (held or sync.structure_revision is None)


def refused_or_none(
    reader: StoreReader, name: str, run: int | None = None
) -> view_types.JobView | None:
    """Return a job that is written and never could run, if nothing else is known of it."""
    if run is not None or reader.job(name) is not None:
        return None
    return next((one for one in show_refused(reader, name) if one.name == name), None)


@get("/v1/jobs", sync_to_thread=True, responses=FAILS, summary="Jobs, those submitted last first")
@entity_tags.tagged
def jobs(
    *,
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    request: Request[Any, Any, Any],
    job_state: Annotated[
        list[JobState] | None,
        QueryParameter(name="state", description="Only jobs in these states."),
    ] = None,
    queue: Filter = None,
    owner: Filter = None,
    prefix: Filter = None,
    names: job_filters.Names = None,
    mine: job_filters.Mine = False,
    ended_since: job_filters.EndedSince = None,
    label: job_filters.Labels = None,
    limit: Limit = 200,
    after: Filter = None,
    fields: field_choice.Fields = None,
) -> envelopes.Jobs:
    """Return the newest run of each job; jobs that wait for git first, in the state Submitting.

    Such a job takes the place of a run of its name that has ended.

    With roles in ``Access``, checkpoints, metrics and messages of tasks are shown only to the owner
    of a job and to callers with a role that allows ``read`` in its queue.
    """
    try:
        is_first = unrecorded_jobs.is_among(after)
    except ValueError as error:
        raise errors.Failure(400, f"after: {error}") from None
    caller = authentication.identity_of(request)
    choice = JobChoice(
        states=[one.value for one in job_state or []],
        queue=queue,
        owner=job_filters.owner_of(caller, owner, mine=mine),
        name_prefix=prefix,
        patterns=names or (),
        ended_since=job_filters.parse_ended_since(ended_since),
        labels=job_filters.parse_labels(label),
    )
    rights = rights_of(store.reader, request)
    apart = job_filters.submitting(store.reader, choice, rights)
    choice = choice._replace(left_out=[one.name for one in apart])
    if is_first and not (job_state or queue or owner or mine or label):
        apart += [
            one
            for one in show_refused(store.reader, prefix or "")
            if job_filters.has_name(one.name, names) and one.name not in choice.left_out
        ]
    shown, following, after = unrecorded_jobs.part_of(apart, limit, after)
    if following is None:
        left = limit - len(shown)
        found = store.reader.jobs(choice, limit=left, after=after)
        attempts_max = job_views.ATTEMPTS_IN_LIST if field_choice.has(fields, "attempts") else 0
        shown += show_jobs(store.reader, found, attempts_max, rights)
        following = cursor(found[-1]) if len(found) == left else None
    page = envelopes.Jobs(items=shown, next=following, **envelopes.head(link.published))
    return field_choice.only(page, fields)


@get("/v1/job-counts", sync_to_thread=True, responses=FAILS, summary="How many jobs, by state")
@entity_tags.tagged
def job_counts(
    store: NamedDependency[ServerStore], link: NamedDependency[LinkClient]
) -> envelopes.JobCounts:
    """Return how many jobs are in each state."""
    states = count_jobs(store.reader)
    return envelopes.JobCounts(states=states, **envelopes.head(link.published))


@get("/v1/jobs/{name:str}", sync_to_thread=True, responses=_NOT_FOUND, summary="One job")
@entity_tags.tagged
def job(
    *,
    name: Name,
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    sessions: NamedDependency[Sessions],
    request: Request[Any, Any, Any],
    run: Annotated[int | None, Parameter(ge=1, le=2**31)] = None,
    key: job_filters.Key = None,
    element: job_filters.Element = None,
    elements: job_filters.Elements = None,
    leading: job_filters.Leading = None,
    attempts: Annotated[int, Parameter(ge=0, le=LIMIT_MAX)] = job_views.ATTEMPTS_IN_JOB,
) -> envelopes.JobEnvelope:
    """Return one run of a job, the newest unless ``run`` or ``key`` is given.

    With ``element`` alone it is the newest run that has this element.
    What its tasks write is shown as in the list of jobs.
    """
    rights = rights_of(store.reader, request)
    found = job_filters.find_run(store.reader, name, run, key, rights)
    if found is None:
        refused = refused_or_none(store.reader, name, run)
        if refused is None:
            raise unknown_job(store.reader, name, run)
        return envelopes.JobEnvelope(job=refused, **envelopes.head(link.published))
    if run is None and key is None:
        found = array_views.run_of_element(store.reader, found, element)
    reasons = store.reader.reasons([found.reason_key])
    undecided = stored_jobs.undecided_jobs(store.reader).get(name, ())
    choice = job_filters.TryChoice(element, elements, leading, attempts)
    tries, left_out = job_filters.find_tries(store.reader, found, choice)
    shown = job_views.job_view(
        found,
        attempts=tries,
        reports=attempt_views.known_reports(tries, sessions.task_metrics, sessions.task_use),
        reasons=(*undecided, *reasons.get(found.reason_key, ())),
        place=store.reader.places([name]).get(name),
        expected=stored_views.stored_expected(store.reader.view(stored_views.EXPECTED)).get(name),
        running=store.reader.tasks_running([found]).get(found.key, 0),
    )
    shown = array_views.with_indexes(shown, found, store.reader)
    highest = store.reader.highest_run(name)
    shown = msgspec.structs.replace(shown, highest_run=highest, elements_left_out=left_out)
    return envelopes.JobEnvelope(job=rights.job(shown), **envelopes.head(link.published))


def show_nodes(reader: StoreReader, sessions: Sessions) -> list[view_types.NodeView]:
    """Return all nodes with their tasks."""
    by_node: dict[str, list[records.AttemptRecord]] = {}
    for attempt in reader.attempts_alive():
        by_node.setdefault(attempt.node, []).append(attempt)
    return [
        job_views.node_view(node, by_node.get(node.name, ()), sessions.gpu_usage(node.name))
        for node in reader.nodes()
    ]


def show_queues(reader: StoreReader) -> list[view_types.QueueView]:
    """Return all queues, parents first."""
    usages = stored_views.stored_queues(reader.view(stored_views.QUEUES))
    suspended = dict(stored_views.stored_sync(reader.view(stored_views.SYNC)).suspended)
    for one in reader.overrides():
        if one.verb == "suspend":
            suspended.setdefault(records.suspended_label(one.subject), one.made_at)
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    said = structure.queues if structure is not None else {}
    return [job_views.queue_view(usage, suspended, said.get(usage.name)) for usage in usages]


def show_pools(reader: StoreReader) -> list[view_types.PoolView]:
    """Return all pools."""
    declared = stored_views.stored_pools(reader.view(stored_views.POOLS))
    known = {node.name: node for node in reader.nodes()}
    instances = reader.provisions()
    return [job_views.pool_view(pool, known, instances.get(pool.name)) for pool in declared]


def show_sync(
    reader: StoreReader,
    published: loop_messages.Published | None,
    facts: RepositoryFacts,
    caller: tokens.Caller,
) -> view_types.SyncView:
    """Return the sync status; commands of jobs only for callers who may see everybody's."""
    sync = stored_views.stored_sync(reader.view(stored_views.SYNC))
    if authorization.why_not_snapshot(reader, caller):
        sync = msgspec.structs.replace(sync, problems=tuple(map(redaction.unquoted, sync.problems)))
    untold = published.untold if published is not None else ()
    view = job_views.sync_view(sync, facts.folder, facts.branch, untold)
    structure = stored_views.stored_structure(reader.view(stored_views.STRUCTURE))
    ephemeral = structure is not None and structure.settings.ephemeral
    waiting = submission_views.submissions_view(reader.overrides())
    blocked = published.blocked if published is not None else ""
    return msgspec.structs.replace(view, submissions=waiting, blocked=blocked, ephemeral=ephemeral)


@get("/v1/nodes", sync_to_thread=True, responses=FAILS, summary="Nodes")
@entity_tags.tagged
def nodes(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    sessions: NamedDependency[Sessions],
    fields: field_choice.Fields = None,
) -> envelopes.NodesEnvelope:
    """Return all nodes by name."""
    shown = show_nodes(store.reader, sessions)
    return field_choice.listed(envelopes.NodesEnvelope, shown, link.published, fields)


@get("/v1/queues", sync_to_thread=True, responses=FAILS, summary="Queues")
@entity_tags.tagged
def queues(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> envelopes.Queues:
    """Return all queues as of the last cycle."""
    return field_choice.listed(envelopes.Queues, show_queues(store.reader), link.published, fields)


@get("/v1/quotas", sync_to_thread=True, responses=FAILS, summary="Quotas")
@entity_tags.tagged
def quotas(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> envelopes.Quotas:
    """Return all quotas and their usage as of the last cycle."""
    structure = stored_views.stored_structure(store.reader.view(stored_views.STRUCTURE))
    head, items = envelopes.head(link.published), []
    if structure is not None and structure.quotas:
        as_of = times.parse_time(head["as_of"])
        items = quota_views.quota_views(structure, store.reader.holders(), as_of)
    return field_choice.only(envelopes.Quotas(items=items, **head), fields)


@get("/v1/pools", sync_to_thread=True, responses=FAILS, summary="Node pools")
@entity_tags.tagged
def pools(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> envelopes.Pools:
    """Return all pools of the structure in force."""
    return field_choice.listed(envelopes.Pools, show_pools(store.reader), link.published, fields)


@get("/v1/drift", sync_to_thread=True, responses=FAILS, summary="What is other than git says")
@entity_tags.tagged
def drift(
    *,
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    kind: Filter = None,
    node: Filter = None,
    pool: Filter = None,
    everything: Annotated[bool, QueryParameter(name="all")] = False,
    fields: field_choice.Fields = None,
) -> envelopes.Drifts:
    """Return all differences as of the last cycle; with ``all`` also ignored ones."""
    found = [
        job_views.drift_view(one)
        for one in store.reader.drift()
        if (everything or one.action != "ignore")
        and kind in (None, one.kind)
        and node in (None, one.node)
        and pool in (None, one.pool)
    ]
    return field_choice.listed(envelopes.Drifts, found, link.published, fields)


@get("/v1/sync", sync_to_thread=True, responses=FAILS, summary="How the repository stands")
@entity_tags.tagged
def git_sync(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    facts: NamedDependency[RepositoryFacts],
    request: Request[Any, Any, Any],
) -> envelopes.Sync:
    """Revisions attempted and in force, and what is wrong with what is written.

    With roles in ``Access``, findings that show commands of jobs are shown only to callers with
    a role that allows ``snapshot``.
    """
    return envelopes.Sync(
        sync=show_sync(store.reader, link.published, facts, authentication.identity_of(request)),
        **envelopes.head(link.published),
    )


@get("/v1/snapshot", sync_to_thread=True, responses=FAILS, summary="All at once")
@entity_tags.tagged
def snapshot(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    sessions: NamedDependency[Sessions],
    facts: NamedDependency[RepositoryFacts],
    request: Request[Any, Any, Any],
) -> envelopes.SnapshotEnvelope:
    """Everything that is shown elsewhere; of jobs those submitted last."""
    found = store.reader.jobs(limit=LIMIT_MAX)
    rights = rights_of(store.reader, request)
    return envelopes.SnapshotEnvelope(
        jobs=show_jobs(store.reader, found, job_views.ATTEMPTS_IN_LIST, rights),
        nodes=show_nodes(store.reader, sessions),
        queues=show_queues(store.reader),
        pools=show_pools(store.reader),
        drift=[job_views.drift_view(one) for one in store.reader.drift()],
        sync=show_sync(store.reader, link.published, facts, authentication.identity_of(request)),
        **envelopes.head(link.published),
    )


@get("/v1/events", responses=FAILS, summary="What happened; `wait_s` follows")
async def events(
    *,
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    news: NamedDependency[CycleNews],
    request: Request[Any, Any, Any],
    after: Annotated[int | None, Parameter(ge=0, le=2**62)] = None,
    job_name: Annotated[str | None, QueryParameter(name="job", max_length=253)] = None,
    node: Filter = None,
    limit: Limit = 200,
    wait_s: Annotated[float, Parameter(ge=0, le=FOLLOW_S_MAX)] = 0.0,
    fields: field_choice.Fields = None,
) -> envelopes.Events:
    """Return the newest events, or those after ``after``, waiting up to ``wait_s`` for them.

    What a task said at its end is shown as in the list of jobs.
    """
    field_choice.check(envelopes.Events, fields)  # before waiting
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait_s
    while True:
        changed = news.next
        found = await sync_to_thread(
            store.reader.events, after=after, job=job_name, node=node, limit=limit
        )
        left_s = ends_at - loop.time()
        if found or after is None or left_s <= 0 or news.ended:
            break
        await news.wait(changed, left_s)
    last = found[-1].sequence if found else after
    if last is None:
        last = await sync_to_thread(store.reader.last_event)
    shown = await sync_to_thread(
        lambda: rights_of(store.reader, request).events(map(job_views.told_event, found))
    )
    told = envelopes.Events(items=shown, next=last, **envelopes.head(link.published))
    return field_choice.only(told, fields)


HANDLERS = [
    job_counts,
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
]
