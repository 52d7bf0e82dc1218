"""Two futures from one snapshot: who starts sooner or later, and who has to leave."""

from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import simulated_cluster
from reconciler.simulation.forecast import cluster_forecast, forecast_diff

BEGIN = 1_000_000.0
GI = 2**30
POOL = desired.Pool(
    name="gpu",
    nodes=("n1", "n2"),
    node_resources=Resources(16_000, 64 * GI, 4000),
    runs_unmapped=True,
)
STRUCTURE = desired.Structure(
    pools={"gpu": POOL},
    queues={"default": desired.Queue("default"), "other": desired.Queue("other", weight=0.0)},
)
#: Nobody has room reserved: who waits goes by the turn of its queue alone.
UNRESERVED = msgspec.structs.replace(
    STRUCTURE,
    settings=desired.ClusterSettings(scheduling=desired.Scheduling(backfill="none")),
)
SAVES = desired.Checkpoint()


def job(name: str, *, gpu: int = 4, limit_s: int | None = 3600, **more: Any) -> desired.Job:
    group = desired.TaskGroup("main", 1, Resources(1000, GI, gpu * 1000), command=("true",))
    values: dict[str, Any] = {
        "name": name,
        "run": 1,
        "hash": "0" * 16,
        "queue": "default",
        "groups": (group,),
        "time_limit_s": limit_s,
        **more,
    }
    return desired.Job(**values)


def wanted(*jobs: desired.Job, structure: desired.Structure = STRUCTURE) -> desired.Desired:
    return desired.Desired(1, structure, {one.name: one for one in jobs})


def after(
    *jobs: desired.Job, run_s: float = 600.0, structure: desired.Structure = STRUCTURE
) -> tuple[records.Observed, float]:
    """What is known of a cluster in which these jobs are wanted since so long."""
    cluster = simulated_cluster.SimulatedCluster(
        structure, now=BEGIN, jobs={one.name: one for one in jobs}
    )
    cluster.run(BEGIN + run_s)
    return cluster.memory.observed((), {}), BEGIN + run_s


LOW = job("low", priority=10)
KEPT = job("kept", priority=200, limit_s=7200)
WAITS = job("waits", queue="other", priority=5)
URGENT = job("urgent", priority=100, limit_s=60)


def test_the_preempted_job_and_the_queue_that_waits_longer_are_named() -> None:
    observed, now = after(LOW, KEPT, WAITS, structure=UNRESERVED)
    base = wanted(LOW, KEPT, WAITS, structure=UNRESERVED)
    head = wanted(LOW, KEPT, WAITS, URGENT, structure=UNRESERVED)
    found = forecast_diff.forecast(base, head, observed, now)
    (gone,) = found.evictions
    assert (gone.job, gone.reason, gone.by.partition("[")[0]) == ("low", "Preempted", "urgent")
    assert gone.at == now
    assert gone.lost_gpu_s == pytest.approx(600 * 4)
    assert gone.back_at is not None
    assert 59 <= gone.back_at - now <= 62
    later = {shift.job: shift for shift in found.shifts}
    assert later["urgent"].is_new
    assert (later["urgent"].after or 0) - now <= 1
    waits = later["waits"]
    assert (waits.before or 0) - now == pytest.approx(3000, abs=2)
    # low begins anew after the urgent one
    assert (waits.later_s or 0) == pytest.approx(660, abs=5)
    (other,) = [queue for queue in found.queues if queue.queue == "other"]
    assert (other.waiting, other.later, other.sooner) == (1, 1, 0)
    (own,) = [queue for queue in found.queues if queue.queue == "default"]
    assert own.preempted == 1


def test_a_future_hears_of_ends_on_nodes_that_have_reported_often() -> None:
    cluster = simulated_cluster.SimulatedCluster(STRUCTURE, now=BEGIN)
    for number in range(20):
        cluster.commit([job(f"short-{number}", gpu=1)])
        cluster.run(BEGIN + 10 * number)
        cluster.commit(remove=[f"short-{number}"])
    cluster.commit([LOW, KEPT])
    cluster.run(BEGIN + 600)
    seen = cluster.memory.observed((), {})
    found = cluster_forecast.future(
        wanted(LOW, KEPT, WAITS), seen, cluster.now, base_nodes=frozenset(POOL.nodes)
    )
    assert found.starts["waits"] - BEGIN == pytest.approx(190 + 3600, abs=3)
    assert "waits" not in found.estimated


def test_what_saves_loses_nothing_and_goes_on_from_there() -> None:
    low = msgspec.structs.replace(LOW, checkpoint=SAVES)
    observed, now = after(low, KEPT, WAITS, structure=UNRESERVED)
    base = wanted(low, KEPT, WAITS, structure=UNRESERVED)
    head = wanted(low, KEPT, WAITS, URGENT, structure=UNRESERVED)
    found = forecast_diff.forecast(base, head, observed, now)
    assert [one.lost_gpu_s for one in found.evictions] == [0.0]
    (waits,) = [shift for shift in found.shifts if shift.job == "waits"]
    assert (waits.later_s or 0) == pytest.approx(60, abs=5)


def test_what_leaves_the_queue_lets_others_start_sooner() -> None:
    observed, now = after(LOW, KEPT, WAITS)
    found = forecast_diff.forecast(wanted(LOW, KEPT, WAITS), wanted(KEPT, WAITS), observed, now)
    (waits,) = found.shifts
    assert waits.later_s is not None
    assert waits.later_s < -2990
    (gone,) = found.evictions
    assert (gone.job, gone.reason) == ("low", "Cancelled")
    assert [(q.queue, q.sooner, q.later) for q in found.queues] == [("other", 1, 0)]


def test_who_has_room_reserved_starts_before_who_was_preempted() -> None:
    observed, now = after(LOW, KEPT, WAITS)
    base, head = wanted(LOW, KEPT, WAITS), wanted(LOW, KEPT, WAITS, URGENT)
    found = forecast_diff.forecast(base, head, observed, now)
    (gone,) = found.evictions
    assert gone.job == "low"
    assert (gone.back_at or 0) - now == pytest.approx(3660, abs=5)
    later = {shift.job: shift for shift in found.shifts}
    assert (later["waits"].before or 0) - now == pytest.approx(3000, abs=2)
    assert (later["waits"].after or 0) - now == pytest.approx(60, abs=2)


def test_without_a_change_nothing_is_told() -> None:
    observed, now = after(LOW, KEPT, WAITS)
    state = wanted(LOW, KEPT, WAITS)
    again = msgspec.structs.replace(state, generation=7)
    found = forecast_diff.forecast(state, again, observed, now)
    assert (found.shifts, found.evictions, found.spared, found.queues) == ((), (), (), ())


def test_same_input_same_forecast() -> None:
    observed, now = after(LOW, KEPT, WAITS)
    base, head = wanted(LOW, KEPT, WAITS), wanted(LOW, KEPT, WAITS, URGENT)
    first = forecast_diff.forecast(base, head, observed, now)
    assert forecast_diff.forecast(base, head, observed, now) == first


def test_work_without_a_limit_never_ends_unless_its_like_did() -> None:
    endless = msgspec.structs.replace(LOW, time_limit_s=None, priority=200)
    observed, now = after(endless, KEPT, run_s=60.0)
    base, head = wanted(endless, KEPT), wanted(endless, KEPT, URGENT)
    found = forecast_diff.forecast(base, head, observed, now)
    assert found.endless == 1
    (urgent,) = [shift for shift in found.shifts if shift.is_new]
    assert (urgent.after or 0) - now > 7000, "only the other one makes room"
    learned = msgspec.structs.replace(
        observed.scheduler_state, run_times={"\nlow": (600.0, 500.0, 700.0)}
    )
    known = msgspec.structs.replace(observed, scheduler_state=learned)
    found = forecast_diff.forecast(base, head, known, now)
    assert found.endless == 0
    (urgent,) = [shift for shift in found.shifts if shift.is_new]
    assert (urgent.after or 0) - now == pytest.approx(540, abs=2)


def test_nodes_that_are_away_stay_away_and_new_ones_come_up() -> None:
    observed, now = after(KEPT)
    nodes = dict(observed.nodes)
    (free,) = {"n1", "n2"} - {attempt.node for attempt in observed.attempts.values()}
    nodes[free] = msgspec.structs.replace(nodes[free], state=NodeState.UNKNOWN)
    observed = msgspec.structs.replace(observed, nodes=nodes)
    found = forecast_diff.forecast(wanted(KEPT), wanted(KEPT, URGENT), observed, now)
    (urgent,) = found.shifts
    assert (urgent.after or 0) - now > 6000
    larger = msgspec.structs.replace(POOL, nodes=("n1", "n2", "n3"))
    structure = msgspec.structs.replace(STRUCTURE, pools={"gpu": larger})
    found = forecast_diff.forecast(
        wanted(KEPT), wanted(KEPT, URGENT, structure=structure), observed, now
    )
    (urgent,) = found.shifts
    assert (urgent.after or 0) - now < 2


def test_a_layout_that_is_declared_is_there_once_what_runs_has_ended() -> None:
    pool = msgspec.structs.replace(
        POOL, nodes=("n1",), node_resources=Resources(16_000, 64 * GI, 1000)
    )
    structure = msgspec.structs.replace(STRUCTURE, pools={"gpu": pool})
    kept = job("kept", gpu=1, limit_s=7200, priority=200)
    observed, now = after(kept, structure=structure)
    real = records.Inventory(
        "n1", capacity=pool.node_resources, gpus=(records.Gpu(0, "G", "H200"),)
    )
    nodes = {"n1": msgspec.structs.replace(observed.nodes["n1"], inventory=real)}
    observed = msgspec.structs.replace(observed, nodes=nodes)
    part = desired.TaskGroup(
        "main", 1, Resources(1000, GI, 0), command=("true",), mig_profile="1g.18gb", devices=1
    )
    small = job("small", groups=(part,))
    layout = desired.MigLayout(0, (("1g.18gb", 7),))
    cut = msgspec.structs.replace(pool, mig=(layout,))
    head = msgspec.structs.replace(structure, pools={"gpu": cut})
    found = forecast_diff.forecast(
        wanted(kept, structure=structure), wanted(kept, small, structure=head), observed, now
    )
    (shift,) = found.shifts
    assert (shift.after or 0) - now == pytest.approx(7200 - 600, abs=120)
    stuck = msgspec.structs.replace(real.gpus[0], cut=devices.MigCut(devices.NEEDS_RESET, "why"))
    real = msgspec.structs.replace(real, gpus=(stuck,))
    nodes = {"n1": msgspec.structs.replace(observed.nodes["n1"], inventory=real)}
    observed = msgspec.structs.replace(observed, nodes=nodes)
    found = forecast_diff.forecast(
        wanted(kept, structure=structure), wanted(kept, small, structure=head), observed, now
    )
    (shift,) = found.shifts
    assert shift.after is None


def test_a_job_with_a_task_on_a_node_that_is_taken_away_leaves_as_a_whole_and_comes_back() -> None:
    small = msgspec.structs.replace(
        POOL, nodes=("n1", "n2", "n3"), node_resources=Resources(16_000, 64 * GI, 2000)
    )
    queues = {
        **STRUCTURE.queues,
        "firm": desired.Queue("firm", guaranteed=desired.QuotaAmounts(gpu_milli=4000)),
    }
    structure = msgspec.structs.replace(STRUCTURE, pools={"gpu": small}, queues=queues)
    pair = (desired.TaskGroup("main", 2, Resources(1000, GI, 2000), command=("true",)),)
    over = job("over", groups=pair, limit_s=7200)
    observed, now = after(over, structure=structure)
    kept, leaving = sorted(attempt.node for attempt in observed.attempts.values())
    (free,) = {"n1", "n2", "n3"} - {kept, leaving}
    smaller = msgspec.structs.replace(small, nodes=(kept, free))
    head = msgspec.structs.replace(structure, pools={"gpu": smaller})
    before = wanted(over, structure=structure)
    # left alone it goes on to its end, and who waits for its other node starts then
    waits = job("waits", groups=pair, limit_s=60)
    found = forecast_diff.forecast(before, wanted(over, waits, structure=head), observed, now)
    assert not found.evictions
    (shift,) = found.shifts
    assert (shift.after or 0) - now == pytest.approx(7200 - 600, abs=120)
    firm = job("firm", groups=pair, queue="firm", preemptible=False, limit_s=60)
    found = forecast_diff.forecast(before, wanted(over, firm, structure=head), observed, now)
    (gone,) = found.evictions
    assert gone.job == "over"
    assert (gone.back_at or 0) - now == pytest.approx(60, abs=10)


def test_what_does_not_start_within_the_horizon_says_why() -> None:
    observed, now = after(KEPT, LOW)
    huge = job("huge", gpu=8)
    found = forecast_diff.forecast(wanted(KEPT, LOW), wanted(KEPT, LOW, huge), observed, now)
    (shift,) = found.shifts
    assert shift.after is None
    assert shift.reason.startswith("NeverFits: ")


def test_who_never_starts_is_told_what_it_waits_for_at_the_end() -> None:
    """Not that others go first which have started by then."""
    queues = {name: desired.Queue(name) for name in ("others", "own")}
    structure = msgspec.structs.replace(STRUCTURE, queues=queues)
    low = [job(f"low{n}", gpu=1, limit_s=None, queue="own", priority=1) for n in range(8)]
    more = [job(f"more{n}", gpu=1, limit_s=None, queue="others") for n in range(6)]
    short = job("short", gpu=2, limit_s=25, queue="own")
    observed, now = after(*low, structure=structure)
    asked = wanted(*low, *more, short, structure=structure)
    found = cluster_forecast.future(asked, observed, now, base_nodes=frozenset(POOL.nodes))
    assert found.reasons, "there is more than the nodes hold"
    assert not any(told.startswith("Behind") for told in found.reasons.values()), found.reasons
    assert found.until == now + cluster_forecast.HORIZON_S


def test_the_cycles_of_a_future_are_bounded_and_the_rest_is_estimated() -> None:
    many = [job(f"j{number:03}", limit_s=3600) for number in range(60)]
    observed, now = after(*many)
    before = cluster_forecast.EFFORT_MAX
    cluster_forecast.EFFORT_MAX = 0
    try:
        found = forecast_diff.forecast(wanted(*many), wanted(*many, URGENT), observed, now)
    finally:
        cluster_forecast.EFFORT_MAX = before
    assert found.cycles <= 2 * cluster_forecast.CYCLES_MIN
    assert found.decided_until < found.until
    assert all(one.at <= found.decided_until for one in found.evictions)
    starts = {shift.job: shift for shift in found.shifts}
    assert not starts["urgent"].estimated
