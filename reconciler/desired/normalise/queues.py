"""Normalises queues, quotas, reservations and scheduling settings."""

from collections.abc import Mapping

from reconciler.desired.documents import cron
from reconciler.desired.documents.faults import FaultCollector, unknown_name
from reconciler.desired.normalise import pools
from reconciler.model import desired
from reconciler.model.documents import (
    cluster_spec,
    fields,
    queue_spec,
    quota_spec,
    reservation_spec,
)
from reconciler.model.values import found_values, times


def queue(name: str, spec: queue_spec.QueueSpec, faults: FaultCollector) -> desired.Queue:
    """Return a queue."""
    preemption, default, most = spec.preemption, spec.defaults.time_limit, spec.maxima.time_limit
    default_s = (
        None if default is None else faults.time_limit(default, "spec", "defaults", "timeLimit")
    )
    most_s = None if most is None else faults.time_limit(most, "spec", "maxima", "timeLimit")
    if default_s is not None and most_s is not None and default_s > most_s:
        faults.add(
            "default-above-maximum",
            "the default time limit is longer than the longest",
            "spec",
            "defaults",
            "timeLimit",
            found=found_values.quote(default),
            expected=f"at most {most}",
        )
    return desired.Queue(
        name=name,
        parent=spec.parent,
        guaranteed=amounts(spec.guaranteed, faults, "guaranteed"),
        limit=amounts(spec.limit, faults, "limit"),
        suspend=spec.suspend,
        strict=spec.ordering == "strict",
        cancels_never_met=spec.on_never_met == "cancel",
        lending_limit=amounts(spec.lending_limit, faults, "lendingLimit"),
        weight=float(spec.weight),
        flavors=tuple(_flavor(index, flavor, faults) for index, flavor in enumerate(spec.flavors)),
        priority=spec.priority,
        min_runtime_s=None
        if preemption is None
        else faults.duration(preemption.min_runtime, "spec", "preemption", "minRuntime"),
        default_time_limit_s=default_s,
        time_limit_max_s=most_s,
        gpu_milli_max=None
        if spec.maxima.gpu is None
        else faults.amount("gpu", spec.maxima.gpu, "spec", "maxima", "gpu"),
    )


def _flavor(index: int, spec: queue_spec.FlavorSpec, faults: FaultCollector) -> desired.QueueFlavor:
    """Return the amounts of a queue in one pool."""
    place = ("flavors", index)
    return desired.QueueFlavor(
        pool=spec.pool,
        guaranteed=amounts(spec.guaranteed, faults, *place, "guaranteed"),
        limit=amounts(spec.limit, faults, *place, "limit"),
        lending_limit=amounts(spec.lending_limit, faults, *place, "lendingLimit"),
        weight=None if spec.weight is None else float(spec.weight),
    )


def amounts(
    spec: fields.AmountsSpec, faults: FaultCollector, *field: str | int
) -> desired.QuotaAmounts:
    """Return the amounts in a field of a queue's or quota's spec."""
    values = {"cpu": spec.cpu, "memory": spec.memory, "gpu": spec.gpu}
    found = [
        None if written is None else faults.amount(kind, written, "spec", *field, kind)
        for kind, written in values.items()
    ]
    return desired.QuotaAmounts(*found)


def quota(name: str, spec: quota_spec.QuotaSpec, faults: FaultCollector) -> desired.Quota:
    """Return a quota."""
    subject, budget = spec.subject, spec.budget
    whom = (subject.user, subject.group, subject.queue, subject.pool)
    if sum(one is not None for one in whom) != 1:
        faults.add(
            "quota-subject",
            "a quota holds for one user, one group, one queue or one pool: name one of them",
            "spec",
            "subject",
        )
    counted = spec.jobs.running is not None or spec.jobs.pending is not None
    for field, there in (("jobs", counted), ("budget", budget is not None)):
        if subject.pool is not None and there:
            faults.add(
                "quota-subject",
                "a quota of a pool caps resources alone, because a job is in a pool only once it "
                "runs: name a user, a group or a queue",
                "spec",
                field,
            )
    window_s = 0
    if budget is not None:
        known = len(faults.found)
        window_s = faults.duration(budget.window, "spec", "budget", "window")
        if len(faults.found) > known:
            pass  # it is no duration, of which that is told
        elif window_s < cron.HOUR_S:
            faults.add(
                "out-of-range",
                "a budget is kept by the hour",
                "spec",
                "budget",
                "window",
                found=found_values.quote(budget.window),
                expected="at least 1h",
            )
    return desired.Quota(
        name=name,
        user=subject.user or "",
        group=subject.group or "",
        queue=subject.queue or "",
        pool=subject.pool or "",
        resources=amounts(spec.resources, faults, "resources"),
        running=spec.jobs.running,
        pending=spec.jobs.pending,
        budget_gpu_s=None if budget is None else budget.gpu_hours * cron.HOUR_S,
        # what is spent is kept for so long: a longer window counts no more than that
        window_s=min(window_s, desired.BUDGET_WINDOW_S_MAX),
        ends=budget is not None and budget.on_exhausted == "end",
    )


def reservation(
    name: str, spec: reservation_spec.ReservationSpec, faults: FaultCollector
) -> desired.Reservation:
    """Return a reservation without its nodes: :func:`with_nodes` adds them."""
    once = spec.start is not None or spec.end is not None
    again = spec.schedule is not None or spec.duration is not None
    complete = (spec.start is not None and spec.end is not None) or (
        spec.schedule is not None and spec.duration is not None
    )
    if once == again or not complete:
        faults.add(
            "reservation-time",
            "a reservation has start and end, or schedule and duration",
            "spec",
        )
    if spec.maintenance and (spec.users or spec.queues):
        faults.add(
            "exclusive-fields",
            "nobody runs anything in a maintenance window: remove users and queues",
            "spec",
            "maintenance",
        )
    starts_at = _time(spec.start, faults, "start")
    ends_at = _time(spec.end, faults, "end")
    if once and complete and ends_at <= starts_at:
        faults.add(
            "reservation-time",
            "it ends before it begins",
            "spec",
            "end",
            found=found_values.quote(spec.end or ""),
        )
    schedule: tuple[tuple[int, ...] | None, ...] = ()
    if spec.schedule is not None:
        try:
            schedule = cron.parse(spec.schedule)
        except cron.CronError as error:
            faults.add(
                "bad-schedule",
                str(error),
                "spec",
                "schedule",
                found=found_values.quote(spec.schedule),
                expected="five fields such as 0 6 * * 1",
            )
    duration_s = 0
    if spec.duration is not None:
        duration_s = faults.duration(spec.duration, "spec", "duration")
    return desired.Reservation(
        name=name,
        nodes=(),
        starts_at=starts_at,
        ends_at=ends_at,
        schedule=schedule,
        duration_s=duration_s,
        users=tuple(spec.users),
        queues=tuple(spec.queues),
        maintenance=spec.maintenance,
    )


def _time(written: str | None, faults: FaultCollector, field: str) -> float:
    if written is None:
        return 0.0
    try:
        return times.parse_time(written)
    except ValueError as error:
        faults.add(
            "bad-time",
            f"this is not a time: {error}",
            "spec",
            field,
            found=found_values.quote(written),
            expected="a time such as 2027-01-31T06:00:00Z",
        )
        return 0.0


def with_nodes(
    reservation: desired.Reservation,
    spec: reservation_spec.ReservationSpec,
    known: Mapping[str, desired.Pool],
    queues: Mapping[str, desired.Queue],
    faults: FaultCollector,
) -> desired.Reservation:
    """Return the reservation with its nodes, in order of name."""
    names: set[str] = set()
    for index, pool in enumerate(spec.pools):
        if pool not in known:
            faults.add(
                "unknown-pool",
                "unknown NodePool: add it or name another",
                *("spec", "pools", index),
                found=found_values.quote(pool),
            )
        else:
            names.update(known[pool].nodes)
    declared = {node for pool in known.values() for node in pool.nodes}
    if spec.hosts is not None:
        hosts = pools.expand(spec.hosts, faults, "spec", "hosts")
        pools.refuse_strangers(hosts, declared, faults, "spec", "hosts", of="of no NodePool")
        names.update(hosts)
    if not spec.pools and spec.hosts is None:
        faults.add("missing-field", "name the nodes: hosts or pools", "spec", "hosts")
    limited = amounts(spec.amounts, faults, "amounts")
    if spec.maintenance and limited != desired.QuotaAmounts():
        faults.add(
            "reservation-amounts",
            "maintenance is of certain nodes: name them alone, by hosts or pools",
            "spec",
            "amounts",
        )
    for index, one in enumerate(spec.queues):
        if one not in queues and one != "default":
            place = ("spec", "queues", index)
            faults.found.append(unknown_name("queue", one, place, queues))
    return desired.Reservation(
        reservation.name,
        tuple(sorted(names)),
        reservation.starts_at,
        reservation.ends_at,
        reservation.schedule,
        reservation.duration_s,
        reservation.users,
        reservation.queues,
        reservation.maintenance,
        limited,
    )


def scheduling(spec: cluster_spec.SchedulingSpec, faults: FaultCollector) -> desired.Scheduling:
    """Return the settings of the scheduler."""
    place = ("spec", "scheduling")
    half_life_s = faults.duration(spec.fairness.half_life, *place, "fairness", "halfLife")
    if half_life_s == 0:
        faults.add(
            "out-of-range",
            "use that is forgotten at once does not count: say strength: 0 instead",
            *(*place, "fairness", "halfLife"),
            found=found_values.quote(spec.fairness.half_life),
            expected="a duration above 0s",
        )
    window_s = None
    if spec.fairness.window is not None:
        window_s = faults.duration(spec.fairness.window, *place, "fairness", "window")
        if window_s == 0:
            faults.add(
                "out-of-range",
                "use that never counts is asked for by strength: 0",
                *(*place, "fairness", "window"),
                found=found_values.quote(spec.fairness.window),
                expected="a duration above 0s",
            )
    return desired.Scheduling(
        backfill=spec.backfill,
        depth=spec.depth,
        consolidation=spec.consolidation,
        usage_half_life_s=half_life_s,
        usage_strength=float(spec.fairness.strength),
        usage_window_s=window_s,
        placement=spec.placement,
        order=spec.order,
        learned_quantile=None
        if spec.learned_run_times is None
        else spec.learned_run_times.quantile,
        overdue_after=float(spec.overdue_after),
        min_runtime_s=faults.duration(spec.min_runtime, *place, "minRuntime"),
        stale_gang_s=faults.duration(spec.stale_gang_grace, *place, "staleGangGrace"),
        grace_max_s=faults.duration(spec.grace_max, *place, "graceMax"),
    )
