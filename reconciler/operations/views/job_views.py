"""Records as people and programs see them: the JSON shapes of the API and of ``-o json``.

Pure functions from the model's values to structs whose field names are the JSON names: times as
RFC 3339 in UTC, memory in bytes, CPUs and GPUs decimal, durations in seconds with ``_s``. What
the loop knows and no table holds (queues' arithmetic, structure, sync) comes as *stored views*.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from reconciler.core import overrides
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.policy import drift_kinds
from reconciler.model.protocol import loop_messages
from reconciler.model.rules import review_findings
from reconciler.model.state import events, instance_records, outcome, records
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import hostlists
from reconciler.model.values.resources import Resources
from reconciler.model.values.times import format_time
from reconciler.operations.views import attempt_views, gpu_views, json_format, view_types

API_VERSION = "muster/v1"
#: Attempts shown with a job in a list, and with a job alone.
ATTEMPTS_IN_LIST = 16
ATTEMPTS_IN_JOB = 200

_NO_START = outcome.ExpectedStart(0.0)


def amounts(of: Resources) -> view_types.AmountsView:
    """Return resources as JSON shows them."""
    return view_types.AmountsView(of.cpu_milli / 1000, of.memory_bytes, of.gpu_milli / 1000)


def vector(of: Sequence[int | None]) -> view_types.AmountsView:
    """Amounts in the order of ``resources.RESOURCE_NAMES``."""
    cpu, memory, gpu = of
    return view_types.AmountsView(
        None if cpu is None else cpu / 1000, memory, None if gpu is None else gpu / 1000
    )


def reason_view(of: Reason) -> view_types.ReasonView:
    """Return the view of a reason."""
    funnel = [view_types.FunnelView(step.count, step.why) for step in of.funnel]
    return view_types.ReasonView(of.code, of.message, funnel, of.unblocks, of.never, of.waits_for)


#: Advice about a job that an internal error keeps from being decided.
REPORT_DEFECT = "report it, or write the document differently"
#: Of attempts about which no node has reported.
NO_REPORTS = attempt_views.TaskReports()


def job_view(
    of: records.JobRecord,
    *,
    attempts: Iterable[records.AttemptRecord] = (),
    reasons: Iterable[Reason] = (),
    place: int | None = None,
    expected: outcome.ExpectedStart | None = None,
    reports: attempt_views.TaskReports = NO_REPORTS,
    running: int = 0,
) -> view_types.JobView:
    """Return the view of a job's run; ``running`` is the number of its running tasks."""
    spec = of.spec
    array = spec.array_count is not None
    takes = sum(
        (group.resources.times(group.count) for group in spec.groups), start=Resources()
    ).times(len(spec.run_elements))
    waits = of.state in {JobState.PENDING, JobState.HELD}
    told = expected if waits and expected is not None else _NO_START
    return view_types.JobView(
        name=spec.name,
        run=spec.run,
        queue=spec.queue,
        owner=spec.owner,
        state=of.state.value,
        reasons=[reason_view(reason) for reason in reasons] if not of.finished else [],
        place=place if waits else None,
        estimated_start=json_format.time_or_none(told.at),
        estimated_certain=told.certain,
        start_takes_back=told.takes_back,
        latest_start=json_format.time_or_none(told.latest),
        estimated_between=list(map(format_time, told.between)) or None,
        attempts=[
            attempt_views.attempt_view(
                attempt,
                array=array,
                metrics=reports.metrics.get(attempt.id),
                use=reports.uses.get(attempt.id),
            )
            for attempt in attempts
        ],
        priority=spec.priority,
        labels=spec.labels,
        submitted=format_time(of.submitted_at),
        started=json_format.time_or_none(of.started_at),
        ended=json_format.time_or_none(of.ended_at),
        message=of.message,
        set_by_policy=view_types.mutation_views(spec),
        array=array,
        elements={state.value: count for state, count in of.element_state_counts().items()},
        resources=amounts(takes),
        removed=of.removed,
        path=spec.path,
        depends_on=[one.job for one in spec.depends_on],
        tasks=_tasks(spec, running),
        key=spec.key,
        ephemeral=of.ephemeral,
        checkpoint_folder=spec.checkpoint.path if spec.checkpoint is not None else "",
        code=spec.code.text(),
    )


def _tasks(spec: desired.Job, running: int) -> view_types.TasksView | None:
    """Return the tasks of an elastic gang, or None for other jobs."""
    if spec.array_count is not None or not spec.is_elastic:
        return None
    enough = (one.count if one.minimum is None else one.minimum for one in spec.groups)
    return view_types.TasksView(running, sum(enough), sum(one.count for one in spec.groups))


def _drain_view(of: desired.NodeDrain) -> view_types.DrainView:
    return view_types.DrainView(of.reason, of.owner, json_format.time_or_none(of.until))


def node_view(
    of: records.NodeRecord,
    attempts: Iterable[records.AttemptRecord],
    gpu_usage: Iterable[devices.GpuUsage] = (),
) -> view_types.NodeView:
    """Return the view of a node with its active attempts."""
    alive = [attempt for attempt in attempts if attempt.state is not AttemptState.ENDED]
    holder = {device: attempt.id for attempt in alive for device in attempt.devices}
    inventory, usage = of.inventory, of.usage
    used = {one.uuid: one for one in gpu_usage}
    gpus = [
        gpu_views.gpu_view(gpu, holder.get(gpu.index), used.get(gpu.uuid)) for gpu in inventory.gpus
    ]
    driver = inventory.gpu_driver
    return view_types.NodeView(
        name=of.name,
        pool=of.pool,
        state=of.state.value,
        message=of.message,
        notice=inventory.notice,
        capacity=amounts(inventory.capacity),
        allocated=amounts(sum((attempt.resources for attempt in alive), start=Resources())),
        gpus=gpus,
        gpu_driver=None if driver is None else gpu_views.driver_view(driver),
        foreign_gpu_processes=[
            gpu_views.process_view(one) for one in inventory.foreign_gpu_processes
        ],
        volumes=[view_types.NodeVolumeView(one.name, one.problem) for one in inventory.volumes],
        labels=inventory.labels,
        attempts=len(alive),
        usage=None if not usage.at else usage_view(usage),
        drain=None if of.drain is None else _drain_view(of.drain),
        address=inventory.address,
        agent_version=inventory.agent_version,
        virtual=inventory.virtual,
        boot_id=of.boot_id,
        first_seen=json_format.time_or_none(of.first_seen_at),
        last_report=json_format.time_or_none(of.last_report_at),
    )


def undecided_jobs(sync: desired.SyncStatus) -> dict[str, Reason]:
    """Return why known jobs continue unchanged, or wait: their new version can't be decided."""
    kind = "Job/"
    return {
        one.object.removeprefix(kind): Reason(ReasonCode.INVALID, one.message, (), REPORT_DEFECT)
        for one in sync.problems
        if one.rule == review_findings.UNDECIDED and one.object.startswith(kind)
    }


def refused_view(
    name: str, problem: str, seen_at: float, *, is_undecided: bool = False
) -> view_types.JobView:
    """Return the view of a job that has no run.

    It is ``Invalid``, or its author may not submit it. ``is_undecided``: an internal error of
    Muster is why.
    """
    unblocks = REPORT_DEFECT if is_undecided else "correct its document, and commit it"
    why = Reason(ReasonCode.INVALID, problem, unblocks=unblocks)
    if desired.is_unanswered(problem):
        unblocks = "have somebody with that permission commit it, signed"
        why = Reason(ReasonCode.NOT_ALLOWED, problem, unblocks=unblocks)
    return view_types.JobView(
        name=name,
        run=0,
        queue="",
        owner="",
        state=JobState.PENDING.value,
        reasons=[reason_view(why)],
        place=None,
        estimated_start=None,
        attempts=[],
        priority=0,
        labels={},
        submitted=format_time(seen_at),
        started=None,
        ended=None,
        message=problem,
        array=False,
        elements={},
        resources=amounts(Resources()),
        removed=False,
        path="",
        depends_on=[],
    )


def usage_view(of: records.NodeUsage) -> view_types.NodeUsageView:
    """Return the view of a node's usage."""
    return view_types.NodeUsageView(
        at=format_time(of.at),
        cpu_percent=of.cpu_percent,
        memory=of.memory_used_bytes,
        disk=of.disk_used_bytes,
        disk_total=of.disk_total_bytes,
        load1m=of.load_1m,
    )


_NOTHING = desired.QuotaAmounts()
_NOBODY: Mapping[str, float] = MappingProxyType({})


def queue_view(
    of: outcome.QueueUsage,
    suspended: Mapping[str, float] = _NOBODY,
    said: desired.Queue | None = None,
) -> view_types.QueueView:
    """Return the view of a queue; ``suspended`` is from ``SyncStatus``, ``said`` is the queue in
    git.
    """
    lends = {one.pool: one.lending_limit for one in said.flavors} if said else {}
    since = suspended.get(f"Queue/{of.name}", suspended.get("Cluster"))
    return view_types.QueueView(
        name=of.name,
        parent=of.parent,
        allocated=vector(of.allocated),
        guaranteed=vector(of.guaranteed),
        limit=vector(of.limit),
        fair_share=vector(of.fair_share),
        demand=vector(of.demand),
        weight=of.weight,
        priority=of.priority,
        pending=of.pending_jobs,
        running=of.running_jobs,
        suspended=json_format.time_or_none(since),
        pools=[
            view_types.QueueInPoolView(
                pool=one.pool,
                allocated=vector(one.allocated),
                guaranteed=vector(one.guaranteed),
                limit=vector(one.limit),
                fair_share=vector(one.fair_share),
                demand=vector(one.demand),
                named=one.named,
                lending_limit=vector(lends.get(one.pool, _NOTHING).as_vector()) if said else None,
            )
            for one in of.pools
        ],
        lending_limit=vector(said.lending_limit.as_vector()) if said else None,
    )


def pool_view(
    of: desired.Pool,
    nodes: Mapping[str, records.NodeRecord],
    provision: instance_records.Provision | None = None,
) -> view_types.PoolView:
    """Return the view of a pool with its nodes; those never seen count as ``Missing``.

    ``provision`` has the instances of a pool that creates and deletes nodes.
    """
    hosts, scales = of.nodes, of.provisioning
    instances: Counter[str] = Counter()
    if scales is not None:
        hosts = tuple(sorted(provision.expected())) if provision else ()
        here = provision.instances.values() if provision else ()
        instances.update(one.state.value for one in here)
    states = Counter(nodes[name].state.value if name in nodes else "Missing" for name in hosts)
    capacity = sum(
        (nodes[name].inventory.capacity for name in hosts if name in nodes), start=Resources()
    )
    return view_types.PoolView(
        name=of.name,
        nodes=len(hosts),
        hosts=hostlists.fold(hosts),
        states=dict(sorted(states.items())),
        provisioner=of.provisioner,
        gpu_model=of.gpu_model,
        gpu_memory=of.gpu_memory_bytes,
        observe_only=of.observe_only,
        node_resources=amounts(of.node_resources),
        offered=amounts(of.promised()),
        capacity=amounts(capacity),
        drains={name: _drain_view(one) for name, one in of.drains.items()},
        min=scales.minimum if scales else None,
        max=scales.maximum if scales else None,
        instances=dict(sorted(instances.items())) if scales else None,
    )


def drift_view(of: drift_kinds.Drift) -> view_types.DriftView:
    """Return the view of a difference."""
    return view_types.DriftView(
        kind=of.kind,
        subject=of.subject,
        message=of.message,
        severity=of.severity,
        action=of.action,
        first_seen=format_time(of.first_seen),
        wanted=of.wanted,
        found=of.found,
        remedy=of.remedy,
        tries=of.tries,
        given_up=of.given_up,
        pool=of.pool,
        node=of.node,
        job=of.job,
        attempt=of.attempt,
    )


def override_view(of: records.Override, *, signed: bool = False) -> view_types.OverrideView:
    """Return the view of an override that is not committed; ``signed``: commits have to be
    signed.
    """
    return view_types.OverrideView(
        of.verb,
        of.subject,
        of.reason,
        of.owner,
        format_time(of.made_at),
        format_time(of.expires_at),
        overrides.commit_command(of, signed=signed),
        of.commit or None,
        of.submission.refused or None if of.submission else None,
    )


def event_view(of: events.Event) -> view_types.EventView:
    """Return the view of an event, with its own words only."""
    return view_types.EventView(
        of.sequence, format_time(of.at), of.kind, of.message, of.job, of.node, of.attempt
    )


def told_event(of: events.Event) -> view_types.EventView:
    """Return the view of an event, with the sentence of its kind if it has no words."""
    return msgspec.structs.replace(event_view(of), message=events.words(of))


def problem_view(of: desired.Problem) -> view_types.ProblemView:
    """Return the view of a problem."""
    return view_types.ProblemView(
        **{name: getattr(of, name) for name in view_types.ProblemView.__struct_fields__}
    )


def sync_view(
    of: desired.SyncStatus,
    folder: str = "",
    branch: str = "",
    untold: Iterable[loop_messages.Untold] = (),
) -> view_types.SyncView:
    """Return the view of the sync status, for ``folder`` of ``branch``."""
    return view_types.SyncView(
        sync=of.sync,
        branch=branch,
        folder=folder,
        attempted_revision=of.attempted_revision,
        structure_revision=of.structure_revision,
        jobs_revision=of.jobs_revision,
        message=of.message,
        checked=json_format.time_or_none(of.checked_at),
        problems=[problem_view(problem) for problem in of.problems],
        held=[
            view_types.HeldView(
                *(one.part, one.message, one.digest, list(one.jobs)),
                *(json_format.time_or_none(one.until), list(one.reasons)),
            )
            for one in of.held
        ],
        suspended={label: format_time(since) for label, since in of.suspended.items()},
        untold=[
            view_types.UntoldView(one.channel, format_time(one.since), one.tries, one.why)
            for one in untold
        ],
        next_look=json_format.time_or_none(of.next_look_at),
    )
