"""Statistics that the scheduler learns: the mix of arriving work, run times, and use over time.

Arrivals and ends of each cycle come in; a new ``SchedulerState`` goes out, bounded and the same on
any machine. It is read back as a mix for placement, expected run times, and each queue's decayed
use.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from reconciler.core.cycle import cycle_jobs, cycle_work
from reconciler.core.jobs import run_times
from reconciler.core.snapshot import task_shapes
from reconciler.model import desired
from reconciler.model.state.scheduler_state import KeptRoom, SchedulerState, TaskKind, Turn
from reconciler.scheduling.inputs import snapshots

#: Tasks after which an arrival counts half, and the most kinds.
ARRIVALS_HALVED = 2000
KINDS_MAX = 64
HOUR_S = 3600
#: Hours of a budget that are kept. No window is longer.
HOURS_MAX = desired.BUDGET_WINDOW_S_MAX // HOUR_S

#: Slices of a window of use, and the name under which the offered use is kept beside the queues.
SLICES = 48
OFFERED = ""

Usage = Mapping[str, float]
Slices = Mapping[str, Mapping[int, float]]
Arrivals = tuple[tuple[TaskKind, float], ...]


# --- the mix --------------------------------------------------------------------------------


def with_arrivals(known: Arrivals, jobs: list[desired.Job]) -> Arrivals:
    """Return the counts of kinds with the GPU tasks of new jobs. Older ones decay."""
    added: dict[TaskKind, float] = {}
    for spec in jobs:
        for group in spec.groups:
            if group.resources.gpu_milli and not group.mig_profile:
                kind = kind_of(spec, group)
                added[kind] = added.get(kind, 0.0) + group.count * len(spec.run_elements)
    if not added:
        return known
    fade = 0.5 ** (sum(added.values()) / ARRIVALS_HALVED)
    counts = {kind: count * fade for kind, count in known}
    for kind, count in added.items():
        counts[kind] = counts.get(kind, 0.0) + min(count, float(ARRIVALS_HALVED))
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], repr(pair[0])))
    return tuple(ordered[:KINDS_MAX])


def kind_of(spec: desired.Job, group: desired.TaskGroup) -> TaskKind:
    """Return what matters of a task for fragmentation."""
    return TaskKind(
        group.resources.cpu_milli,
        group.resources.memory_bytes,
        group.resources.gpu_milli,
        group.devices,
        group.gpu_memory_bytes,
        spec.pools,
        tuple(sorted(spec.node_selector.items())),
    )


def mix(state: SchedulerState, shapes: task_shapes.Shapes) -> tuple[snapshots.ArrivalShare, ...]:
    """Return the kinds of arriving tasks with their shares."""
    total = sum(count for _, count in state.arrivals)
    if total <= 0:
        return ()
    return tuple(
        snapshots.ArrivalShare(
            _group_of(kind),
            shapes.eligible(kind.pools, kind.selector),
            count / total,
        )
        for kind, count in state.arrivals
    )


@functools.lru_cache(maxsize=4 * KINDS_MAX)
def _group_of(kind: TaskKind) -> snapshots.TaskGroupShape:
    """Return one task of a kind as the scheduler reads it."""
    devices, share = task_shapes.devices_of(kind.devices, kind.gpu_milli)
    return snapshots.TaskGroupShape(
        name="mix",
        count=1,
        amounts=(kind.cpu_milli, kind.memory_bytes, kind.gpu_milli),
        devices=devices,
        share=share,
        share_bytes=kind.gpu_memory_bytes,
    )


# --- run times ------------------------------------------------------------------------------


def expected_s(
    settings: desired.Scheduling, remembered: SchedulerState
) -> Callable[[desired.Job], float]:
    """Return a function for expected run times: the limit, or less if that is learned."""
    quantile = settings.learned_quantile
    if quantile is None:
        return run_times.limit_of
    known_times = run_times.RunTimes(remembered)
    return lambda spec: known_times.cautious_s(spec, quantile)


def usual_s(
    jobs: cycle_jobs.CycleJobs, remembered: SchedulerState
) -> Callable[[str, float], float] | None:
    """Return a function for the usual run time of a job, given how long it has run; None: unknown.

    It is only for estimates of starts. Schedules do not use it.
    """
    known_times = run_times.RunTimes(remembered)

    def usual(job: str, ran_s: float) -> float:
        spec = jobs.spec_or_aside(job)
        return snapshots.ENDLESS if spec is None else known_times.usual_s(spec, ran_s)

    return usual if known_times else None


# --- use over time --------------------------------------------------------------------------


def faded_use(
    before: SchedulerState,
    offered_gpus: float,
    at: float,
    half_life_s: float,
) -> tuple[Usage, float]:
    """Return the GPU-seconds used and offered up to ``at``, with a half-life.

    What was held at the last time was held until now, because each change is a schedule of its own.
    """
    gone_s = max(0.0, at - before.used_at) if before.used_at else 0.0
    fade = 0.5 ** (gone_s / half_life_s)
    rate = math.log(2) / half_life_s
    weight_s = (1 - fade) / rate  # the integral of the decay over the elapsed time
    names = before.used.keys() | before.held.keys()
    used = {
        name: before.used.get(name, 0.0) * fade + before.held.get(name, 0.0) * weight_s
        for name in sorted(names)
    }
    return used, before.offered * fade + offered_gpus * weight_s


def use_in_window(
    before: SchedulerState, offered_gpus: float, at: float, half_life_s: float, window_s: int
) -> tuple[Usage, float, Slices]:
    """Return the same as :func:`faded_use` for a window, and the slices to remember.

    Use is kept by slices of the window. A slice leaves as a whole, up to a fiftieth of the window
    late.
    """
    length_s = max(1, math.ceil(window_s / SLICES))
    oldest = at - window_s
    since = max(oldest, before.used_at or at)
    held = {**before.held, OFFERED: offered_gpus}
    in_window: dict[str, dict[int, float]] = {}
    for name in sorted(before.slices.keys() | held.keys()):
        known = before.slices.get(name, {})
        found = {begin: amount for begin, amount in known.items() if begin + length_s > oldest}
        begin = math.floor(since / length_s) * length_s
        while held.get(name) and begin < at:
            covered_s = min(at, begin + length_s) - max(since, begin)
            found[begin] = found.get(begin, 0.0) + held[name] * covered_s
            begin += length_s
        if found:
            in_window[name] = found
    used = {
        name: sum(
            amount * 0.5 ** (max(0.0, at - begin - length_s / 2) / half_life_s)
            for begin, amount in slices.items()
        )
        for name, slices in in_window.items()
    }
    return used, used.pop(OFFERED, 0.0), in_window


# --- budgets --------------------------------------------------------------------------------


def _with_spent(
    structure: desired.Structure,
    ended: Iterable[cycle_work.Ended],
    now: float,
    known: Mapping[str, Mapping[int, float]],
) -> Mapping[str, Mapping[int, float]]:
    quotas = structure.quotas
    budgets = [quota for quota in quotas.values() if quota.budget_gpu_s is not None]
    if not budgets:
        return {} if known else known
    hour = int(now // HOUR_S)
    found = {name: dict(hours) for name, hours in known.items() if name in quotas}
    for one in ended:
        if not one.gpu_s:
            continue
        owner = one.spec.owner
        groups = structure.access.groups_of(owner)
        above = desired.path_to_root(structure.queues, one.spec.queue)
        for quota in budgets:
            if quota.holds_for(owner, groups, above):
                spent = found.setdefault(quota.name, {})
                spent[hour] = spent.get(hour, 0.0) + one.gpu_s
    for quota in budgets:
        oldest = int((now - quota.window_s) // HOUR_S)
        spent = found.get(quota.name, {})
        for then in [then for then in spent if then < max(oldest, hour - HOURS_MAX)]:
            del spent[then]
    return known if found == known else found


# --- everything -----------------------------------------------------------------------------


def renewed(
    before: SchedulerState,
    structure: desired.Structure,
    work: cycle_work.CycleWork,
    arrived: list[desired.Job],
    now: float,
) -> SchedulerState:
    """Return what is remembered after the arrivals and ends of this cycle."""
    times, parts = run_times.renewed(before, work.ended)
    found = msgspec.structs.replace(
        before,
        arrivals=with_arrivals(before.arrivals, arrived),
        run_times=times,
        limit_parts=parts,
        spent=_with_spent(structure, work.ended, now, before.spent),
        short_since=work.short_since,
    )
    return before if found == before else found


def kept_of(
    state: SchedulerState, row_of: Mapping[str, int]
) -> tuple[snapshots.CarriedReservation, ...]:
    """Return the backfill reservations whose nodes all still exist."""
    return tuple(
        snapshots.CarriedReservation(
            one.job, one.element, one.starts_at, tuple(row_of[name] for name in one.nodes)
        )
        for one in state.kept
        if all(name in row_of for name in one.nodes)
    )


def rooms_of(
    reservations: tuple[snapshots.CarriedReservation, ...], names: tuple[str, ...]
) -> tuple[KeptRoom, ...]:
    """Return reservations by names of nodes, to be remembered."""
    return tuple(
        KeptRoom(one.job, one.element, one.starts_at, tuple(names[row] for row in one.nodes))
        for one in reservations
    )


def turns_of(jobs: cycle_jobs.CycleJobs, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return the turns whose job still exists. A job that is held or backs off keeps its turn."""
    found = []
    for turn in turns:
        record = jobs.record_of(turn.job)
        if record is not None and not record.finished and record.order == turn.of:
            found.append(turn)
    return tuple(found)
