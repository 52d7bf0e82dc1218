"""A whole cluster over the stand-in: registered, scheduled, shown, drifting, measured."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from tests import sleeping
from tests.integration import beds
from tests.integration.nvml import sites
from tests.nvml import standin
from tests.nvml.standin import machine, uuid

JOB = "  pools: [h200]\n  resources: {gpu: 2}\n  command: [sh, -c, 'echo $CUDA_VISIBLE_DEVICES']"


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, libraries: dict[bool, Path]
) -> Iterator[sites.Site]:
    """The cluster, for all tests of this module."""
    made = sites.Site(tmp_path_factory.mktemp("site"), libraries[False])
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_job_gets_the_devices_by_uuid(site: sites.Site) -> None:
    site.bed.commit({"jobs/see.yaml": beds.job("see", JOB)})
    site.bed.until_state("see", "Succeeded")
    assert site.bed.output("see") == f"{uuid(0)},{uuid(1)}\n"


def test_a_node_shows_its_devices_and_what_they_do(site: sites.Site) -> None:
    def told() -> Any:
        found = site.node()
        return found if all(gpu["usage"] for gpu in found["gpus"]) else None

    node = site.bed.until(told)
    assert node["gpuDriver"]["version"] == "550.54.15"
    first = node["gpus"][0]
    assert (first["uuid"], first["state"], first["usage"]["utilization"]) == (uuid(0), "ok", 0.55)
    command = [sys.executable, "-m", "reconciler.cli.main", "node", "gpu1"]
    command += ["--server", site.bed.cluster.url]
    command += ["--token-file", str(site.bed.cluster.state / "token")]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "550.54.15, CUDA 12.4" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("0 ")]
    assert line.split()[:5] == ["0", "NVIDIA", "H200", "ok", "55%"]


def test_prometheus_finds_what_they_do(site: sites.Site) -> None:
    assert site.bed.api is not None
    targets = json.loads(b"".join(site.bed.api.stream("/v1/prometheus/targets", {})))
    paths = {one["labels"]["__metrics_path__"] for one in targets}
    assert "/metrics/nodes/gpu1" in paths

    def watts() -> Any:
        assert site.bed.api is not None
        page = b"".join(site.bed.api.stream("/metrics/nodes/gpu1", {})).decode()
        families = {f.name: f for f in parser.text_string_to_metric_families(page)}
        family = families.get("muster_gpu_power_usage_watts")
        return {s.labels["uuid"]: s.value for s in family.samples} if family else None

    assert site.bed.until(watts) == {uuid(0): 350.5, uuid(1): 350.5}


#: What is sampled of tasks only every 15 s, and the controller's verdict on the node.
NOT_COMPARED = re.compile(
    r"muster_node_state|"
    r"muster_task_(processes|cpu_seconds|memory|storage|gpu_processes|gpu_memory)"
)


def test_the_node_shows_at_its_own_port_what_the_controller_shows_of_it(site: sites.Site) -> None:
    """The same series by the same labels, pool and all, with a task on a GPU."""

    def series(page: str) -> set[str]:
        lines = (line for line in page.splitlines() if not line.startswith("#"))
        return {line.rpartition(" ")[0] for line in lines if not NOT_COMPARED.match(line)}

    def both() -> tuple[set[str], set[str]]:
        assert site.bed.api is not None
        theirs = b"".join(site.bed.api.stream("/metrics/nodes/gpu1", {})).decode()
        return series(site.own_page()), series(theirs)

    held = "  pools: [h200]\n  resources: {gpu: 1}\n  command: [sleep, '600']"
    site.bed.commit({"jobs/held.yaml": beds.job("held", held)})
    site.bed.until_state("held", "Running")
    task = 'muster_task_gpu_info{node="gpu1",pool="h200",job_name="held",element="0"'

    def alike() -> bool:
        own, theirs = both()
        return own == theirs and any(one.startswith(task) for one in own)

    try:
        site.bed.until(alike)
    except AssertionError:
        own, theirs = both()
        assert own == theirs
        raise
    finally:
        site.bed.commit({"jobs/held.yaml": None})
        site.bed.until_state("held", "Cancelled")


def test_a_stranger_is_drift_until_it_goes(site: sites.Site) -> None:
    with sleeping.sleeper() as stranger:
        standin.write(site.situation, [f"process 1 {stranger.pid} 2097152", *machine(2)])
        (found,) = site.bed.until(lambda: site.drift("gpu-process-foreign"))
        assert found["subject"] == f"gpu1/gpu1/{stranger.pid}"
        assert f"sleep ({stranger.pid})" in found["message"]
        assert f"holds GPU 1 ({uuid(1)}) with 2 MiB" in found["message"]
        assert site.node()["state"] == "Ready"
    standin.write(site.situation, machine(2))
    site.bed.until(lambda: not site.drift("gpu-process-foreign"))


def test_a_lost_device_takes_the_node_out_until_it_is_back(site: sites.Site) -> None:
    standin.write(site.situation, [f"return:* 1 {standin.GPU_IS_LOST}", *machine(2)])
    site.bed.until(lambda: site.node()["state"] == "Unhealthy")
    (failed,) = [one for one in site.bed.get("/v1/drift")["items"] if one["node"]]
    assert failed["kind"] == "gpu-failed"
    assert failed["message"].startswith("GPU 1 (")
    assert "fallen off the bus" in failed["message"]
    standin.write(site.situation, machine(2))
    site.bed.until(lambda: site.node()["state"] == "Ready")
    site.bed.until(lambda: not site.drift("gpu-failed"))


SMALL = """\
  pools: [h200]
  resources: {cpu: 100m, mig: {profile: 1g.18gb}}
  command: [sh, -c, 'echo $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.1; done']"""
LARGE = """\
  pools: [h200]
  resources: {cpu: 100m, mig: {profile: 3g.71gb}}
  command: [sh, -c, 'echo $CUDA_VISIBLE_DEVICES']"""


def test_a_layout_goes_from_git_to_the_device_and_back(site: sites.Site) -> None:
    bed = site.bed

    def profiles() -> list[str]:
        return [part["profile"] for part in site.node()["gpus"][1]["mig"]]

    bed.commit({"h200.yaml": sites.cut("{devices: [1], instances: {1g.18gb: 2}}")})
    bed.until(lambda: profiles() == ["1g.18gb"] * 2)
    bed.commit({"jobs/small.yaml": beds.job("small", SMALL)})
    bed.until_state("small", "Running")
    uuids = [part["uuid"] for part in site.node()["gpus"][1]["mig"]]
    bed.until(lambda: bed.output("small").strip() in uuids)
    holder = bed.until(
        lambda: {part["uuid"]: part["attempt"] for part in site.node()["gpus"][1]["mig"]}.get(
            bed.output("small").strip()
        )
    )
    assert holder.startswith("small.1.")
    # another layout waits for it, and says so
    bed.commit({"h200.yaml": sites.cut("{devices: [1], instances: {3g.71gb: 1}}")})
    (told,) = bed.until(lambda: site.drift("node-mig"))
    bed.until(lambda: "waiting until it is idle" in site.drift("node-mig")[0]["message"])
    assert (told["wanted"], told["found"]) == ("1 x 3g.71gb", "2 x 1g.18gb")
    assert site.node()["state"] == "Ready"
    bed.commit({"jobs/large.yaml": beds.job("large", LARGE)})
    bed.until(lambda: bed.job("large")["state"] == "Pending" and bed.job("large")["reasons"])
    (reason,) = bed.job("large")["reasons"]
    assert reason["code"] == "InsufficientResources"
    assert "have 3g.71gb declared, and not made yet" in reason["message"]
    command = [sys.executable, "-m", "reconciler.cli.main", "node", "gpu1"]
    command += ["--server", bed.cluster.url, "--token-file", str(bed.cluster.state / "token")]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert f"GPU 1, MIG layout: waiting until it is idle: {holder} runs on it" in done.stdout
    assert "MIG waiting" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if " MIG 1g.18gb " in line]
    assert [row[:4] for row in rows] == [
        ["1:1", "MIG", "1g.18gb", "ok"],
        ["1:2", "MIG", "1g.18gb", "ok"],
    ]
    (site.root / "attempts" / holder / "work" / "go").touch()
    bed.until_state("small", "Succeeded")
    bed.until_state("large", "Succeeded")
    assert profiles() == ["3g.71gb"]
    assert not site.drift("node-mig")
    bed.commit({"h200.yaml": sites.POOL})
    bed.until(lambda: not profiles())
    bed.commit({"jobs/whole.yaml": beds.job("whole", JOB)})
    bed.until_state("whole", "Succeeded")
    assert bed.output("whole") == f"{uuid(0)},{uuid(1)}\n"
