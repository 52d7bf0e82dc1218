"""A live node that falls ill: taken out, told of, made well by its remedy, and back at work."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import beds

Json = Any

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: virtual}
spec:
  provisioner: virtual
  count: 2
  terminationGrace: 5s
  nodes: {cpu: 4, memory: 2Gi, gpus: {count: 2, model: simulated}}
  health:
    interval: 1s
    off: [disk-space, inodes, clock, stuck-processes]
    brake: {share: 1}
    flapping: {out: 0s}
    commands: [{name: mark, command: [%s, -c, "%s", "%s"], timeout: 30s}]
    remedies:
      - {check: gpu-ecc, action: run-command, command: [rm, "%s"]}
      - {check: mark, action: restart-agent}
"""
#: Fails while its file is there.
SCRIPT = "import os,sys; sys.exit(2 if os.path.exists(sys.argv[1]) else 0)"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    folder = tmp_path_factory.mktemp("health")
    made = beds.Bed(folder, gpus=2)
    try:
        made.start()
        ill = _scene(made, "virtual-0")
        text = POOL % (sys.executable, SCRIPT, folder / "mark", ill)
        made.git("rm", "--quiet", "cluster.yaml", folder=made.clone)
        made.commit({"pool.yaml": text})
        made.until(lambda: _events(made, "CheckTrialPassed"), 120)
        yield made
    finally:
        made.stop()


def _until(bed: beds.Bed, look: Callable[[], Json], timeout_s: float = 120.0) -> Json:
    """Wait as the bed does, and start agents again that have ended, as ``muster up`` does.

    A remedy ends an agent some time after it was reported as done.
    """
    nodes = bed.cluster.nodes
    assert nodes is not None

    def polled() -> Json:
        nodes.poll()
        return look()

    return bed.until(polled, timeout_s)


def _scene(bed: beds.Bed, node: str) -> Path:
    assert bed.cluster.nodes is not None
    return bed.cluster.nodes.root(node) / "devices.json"


def _node(bed: beds.Bed, name: str) -> Json:
    return next(node for node in bed.get("/v1/nodes")["items"] if node["name"] == name)


def _events(bed: beds.Bed, kind: str) -> list[str]:
    return [e["message"] for e in bed.get("/v1/events")["items"] if e["kind"] == kind]


def test_a_device_with_errors_takes_its_node_out_until_its_remedy_has_helped(
    bed: beds.Bed,
) -> None:
    path = _scene(bed, "virtual-0")
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"gpus": {"1": {"ecc_volatile": [0, 2]}}}))
    os.replace(fresh, path)  # noqa: PTH105 - a replacement is what it is
    row = _until(bed, lambda: bed.get("/v1/drift", kind="node-check-failed")["items"])[0]
    assert row["subject"] == "virtual-0/gpu-ecc"
    assert row["message"] == "GPU 1 has uncorrectable ECC errors: it needs a reset"
    _until(bed, lambda: _events(bed, "RemedyEnded"))
    assert "rm has ended with status 0" in _events(bed, "RemedyEnded")[0]
    assert not path.exists()
    _until(bed, lambda: _node(bed, "virtual-0")["state"] == "Ready")
    _until(bed, lambda: bed.get("/v1/drift")["items"] == [])
    states = [e["kind"] for e in bed.get("/v1/events", node="virtual-0")["items"]]
    assert "NodeUnhealthy" in states


def test_an_executable_of_the_site_and_an_agent_that_starts_anew(bed: beds.Bed) -> None:
    mark = bed.folder / "mark"
    mark.touch()
    _until(bed, lambda: _node(bed, "virtual-1")["state"] == "Unhealthy")
    assert _node(bed, "virtual-1")["message"].startswith("check mark failed")
    ended = len(_events(bed, "RemedyEnded"))
    _until(bed, lambda: len(_events(bed, "RemedyEnded")) > ended)
    assert any("restart-agent done" in message for message in _events(bed, "RemedyEnded"))
    mark.unlink()
    _until(bed, lambda: bed.all_ready() and bed.get("/v1/drift")["items"] == [])


def test_a_changed_check_that_fails_is_tried_on_one_node_alone(bed: beds.Bed) -> None:
    """A bad command used to take out the whole pool, a second later."""
    whole = (bed.clone / "pool.yaml").read_text()
    bad = whole.replace("commands: [", "commands: [{name: typo, command: [/opt/no/such]}, ")
    bed.commit({"pool.yaml": bad})

    def failed_trials() -> Json:
        # a trial that nothing is heard of yet is a row of its node, without a check
        rows = bed.get("/v1/drift", kind="node-check-trial")["items"]
        return [row for row in rows if "/" in row["subject"]]

    (row,) = _until(bed, failed_trials)
    assert row["subject"] == "virtual-0/typo"
    assert "it can't be run" in row["message"]
    assert _node(bed, "virtual-0")["state"] == "Unhealthy"
    assert _node(bed, "virtual-1")["state"] == "Ready"
    passed = len(_events(bed, "CheckTrialPassed"))
    good = whole.replace("commands: [", "commands: [{name: typo, command: ['true']}, ")
    bed.commit({"pool.yaml": good})
    _until(bed, lambda: len(_events(bed, "CheckTrialPassed")) > passed)
    _until(bed, lambda: bed.all_ready() and bed.get("/v1/drift")["items"] == [])
    bed.commit({"pool.yaml": whole})


def test_a_check_that_fails_everywhere_leaves_the_rest_of_the_pool_at_work(bed: beds.Bed) -> None:
    whole = (bed.clone / "pool.yaml").read_text()
    braked = whole.replace("share: 1}", "share: 0.3}").replace(
        "      - {check: mark, action: restart-agent}\n", ""
    )
    bed.commit({"pool.yaml": braked})
    revision = bed.git("rev-parse", "HEAD", folder=bed.clone)
    _until(bed, lambda: bed.get("/v1/sync")["sync"]["structureRevision"] == revision)
    (bed.folder / "mark").touch()
    (held,) = _until(bed, lambda: bed.get("/v1/drift", kind="node-check-braked")["items"])
    other = {"virtual-0": "virtual-1", "virtual-1": "virtual-0"}[held["node"]]
    assert _node(bed, held["node"])["state"] == "Ready"
    assert "it stays in service" in _node(bed, held["node"])["message"]
    assert _node(bed, other)["state"] == "Unhealthy"
    assert len(_events(bed, "HealthBrake")) == 1
    (bed.folder / "mark").unlink()
    _until(bed, lambda: bed.all_ready() and bed.get("/v1/drift")["items"] == [])
    bed.commit({"pool.yaml": whole})
