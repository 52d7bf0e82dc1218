"""A whole cluster with one node that has GPUs, as the stand-in library tells of them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from agents.host import processes
from tests.integration import beds
from tests.nvml import standin
from tests.nvml.standin import machine

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: h200}
spec:
  hosts: gpu1
  allowRoot: true
  nodes: {cpu: 1, memory: 100Mi, gpus: {count: 2, model: NVIDIA H200, memory: 140Gi}}
"""


def cut(layout: str) -> str:
    """The pool with a layout of MIG."""
    return POOL.replace("140Gi}", f"140Gi, mig: [{layout}]}}")


class Site:
    """A cluster with one node that has GPUs."""

    def __init__(self, folder: Path, library: Path, *, gpus: int = 0) -> None:
        self.bed = beds.Bed(folder, nodes=1, gpus=gpus)
        self.situation = folder / "situation"
        self.root = folder / "node"
        self.environment = {**os.environ, **standin.environment(library, self.situation)}
        self.agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Bring all of it up."""
        standin.write(self.situation, machine(2))
        self.bed.start()
        self.bed.commit({"h200.yaml": POOL})
        token = self.bed.cluster.state / "node-token"
        command = [sys.executable, "-m", "agents", "--server", self.bed.cluster.url]
        command += ["--name", "gpu1", "--root", str(self.root), "--token-file", str(token)]
        command += ["--gpu-interval", "0.05", "--stop-tasks-on-exit"]
        command += ["--metrics-listen", "127.0.0.1:0"]
        with (self.root.parent / "agent.log").open("wb") as log:
            self.agent = subprocess.Popen(command, env=self.environment, stderr=log)
        self.bed.until(lambda: self.node()["state"] == "Ready")

    def node(self) -> Any:
        """The node as the API shows it."""
        found = self.bed.get("/v1/nodes")["items"]
        return next((one for one in found if one["name"] == "gpu1"), {"state": "Missing"})

    def own_page(self) -> str:
        """What the node shows at its own port; nothing while it has nothing to show."""
        log = (self.root.parent / "agent.log").read_text()
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", log)
        answer = httpx.get(url, timeout=60)
        return answer.text if answer.status_code == 200 else ""

    def drift(self, kind: str) -> list[Any]:
        """Drift of one kind."""
        return [one for one in self.bed.get("/v1/drift")["items"] if one["kind"] == kind]

    def stop(self) -> None:
        """End all of it."""
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(120)
        self.bed.stop()
        assert not processes.supervisors_of(str(self.root))
