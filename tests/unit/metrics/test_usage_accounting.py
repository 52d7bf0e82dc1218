"""What is metered is what was used, each attempt once, by the hour; the store adds it up."""

from pathlib import Path

import msgspec
import pytest

from reconciler import metrics, store
from reconciler.metrics import usage_accounting
from reconciler.model.observed import devices, task_reports
from reconciler.model.state import outcome, records, usage_rollups
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values.resources import Resources
from reconciler.operations.reports import render, usage_reports
from reconciler.operations.views import stored_views
from reconciler.store import rollups
from tests.unit import gpusamples
from tests.unit.store import samples

HOUR = 3600.0
TRAIN = samples.job("train", state=JobState.RUNNING, owner="ada@example.org")
GPUS = Resources(2000, 0, 2000)
QUEUE = outcome.QueueUsage(
    "research",
    None,
    (0, 0, 4000),
    (None, None, 8000),
    (None, None, None),
    fair_share=(None, None, 6000),
    demand=(0, 0, 10_000),
)

#: What a picture of each kind of report says of its axis and bars.
SAID = {
    "usage": ("GPU-hours", "used (a kernel ran)"),
    "waiting": ("time from submission to start, in ", "p50: half of them"),
    "efficiency": ("GPU-hours", "idle (measured, and no kernel ran)"),
    "fairness": ("GPU-hours", "guaranteed"),
}


def attempt(**changes: object) -> records.AttemptRecord:
    """An attempt with two GPUs on n1, from 1:30 to 3:15 by the clock of the epoch."""
    bare = samples.attempt(TRAIN, state=AttemptState.ENDED, exit_code=0, concluded=True)
    whole = {"assigned_at": 1.5 * HOUR, "ended_at": 3.25 * HOUR, "resources": GPUS,
             "devices": (0, 1), "cpu_s": 6300.0}  # fmt: skip
    return msgspec.structs.replace(bare, **(whole | changes))


def observed(*attempts: records.AttemptRecord) -> records.Observed:
    return records.Observed(
        jobs={"train": TRAIN},
        nodes={"n1": gpusamples.node()},
        attempts={one.id: one for one in attempts},
    )


def metered(*attempts: records.AttemptRecord) -> usage_rollups.UsageRollup:
    meter = usage_accounting.Meter(metrics.Counters())
    meter.cycle(samples.cycle(now=4 * HOUR, attempts=attempts), observed())
    return meter.take()


def test_an_attempt_is_charged_to_the_hours_in_which_it_ran() -> None:
    usage = metered(attempt()).usage
    assert {key.hour: used.gpu_s for key, used in usage.items()} == {
        1: HOUR, 2: 2 * HOUR, 3: 0.5 * HOUR,
    }  # fmt: skip
    assert [used.attempts for used in usage.values()] == [0, 0, 1]
    assert sum(used.used_cpu_s for used in usage.values()) == pytest.approx(6300)
    assert sum(used.cpu_s for used in usage.values()) == pytest.approx(2 * 1.75 * HOUR)
    (who,) = {(key.queue, key.owner, key.pool, key.model) for key in usage}
    assert who == ("default", "ada@example.org", "cpu", "NVIDIA H200")


def test_what_a_node_measured_of_an_attempt_outlives_a_controller() -> None:
    ended = msgspec.structs.replace(attempt(), measured_gpu_s=7000.0, busy_gpu_s=3500.0)
    usage = metered(ended).usage.values()
    assert sum(one.measured_gpu_s for one in usage) == pytest.approx(7000)
    assert sum(one.busy_gpu_s for one in usage) == pytest.approx(3500)


def fail(meter: usage_accounting.Meter, decided: outcome.Outcome, known: records.Observed) -> None:
    with meter.trying():
        meter.cycle(decided, known)
        meter.take()
        raise TypeError("it can't be written")


def test_what_was_metered_for_a_commit_that_failed_is_metered_again() -> None:
    meters = []
    for fails in (False, True):
        meter = usage_accounting.Meter(metrics.Counters())
        running = attempt(state=AttemptState.RUNNING, ended_at=None, concluded=False)
        meter.cycle(samples.cycle(now=1.5 * HOUR, attempts=(running,), queues=(QUEUE,)), observed())
        for at in (2.0 * HOUR, 2.0 * HOUR + 60):
            meter.reported("n1", {0: 1.0, 1: 0.5}, at, [running])
        decided = samples.cycle(now=4 * HOUR, attempts=(attempt(),), queues=())
        if fails:
            with pytest.raises(TypeError):
                fail(meter, decided, observed(running))
        with meter.trying():
            meter.cycle(decided, observed(running))
            meters.append(meter.take())
    assert meters[0].shares
    assert any(one.busy_gpu_s for one in meters[0].usage.values())
    assert meters[1] == meters[0]


def test_it_is_charged_once_when_it_is_concluded() -> None:
    meter = usage_accounting.Meter(metrics.Counters())
    ended = attempt(concluded=False)
    meter.cycle(samples.cycle(now=4 * HOUR, attempts=(ended,)), observed())
    assert meter.take().usage == {}
    meter.cycle(samples.cycle(now=5 * HOUR, attempts=(attempt(),)), observed(ended))
    assert sum(used.gpu_s for used in meter.take().usage.values()) == 3.5 * HOUR
    assert meter.take() == usage_rollups.UsageRollup()


@pytest.mark.parametrize("pool_now", ["", "other"])
def test_what_ran_is_charged_to_the_pool_in_which_it_was_placed(pool_now: str) -> None:
    moved = msgspec.structs.replace(gpusamples.node(), pool=pool_now)
    known = msgspec.structs.replace(observed(), nodes={"n1": moved})
    meter = usage_accounting.Meter(metrics.Counters())
    meter.cycle(samples.cycle(now=4 * HOUR, attempts=(attempt(pool="h200"),)), known)
    assert {key.pool for key in meter.take().usage} == {"h200"}


@pytest.mark.parametrize(
    ("models", "charged"),
    [(("H100", "H100"), "H100"), (("H100", "A100"), "H100"), (("A100", "A30"), "")],
)
def test_instances_are_charged_to_the_model_that_is_cut(
    models: tuple[str, str], charged: str
) -> None:
    made = devices.MigInstance("MIG-1", "1g.10gb", gpu_instance=1, compute_instance=0)
    cut = {"H100": (made,)}
    gpus = tuple(
        records.Gpu(index, f"GPU-{index}", model, 2**36, mig=cut.get(model, ()))
        for index, model in enumerate(models)
    )
    bare = gpusamples.node()
    inventory = msgspec.structs.replace(bare.inventory, gpus=gpus)
    node = msgspec.structs.replace(bare, inventory=inventory)
    known = msgspec.structs.replace(observed(), nodes={"n1": node})
    meter = usage_accounting.Meter(metrics.Counters())
    part = attempt(devices=(), mig_profile="1g.10gb", instances=(0,))
    meter.cycle(samples.cycle(now=4 * HOUR, attempts=(part,)), known)
    assert {key.model for key in meter.take().usage} == {charged}


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"exit_code": 1}, ""),
        ({"end_reason": EndReason.NODE_LOST}, "lost_gpu_s"),
        ({"end_reason": EndReason.CANCELLED}, "cancelled_gpu_s"),
        ({"end_reason": EndReason.PREEMPTED}, "lost_gpu_s"),
        (
            {"end_reason": EndReason.PREEMPTED, "saved": task_reports.Saved("step-1", 3 * HOUR)},
            "saved_gpu_s",
        ),
    ],
)
def test_what_did_not_end_well_is_divided(changes: dict[str, object], part: str) -> None:
    used = sum(metered(attempt(**changes)).usage.values(), start=usage_rollups.Usage())
    assert used.failed_gpu_s == 3.5 * HOUR
    parts = ("lost_gpu_s", "saved_gpu_s", "cancelled_gpu_s")
    found = {name: getattr(used, name) for name in parts}
    assert found == {name: 3.5 * HOUR * (name == part) for name in parts}


def test_what_did_not_end_well_is_told_apart() -> None:
    for changes in ({"exit_code": 1}, {"end_reason": EndReason.NODE_LOST, "exit_code": None}):
        usage = metered(attempt(**changes)).usage
        assert sum(used.failed_gpu_s for used in usage.values()) == 3.5 * HOUR
    assert sum(used.failed_gpu_s for used in metered(attempt()).usage.values()) == 0


def test_how_busy_its_gpus_were_is_measured_where_it_is_told() -> None:
    meter = usage_accounting.Meter(metrics.Counters())
    running = attempt(state=AttemptState.RUNNING, ended_at=None, concluded=False)
    for at, ratio in ((0.0, 0.0), (60.0, 1.0), (120.0, 0.5), (9000.0, 1.0)):
        meter.reported("n1", {0: ratio, 1: 0.0}, at, [running])
    meter.cycle(samples.cycle(now=4 * HOUR, attempts=(attempt(),)), observed(running))
    usage = meter.take().usage.values()
    # two GPUs over two minutes; the silence of hours counts for nothing
    assert sum(used.measured_gpu_s for used in usage) == pytest.approx(240)
    assert sum(used.busy_gpu_s for used in usage) == pytest.approx(60 + 30)


def test_shares_are_integrated_between_cycles_and_hours() -> None:
    meter = usage_accounting.Meter(metrics.Counters())
    meter.cycle(samples.cycle(now=0.5 * HOUR, queues=(QUEUE,)), observed())
    meter.cycle(samples.cycle(now=1.25 * HOUR), observed())
    shares = meter.take().shares
    assert {key.hour: share.allocated_gpu_s for key, share in shares.items()} == {
        0: 2 * HOUR, 1: HOUR,
    }  # fmt: skip
    first = shares[usage_rollups.ShareKey(0, "research")]
    assert (first.guaranteed_gpu_s, first.fair_gpu_s) == (4 * HOUR, 3 * HOUR)
    assert first.starved_gpu_s == 0  # nothing waits


WAITS = samples.job("wait", elements=3, queue="research", reason_key="r")
ASKS = msgspec.structs.replace(samples.GROUP, resources=Resources(0, 0, 2000))
WAITS = msgspec.structs.replace(WAITS, spec=msgspec.structs.replace(WAITS.spec, groups=(ASKS,)))


@pytest.mark.parametrize(
    ("code", "hours"),
    [
        (ReasonCode.INSUFFICIENT_RESOURCES, 2.0),  # of 6 that it asks for 4 are due, for half one
        (ReasonCode.BEHIND, 2.0),
        (ReasonCode.OVER_LIMIT, 0.0),
        (ReasonCode.OVER_BUDGET, 0.0),
        (ReasonCode.NEVER_FITS, 0.0),
        (ReasonCode.DEPENDENCY, 0.0),
    ],
)
def test_who_waits_for_room_below_a_guarantee_starves_and_nobody_else(
    code: ReasonCode, hours: float
) -> None:
    counters = metrics.Counters()
    meter = usage_accounting.Meter(counters)
    memory = records.Observed(jobs={"wait": WAITS}, reasons={"r": (Reason(code, "x"),)})
    for now in (0.5, 0.75):
        decided = samples.cycle(now=now * HOUR, queues=(QUEUE,))
        meter.cycle(decided, memory)
        counters.cycle(decided, decide_s=0, commit_s=0)
    ended = msgspec.structs.replace(WAITS, state=JobState.CANCELLED)
    decided = samples.cycle(now=HOUR, jobs=(ended,))
    meter.cycle(decided, memory)
    counters.cycle(decided, decide_s=0, commit_s=0)
    meter.cycle(samples.cycle(now=2 * HOUR), records.Observed(jobs={"wait": ended}))
    shares = meter.take().shares
    assert shares[usage_rollups.ShareKey(0, "research")].starved_gpu_s == hours * HOUR
    assert shares[usage_rollups.ShareKey(1, "research")].starved_gpu_s == 0


def test_who_starves_is_looked_at_now_and_then() -> None:
    """Cycles that follow each other closely go by the last look, a later one by its own."""
    counters = metrics.Counters()
    meter = usage_accounting.Meter(counters)
    memory = records.Observed(
        jobs={"wait": WAITS}, reasons={"r": (Reason(ReasonCode.BEHIND, "x"),)}
    )
    ended = msgspec.structs.replace(WAITS, state=JobState.CANCELLED)
    starved = []
    for now, jobs in ((0.0, ()), (20.0, (ended,)), (24.0, ()), (34.0, ())):
        decided = samples.cycle(now=now, queues=(QUEUE,), jobs=jobs)
        meter.cycle(decided, memory)
        counters.cycle(decided, decide_s=0, commit_s=0)
        starved.append(sum(share.starved_gpu_s for share in meter.take().shares.values()))
    assert starved == [0, 4 * 20, 4 * 4, 0]


def test_shares_in_pools_are_integrated_where_there_are_any() -> None:
    """A pool in which a queue has nothing and is promised nothing leaves no row."""
    meter = usage_accounting.Meter(metrics.Counters())
    due = outcome.PoolUsage(
        "h200", (0, 0, 1000), (None, None, 4000), fair_share=(None, None, 3000),
        demand=(0, 0, 2000), named=True,
    )  # fmt: skip
    queue = msgspec.structs.replace(QUEUE, pools=(due, outcome.PoolUsage("cpu", (8000, 0, 0))))
    meter.cycle(samples.cycle(now=0.5 * HOUR, queues=(queue,)), observed())
    meter.cycle(samples.cycle(now=1.5 * HOUR), observed())
    part = usage_rollups.PoolShareTotals(2 * HOUR, 1.5 * HOUR, 0.5 * HOUR, HOUR)
    assert meter.take().pool_shares == {
        usage_rollups.PoolShareKey(hour, "research", "h200"): part for hour in (0, 1)
    }


def test_a_gang_waits_where_its_first_task_runs() -> None:
    """Whichever of its tasks tells last that it runs; the first ran a cycle before."""
    gang = msgspec.structs.replace(TRAIN, started_at=400.0)
    first = attempt(
        state=AttemptState.RUNNING, ended_at=None, concluded=False, started_at=400.0, index=0
    )
    last = msgspec.structs.replace(
        first, id="train.1.01234567.0.main.1.1", index=1, node="n2", devices=(), started_at=500.0
    )
    meter = usage_accounting.Meter(metrics.Counters())
    meter.cycle(samples.cycle(jobs=(gang,), attempts=(last,)), observed(first))
    ((key, _),) = meter.take().waits.items()
    assert (key.pool, key.model) == ("cpu", "NVIDIA H200")


def test_a_job_waits_once_until_its_first_start() -> None:
    meter = usage_accounting.Meter(metrics.Counters())
    started = msgspec.structs.replace(TRAIN, started_at=400.0)
    meter.cycle(samples.cycle(jobs=(started,)), observed())
    before = records.Observed(jobs={"train": started})
    meter.cycle(samples.cycle(jobs=(started,)), before)
    ((key, wait),) = meter.take().waits.items()
    assert (wait.jobs, wait.wait_s) == (1, 300.0)
    assert usage_rollups.wait_of(key.bucket) == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize("wait_s", [1.5, 10.0, 59.0, 3600.0, 1e6])
def test_a_bucket_tells_a_wait_to_within_five_percent(wait_s: float) -> None:
    assert usage_rollups.wait_of(usage_rollups.bucket_of(wait_s)) == pytest.approx(wait_s, rel=0.05)


@pytest.fixture
def opened(tmp_path: Path) -> store.Store:
    return store.Store.open(f"sqlite:///{tmp_path / 'store.db'}")


def put(
    opened: store.Store, epoch: int, cycle: int, rollup: usage_rollups.UsageRollup, **parts: object
) -> None:
    opened.commit(
        epoch, cycle, samples.cycle(now=9 * HOUR, **parts), store.CycleExtras(rollup=rollup)
    )


def test_sums_are_added_up_in_the_store_and_what_runs_is_charged_up_to_now(
    opened: store.Store,
) -> None:
    epoch = opened.lead("test", 1.0)
    rollup = metered(attempt())
    alive = attempt(
        id="train.1.01234567.1.main.0.1", element=1, state=AttemptState.RUNNING,
        assigned_at=8 * HOUR, ended_at=None, concluded=False, cpu_s=0.0,
    )  # fmt: skip
    put(opened, epoch, 1, rollup, jobs=(TRAIN,), nodes=(gpusamples.node(),))
    put(opened, epoch, 2, rollup, attempts=(alive,))
    whole = usage_reports.ReportPeriod(0.0, 10 * HOUR, ("user",), 9 * HOUR)
    made = usage_reports.make("usage", opened.reader, whole)
    (row,) = made.rows
    assert row[:2] == ("ada@example.org", 3), "two have ended, and one runs"
    assert row[3] == pytest.approx(2 * 3.5 + 2)
    part = usage_reports.ReportPeriod(2 * HOUR, 3 * HOUR, ("queue", "model"), 9 * HOUR)
    (row,) = usage_reports.make("usage", opened.reader, part).rows
    assert row[0:2] == ("default", "NVIDIA H200")
    assert row[4] == pytest.approx(2 * 2)
    opened.close()


def months(opened: store.Store) -> None:
    """Ninety days of 8 queues with 5 users each."""
    epoch = opened.lead("test", 1.0)
    usage, waits, shares = {}, {}, {}
    for hour in range(90 * 24):
        for queue in range(8):
            shares[usage_rollups.ShareKey(hour, f"team{queue}")] = usage_rollups.Share(
                16 * HOUR, 18 * HOUR, (8 + 2 * queue) * HOUR, 20 * HOUR, HOUR
            )
            for user in range(5):
                key = usage_rollups.UsageKey(
                    hour, f"team{queue}", f"user{queue}{user}@example.org", "h200", "NVIDIA H200"
                )
                usage[key] = usage_rollups.Usage(
                    3, 4 * HOUR, 2 * HOUR, 0.2 * HOUR, 1.5 * HOUR, (0.3 + user / 10) * HOUR,
                    16 * HOUR, 4 * HOUR,
                )  # fmt: skip
    for day in range(90):
        for queue in range(8):
            for wait_s in (5.0, 60.0, 600.0, 7200.0):
                bucket = usage_rollups.bucket_of(wait_s * (queue + 1))
                key_of_wait = usage_rollups.WaitKey(
                    day, f"team{queue}", "user@example.org", "h200", "NVIDIA H200", bucket
                )
                waits[key_of_wait] = usage_rollups.WaitTotals(25, 25 * wait_s * (queue + 1))
    put(opened, epoch, 1, usage_rollups.UsageRollup(usage, waits, shares))


def test_reports_over_months(opened: store.Store) -> None:
    months(opened)
    span = 90 * 86_400.0

    def made(what: usage_reports.What, *by: usage_reports.By) -> usage_reports.UsageReport:
        return usage_reports.make(
            what, opened.reader, usage_reports.ReportPeriod(0.0, span, by, span)
        )

    used = made("usage", "queue", "user")
    assert len(used.rows) == 40
    assert used.rows[0][4] == pytest.approx(90 * 24 * 2)
    waited = {row[0]: row for row in made("waiting", "queue").rows}
    assert waited["team0"][1] == 9000
    assert waited["team0"][2] == pytest.approx((5 + 60 + 600 + 7200) / 4)
    assert waited["team0"][3] == pytest.approx(60, rel=0.05)
    assert waited["team7"][5] == pytest.approx(57_600, rel=0.05)
    efficiency = made("efficiency", "model").rows[0]
    assert efficiency[2] == pytest.approx(0.75)
    assert efficiency[3] == pytest.approx(0.5 / 1.5)
    fair = {row[0]: row for row in made("fairness", "queue").rows}
    assert fair["team5"][5] == pytest.approx(1.0)
    for what in ("usage", "waiting", "efficiency", "fairness"):
        report = made(what, "queue")
        assert render.png(report).startswith(b"\x89PNG")
        page = render.page(report)
        assert "<svg" in page
        # what is measured, and in what; of bars what they are
        assert [one for one in SAID[what] if one not in page] == []
        assert render.as_csv(report).count("\n") == 9
    with pytest.raises(usage_reports.ReportError, match="ends after it begins"):
        usage_reports.make("usage", opened.reader, usage_reports.ReportPeriod(span, 0.0, (), span))
    opened.close()


def test_waiting_is_told_apart_by_all_that_usage_is(opened: store.Store) -> None:
    months(opened)
    span = 90 * 86_400.0
    asked = usage_reports.ReportPeriod(0.0, span, ("pool", "model", "user", "queue"), span)
    rows = {row[3]: row for row in usage_reports.make("waiting", opened.reader, asked).rows}
    assert rows["team0"][:3] == ("h200", "NVIDIA H200", "user@example.org")
    by_queue = {
        row[0]: row
        for row in usage_reports.make(
            "waiting", opened.reader, msgspec.structs.replace(asked, by=("queue",))
        ).rows
    }
    assert {name: row[4:] for name, row in rows.items()} == {
        name: row[1:] for name, row in by_queue.items()
    }
    opened.close()


def shared(opened: store.Store) -> None:
    """Two queues below another one; one of two users runs in two pools, and one waits long."""
    epoch = opened.lead("test", 1.0)
    above = outcome.QueueUsage("all", None, (0, 0, 0), (None, None, None), (None, None, None))
    queues = (above, *(msgspec.structs.replace(above, name=one, parent="all") for one in "ab"))
    usage = {
        usage_rollups.UsageKey(1, queue, user, pool, "NVIDIA H200"):
            usage_rollups.Usage(gpu_s=hours * HOUR)
        for queue, user, pool, hours in (
            ("a", "ada", "h200", 6.0), ("a", "ada", "h100", 2.0), ("b", "bob", "h200", 2.0),
        )
    }  # fmt: skip
    waits = {
        usage_rollups.WaitKey(
            0, queue, user, "h200", "NVIDIA H200", usage_rollups.bucket_of(wait_s)
        ): usage_rollups.WaitTotals(2, 2 * wait_s)
        for queue, user, wait_s in (("a", "ada", 10.0), ("b", "bob", 7200.0))
    }  # fmt: skip
    shares = {
        usage_rollups.ShareKey(1, "a"): usage_rollups.Share(4 * HOUR, 5 * HOUR, 10 * HOUR, 9 * HOUR)
    }
    pools = {
        usage_rollups.PoolShareKey(1, "a", "h200"): usage_rollups.PoolShareTotals(
            4 * HOUR, 5 * HOUR, 10 * HOUR, 9 * HOUR
        )
    }
    rollup = usage_rollups.UsageRollup(usage, waits, shares, pools)
    opened.commit(
        epoch,
        1,
        samples.cycle(now=9 * HOUR),
        store.CycleExtras(
            views=stored_views.cycle_views(samples.cycle(queues=queues)), rollup=rollup
        ),
    )


#: By what fairness is asked for; the columns behind, and the rows, rounded to a tenth.
FAIR: tuple[
    tuple[tuple[usage_reports.By, ...], str, list[tuple[usage_reports.Value, ...]]], ...
] = (
    (
        ("queue",),
        "guaranteed fair wanted counted of-fair starved allocated",
        [
            ("a", 4.0, 5.0, 9.0, 10.0, 2.0, 0.0, 8.0),
            ("all", 0.0, 0.0, 0.0, 0.0, None, 0.0, 10.0),
            ("b", 0.0, 0.0, 0.0, 0.0, None, 0.0, 2.0),
        ],
    ),
    (
        ("pool", "queue"),
        "guaranteed fair wanted counted of-fair allocated share",
        [
            ("h100", "a", None, None, None, None, None, 2.0, 0.2),
            ("h200", "a", 4.0, 5.0, 9.0, 10.0, 2.0, 6.0, 0.6),
            ("h100", "all", None, None, None, None, None, 2.0, 0.2),
            ("h200", "all", None, None, None, None, None, 8.0, 0.8),
            ("h200", "b", None, None, None, None, None, 2.0, 0.2),
        ],
    ),
    (
        ("user",),
        "allocated share started p50-wait",
        [("ada", 8.0, 0.8, 2, 10.3), ("bob", 2.0, 0.2, 2, 7416.8)],
    ),
    (
        ("user", "queue"),
        "allocated share of-queue started p50-wait",
        [("ada", "a", 8.0, 0.8, 1.0, 2, 10.3), ("bob", "b", 2.0, 0.2, 1.0, 2, 7416.8)],
    ),
    (
        ("pool",),
        "allocated share started p50-wait",
        [("h200", 8.0, 0.8, 4, 10.3), ("h100", 2.0, 0.2, 0, None)],
    ),
    (("model",), "allocated share started p50-wait", [("NVIDIA H200", 10.0, 1.0, 4, 10.3)]),
    ((), "allocated share started p50-wait", [(10.0, 1.0, 4, 10.3)]),
)


@pytest.mark.parametrize(("by", "columns", "rows"), FAIR)
def test_fairness_tells_promises_of_queues_and_parts_of_others(
    opened: store.Store,
    by: tuple[usage_reports.By, ...],
    columns: str,
    rows: list[tuple[usage_reports.Value, ...]],
) -> None:
    shared(opened)
    made = usage_reports.make(
        "fairness", opened.reader, usage_reports.ReportPeriod(0.0, 86_400.0, by, 0.0)
    )
    assert [column.name for column in made.columns] == [*by, *columns.split()]
    rounded = [
        tuple(round(value, 1) if isinstance(value, float) else value for value in row)
        for row in made.rows
    ]
    assert rounded == rows
    assert render.as_csv(made).count("\n") == len(rows) + 1
    page = render.page(made)
    assert ("guaranteed" in page) == ("guaranteed" in columns)
    opened.close()


def test_fairness_and_usage_tell_the_same_of_what_was_allocated(opened: store.Store) -> None:
    """Of what was there before a controller watched, and of what still runs too."""
    shared(opened)
    alive = attempt(
        id="train.1.01234567.1.main.0.1", element=1, state=AttemptState.RUNNING,
        assigned_at=8 * HOUR, ended_at=None, concluded=False,
    )  # fmt: skip
    put(
        opened,
        1,
        2,
        usage_rollups.UsageRollup(),
        jobs=(TRAIN,),
        nodes=(gpusamples.node(),),
        attempts=(alive,),
    )
    asked = usage_reports.ReportPeriod(0.0, 86_400.0, ("queue",), 9 * HOUR)
    used = {row[0]: row[3] for row in usage_reports.make("usage", opened.reader, asked).rows}
    fair = {row[0]: row[-1] for row in usage_reports.make("fairness", opened.reader, asked).rows}
    assert used == {"a": 8.0, "b": 2.0, "default": 2.0}
    assert {queue: fair[queue] for queue in used} == used
    opened.close()


def test_a_cost_is_made_by_model_and_summed_up(opened: store.Store) -> None:
    months(opened)
    asked = usage_reports.ReportPeriod(0.0, 86_400.0, ("queue", "model"), 0.0)
    prices = usage_reports.Prices("EUR", {"NVIDIA H200": 2.5}, cpu_hour=0.01)
    paid = usage_reports.priced(
        usage_reports.make("usage", opened.reader, asked), prices, ("queue",)
    )
    assert [column.name for column in paid.columns][-2:] == ["cpu", "cost"]
    assert paid.rows[0][-1] == pytest.approx(24 * 5 * (2 * 2.5 + 16 * 0.01))
    with pytest.raises(usage_reports.ReportError, match="usage by model"):
        usage_reports.priced(paid, prices, ("queue",))
    opened.close()


def test_old_sums_go(opened: store.Store) -> None:
    epoch = opened.lead("test", 1.0)
    put(opened, epoch, 1, metered(attempt()))
    late = 900 * 86_400.0
    opened.prune(epoch, late, events_before=0.0, journal_before=0.0, history_before=0.0)
    assert rollups.usage(opened.reader, 0.0, late, ()) == {}
    opened.close()
