"""Controller, server and agent as programs of their own, that log for programs: a line an event."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.operations.client import api_client, endpoints
from reconciler.operations.local import free_ports
from tests.integration import beds

pytestmark = pytest.mark.slow
STRUCTURE = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: test}
spec: {}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: iron}
spec: {hosts: iron1, nodes: {cpu: 1, memory: 1Gi}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
"""


class Site:
    """A controller and an agent, each with what it said in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.address = f"127.0.0.1:{free_ports.free_port()}"

    def start(self, name: str, *words: str) -> None:
        """Start a command of ``muster``."""
        with (self.folder / f"{name}.err").open("wb") as err:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "reconciler.cli.main", *words, "--log-format", "json"],
                    cwd=self.folder,
                    stdout=subprocess.DEVNULL,
                    stderr=err,
                )
            )

    def stop(self) -> None:
        """End what was started, the newest first."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)

    def told(self, name: str) -> list[dict[str, Any]]:
        """What was logged; every line is an object."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[tuple[beds.Bed, Site]]:
    """A bed that is never started: its repository and its questions are used."""
    made, site = beds.Bed(tmp_path), Site(tmp_path)
    made.commit({"cluster.yaml": STRUCTURE})
    tokens, user, node = (tmp_path / name for name in ("tokens", "user", "node"))
    for file, text in (
        (tokens, "t-user tester@example.org user\nt-node iron1 node\n"),
        (user, "t-user"),
        (node, "t-node"),
    ):
        file.write_text(text)
        file.chmod(0o600)
    made.cluster.state.mkdir(parents=True, exist_ok=True)
    (made.cluster.state / "controller.log").touch()
    try:
        url = f"http://{site.address}"
        site.start(
            "agent", "agent", "--server", url, "--name", "iron1", "--root",
            str(tmp_path / "iron1"), "--token-file", str(node), "--cpus", "1",
        )  # fmt: skip
        made.until(lambda: site.told("agent.err"))  # that there is no controller
        site.start(
            "controller", "controller", "--repo", str(tmp_path / "repository.git"), "--state",
            str(tmp_path / "state"), "--listen", site.address, "--token-file", str(tokens),
            "--allow-root",
        )  # fmt: skip
        made.api = api_client.ApiClient(endpoints.Endpoint(url, str(user)))
        made.until(lambda: made.get("/v1/sync")["sync"]["sync"] == "Synced")
        yield made, site
    finally:
        if made.api is not None:
            made.api.close()
        site.stop()


def test_every_line_is_an_object_with_what_it_is_of(bed: tuple[beds.Bed, Site]) -> None:
    made, site = bed
    good = made.commit({"jobs/good.yaml": beds.job("good", "  command: ['true']")})
    made.until_state("good", "Succeeded")
    bad = made.commit({"jobs/bad.yaml": beds.job("bad", "  comand: ['true']")})
    made.until(lambda: made.get("/v1/sync")["sync"]["sync"] == "OutOfSync")
    site.stop()
    said = {
        "loop": site.told("controller.err"),
        "server": site.told("state/server.log"),
        "agent": site.told("agent.err"),
    }
    for source, lines in said.items():
        assert lines, source
        for line in lines:
            assert line.keys() >= {"time", "level", "source", "message"}, line
            assert line["message"], line
    assert {line["source"] for line in said["agent"]} == {"agent"}
    assert {line["node"] for line in said["agent"]} == {"iron1"}
    words = [line["message"] for line in said["agent"]]
    for began in (
        "agent ",
        "tasks are isolated by ",
        "no connection ",
        "registered ",
        "agent stops",
    ):
        assert any(word.startswith(began) for word in words), (began, words)
    of_task = [line["message"] for line in said["agent"] if line.get("job") == "good"]
    assert [word.split(":")[0] for word in of_task] == ["task started", "task ended"]
    words = [line["message"] for line in said["loop"]]
    assert any(word.startswith("controller ") and "has begun epoch" in word for word in words)
    of_good = [line for line in said["loop"] if line.get("job") == "good"]
    assert {"JobPlaced", "JobSucceeded"} <= {line["event"] for line in of_good}
    assert {line["revision"] for line in of_good if line["event"] == "JobPlaced"} == {good}
    assert all(isinstance(line["cycle"], int) for line in of_good)
    of_node = [line for line in said["loop"] if line.get("node") == "iron1"]
    assert {"NodeSeen", "NodeReady"} <= {line["event"] for line in of_node}
    (problem,) = [line for line in said["loop"] if line.get("path") == "jobs/bad.yaml"]
    assert (problem["level"], problem["revision"]) == ("WARNING", bad)
