"""Every expression of every dashboard is run on a Prometheus that scraped a busy cluster.

The table that is printed says of each how many points came back; none may be empty.
"""

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator

import pytest

from tests.integration import beds
from tests.integration.nvml import sites
from tests.integration.watching import peers
from tests.nvml import standin
from tests.unit.grafana.test_dashboards import BUILT, panels_of

pytestmark = [pytest.mark.slow, peers.needs_peers]

STRUCTURE = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
spec: {guaranteed: {gpu: 1, cpu: 2}, limit: {gpu: 2}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: product}
spec: {guaranteed: {gpu: 1}, weight: 2, flavors: [{pool: h200, guaranteed: {gpu: 1}}]}
---
apiVersion: muster/v1
kind: Quota
metadata: {name: budget}
spec: {subject: {queue: research}, budget: {gpuHours: 100, window: 1d}}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: ghosts}
spec: {hosts: ghost1, nodes: {cpu: 1, memory: 1Gi}}
"""
TRAIN = (
    "  queue: research\n  pools: [h200]\n  timeLimit: 1h\n  preemptible: true\n"
    "  count: 2\n  resources: {cpu: 0.25, gpu: 0.5}\n"  # two tasks on one GPU
    "  checkpoint: {path: saved, every: 10m, settle: 0s}\n"
    "  script: |\n"
    "    echo pid $$\n"
    '    echo \'{"step": 1, "loss": 0.5}\' >> "$MUSTER_METRICS"\n'
    '    touch "$MUSTER_CHECKPOINT_DIR/step-1"\n'
    '    echo \'{"checkpoint": "step-1"}\' >> "$MUSTER_METRICS"\n'
    "    sleep 600"
)
GANG = (
    "  queue: product\n  timeLimit: 1h\n  pools: [h200]\n  count: 4\n"
    "  resources: {cpu: 0.1, gpu: 1}\n  command: [sleep, '600']"
)
QUICK = "  queue: research\n  pools: [h200]\n  resources: {cpu: 0.1, gpu: 1}\n  command: ['true']"
WRONG = "  queue: research\n  resources: {cpu: 0.1}\n  command: ['false']"
LATE = "  queue: product\n  resources: {cpu: 64}\n  command: ['true']"
AFTER = "  dependsOn: [{job: train}]\n  resources: {cpu: 0.1}\n  command: ['true']"
JOBS = {
    "train": TRAIN, "gang": GANG, "quick": QUICK, "wrong": WRONG, "late": LATE, "after": AFTER,
}  # fmt: skip

#: What this cluster has nothing of, so that only the 0 of its panel comes back.
WELL_HERE = {
    "GPUs not measured", "Critical alerts", "Other alerts", "Given up", "Failed checks",
    "Machines of pools that grow and shrink", "Allocated and idle",
}  # fmt: skip
#: What stands in for Grafana's own variables, and for those of the dashboards.
VALUES = {
    "__rate_interval": "30s", "__range": "5m", "__interval": "15s", "job_name": "train",
    "queue": ".*", "pool": ".*", "node": ".*", "price": "2.5",
}  # fmt: skip


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Prometheus]:
    """One that has scraped a busy cluster."""
    if standin.COMPILER is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("busy")
    (folder / "site").mkdir()
    site = sites.Site(folder / "site", standin.build(folder))
    made = peers.Prometheus(folder / "prometheus")
    try:
        site.start()
        alerts = sorted(peers.ALERTS.glob("*.yaml"))
        made.start(site.bed.cluster.url, site.bed.cluster.state / "token", alerts)
        peers.until(lambda: len(made.targets()) == 3, "three targets")
        make_busy(site, made)
        yield made
    finally:
        made.stop()
        site.stop()


def make_busy(site: sites.Site, prometheus: peers.Prometheus) -> None:
    """Something of everything, and long enough that rates can be told."""
    bed = site.bed
    bed.commit({"structure.yaml": STRUCTURE})
    empty = 'muster_job_wait_seconds_count{queue="research"}'
    peers.until(lambda: prometheus.query(empty), "queues without jobs")
    bed.commit({f"jobs/{name}.yaml": beds.job(name, spec) for name, spec in JOBS.items()})
    bed.until_state("quick", "Succeeded")
    bed.until_state("wrong", "Failed")
    bed.until_state("train", "Running")
    bed.until(lambda: bed.job("gang")["reasons"] and bed.job("late")["reasons"])
    told = 'muster_task_metric{job_name="train", metric="loss"}'
    peers.until(lambda: prometheus.query(told), "what a task writes")
    saved = 'muster_task_unsaved_since_timestamp_seconds{job_name="train"}'
    peers.until(lambda: prometheus.query(saved), "work at risk")
    mine = bed.until(lambda: re.findall(r"pid (\d+)", bed.output("train")))
    on_gpus = [f"process {gpu} {mine[0]} 1048576" for gpu in range(2)]
    standin.write(site.situation, ["xid 0 1 79 4294967295", *on_gpus, *standin.machine(2)])
    peers.until(lambda: prometheus.query("muster_gpu_xid_errors_total"), "an XID event")
    bed.commit({"jobs/again.yaml": beds.job("again", QUICK)})
    bed.until_state("again", "Succeeded")
    since = "muster_jobs_finished_total offset 20s"
    peers.until(lambda: prometheus.query(since), "20 s of history")


def filled(expression: str) -> str:
    """An expression as Grafana would ask it."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: VALUES[found[1]], expression)


def points(prometheus: peers.Prometheus, expression: str) -> int:
    """How many numbers come back now."""
    found = prometheus.query(filled(expression), time.time())
    return sum(not math.isnan(float(one["value"][1])) for one in found)


def asked(prometheus: peers.Prometheus) -> list[tuple[str, str, int, str]]:
    """Dashboard, panel, points and expression, of every expression."""
    table = []
    for text in BUILT.values():
        document = json.loads(text)
        for panel in panels_of(document):
            for target in panel["targets"]:
                expression = target["expr"]
                if panel["title"] not in WELL_HERE:
                    # what is 0 without any series would be 0 with a wrong name, too
                    expression = expression.removesuffix(" or vector(0)")
                count = points(prometheus, expression)
                table.append((document["title"], panel["title"], count, target["expr"]))
    return table


def test_no_panel_is_empty(
    prometheus: peers.Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    table: list[tuple[str, str, int, str]] = []

    def none_empty() -> bool:
        table[:] = asked(prometheus)  # what is a rate may need some more scrapes
        return all(row[2] for row in table)

    with contextlib.suppress(AssertionError):
        peers.until(none_empty, "points for every expression", timeout_s=60)
    with capsys.disabled():
        print(f"\n{'DASHBOARD':<20} {'PANEL':<34} POINTS  EXPRESSION")
        for title, panel, count, expression in table:
            print(f"{title:<20} {panel:<34} {count:>6}  {expression}")
    empty = [row for row in table if not row[2]]
    assert not empty, empty
    assert len({row[0] for row in table}) == len(BUILT)


def test_rows_of_tables_come_together(prometheus: peers.Prometheus) -> None:
    """Grafana merges rows whose labels all agree, and the name of a series is one of them."""
    for text in BUILT.values():
        for panel in panels_of(json.loads(text)):
            if panel["type"] == "table" and len(panel["targets"]) > 1:
                labels = {
                    frozenset(one["metric"])
                    for target in panel["targets"]
                    for one in prometheus.query(filled(target["expr"]), time.time())
                }
                assert len(labels) == 1, panel["title"]


def test_a_job_stands_for_the_waiting_times_of_its_bucket(prometheus: peers.Prometheus) -> None:
    """Prometheus asks for OpenMetrics, and keeps the exemplars that it is given."""

    def named() -> set[str]:
        found = prometheus.exemplars("muster_job_wait_seconds_bucket")
        return {one["labels"]["job_name"] for one in found}

    assert peers.until(named, "an exemplar") <= {*JOBS, "again"}
    assert prometheus.query("muster_cycles_total")  # a counter keeps its name in both forms


def test_annotations_can_be_asked(prometheus: peers.Prometheus) -> None:
    """Commits were made; evictions may have been none, so they only have to be understood."""
    marks = {
        one["name"]: one
        for text in BUILT.values()
        for one in json.loads(text)["annotations"]["list"]
    }
    evictions = marks.pop("Evictions")
    points(prometheus, evictions["expr"])
    for name, mark in marks.items():
        found = prometheus.query(f"max_over_time(({filled(mark['expr'])})[5m:1s])")
        assert found, name
        for label in re.findall(r"{{(\w+)}}", mark["titleFormat"]):
            assert all(one["metric"][label] for one in found), name
        if mark["useValueForTime"]:
            ages = [time.time() - float(one["value"][1]) / 1000 for one in found]
            assert all(0 <= age < 3600 for age in ages), (name, ages)


def test_variables_have_values(prometheus: peers.Prometheus) -> None:
    for text in BUILT.values():
        for variable in json.loads(text)["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found is not None, variable["query"]
            series, label = filled(found[1]), found[2]
            values = {one["metric"].get(label) for one in prometheus.query(series)}
            assert values - {None, ""}, variable["query"]
