"""Each kind of drift, caused behind git's back on a live cluster of virtual nodes.

Devices of the nodes, and who is on them, are what a file says that the tests write; everything else
is real: repository, controller, agents, processes, signals.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import parser

from agents import virtual
from tests import sleeping
from tests.integration import beds

Json = Any

CLUSTER = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: test}
spec:
  lease: 5s
  nodeSilence: %s
  drift:
    policy: %s
    remediation: {attempts: 2, backoff: 1s}
"""
POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: virtual}
spec:
  provisioner: virtual
  count: %d
  terminationGrace: 5s
  mode: %s
  nodes: {cpu: 4, memory: 2Gi, gpus: {count: 2, model: simulated}, driver: "550"}
"""
QUEUE = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: work}
spec: {limit: {cpu: %d}}
"""


class Site(beds.Bed):
    """A cluster of two nodes with two simulated GPUs each, and one queue."""

    def begin(self) -> None:
        """Bring it up."""
        self.declare()
        self.start()

    def declare(
        self,
        policy: str = "{}",
        *,
        count: int = 2,
        mode: str = "manage",
        limit: int = 8,
        silence: str = "60s",
    ) -> None:
        """What git says of policies, nodes and the queue."""
        self.commit(
            {
                "cluster.yaml": CLUSTER % (silence, policy),
                "pool.yaml": POOL % (count, mode),
                "queue.yaml": QUEUE % limit,
            },
            f"declare {time.monotonic()}",
        )

    def scene(self, node: str, **says: Json) -> None:
        """What is so of a node's devices from now on; nothing: all is well."""
        assert self.cluster.nodes is not None
        path = self.cluster.nodes.root(node) / "devices.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(says))
        os.replace(fresh, path)  # noqa: PTH105 - a replacement is what it is

    def found(self) -> set[tuple[str, str]]:
        """Kinds and subjects of all drift."""
        return {(one["kind"], one["subject"]) for one in self.get("/v1/drift")["items"]}

    def row(self, kind: str) -> Json:
        """The one difference of a kind, once there is one."""
        items = self.until(lambda: self.get("/v1/drift", kind=kind)["items"], 120)
        assert len(items) == 1, items
        return items[0]

    def clean(self) -> None:
        """Wait until there is no drift at all."""
        left: set[tuple[str, str]] = set()

        def none() -> bool:
            left.clear()
            left.update(self.found())
            return not left

        try:
            self.until(none, 120)
        except AssertionError as error:
            raise AssertionError(f"still there: {left}") from error

    def remedies(self) -> list[str]:
        """What is told of remedies that have ended."""
        items = self.get("/v1/events")["items"]
        return [one["message"] for one in items if one["kind"] == "RemedyEnded"]

    def measured(self) -> dict[str, int]:
        """``muster_drift`` by kind."""
        headers = {"Authorization": f"Bearer {self.cluster.endpoint.token()}"}
        page = httpx.get(f"{self.cluster.url}/metrics", headers=headers).text
        found: Counter[str] = Counter()
        for family in parser.text_string_to_metric_families(page):
            if family.name == "muster_drift":
                for sample in family.samples:
                    found[sample.labels["kind"]] += int(sample.value)
        return dict(found)

    def muster(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in the cluster's folder."""
        clean = {name: v for name, v in os.environ.items() if not name.startswith("MUSTER_")}
        return subprocess.run(
            [sys.executable, "-m", "reconciler.cli.main", *arguments],
            check=False, cwd=self.folder, env=clean, capture_output=True, text=True, timeout=60,
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("drift"), gpus=2)
    try:
        made.begin()
        yield made
    finally:
        made.stop()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no task's."""
    with sleeping.sleeper() as process:
        yield process


def test_a_declared_node_that_never_reports(site: Site) -> None:
    site.declare(count=3)
    row = site.row("node-missing")
    assert (row["subject"], row["severity"], row["pool"]) == ("virtual-2", "warning", "virtual")
    site.until(lambda: site.measured() == {"node-missing": 1})
    listed = site.muster("drift")
    assert listed.returncode == 2
    assert listed.stdout.splitlines()[1].split()[:4] == [
        "node-missing", "virtual-2", "warning", "report",
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in listed.stdout.splitlines())
    site.declare()
    site.clean()
    site.until(lambda: site.measured() == {})
    assert site.muster("drift").returncode == 0


def test_a_node_that_nobody_declared(site: Site) -> None:
    nodes = site.cluster.nodes
    assert nodes is not None
    nodes.add(virtual.VirtualNode("stray-0", cpus="1", memory="1Gi"))
    nodes.start("stray-0")
    assert site.row("node-undeclared")["node"] == "stray-0"
    nodes.remove("stray-0")
    site.declare(silence="2s")
    site.clean()
    site.declare()


def test_a_changed_inventory_a_failed_device_and_another_driver(site: Site) -> None:
    site.scene("virtual-0", gpus={"1": None})
    site.until(lambda: site.found() >= {("gpu-failed", "virtual-0/gpu1")})
    row = site.row("gpu-failed")
    assert (row["severity"], row["wanted"], row["found"]) == ("critical", "ok", "missing")
    rows = site.get("/v1/drift", kind="node-inventory", node="virtual-0")["items"]
    assert not rows, "one device is one difference"
    site.scene("virtual-0", driver_version="535.104.05")
    row = site.row("node-driver")
    assert (row["wanted"], row["found"]) == ("550", "535.104.05")
    site.scene("virtual-0", gpus={"0": {"mig_enabled": True}})
    site.until(lambda: ("node-mig", "virtual-0/gpu0") in site.found())
    site.scene("virtual-0")
    site.clean()


def test_a_process_on_a_device_that_no_task_owns(
    site: Site, stranger: subprocess.Popen[bytes]
) -> None:
    site.scene("virtual-1", processes=[{"pid": stranger.pid, "gpu": 1, "memory_bytes": 2**30}])
    row = site.row("gpu-process-foreign")
    assert row["subject"] == f"virtual-1/gpu1/{stranger.pid}"
    assert "sleep" in row["message"]
    assert row["action"] == "report"
    assert stranger.poll() is None, "nobody said that it should be ended"
    site.declare("{gpu-process-foreign: remediate}")
    assert stranger.wait(60) == -signal.SIGTERM
    site.scene("virtual-1")
    site.clean()
    site.until(lambda: any("ended by SIGTERM" in message for message in site.remedies()))
    site.declare()


def test_a_process_that_can_not_be_ended_is_given_up(site: Site) -> None:
    """The agent has started from this one: it refuses to end it."""
    site.declare("{gpu-process-foreign: remediate}")
    site.scene("virtual-1", processes=[{"pid": os.getpid(), "gpu": 0}])
    site.until(lambda: any(one["givenUp"] for one in site.get("/v1/drift")["items"]), 120)
    row = site.row("gpu-process-foreign")
    assert row["tries"] == 2
    assert "given up after 2 tries" in row["remedy"]
    events = [e["kind"] for e in site.get("/v1/events")["items"]]
    assert events.count("RemediationGivenUp") == 1
    site.scene("virtual-1")
    site.clean()
    site.declare()


def test_a_killed_task(site: Site) -> None:
    site.commit({"jobs/prey.yaml": beds.job("prey", "  queue: work\n  command: [sleep, '600']")})
    os.kill(site.process("prey"), signal.SIGKILL)
    row = site.row("task-killed")
    assert (row["subject"], row["found"]) == ("prey/main-0", "ended by signal 9")
    assert site.job("prey")["state"] == "Failed"
    spec = "  run: 2\n  queue: work\n  command: [sleep, '600']"
    site.declare("{task-killed: remediate}")
    site.commit({"jobs/prey.yaml": beds.job("prey", spec)})
    site.clean()
    os.kill(site.process("prey"), signal.SIGKILL)
    tries = site.until(lambda: [a for a in site.job("prey")["attempts"] if a["id"].endswith(".2")])
    assert tries
    site.until_state("prey", "Running")
    site.clean()
    site.commit({"jobs/prey.yaml": None})
    site.until_state("prey", "Cancelled")
    site.declare()


def test_a_hand_made_drain(site: Site) -> None:
    repository = site.folder / "repository.git"
    repository.rename(site.folder / "away.git")
    done = site.muster("drain", "virtual-0", "--override", "--for", "1h", "-m", "it smokes")
    (site.folder / "away.git").rename(repository)
    assert site.api is not None
    site.api.post("/v1/hooks/git")
    assert done.returncode == 0, done.stderr
    row = site.row("node-drained-by-override")
    assert "it smokes" in row["message"]
    assert site.muster("overrides", "clear", "drain", "virtual-0").returncode == 0
    site.clean()


def test_a_lowered_limit_under_running_work(site: Site) -> None:
    for name in ("a", "b"):
        spec = "  queue: work\n  resources: {cpu: 2}\n  command: [sleep, '600']"
        site.commit({f"jobs/{name}.yaml": beds.job(name, spec)})
        site.until_state(name, "Running")
    site.declare(limit=2)
    row = site.row("queue-over-limit")
    assert (row["subject"], row["wanted"], row["found"]) == ("work", "cpu 2", "cpu 4")
    assert site.job("b")["state"] == "Running"
    site.declare("{queue-over-limit: remediate}", limit=2)
    site.until_state("b", "Pending")
    site.clean()
    assert site.job("a")["state"] == "Running"
    site.commit({"jobs/a.yaml": None, "jobs/b.yaml": None})
    site.until_state("a", "Cancelled")
    site.declare()


def test_a_repository_that_stalls_and_a_revision_that_is_refused(site: Site) -> None:
    repository = site.folder / "repository.git"
    repository.rename(site.folder / "away.git")
    assert site.api is not None
    site.api.post("/v1/hooks/git")
    row = site.row("repository-unreadable")
    assert row["severity"] == "critical"
    assert site.get("/v1/sync")["sync"]["nextLook"] > site.get("/v1/sync")["sync"]["checked"]
    told = " ".join(site.muster("status").stdout.split())
    assert re.search(r"the next look is at [0-9: -]+, or when a webhook calls", told), told
    (site.folder / "away.git").rename(repository)
    site.api.post("/v1/hooks/git")
    site.clean()
    assert site.get("/v1/sync")["sync"]["nextLook"] is None
    revision = site.commit({"bad.yaml": "kind: Quota\n"})
    assert site.row("head-not-applied")["subject"] == revision
    site.commit({"bad.yaml": None})
    site.clean()


def test_a_silent_node_and_the_task_that_outlives_its_being_given_up(site: Site) -> None:
    nodes = site.cluster.nodes
    assert nodes is not None
    script = "trap '' TERM; echo up; while :; do sleep 1; done"
    spec = f"  queue: work\n  lease: none\n  script: |\n    {script}"
    site.commit({"jobs/orphan.yaml": beds.job("orphan", spec)})
    (attempt,) = site.until_state("orphan", "Running")["attempts"]
    site.until(lambda: "up" in site.output("orphan"))
    node = attempt["node"]
    site.declare(silence="2s")
    nodes.kill_agent(node)
    assert site.row("node-silent")["subject"] == node
    (told,) = site.until(lambda: site.get("/v1/jobs/orphan/explain")["silent"])
    assert (told["node"], told["pool"], told["tasks"]) == (node, "virtual", 1)
    assert (told["givenUp"], told["endless"]) == (None, 1)
    override = f"  overrides: [{{hosts: {node}, reason: it burns, gone: true}}]\n"
    site.commit({"pool.yaml": POOL % (2, "manage") + override})
    site.until(lambda: site.job("orphan")["attempts"][0]["id"] != attempt["id"])
    nodes.start(node)
    row = site.row("task-unwanted")
    assert (row["attempt"], row["action"]) == (attempt["id"], "remediate")
    site.commit({"jobs/orphan.yaml": None, "pool.yaml": POOL % (2, "manage")})
    site.clean()
    site.declare()


def test_drift_is_seen_while_suspended_and_remembered_over_a_restart(
    site: Site, stranger: subprocess.Popen[bytes]
) -> None:
    site.commit(
        {
            "cluster.yaml": CLUSTER % ("60s", "{gpu-process-foreign: remediate}")
            + "  suspend: true\n"
        }
    )
    site.scene("virtual-0", processes=[{"pid": stranger.pid}])
    row = site.row("gpu-process-foreign")
    assert row["remedy"].endswith("but the cluster is suspended")
    site.cluster.kill_controller()
    site.cluster.start_controller()
    site.cluster.wait_ready()
    assert site.row("gpu-process-foreign")["firstSeen"] == row["firstSeen"]
    assert stranger.poll() is None
    site.scene("virtual-0")
    site.clean()
    site.declare()


def test_an_observed_pool_shows_what_would_be_done_and_does_nothing(
    site: Site, stranger: subprocess.Popen[bytes]
) -> None:
    site.declare("{gpu-process-foreign: remediate}", mode="observe")
    site.scene("virtual-0", processes=[{"pid": stranger.pid}])
    row = site.row("gpu-process-foreign")
    assert "would be remedied (the process is ended)" in row["remedy"]
    assert "observed only" in row["remedy"]
    listed = site.muster("drift", "-o", "json")
    assert json.loads(listed.stdout)["items"][0]["action"] == "remediate"
    assert stranger.poll() is None
    assert " (observe)  Ready " in site.muster("nodes").stdout
    assert "nothing is started here" in site.muster("node", "virtual-0").stdout
    site.scene("virtual-0")
    site.clean()
    site.declare()


def test_what_is_ignored_is_shown_on_demand(site: Site, stranger: subprocess.Popen[bytes]) -> None:
    site.declare("{gpu-process-foreign: ignore}")
    site.scene("virtual-0", processes=[{"pid": stranger.pid}])
    site.until(lambda: site.get("/v1/drift", all="true")["items"])
    assert site.found() == set()
    assert site.muster("drift").returncode == 0
    assert site.muster("drift", "--all").returncode == 2
    assert site.measured() == {}
    site.scene("virtual-0")
    site.declare()
    site.until(lambda: not site.get("/v1/drift", all="true")["items"])


def test_watching_tells_what_comes_and_goes(site: Site) -> None:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("MUSTER_")}
    watch = subprocess.Popen(
        [sys.executable, "-u", "-m", "reconciler.cli.main", "drift", "-w", "-o", "json"],
        cwd=site.folder, env=clean, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watch.stdout is not None
        site.scene("virtual-0", driver_version="535.104.05")
        found = json.loads(watch.stdout.readline())
        assert (found["change"], found["kind"]) == ("found", "node-driver")
        site.scene("virtual-0")
        gone = json.loads(watch.stdout.readline())
        assert (gone["change"], gone["subject"]) == ("gone", "virtual-0")
    finally:
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 130
        assert watch.stdout is not None
        watch.stdout.close()
    site.clean()


def test_nodes_that_are_there_are_exported_and_adopted(site: Site) -> None:
    nodes = site.cluster.nodes
    assert nodes is not None
    for number in (1, 2):
        nodes.add(virtual.VirtualNode(f"old-{number}", cpus="1", memory="1Gi", gpus=1))
        nodes.start(f"old-{number}")
    site.until(lambda: {"old-1", "old-2"} <= {subject for _, subject in site.found()})
    written = site.muster("export")
    assert written.returncode == 0, written.stderr
    assert "hosts: old-[1-2]" in written.stdout
    assert "2 nodes in 1 pool." in written.stderr
    site.commit({"found.yaml": written.stdout})
    site.clean()
    spec = "  queue: work\n  pools: [simulated-1]\n  command: ['true']"
    site.commit({"jobs/no.yaml": beds.job("no", spec)})
    site.until(lambda: site.job("no")["reasons"])
    assert site.job("no")["attempts"] == [], "what is observed only is left alone"
    site.commit({"jobs/no.yaml": None, "found.yaml": None})
    for number in (1, 2):
        nodes.remove(f"old-{number}")
    site.declare(silence="2s")
    site.clean()
    site.declare()
