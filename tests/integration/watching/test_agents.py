"""Prometheus reads nodes at ports of their own, with the token from a file, as the guide says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from reconciler import package_data
from reconciler.model.protocol import agent_messages
from tests.integration.agents import conftest
from tests.integration.agents.controller import Controller
from tests.integration.watching import peers

pytestmark = [pytest.mark.slow, peers.needs_peers]

GUIDE = package_data.checkout() / "docs" / "guides" / "operator" / "watching.md"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    made = tmp_path / "token"
    made.write_text("secret\n")
    made.chmod(0o600)
    return made


@pytest.fixture
def node(tmp_path: Path, token: Path) -> Iterator[conftest.Node]:
    """A node of pool h200 with two GPUs, a task on one, and a port."""
    controller = Controller()
    controller.pool = "h200"
    made = conftest.Node(tmp_path.resolve() / "root", controller)
    try:
        made.start(
            *("--simulated-gpus", "2", "--gpu-model", "H200"),
            *("--metrics-listen", "127.0.0.1:0", "--metrics-token-file", str(token)),
        )
        template = agent_messages.TaskTemplate(
            "train", 1, "main", command=("sleep", "600"), grace_s=1
        )
        controller.assign("a.1", template=template, devices=(1,))
        controller.running("a.1")
        yield made
    finally:
        made.tear_down()
        controller.close()


def as_told(address: str, **files: Path) -> list[peers.Json]:
    """What the guide says of nodes that are read themselves, here, once with each token."""
    text = GUIDE.read_text(encoding="utf-8").partition("### From the nodes themselves")[2]
    found = re.search(r"^```text\n(scrape_configs:.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    (told,) = [
        one
        for one in yaml.safe_load(found[1])["scrape_configs"]
        if one["job_name"] == "muster-nodes"
    ]
    first = told["static_configs"][0]
    first["labels"] |= {"node": "n1"}
    told["static_configs"] = [first | {"targets": [address]}]
    authorization = told["authorization"]
    return [
        told | {"job_name": name, "authorization": authorization | {"credentials_file": str(path)}}
        for name, path in files.items()
    ]


def told_by_both(series: list[peers.Json]) -> dict[str, str] | None:
    """What each of the two came to, once both have asked: they do so at moments of their own."""
    told = {one["metric"]["job"]: one["value"][1] for one in series}
    return told if len(told) == 2 else None


def test_a_node_is_read_at_its_own_port(node: conftest.Node, tmp_path: Path, token: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("guessed")
    (address,) = re.findall(r"http://(127\.0\.0\.1:\d+)/metrics", node.log.read_text())
    prometheus = peers.Prometheus(tmp_path / "prometheus")
    try:
        alerts = sorted(peers.ALERTS.glob("*.yaml"))
        prometheus.scrape(as_told(address, nodes=token, guesser=wrong), alerts)
        task = 'muster_task_gpu_info{job="nodes",job_name="train",pool="h200",node="n1",gpu="1"}'
        peers.until(lambda: prometheus.query(task), "the task's GPU")
        assert prometheus.query('sum(muster_node_gpus{pool="h200"})')[0]["value"][1] == "2"
        assert not prometheus.query("muster_node_state")
        up = 'max by (job) (up{node="n1",pool="h200"})'
        health = peers.until(lambda: told_by_both(prometheus.query(up)), "both to have asked")
        assert health == {"nodes": "1", "guesser": "0"}
    finally:
        prometheus.stop()
