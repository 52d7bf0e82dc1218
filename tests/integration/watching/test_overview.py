"""The Overview says in colours how a cluster is: idle, well, busy and sick.

A real cluster is brought into each situation, a real Prometheus scrapes it and evaluates the
alerts, and every number of the dashboard is asked for as Grafana would.
"""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import beds
from tests.integration.nvml import sites
from tests.integration.watching import peers
from tests.nvml import standin
from tests.unit.grafana.test_dashboards import BUILT, panels_of

pytestmark = [pytest.mark.slow, peers.needs_peers]

Json = Any
#: What the machine that runs the tests is judged by, not the cluster.
OF_THE_MACHINE = {"Slow answers", "Last decision"}
NUMBERS = {
    panel["title"]: panel
    for panel in panels_of(json.loads(BUILT["overview.json"]))
    if panel["type"] == "stat" and panel["title"] not in OF_THE_MACHINE
}
RUNS = (
    "  pools: [h200]\n  timeLimit: 1h\n  resources: {cpu: 0.1, gpu: %d}\n  command: [sleep, '600']"
)
NEVER = "  resources: {cpu: 640}\n  command: ['true']"
WRONG = "  resources: {cpu: 0.1}\n  command: ['true']\n  colour: red"
GUARDED = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: guarded}\nspec: {}\n"
#: A GPU that the driver has lost.
LOST = [f"{key} 1 !{standin.GPU_IS_LOST}" for key in ("utilization", "memory", "temperature:0")]
IDLE = {
    "Git": "green",
    "Errors in git": "green",
    "Held until approved": "green",
    "Drift": "green",
    "GPUs allocated": "blue",
    "Free beside waiting work": "green",
    "GPUs at work": "none",
    "GPUs not measured": "blue",
    "GPUs that can't be used": "green",
    "Jobs waiting": "blue",
    "Oldest that waits": "none",
    "Will never start": "green",
    "Less than guaranteed": "green",
    "Critical alerts": "green",
    "Other alerts": "green",
    "Nodes not ready": "green",
}
WELL = {**IDLE, "GPUs at work": "green"}
BUSY = {**WELL, "Oldest that waits": "green"}
SICK = {
    **BUSY,
    "Git": "red",
    "Errors in git": "red",
    "Held until approved": "orange",
    "Drift": "orange",
    "GPUs that can't be used": "red",
    "Will never start": "orange",
    "Critical alerts": "red",
    "Other alerts": "orange",
    "Nodes not ready": "orange",
}


class Watched:
    """A cluster with a node of two GPUs, and the Prometheus that reads it."""

    def __init__(self, folder: Path) -> None:
        (folder / "site").mkdir()
        (folder / "rules").mkdir()
        self.site = sites.Site(folder / "site", standin.build(folder))
        self.prometheus = peers.Prometheus(folder / "prometheus")
        self._rules = folder / "rules"

    def start(self) -> None:
        """Bring both up, and wait until all pages are read."""
        self.site.start()
        bed = self.site.bed
        whole = (bed.clone / "cluster.yaml").read_text()
        approval = 'nodeSilence: 3s, sync: {approval: ["Queue/*"]}}'
        bed.commit({"cluster.yaml": whole.replace("nodeSilence: 3s}", approval)})
        cluster = self.site.bed.cluster
        rules = peers.hurried(self._rules, 1)
        self.prometheus.start(cluster.url, cluster.state / "token", rules)
        peers.until(lambda: len(self.prometheus.targets()) == 3, "three targets")

    def stop(self) -> None:
        """End both."""
        self.prometheus.stop()
        self.site.stop()

    def color(self, panel: Json) -> str:
        """The colour that Grafana gives the number of now."""
        (target,) = panel["targets"]
        expression = target["expr"].replace("$__rate_interval", "30s")
        found = self.prometheus.query(expression, time.time())
        values = [float(one["value"][1]) for one in found]
        if not values or math.isnan(values[0]):
            assert panel["fieldConfig"]["defaults"]["noValue"] == "none"
            return "none"
        for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
            return str(mapping["options"][f"{values[0]:g}"]["color"])
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        reached = [one for one in steps if one["value"] is None or values[0] >= one["value"]]
        return str(reached[-1]["color"])

    def expect(self, situation: str, colors: dict[str, str]) -> None:
        """Wait until the numbers have these colours."""
        seen: dict[str, str] = {}

        def as_expected() -> bool:
            seen.update({title: self.color(panel) for title, panel in NUMBERS.items()})
            return seen == colors

        try:
            peers.until(as_expected, f"the colours of a cluster that is {situation}")
        except AssertionError:
            firing = self.prometheus.query('ALERTS{alertstate="firing"}', time.time())
            assert seen == colors, (situation, [one["metric"] for one in firing])
            raise


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    if standin.COMPILER is None:
        pytest.skip("gcc is not installed")
    made = Watched(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_each_number_has_the_colour_of_its_situation(watched: Watched) -> None:
    site, bed = watched.site, watched.site.bed
    watched.expect("idle", IDLE)

    standin.write(site.situation, standin.machine(2, *works(0), *works(1)))
    bed.commit({"jobs/train.yaml": beds.job("train", RUNS % 2)})
    bed.until_state("train", "Running")
    watched.expect("well", WELL)

    bed.commit({f"jobs/{name}.yaml": beds.job(name, RUNS % 1) for name in ("next", "later")})
    bed.until_state("later", "Pending")
    watched.expect("busy", BUSY)

    bed.commit(
        {"jobs/never.yaml": beds.job("never", NEVER), "jobs/wrong.yaml": beds.job("wrong", WRONG)}
    )
    bed.until_state("never", "Pending")
    bed.commit({"queue.yaml": GUARDED})
    standin.write(site.situation, standin.machine(2, *works(0), *LOST))
    watched.expect("sick", SICK)


def works(gpu: int) -> list[str]:
    """Lines of a GPU that is used well."""
    return [f"utilization {gpu} 90 40"]
