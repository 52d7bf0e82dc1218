"""One device shared out between two nodes of a machine, to each an instance of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.gpus import gpu_watcher
from agents.host import processes
from tests import sleeping
from tests.integration import beds
from tests.integration.nvml.conftest import Scene
from tests.nvml import standin
from tests.nvml.standin import machine, uuid

#: Device 1 with two instances that its operator made.
MADE = (
    "mode 1 1 1 0 0", "gi 1 1 19 0 1", "ci 1 1 0 0 0", "gi 1 2 19 1 1", "ci 1 2 0 0 0",
)  # fmt: skip
POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: parts}
spec:
  hosts: part[1-2]
  allowRoot: true
  nodes:
    cpu: 1
    memory: 100Mi
    gpus: {count: 1, model: NVIDIA H200, memory: 140Gi, mig: [{devices: [0], instances: {LAYOUT}}]}
  health:
    interval: 1s
    off: [disk-space, inodes, clock, stuck-processes]
    brake: {share: 1}  # both nodes lose one device
    remedies: [{check: gpu-xid, action: reset-gpu}]
"""
JOB = """\
  pools: [parts]
  resources: {mig: {profile: 1g.18gb}}
  script: |
    echo $CUDA_VISIBLE_DEVICES
    until [ -e go ]; do sleep 0.1; done"""


def instance(number: int) -> str:
    """The UUID of an instance of device 1."""
    return f"MIG-00000000-0000-{number:04d}-0000-{1:012d}"


def pool(layout: str) -> str:
    """The pool of both nodes, each with this of its device."""
    return POOL.replace("LAYOUT", layout)


class Site:
    """A cluster, and a machine with two nodes that share a device."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.bed = beds.Bed(folder, nodes=1)
        self.situation = folder / "situation"
        self.roots = [folder / f"part{number}" for number in (1, 2)]
        self.environment = {**os.environ, **standin.environment(library, self.situation)}
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Bring all of it up."""
        standin.write(self.situation, machine(2))
        self.situation.with_suffix(".mig").write_text("".join(f"{line}\n" for line in MADE))
        self.bed.start()
        self.bed.commit({"parts.yaml": pool("1g.18gb: 1")})
        token = self.bed.cluster.state / "node-token"
        for number, root in enumerate(self.roots, 1):
            command = [sys.executable, "-m", "agents", "--server", self.bed.cluster.url]
            command += ["--name", root.name, "--root", str(root), "--token-file", str(token)]
            command += ["--virtual", "--gpus", instance(number), "--gpu-interval", "0.05"]
            command += ["--stop-tasks-on-exit"]
            with root.with_suffix(".log").open("wb") as log:
                self.agents.append(subprocess.Popen(command, env=self.environment, stderr=log))
        self.bed.until(lambda: {one["state"] for one in self.nodes()} == {"Ready"}, 120)

    def nodes(self) -> list[Any]:
        """Both nodes as the API shows them, by name."""
        shown = {one["name"]: one for one in self.bed.get("/v1/nodes")["items"]}
        return [shown.get(root.name, {"state": "Missing"}) for root in self.roots]

    def drift(self, says: str) -> list[str]:
        """Nodes whose layout is another than declared, for the reason that is said."""
        rows = [row for row in self.bed.get("/v1/drift")["items"] if row["kind"] == "node-mig"]
        return sorted(row["node"] for row in rows if says in row["message"])

    def refusals(self, kind: str, says: str) -> list[str]:
        """Nodes on which what is done about a difference was refused for the reason that is
        said."""
        rows = [row for row in self.bed.get("/v1/drift")["items"] if row["kind"] == kind]
        return sorted(row["node"] for row in rows if says in row["remedy"])

    def made(self) -> list[str]:
        """What is on the devices, as they keep it."""
        return self.situation.with_suffix(".mig").read_text().splitlines()

    def stop(self) -> None:
        """End all of it."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait(120)
        self.bed.stop()
        for root in self.roots:
            assert not processes.supervisors_of(str(root))


@pytest.fixture
def site(tmp_path: Path, libraries: dict[bool, Path]) -> Iterator[Site]:
    made = Site(tmp_path, libraries[False])
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_two_nodes_share_a_device_by_its_instances(site: Site) -> None:
    bed = site.bed
    for node, number in zip(site.nodes(), (1, 2), strict=True):
        (gpu,) = node["gpus"]
        assert (gpu["index"], gpu["uuid"]) == (0, uuid(1))
        assert [one["uuid"] for one in gpu["mig"]] == [instance(number)]
    bed.commit({f"{name}.yaml": beds.job(name, JOB) for name in ("one", "two")})
    attempts = {name: bed.until_state(name, "Running", timeout_s=120) for name in ("one", "two")}
    placed = {name: job["attempts"][0] for name, job in attempts.items()}
    assert {one["node"] for one in placed.values()} == {"part1", "part2"}
    # what the pool declares from now on no node may make: the device is nobody's of them
    bed.commit({"parts.yaml": pool("3g.71gb: 1")})
    bed.until(lambda: site.drift("this node may not change its layout") == ["part1", "part2"], 120)
    for name, one in placed.items():
        folder = next(root for root in site.roots if root.name == one["node"])
        (folder / "attempts" / one["id"] / "work" / "go").touch()
        bed.until_state(name, "Succeeded", timeout_s=120)
        number = int(one["node"].removeprefix("part"))
        assert bed.output(name) == f"{instance(number)}\n"
    assert site.made() == list(MADE)
    # what is wrong with the device is told by both, and none of them resets it
    standin.write(site.situation, ["xid 1 0 79 0", *machine(2)])
    refused = f"{uuid(1)} is not this node's to reset"
    bed.until(lambda: site.refusals("node-check-failed", refused) == ["part1", "part2"], 120)


def test_who_is_on_another_instance_is_no_stranger_to_a_node(scene: Scene) -> None:
    with sleeping.sleeper() as other:
        scene.say([f"process 1 {other.pid} 1048576 1 0", *machine(2)])
        scene.situation.with_suffix(".mig").write_text("".join(f"{line}\n" for line in MADE))
        for number, strangers in ((1, [other.pid]), (2, [])):
            folder = scene.folder / str(number)
            folder.mkdir()
            watch = scene.watch(gpu_uuids=frozenset({instance(number)}))
            watch.look({})
            look = watch.look({})
            assert [one.pid for one in look.foreign] == strangers
            assert look.usage[0].foreign_processes == len(strangers)
            assert [part.uuid for part in look.usage[0].instances] == [instance(number)]
            (scene.folder / "gpus.json").unlink()


def test_an_agent_says_what_it_was_to_offer_and_does_not_have(scene: Scene) -> None:
    scene.say(machine(2))
    look = scene.watch(gpu_uuids=frozenset({uuid(0), instance(3)})).look({})
    assert list(gpu_watcher.complaints(look)) == [
        f"--gpus {instance(3)}: there is no such MIG instance here, of none"
    ]
