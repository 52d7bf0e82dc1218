"""What is exported is what the table says, by Prometheus' own rules."""

import itertools
import math
import re
import shutil
import subprocess
from typing import Any, get_args

import msgspec
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from reconciler import metrics
from reconciler.core import reconcile
from reconciler.metrics import cluster_totals, metric_page, plain_text
from reconciler.metrics.counters import OWNERS_MAX, PHASES, Phases
from reconciler.model import desired
from reconciler.model.metrics import metric_table
from reconciler.model.observed import task_reports, task_usage
from reconciler.model.policy import drift_kinds
from reconciler.model.state import instance_records, outcome, records, scheduler_state
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values import resources
from tests.unit import gpusamples
from tests.unit.core.world import World
from tests.unit.store import samples

UNITS = {"seconds", "bytes", "cpus", "gpus", "ratio", "watts", "joules", "celsius", "hertz", ""}
UNITS |= {"gpu_seconds"}
CLUSTER = {name for name, series in metrics.TABLE.items() if series.page == "cluster"}
SERVER = {name for name, series in metrics.TABLE.items() if series.page == "server"}
NODE = {name for name, series in metrics.TABLE.items() if series.page == "node"}


LOOKS = (
    metrics.RepositoryLook("synced", 95.0, 0.01, committed_at=90.0),
    metrics.RepositoryLook("unreadable", 96.0, 0.01),
)


USAGE = outcome.QueueUsage(
    "default",
    None,
    (1000, 5, 500),
    (2000, 5, 0),
    (None, 5, 8000),
    1,
    1,
    (1500, 5, 700),
    pools=(
        outcome.PoolUsage(
            "p", (0, 0, 500), (None, None, 1000), fair_share=(None, None, 700), named=True
        ),
        outcome.PoolUsage("others", (0, 0, 2000)),
    ),
)


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
    observed = _observed(waiting, train, alive, ended)
    counters.sums(records.Observed(jobs={"wait": waiting}), 90.0)
    _count(counters, train, alive, ended)
    counters.queues = (USAGE,)
    for look in LOOKS:
        counters.look(look)
    return counters, observed, _wanted()


def _observed(
    waiting: records.JobRecord, train: records.JobRecord, *attempts: records.AttemptRecord
) -> records.Observed:
    return records.Observed(
        jobs={"wait": waiting, "train": train},
        active=frozenset({"wait", "train"}),
        attempts={one.id: one for one in attempts},
        nodes={"n1": samples.node(), "n2": samples.node("n2")},
        reasons={"r": (samples.reason(),)},
        drift=(
            drift_kinds.Drift("node-missing", "n3", "x", "warning", "report", 1.0),
            drift_kinds.Drift(
                "node-check-failed", "n1/mounts", "x", "critical", "remediate", 1.0, given_up=True
            ),
        ),
        remedies=(drift_kinds.DriftRemedy("r1", "reboot", "c", "cpu", 1.0, node="n1"),),
        provisions={
            "cpu": instance_records.Provision(
                "cpu",
                desired.Provisioning(0, 4),
                instances={
                    "n1": instance_records.InstanceRecord("n1", InstanceState.UP, "n1.1", 1.0)
                },
            )
        },
        scheduler_state=scheduler_state.SchedulerState(spent={"q": {0: 3600.0, -900: 9.0}}),
    )


def _count(
    counters: metrics.Counters,
    train: records.JobRecord,
    alive: records.AttemptRecord,
    ended: records.AttemptRecord,
) -> None:
    """Cycles, quick and slow, with an end of each kind."""
    counters.cycle(
        samples.cycle(
            jobs=(train,),
            attempts=(alive, ended),
            actions=(outcome.StopAttempt(alive.id, "n1"), outcome.StartAttempt("x", "n1")),
            queues=(USAGE,),
        ),
        decide_s=0.002,
        commit_s=0.004,
    )
    counters.cycle(
        samples.cycle(attempts=(msgspec.structs.replace(ended, concluded=True),)),
        decide_s=20.0,
        commit_s=0.0,
    )
    broken = msgspec.structs.replace(
        samples.attempt(train, 2, state=AttemptState.ENDED, exit_code=1), concluded=True
    )
    gpus = msgspec.structs.replace(
        samples.attempt(train, 3), resources=resources.Resources(1000, 0, 2000)
    )
    counters.cycle(samples.cycle(attempts=(broken, gpus)), decide_s=0.002, commit_s=0.004)
    done = msgspec.structs.replace(
        samples.job("done", state=JobState.SUCCEEDED), started_at=101.0, ended_at=103.0
    )
    counters.cycle(samples.cycle(now=110.0, jobs=(done,)), decide_s=0.002, commit_s=0.004)


def _wanted() -> desired.Desired:
    status = desired.SyncStatus(
        *("Synced", "a", "b", "c"),
        checked_at=99.0,
        suspended={"Queue/default": 9.0},
        unread_since=98.0,
    )
    return desired.Desired(
        structure=desired.Structure(
            pools={"cpu": desired.Pool("cpu", ("n1",), samples.GROUP.resources)},
            queues={"default": desired.Queue("default", suspend=True)},
            quotas={"q": desired.Quota("q", queue="default", budget_gpu_s=7200.0)},
        ),
        status=status,
    )


def cluster_openmetrics() -> bytes:
    counters, observed, wanted = filled()
    return metrics.render_cluster(
        counters=counters, memory=observed, wanted=wanted, epoch=3, now=100.0,
        disk=metrics.StateDisk(50, 100, 7, 3), told={("chat", "sent"): 1},
    )  # fmt: skip


def cluster_page() -> str:
    return plain_text.of(cluster_openmetrics()).decode()


def server_openmetrics() -> bytes:
    unauthenticated = {"missing": 3, "unknown": 2, "expired": 0}
    answers = metrics.Answers(unauthenticated, {"rate": 4}, lambda: 1_830_000_000.0)
    answers.count("/v1/jobs", "GET", 200, 0.003)
    answers.audit = metrics.AuditLook(intact=True, at=1_800_000_000.0)
    return answers.render(open_sessions=2, other_sessions=1)


def server_page() -> str:
    return plain_text.of(server_openmetrics()).decode()


def node_page() -> str:
    train = samples.job("train")
    attempt = msgspec.structs.replace(
        samples.attempt(train, state=AttemptState.RUNNING),
        saved=task_reports.Saved("step-7", 90.0, 7.0, 100),
        saves_every_s=600,
    )
    told = (task_reports.Metric("loss", 0.5, 91.0, 7.0), task_reports.Metric("bad", math.nan, 91.0))
    words = {attempt.id: task_reports.TaskMetrics(attempt.id, told, lines=3, bad_lines=1)}
    on_gpus = (task_usage.GpuUse(0, 2, 5000),)
    use = task_usage.TaskUse(attempt.id, 91.0, 3, 7.5, 1000, 2000, 30, 40, on_gpus)
    return metrics.render_node(
        gpusamples.node(), [attempt], [gpusamples.usage()], words, {attempt.id: use}
    ).decode()


def parse(page: str) -> dict[str, Any]:
    families = {}
    for family in parser.text_string_to_metric_families(page):
        name = family.name + ("_total" if family.type == "counter" else "")
        families[name] = family
    return families


def families_of(page: bytes) -> list[Any]:
    """The families of a page in OpenMetrics."""
    read: Any = openmetrics_parser.text_string_to_metric_families
    return list(read(page.decode()))


def values(page: str, name: str) -> dict[tuple[str, ...], float]:
    """Map the values of labels, in the order of the table, to the value of each sample."""
    return {
        tuple(sample.labels[label] for label in metrics.TABLE[name].labels): sample.value
        for sample in parse(page)[name].samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


@pytest.mark.parametrize(
    ("page", "names"),
    [(cluster_page(), CLUSTER), (server_page(), SERVER), (node_page(), NODE)],
)
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
    assert set(series.labels) <= set(metrics.LABELS)
    if series.page != "node":
        assert not {"job_name", "task", "element"} & set(series.labels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "page", [cluster_page(), server_page(), node_page()], ids=["cluster", "server", "node"]
)
def test_promtool_has_nothing_to_say(page: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_counts_are_true() -> None:
    page = cluster_page()
    assert values(page, "muster_leader_epoch") == {(): 3}
    assert values(page, "muster_cycles_total") == {(): 4}
    assert values(page, "muster_evictions_total")["Preempted",] == 1
    assert values(page, "muster_attempts_ended_total")["Exited",] == 2
    assert values(page, "muster_node_failed_attempts_total") == {("n1", "cpu"): 1}
    assert values(page, "muster_actions_total") == {
        ("acknowledge",): 0,
        ("start",): 1,
        ("stop",): 1,
        ("remedies",): 0,
        ("provision",): 0,
        ("withdraw",): 0,
        ("checks",): 0,
    }
    assert values(page, "muster_pool_gpus") == {
        ("cpu", "allocated"): 2,
        ("cpu", "free"): 2,
        ("cpu", "unavailable"): 0,
    }
    assert values(page, "muster_pool_allocated_cpus") == {("cpu",): 2}
    assert values(page, "muster_gpu_allocated_seconds_total") == {
        ('odd"\\\nname', "alice@example.org"): 20
    }
    assert values(page, "muster_quota_spent_gpu_seconds") == {("q",): 3600}
    assert values(page, "muster_suspended_objects") == {("Cluster",): 0, ("Job",): 0, ("Queue",): 1}
    assert values(page, "muster_oldest_pending_timestamp_seconds") == {("default", "false"): 100}
    assert values(page, "muster_queue_borrowed_gpus") == {("default",): 0.5}
    assert values(page, "muster_sync_last_success_timestamp_seconds") == {(): 95}
    assert values(page, "muster_nodes")["cpu", "Ready"] == 2
    assert values(page, "muster_jobs")['odd"\\\nname', "Running"] == 1
    assert values(page, "muster_jobs")["default", "Pending"] == 1
    assert values(page, "muster_pending_jobs") == {("default", "InsufficientResources"): 1}
    assert values(page, "muster_queue_limit_cpus") == {("default",): float("inf")}
    assert values(page, "muster_queue_allocated_gpus") == {("default",): 0.5}
    assert values(page, "muster_queue_requested_cpus") == {("default",): 1}
    assert sum(values(page, "muster_sync_state").values()) == 1


#: What git suspends, since when; what overrides do, by subject, since when; then what is counted
#: of the cluster and of queues, and since when, by kind.
Since = dict[str, float]
SUSPENDED: tuple[tuple[Since, Since, tuple[float, float], Since], ...] = (
    ({}, {}, (0, 0), {}),
    ({"Queue/a": 9.0}, {}, (0, 1), {"Queue": 9.0}),
    ({}, {"queue/a": 5.0}, (0, 1), {"Queue": 5.0}),
    ({"Queue/a": 9.0}, {"queue/b": 7.0}, (0, 2), {"Queue": 7.0}),
    ({"Queue/a": 9.0}, {"queue/a": 5.0}, (0, 1), {"Queue": 5.0}),
    ({}, {"cluster": 5.0, "queue/b": 6.0}, (1, 1), {"Cluster": 5.0, "Queue": 6.0}),
    ({"Cluster": 3.0}, {"cluster": 5.0}, (1, 0), {"Cluster": 3.0}),
)


@pytest.mark.parametrize(("by_git", "by_hand", "counted", "since"), SUSPENDED)
def test_what_overrides_suspend_counts_as_what_git_does(
    by_git: Since, by_hand: Since, counted: tuple[float, float], since: Since
) -> None:
    counters, memory, wanted = filled()
    queues = {one: desired.Queue(one, suspend=f"Queue/{one}" in by_git) for one in "ab"}
    settings = msgspec.structs.replace(wanted.structure.settings, suspend="Cluster" in by_git)
    structure = msgspec.structs.replace(wanted.structure, queues=queues, settings=settings)
    status = msgspec.structs.replace(wanted.status, suspended=by_git)
    made = [records.Override("suspend", one, "why", "ada", at, 1e9) for one, at in by_hand.items()]
    made.append(records.Override("drain", "n1", "why", "ada", 1.0, 1e9))
    memory = msgspec.structs.replace(memory, overrides=tuple(made))
    rendered = metrics.render_cluster(
        counters=counters, memory=memory,
        wanted=desired.Desired(structure=structure, status=status), epoch=3, now=100.0,
    )  # fmt: skip
    page = plain_text.of(rendered).decode()
    told = values(page, "muster_suspended_objects")
    assert (told["Cluster",], told["Queue",]) == counted
    if since:
        found = values(page, "muster_suspended_since_timestamp_seconds")
        assert {kind: at for (kind,), at in found.items()} == since
    else:
        assert "\nmuster_suspended_since_timestamp_seconds{" not in page


def test_a_histogram_is_cumulative() -> None:
    buckets = [
        (sample.labels["le"], sample.value)
        for sample in parse(cluster_page())["muster_cycle_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    ]
    assert dict(buckets)["0.005"] == 0
    assert dict(buckets)["0.01"] == 3
    assert dict(buckets)["10.0"] == 3
    assert buckets[-1] == ("+Inf", 4)


def test_as_openmetrics_it_is_the_same_page_with_a_job_in_each_bucket_of_waiting_times() -> None:
    rendered = cluster_openmetrics() + server_openmetrics()
    whole, plain = rendered + plain_text.END, plain_text.of(rendered)
    families = {one.name: one for one in families_of(whole)}
    samples = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in families.values()
        for one in family.samples
    }
    assert samples == {
        (one.name, *sorted(one.labels.items())): one.value
        for family in parser.text_string_to_metric_families(plain.decode())
        for one in family.samples
    }
    told = {
        (one.labels["le"], one.exemplar.labels["job_name"], one.exemplar.value)
        for one in families["muster_job_wait_seconds"].samples
        if one.exemplar is not None
    }
    assert told == {("1.0", "done", 1.0), ("5.0", "train", 3.0)}
    ran = [one.exemplar for one in families["muster_job_run_seconds"].samples if one.exemplar]
    assert [(one.labels, one.value, float(one.timestamp)) for one in ran] == [
        ({"job_name": "done"}, 2.0, 103.0)
    ]


def test_a_name_too_long_for_an_exemplar_is_left_out() -> None:
    page = metric_page.MetricPage("cluster")
    waits = metrics.Histogram((1.0,))
    waits.observe(0.5, job="x" * 120, at=1.0)
    waits.observe(2.0, job="x" * 121, at=1.0)
    page.put_histogram("muster_job_run_seconds", waits)
    (family,) = families_of(page.render() + plain_text.END)
    assert [bool(one.exemplar) for one in family.samples] == [True, False, False, False]


def test_jobs_are_counted_as_they_change() -> None:
    counters = metrics.Counters()
    before = samples.job("train")
    sums = counters.sums(records.Observed(jobs={"train": before}), 0.0)
    assert sums.by_state["default", "Pending"] == 1
    after = msgspec.structs.replace(before, state=JobState.SUCCEEDED, started_at=110.0)
    for _ in range(2):
        counters.cycle(samples.cycle(jobs=(after,)), decide_s=0, commit_s=0)
    counts = sums.by_state
    assert (counts["default", "Pending"], counts["default", "Succeeded"]) == (0, 1)
    assert sums.wanted["default"] == [0, 0, 0]
    assert counters.finished["Succeeded"] == 1
    assert counters.job_wait["default"].counts[2] == 1


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
    first.sums(records.Observed(), 0.0)
    ended = [msgspec.structs.replace(one, state=AttemptState.ENDED) for one in attempts.values()]
    first.cycle(
        samples.cycle(jobs=(train,), attempts=tuple(attempts.values())), decide_s=0, commit_s=0
    )
    whole = metrics.Counters().sums(records.Observed(jobs={"train": train}, attempts=attempts), 0.0)
    kept = first.sums(records.Observed(), 0.0)
    assert kept.held == whole.held == {"n1": [3000, 0, 0]}
    assert kept.by_reason == whole.by_reason == {("default", "r"): 1}
    assert kept.wanted == whole.wanted
    for _ in range(2):
        first.cycle(samples.cycle(attempts=tuple(ended)), decide_s=0, commit_s=0)
    assert kept.held == {}


def test_each_phase_of_a_cycle_is_measured_by_the_clock_that_is_given() -> None:
    moments = itertools.count(0.0, 1.0)
    phases = Phases(lambda: next(moments))
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
    assert PHASES[: len(names)] == tuple(names)
    assert sum(phases.seconds.values()) == len(names) + 5


def most(series: metrics.Series, has: dict[str, int]) -> int:
    """How many label sets a series may have on its page."""
    most = 1
    for name in series.labels:
        bound = metrics.LABELS[name].most
        most *= bound if isinstance(bound, int) else has[bound]
    return most


def test_no_series_grows_with_what_users_do() -> None:
    """Many users, jobs and failures: what a page holds stays within what the table says."""
    counters = metrics.Counters()
    owners, queues = 1500, 4
    jobs = {
        name: msgspec.structs.replace(
            samples.job(name, queue=f"q{number % queues}", owner=f"user{number}"),
            started_at=100.0 + number,
        )
        for number in range(owners)
        if (name := f"job{number}")
    }
    attempts = tuple(
        msgspec.structs.replace(
            samples.attempt(job, node=f"n{number % 3}"),
            resources=resources.Resources(1000, 0, 1000),
        )
        for number, job in enumerate(jobs.values())
    )
    observed = records.Observed(
        nodes={f"n{number}": samples.node(f"n{number}") for number in (0, 1)}
    )
    counters.sums(observed, 0.0)
    counters.cycle(
        samples.cycle(jobs=tuple(jobs.values()), attempts=attempts), decide_s=0, commit_s=0
    )
    failed = [
        msgspec.structs.replace(
            one, state=AttemptState.ENDED, end_reason=EndReason.START_FAILED, concluded=True
        )
        for one in attempts
    ]
    counters.cycle(samples.cycle(now=200.0, attempts=tuple(failed)), decide_s=0, commit_s=0)
    structure = desired.Structure(
        queues={f"q{number}": desired.Queue(f"q{number}") for number in range(queues)}
    )
    rendered = metrics.render_cluster(
        counters=counters,
        memory=observed,
        wanted=desired.Desired(structure=structure),
        epoch=1,
        now=200.0,
    )
    page = plain_text.of(rendered).decode()
    has = {"queues": queues, "pools": 2, "nodes": 2, "quotas": 0, "gpus": 8}
    for name, family in parse(page).items():
        sets = {
            tuple(value for label, value in sample.labels.items() if label != "le")
            for sample in family.samples
        }
        assert len(sets) <= most(metrics.TABLE[name], has), name
    charged = values(page, "muster_gpu_allocated_seconds_total")
    assert sum(charged.values()) == owners * 100
    assert charged["(other)", "(other)"] == (owners - OWNERS_MAX) * 100


def test_no_client_makes_series_of_the_server() -> None:
    answers = metrics.Answers()
    for number in range(500):
        answers.count(f"/v1/{number}", f"M{number}", number, 0.0)
    page = plain_text.of(answers.render(open_sessions=0, other_sessions=0)).decode()
    counted = values(page, "muster_api_requests_total")
    assert len({labels[0] for labels in counted}) == metrics.LABELS["handler"].most
    assert {labels[1] for labels in counted} == {"(other)"}
    assert sum(counted.values()) == 500


def test_a_page_of_a_node_tells_of_a_bounded_number_of_tasks() -> None:
    job = samples.job("train", elements=1500)
    alive = [samples.attempt(job, element) for element in range(1500)]
    told = parse(metrics.render_node(samples.node(), alive).decode())["muster_task_info"]
    assert len(told.samples) == metric_table.TASKS_MAX


def test_the_oldest_that_waits_is_known_whatever_leaves() -> None:
    waiting = cluster_totals.Oldest()
    for number in range(200):
        waiting.add(f"j{number}", 1000.0 + number)
    for number in range(199):
        waiting.remove(f"j{number}")
    assert waiting.first() == 1199.0
    waiting.add("j0", 5.0)
    assert waiting.first() == 5.0
    for name in ("j0", "j199"):
        waiting.remove(name)
    assert waiting.first() is None


def test_what_can_never_start_is_not_what_waits_longest() -> None:
    """Nobody has to hurry for a job that waiting does not start; its reason counts it."""
    old = msgspec.structs.replace(samples.job("old", reason_key="never"), submitted_at=5.0)
    young = msgspec.structs.replace(samples.job("young", reason_key="r"), submitted_at=50.0)
    never = Reason(ReasonCode.NEVER_FITS, "no node is large enough")
    for jobs, expected in (
        ((old, young), {("default", "false"): 50.0}),
        ((old,), {}),
        ((msgspec.structs.replace(old, reason_key="r"),), {("default", "false"): 5.0}),
    ):
        observed = records.Observed(
            jobs={job.name: job for job in jobs},
            active=frozenset(job.name for job in jobs),
            reasons={"r": (samples.reason(),), "never": (never,)},
        )
        page = metrics.render_cluster(
            counters=metrics.Counters(), memory=observed, wanted=_wanted(), epoch=3, now=100.0
        )
        text = plain_text.of(page).decode()
        name = "muster_oldest_pending_timestamp_seconds"
        assert (values(text, name) if f"\n{name}{{" in text else {}) == expected


def test_a_queue_without_a_guarantee_borrows_all_that_it_has() -> None:
    counters = metrics.Counters()
    counters.queues = (msgspec.structs.replace(USAGE, guaranteed=(None, None, None)),)
    page = metrics.render_cluster(
        counters=counters, memory=records.Observed(), wanted=_wanted(), epoch=3, now=100.0
    )
    text = plain_text.of(page).decode()
    has = values(text, "muster_queue_allocated_gpus")
    assert values(text, "muster_queue_borrowed_gpus") == has
    assert all(has.values())


def _remedy(
    number: int, state: drift_kinds.RemedyState, verb: str = "reboot"
) -> drift_kinds.DriftRemedy:
    return drift_kinds.DriftRemedy(f"r{number}", verb, "cause", "pool", 1.0, node="n", state=state)


def test_tries_are_counted_once_when_they_end() -> None:
    counters = metrics.Counters()
    first, second = _remedy(1, "done"), _remedy(2, "ordered")
    for remedies in (
        (first,),  # it ended before the restart, and was counted then
        (first, second),
        (first, _remedy(2, "failed")),
        (first, _remedy(2, "failed")),
        (_remedy(2, "failed"), _remedy(3, "done", "tell")),
    ):
        decided = msgspec.structs.replace(samples.cycle(), remedies=remedies)
        counters.cycle(decided, decide_s=0.0, commit_s=0.0)
    assert {key: count for key, count in counters.remedied.items() if count} == {
        ("reboot", "failed"): 1,
        ("tell", "done"): 1,
    }


def test_machines_and_what_was_given_up_are_shown() -> None:
    page = cluster_page()
    assert values(page, "muster_pool_instances")["cpu", "Up"] == 1
    assert values(page, "muster_pool_instances")["cpu", "Creating"] == 0
    assert values(page, "muster_drift_given_up") == {("node-check-failed",): 1}
    assert values(page, "muster_remediations_open")["reboot",] == 1
    checked = values(node_page(), "muster_node_check")
    assert {key[2:]: value for key, value in checked.items()} == {
        ("mounts", "healthy"): 0,
        ("mounts", "degraded"): 0,
        ("mounts", "failed"): 1,
    }


def test_a_queue_has_series_for_the_pools_that_it_names_and_no_others() -> None:
    lines = cluster_page().splitlines()
    series = [line for line in lines if line.startswith("muster_queue_pool_")]
    assert sorted(series) == [
        'muster_queue_pool_allocated_gpus{pool="p",queue="default"} 0.5',
        'muster_queue_pool_demand_gpus{pool="p",queue="default"} 0.0',
        'muster_queue_pool_fair_share_gpus{pool="p",queue="default"} 0.7',
        'muster_queue_pool_guaranteed_gpus{pool="p",queue="default"} 1.0',
        'muster_queue_pool_limit_gpus{pool="p",queue="default"} +Inf',
        'muster_queue_pool_starved_gpus{pool="p",queue="default"} 0.0',
    ]
