"""What is exported is what the table says, by Prometheus' own rules."""

import itertools
import re
import shutil
import subprocess
from typing import Any, get_args

import msgspec
import pytest
from prometheus_client import parser

from reconciler import metrics
from reconciler.core import reconcile
from reconciler.metrics import counting
from reconciler.model import desired, drift, outcome, records
from reconciler.model.states import AttemptState, EndReason, JobState
from tests.unit import gpusamples
from tests.unit.core.world import World
from tests.unit.store import samples

UNITS = {"seconds", "bytes", "cpus", "gpus", "ratio", "watts", "joules", "celsius", "hertz", ""}
CLUSTER = {name for name, series in metrics.TABLE.items() if series.page == "cluster"}
NODE = {name for name, series in metrics.TABLE.items() if series.page == "node"}


def filled() -> tuple[metrics.Counters, records.Observed, desired.Desired]:
    """Something of everything."""
    counters = metrics.Counters()
    waiting = samples.job("wait", reason_key="r")
    train = msgspec.structs.replace(
        samples.job("train", state=JobState.RUNNING, queue='odd"\\\nname'), started_at=103.0
    )
    stop = records.StopOrder(EndReason.PREEMPTED, "SIGTERM", 30, 100.0)
    alive = msgspec.structs.replace(samples.attempt(train, 0), stop=stop)
    ended = samples.attempt(train, 1, state=AttemptState.ENDED)
    observed = records.Observed(
        jobs={"wait": waiting, "train": train},
        active=frozenset({"wait", "train"}),
        attempts={alive.id: alive, ended.id: ended},
        nodes={"n1": samples.node(), "n2": samples.node("n2")},
        reasons={"r": (samples.reason(),)},
        drift=(drift.Drift("node-missing", "n3", "x", "warning", "report", 1.0),),
    )
    counters.sums(records.Observed(jobs={"wait": waiting}))
    usage = outcome.QueueUsage("default", None, (1000, 5, 500), (2000, 5, 0), (None, 5, 8000), 1, 1)
    counters.cycle(
        samples.cycle(
            jobs=(train,),
            attempts=(alive, ended),
            actions=(outcome.StopAttempt(alive.id, "n1"), outcome.StartAttempt("x", "n1")),
            queues=(usage,),
        ),
        decide_s=0.002,
        commit_s=0.004,
    )
    counters.cycle(
        samples.cycle(attempts=(msgspec.structs.replace(ended, concluded=True),)),
        decide_s=20.0,
        commit_s=0.0,
    )
    counters.queues = (usage,)
    counters.sync(ok=True)
    status = desired.SyncStatus("Synced", "a", "b", "c", checked_at=99.0)
    wanted = desired.Desired(
        structure=desired.Structure(
            pools={"cpu": desired.Pool("cpu", ("n1",), samples.GROUP.resources)}
        ),
        status=status,
    )
    return counters, observed, wanted


def cluster_page() -> str:
    counters, observed, wanted = filled()
    return metrics.render_cluster(
        counters=counters, memory=observed, wanted=wanted, epoch=3, now=100.0
    ).decode()


def node_page() -> str:
    train = samples.job("train")
    return metrics.render_node(
        gpusamples.node(), [samples.attempt(train)], [gpusamples.usage()]
    ).decode()


def parse(page: str) -> dict[str, Any]:
    families = {}
    for family in parser.text_string_to_metric_families(page):
        name = family.name + ("_total" if family.type == "counter" else "")
        families[name] = family
    return families


def values(page: str, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for sample in parse(page)[name].samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


@pytest.mark.parametrize(("page", "names"), [(cluster_page(), CLUSTER), (node_page(), NODE)])
def test_a_page_holds_the_series_of_the_table_and_no_others(page: str, names: set[str]) -> None:
    families = parse(page)
    assert set(families) == names
    for name, family in families.items():
        series = metrics.TABLE[name]
        assert (family.type, family.documentation) == (series.kind, series.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(series.labels), sample


@pytest.mark.parametrize("series", metrics.TABLE.values(), ids=list(metrics.TABLE))
def test_names_follow_the_rules(series: metrics.Series) -> None:
    name = series.name
    assert re.fullmatch(r"muster_[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
    assert name.endswith("_total") == (series.kind == "counter")
    assert series.unit in UNITS
    if series.unit:
        assert name.removesuffix("_total").endswith(f"_{series.unit}")
    assert series.help.endswith(".")
    assert not {"job", "task", "attempt", "user", "owner"} & set(series.labels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("page", [cluster_page(), node_page()], ids=["cluster", "node"])
def test_promtool_has_nothing_to_say(page: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_counts_are_true() -> None:
    page = cluster_page()
    assert values(page, "muster_leader_epoch") == {(): 3}
    assert values(page, "muster_cycles_total") == {(): 2}
    assert values(page, "muster_evictions_total")["Preempted",] == 1
    assert values(page, "muster_attempts_ended_total")["Exited",] == 1
    assert values(page, "muster_actions_total") == {
        ("acknowledge",): 0,
        ("start",): 1,
        ("stop",): 1,
        ("withdraw",): 0,
    }
    assert values(page, "muster_pool_gpus") == {
        ("cpu", "allocated"): 0,
        ("cpu", "free"): 4,
        ("cpu", "unavailable"): 0,
    }
    assert values(page, "muster_pool_allocated_cpus") == {("cpu",): 1}
    assert values(page, "muster_nodes")["cpu", "Ready"] == 2
    assert values(page, "muster_jobs")['odd"\\\nname', "Running"] == 1
    assert values(page, "muster_jobs")["default", "Pending"] == 1
    assert values(page, "muster_pending_jobs") == {("default", "InsufficientResources"): 1}
    assert values(page, "muster_queue_limit_cpus") == {("default",): float("inf")}
    assert values(page, "muster_queue_allocated_gpus") == {("default",): 0.5}
    assert values(page, "muster_queue_requested_cpus") == {("default",): 1}
    assert sum(values(page, "muster_sync_state").values()) == 1


def test_a_histogram_is_cumulative() -> None:
    buckets = [
        (sample.labels["le"], sample.value)
        for sample in parse(cluster_page())["muster_cycle_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    ]
    assert dict(buckets)["0.005"] == 0
    assert dict(buckets)["0.01"] == 1
    assert dict(buckets)["10"] == 1
    assert buckets[-1] == ("+Inf", 2)


def test_jobs_are_counted_as_they_change() -> None:
    counters = metrics.Counters()
    before = samples.job("train")
    sums = counters.sums(records.Observed(jobs={"train": before}))
    assert sums.by_state["default", "Pending"] == 1
    after = msgspec.structs.replace(before, state=JobState.SUCCEEDED, started_at=110.0)
    for _ in range(2):
        counters.cycle(samples.cycle(jobs=(after,)), decide_s=0, commit_s=0)
    counts = sums.by_state
    assert (counts["default", "Pending"], counts["default", "Succeeded"]) == (0, 1)
    assert sums.wanted["default"] == [0, 0, 0]
    assert counters.finished["Succeeded"] == 1
    assert counters.job_wait.counts[2] == 1


def test_a_node_that_never_reported_has_few_series() -> None:
    bare = records.NodeRecord("n9", samples.node().state)
    names = set(parse(metrics.render_node(bare, []).decode()))
    assert "muster_node_state" in names
    assert "muster_node_cpu_used_ratio" not in names
    assert "muster_node_last_report_timestamp_seconds" not in names


def test_sums_follow_what_changes() -> None:
    train = samples.job("train", elements=4, reason_key="r")
    attempts = {one.id: one for one in (samples.attempt(train, element) for element in range(3))}
    first = metrics.Counters()
    first.sums(records.Observed())
    ended = [msgspec.structs.replace(one, state=AttemptState.ENDED) for one in attempts.values()]
    first.cycle(
        samples.cycle(jobs=(train,), attempts=tuple(attempts.values())), decide_s=0, commit_s=0
    )
    whole = metrics.Counters().sums(records.Observed(jobs={"train": train}, attempts=attempts))
    kept = first.sums(records.Observed())
    assert kept.held == whole.held == {"n1": [3000, 0, 0]}
    assert kept.by_reason == whole.by_reason == {("default", "r"): 1}
    assert kept.wanted == whole.wanted
    for _ in range(2):
        first.cycle(samples.cycle(attempts=tuple(ended)), decide_s=0, commit_s=0)
    assert kept.held == {}


def test_each_phase_of_a_cycle_is_measured_by_the_clock_that_is_given() -> None:
    moments = itertools.count(0.0, 1.0)
    phases = counting.Phases(lambda: next(moments))
    world = World(nodes=1)
    told: list[str] = []

    def ended(phase: str) -> None:
        told.append(phase)
        phases(phase)

    def cycle() -> list[str]:
        told.clear()
        phases.begin()
        wanted = desired.Desired(1, world.structure)
        observed = world.memory.observed(*world.memory.take_input())
        world.memory.absorb(reconcile.reconcile(wanted, observed, world.now, ended=ended))
        return told

    names = list(get_args(reconcile.Phase))
    assert cycle() == names
    assert [phases.seconds[name] for name in names] == [1.0] * len(names)
    assert cycle() == names[:5], "no schedule is made, and none is measured"
    assert counting.PHASES[: len(names)] == tuple(names)
    assert sum(phases.seconds.values()) == len(names) + 5
