"""The script of the guide under a live controller: nodes come for a job, and leave after it."""

import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import processes
from reconciler.operations.client import api_client
from tests.integration import beds
from tests.unit.docs import pages

GUIDE = pages.ROOT / "docs" / "guides" / "operator" / "provisioners.md"
POOLS = """\
apiVersion: muster/v1
kind: Cluster
metadata: {{name: test}}
spec: {{lease: 5s, nodeSilence: 5s}}
---
apiVersion: muster/v1
kind: NodePool
metadata: {{name: burst}}
spec:
  provisioner: exec
  max: 3
  terminationGrace: 5s
  nodes: {{cpu: 2, memory: 256Mi}}
  provision:
    script: {script}
    settings: {settings}
    idleTime: 3s
    cooldown: 1s
    createTimeout: 90s
    retries: 1
    orphans: destroy
"""


class ScaledBed(beds.Bed):
    """A cluster whose only pool is made by a script, and the machines that the script made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, nodes=0)
        self.machines = folder / "machines"
        self.scripts = folder / "provisioners"
        self.scripts.mkdir(mode=0o755)
        self.machines.mkdir()
        self.cluster.options.provisioners = self.scripts
        self.commit({"cluster.yaml": self.pools()})
        (script,) = [b.text for b in pages.blocks(GUIDE) if b.language == "python"]
        self.write("this-machine", script)

    def pools(self, script: str = "this-machine", **settings: str) -> str:
        given = {
            "folder": str(self.machines),
            "server": self.cluster.url,
            "tokenFile": str(self.cluster.state / "node-token"),
            "python": sys.executable,
        }
        return POOLS.format(script=script, settings=json.dumps(given | settings))

    def write(self, name: str, text: str) -> None:
        path = self.scripts / name
        path.write_text(text)
        path.chmod(stat.S_IRWXU)

    def up(self) -> None:
        self.cluster.start()
        self.api = api_client.ApiClient(self.cluster.endpoint)

    def pool(self) -> beds.Json:
        return self.get("/v1/pools")["items"][0]

    def made(self) -> list[beds.Json]:
        """Machines that were made and not destroyed."""
        return [json.loads(path.read_text()) for path in self.machines.glob("*.json")]

    def events(self, kind: str) -> list[str]:
        items = self.get("/v1/events", limit=1000)["items"]
        return [one["message"] for one in items if one["kind"] == kind]

    def story(self) -> list[str]:
        """Every event so far, one a line."""
        try:
            items = self.get("/v1/events", limit=1000)["items"]
        except api_client.ApiError as error:
            return [str(error)]
        return [f"{e['at']} {e['kind']} {e.get('node')}: {e['message']}" for e in items]

    def gone(self) -> bool:
        return not self.made() and self.pool()["instances"] == {}

    def tear_down(self) -> None:
        print("\n".join(self.story()))  # where a test fails, it is shown
        self.stop()
        for one in self.made():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one["pid"], signal.SIGKILL)
        for root in self.machines.iterdir():
            if root.is_dir():
                for pid in processes.supervisors_of(str(root)):
                    processes.kill(pid)
                processes.kill_leftovers(str(root), [])


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[ScaledBed]:
    made = ScaledBed(Path(os.path.realpath(tmp_path)))
    try:
        yield made
    finally:
        made.tear_down()


def gang(count: int, seconds: float) -> str:
    return f"  count: {count}\n  resources: {{cpu: 2}}\n  command: [sleep, '{seconds}']"


def test_a_job_gets_the_two_nodes_that_it_needs_and_idle_ones_leave(bed: ScaledBed) -> None:
    bed.up()
    assert bed.pool()["nodes"] == 0
    bed.commit({"jobs/a.yaml": beds.job("a", gang(2, 5))})
    waiting = bed.until(
        lambda: next((r for r in bed.job("a")["reasons"] if "created" in r["unblocks"]), None)
    )
    assert waiting["unblocks"] == "wait for 2 nodes of pool burst, which are being created"
    bed.until_state("a", "Running", timeout_s=120)
    assert (bed.pool()["nodes"], bed.pool()["min"], bed.pool()["max"]) == (2, 0, 3)
    bed.until_state("a", "Succeeded", timeout_s=120)
    pids = [one["pid"] for one in bed.made()]
    bed.until(bed.gone, timeout_s=120)
    for pid in pids:
        line = Path(f"/proc/{pid}/cmdline")
        assert not line.exists() or line.read_bytes() == b""
    for root in (path for path in bed.machines.iterdir() if path.is_dir()):
        assert not processes.supervisors_of(str(root))
    bed.until(lambda: not bed.get("/v1/drift")["items"])


def test_a_controller_that_is_killed_while_nodes_are_made_makes_none_twice(bed: ScaledBed) -> None:
    (script,) = [b.text for b in pages.blocks(GUIDE) if b.language == "python"]
    slow = script.replace(
        "def create():\n",
        "def create():\n    (folder / 'begun').touch()\n    time.sleep(2)\n",
    )
    assert slow != script
    bed.write("this-machine", slow)
    bed.up()
    bed.commit({"jobs/a.yaml": beds.job("a", gang(2, 20))})
    bed.until((bed.machines / "begun").exists, timeout_s=120)
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.until_state("a", "Running", timeout_s=120)
    assert len(bed.events("InstanceCreating")) == 2
    assert sorted(one["node"] for one in bed.made()) == ["burst-0", "burst-1"]
    assert len({one["request"] for one in bed.made()}) == 2


def test_the_machine_of_a_failed_check_is_replaced_by_another(bed: ScaledBed) -> None:
    """The check fails on the machine whose agent's process is in a file, and on no other."""
    bad = bed.folder / "bad"
    script = f"! [ -e {bad} ] || [ $(cat {bad}) != $PPID ] || {{ echo burnt; exit 2; }}"
    command = json.dumps({"name": "fuse", "command": ["sh", "-c", script], "timeout": "30s"})
    health = f"""  min: 1
  health:
    interval: 1s
    off: [disk-space, inodes, clock, stuck-processes]
    commands: [{command}]
    remedies: [{{check: fuse, action: replace}}]
"""
    bed.commit({"cluster.yaml": bed.pools() + health})
    bed.up()

    def ready() -> beds.Json:
        nodes = [one for one in bed.get("/v1/nodes")["items"] if one["state"] == "Ready"]
        return bed.made() if len(nodes) == 1 and len(bed.made()) == 1 else None

    (before,) = bed.until(ready, 120)
    bad.write_text(str(before["pid"]))

    def another() -> beds.Json:
        found = ready()
        return found if found and found[0]["request"] != before["request"] else None

    (after,) = bed.until(another, 120)
    assert after["pid"] != before["pid"]
    assert any("replace done" in said for said in bed.events("RemedyEnded"))
    said = "it is replaced: fuse has failed: burnt"
    assert bed.events("InstanceDraining") == [f"{before['request']}: {said}"]
    line = Path(f"/proc/{before['pid']}/cmdline")
    assert not line.exists() or line.read_bytes() == b"", "the first one has gone"
    bed.until(lambda: not bed.get("/v1/drift")["items"], 120)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo the cloud is full >&2; exit 1", "ended with status 1: the cloud is full"),
        ("echo garbage", "printed 'garbage', expected"),
        ("sleep 300", "took longer than 1 s and was ended"),
    ],
)
def test_a_script_that_fails_is_told_and_given_up(bed: ScaledBed, body: str, told: str) -> None:
    bed.write(
        "broken",
        "#!/bin/sh\n"
        f"case $1 in create) {body};; list) echo '{{\"instances\": []}}';; destroy) true;; esac\n",
    )
    text = bed.pools("broken").replace("retries: 1", "retries: 0\n    scriptTimeout: 1s")
    bed.commit({"cluster.yaml": text, "jobs/a.yaml": beds.job("a", gang(1, 1))})
    bed.up()
    bed.until(lambda: any(told in text for text in bed.events("ProvisionerFailed")), 120)
    drift = bed.until(lambda: bed.get("/v1/drift")["items"], 120)
    assert [d["kind"] for d in drift] == ["pool-not-growing"]
    assert told in bed.until(lambda: bed.job("a")["reasons"])[0]["unblocks"]
    # the operator puts it right, and says so in git: the pool does not rest any longer
    bed.commit({"cluster.yaml": bed.pools()})
    bed.until_state("a", "Running", "Succeeded", timeout_s=120)


def test_machines_without_the_declared_gpus_are_not_made_again_and_again(bed: ScaledBed) -> None:
    (script,) = [b.text for b in pages.blocks(GUIDE) if b.language == "python"]
    without = script.replace('str(has["gpus"])', '"0"')
    assert without != script
    bed.write("without", without)
    bed.write("that-machine", script)

    def pools(name: str) -> str:
        return bed.pools(name).replace("memory: 256Mi}", "memory: 256Mi, gpus: {count: 2}}")

    asks = "  resources: {gpu: 2}\n  command: [sleep, '30']"
    bed.commit({"cluster.yaml": pools("without"), "jobs/a.yaml": beds.job("a", asks)})
    bed.up()
    (drift,) = bed.until(
        lambda: [d for d in bed.get("/v1/drift")["items"] if d["kind"] == "pool-not-growing"], 120
    )
    assert "joined without what the pool declares: 0 GPUs, 2 declared" in drift["message"]
    bed.until(bed.gone, timeout_s=120)  # it was of no use, and idle
    assert len(bed.events("InstanceCreating")) == 1
    assert "joined without" in bed.job("a")["reasons"][0]["unblocks"]
    bed.commit({"cluster.yaml": pools("that-machine")})
    bed.until_state("a", "Running", timeout_s=120)
    assert len(bed.events("InstanceCreating")) == 2
