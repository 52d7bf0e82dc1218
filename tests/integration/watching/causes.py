"""Every kind of drift, caused behind git's back on a live cluster that is watched, and undone.

A cause is a context: within it the drift is there, after it has gone it goes. Devices of nodes are
what files say; all else is real: repository, controller, agents, processes, signals, scripts.
"""

import contextlib
import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from agents import virtual
from agents.link import http_client
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.values.resources import Resources
from tests import sleeping
from tests.integration import beds
from tests.integration.nvml import sites
from tests.integration.watching import peers
from tests.nvml import standin

GHOST = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: ghosts}
spec: {hosts: ghost1, nodes: {cpu: 1, memory: 1Gi}}
"""
BROKEN = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: odd}\nspec: {parent: nobody}\n"
QUEUE = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: narrow}\nspec: {limit: {cpu: %d}}\n"
#: A check that says what stands in a file: its status, 0 where there is none.
CHECK = "import os,sys; p=sys.argv[1]; sys.exit(int(open(p).read()) if os.path.exists(p) else 0)"
HEALTH = """\
  health:
    interval: 1s
    off: [disk-space, inodes, clock, stuck-processes]
    blackHole: {{owners: 2, quick: 60s, window: 10m, out: 5s}}
    flapping: {{failures: 16, window: 1h, out: 1s, outMax: 1s}}
    commands: [{{name: site, command: [{python}, -c, "{check}", "{mark}"], timeout: 30s}}]
"""
#: Each verb does what files say: ``list`` prints one or fails, ``create`` and ``destroy`` may fail.
CLOUD = """\
#!/bin/sh
folder=$(sed 's/.*"folder": *"\\([^"]*\\)".*/\\1/')
if [ -e "$folder/$1-fails" ]; then echo "the cloud is closed" >&2; exit 1; fi
case $1 in
  list) cat "$folder/instances";;
  create) echo '{"id": "i-1"}';;
esac
"""
BURST = """\
apiVersion: muster/v1
kind: NodePool
metadata: {{name: {name}}}
spec:
  provisioner: exec
  max: 1
  nodes: {{cpu: 16, memory: 64Mi}}
  provision:
    script: cloud
    settings: {{folder: "{folder}"}}
    retries: 0
    orphans: destroy
    createTimeout: 2s
    scriptTimeout: 10s
"""


class Scene:
    """A live cluster that is watched: a node with GPUs, a virtual one, and a folder of scripts."""

    def __init__(self, folder: Path) -> None:
        self.site = sites.Site(folder / "site", standin.build(folder), gpus=2)
        self.bed = self.site.bed
        self.prometheus = peers.Prometheus(folder / "prometheus")
        self.alertmanager = peers.Alertmanager(folder / "alertmanager")
        self.webhook = peers.Webhook()
        self.rules = folder / "rules"
        self.rules.mkdir()
        self.mark = folder / "mark"
        self.clouds = folder / "clouds"
        self.clouds.mkdir()
        scripts = folder / "provisioners"
        scripts.mkdir(mode=0o755)
        (scripts / "cloud").write_text(CLOUD)
        (scripts / "cloud").chmod(stat.S_IRWXU)
        self.bed.cluster.options.provisioners = scripts
        self.strange = contextlib.ExitStack()

    def start(self, for_s: int) -> None:
        """Bring all of it up, and wait until every page was scraped."""
        self.site.start()
        self.bed.commit({"cluster.yaml": self.pool()})
        listed = '{"id": "i-7", "node": "strange-1", "request": "strange-1.1"}'
        self.strange.enter_context(self.cloud("strange", "destroy", listed=listed))
        self.alertmanager.start(self.webhook.url)
        self.prometheus.start(
            self.bed.cluster.url,
            self.bed.cluster.state / "token",
            peers.hurried(self.rules, for_s),
            self.alertmanager.url,
        )
        paths = {"/metrics", "/metrics/nodes/gpu1", "/metrics/nodes/virtual-0"}
        expected = dict.fromkeys(paths, "up")
        peers.until(lambda: self.prometheus.targets() == expected, "all targets")

    def stop(self) -> None:
        """End all of it."""
        self.prometheus.stop()
        self.alertmanager.stop()
        self.webhook.close()
        self.site.stop()

    def pool(self) -> str:
        """The pool of the virtual node, with a check of the site and a watch for black holes."""
        whole = (self.bed.clone / "cluster.yaml").read_text().partition("  health:")[0]
        return whole + HEALTH.format(python=sys.executable, check=CHECK, mark=self.mark)

    def sync(self) -> str:
        """How the repository stands, after the controller was told to look at it."""
        assert self.bed.api is not None
        self.bed.api.post("/v1/hooks/git")
        return str(self.bed.get("/v1/sync")["sync"]["sync"])

    def kinds(self) -> set[str]:
        """What kinds of drift are listed."""
        return {one["kind"] for one in self.bed.get("/v1/drift")["items"]}

    @contextmanager
    def away(self) -> Iterator[None]:
        """The repository can't be reached."""
        repository, elsewhere = self.bed.folder / "repository.git", self.bed.folder / "away.git"
        repository.rename(elsewhere)
        try:
            self.bed.until(lambda: self.sync() == "Unknown")
            yield
        finally:
            elsewhere.rename(repository)
            self.bed.until(lambda: self.sync() == "Synced")

    @contextmanager
    def changed(self, before: str, after: str) -> Iterator[None]:
        """The virtual node's pool is declared otherwise."""
        whole = (self.bed.clone / "cluster.yaml").read_text()
        assert before in whole
        self.bed.commit({"cluster.yaml": whole.replace(before, after)})
        try:
            yield
        finally:
            self.bed.commit({"cluster.yaml": whole})

    @contextmanager
    def devices(self, **says: object) -> Iterator[None]:
        """The virtual node's devices are otherwise."""
        assert self.bed.cluster.nodes is not None
        path = self.bed.cluster.nodes.root("virtual-0") / "devices.json"

        def say(text: str) -> None:
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            os.replace(fresh, path)  # noqa: PTH105 - a replacement is what it is

        say(json.dumps(says))
        try:
            yield
        finally:
            say("{}")

    @contextmanager
    def job(self, name: str, spec: str, *states: str) -> Iterator[beds.Json]:
        """A job on the virtual node, once it is in one of these states; then it is taken out."""
        text = beds.job(name, f"  pools: [virtual]\n  resources: {{cpu: 0.1}}\n{spec}")
        self.bed.commit({f"jobs/{name}.yaml": text})
        try:
            yield self.bed.until_state(name, *states) if states else None
        finally:
            self.bed.commit({f"jobs/{name}.yaml": None})

    @contextmanager
    def cloud(self, name: str, *fails: str, listed: str = "") -> Iterator[Path]:
        """A pool whose nodes a script makes, which fails at some verbs; then it is taken out."""
        folder = self.clouds / name
        folder.mkdir()
        (folder / "instances").write_text(f'{{"instances": [{listed}]}}')
        for verb in fails:
            (folder / f"{verb}-fails").touch()
        self.bed.commit({f"{name}.yaml": BURST.format(name=name, folder=folder)})
        try:
            yield folder
        finally:
            for verb in fails:
                (folder / f"{verb}-fails").unlink(missing_ok=True)
            (folder / "instances").write_text('{"instances": []}')
            self.bed.commit({f"{name}.yaml": None})


Cause = Callable[[Scene], AbstractContextManager[None]]


def undeclared(scene: Scene) -> AbstractContextManager[None]:
    return scene.changed("count: 1\n", "count: 0\n")


@contextmanager
def missing(scene: Scene) -> Iterator[None]:
    scene.bed.commit({"ghosts.yaml": GHOST})
    yield
    scene.bed.commit({"ghosts.yaml": None})


@contextmanager
def silent(scene: Scene) -> Iterator[None]:
    nodes = scene.bed.cluster.nodes
    assert nodes is not None
    nodes.kill_agent("virtual-0")
    yield
    nodes.start("virtual-0")


@contextmanager
def short_of_cpus(scene: Scene) -> Iterator[None]:
    scene.bed.commit({"h200.yaml": sites.POOL.replace("{cpu: 1,", "{cpu: 10000,")})
    yield
    scene.bed.commit({"h200.yaml": sites.POOL})


@contextmanager
def another_driver(scene: Scene) -> Iterator[None]:
    declared = scene.changed("model: simulated}", 'model: simulated}, driver: "550"')
    with declared, scene.devices(driver_version="535.104.05"):
        yield


def split_by_mig(scene: Scene) -> AbstractContextManager[None]:
    return scene.devices(gpus={"0": {"mig_enabled": True}})


def gpu_gone(scene: Scene) -> AbstractContextManager[None]:
    return scene.devices(gpus={"1": None})


@contextmanager
def other_labels(scene: Scene) -> Iterator[None]:
    nodes = scene.bed.cluster.nodes
    assert nodes is not None
    known = nodes._nodes["virtual-0"].node
    labelled = virtual.VirtualNode(
        known.name, known.cpus, known.memory, known.gpus, labels={"tier": "a"}
    )
    nodes.add(labelled)
    nodes.restart("virtual-0")
    with scene.changed("  terminationGrace", "  labels: {tier: b}\n  terminationGrace"):
        yield
    nodes.add(known)
    nodes.restart("virtual-0")


@contextmanager
def check(scene: Scene, status: int) -> Iterator[None]:
    scene.mark.write_text(str(status))
    yield
    scene.mark.unlink()


@contextmanager
def beside(scene: Scene) -> Iterator[None]:
    """The pool of the virtual node has a second one."""
    nodes = scene.bed.cluster.nodes
    assert nodes is not None
    known = nodes._nodes["virtual-0"].node
    nodes.add(virtual.VirtualNode("virtual-1", known.cpus, known.memory, known.gpus))
    nodes.start("virtual-1")
    with scene.changed("count: 1\n", "count: 2\n"):
        scene.bed.until(lambda: ("virtual-1", "Ready") in _states(scene))
        yield
    nodes.remove("virtual-1")


def _states(scene: Scene) -> list[tuple[str, str]]:
    return [(one["name"], one["state"]) for one in scene.bed.get("/v1/nodes")["items"]]


@contextmanager
def braked(scene: Scene) -> Iterator[None]:
    """The check fails on both of two nodes, of which one may leave."""
    with beside(scene):
        with check(scene, 2):
            yield
        scene.bed.until(lambda: "node-check-failed" not in scene.kinds())


@contextmanager
def tried(scene: Scene) -> Iterator[None]:
    """A changed check fails on the node that tries it."""
    with (
        beside(scene),
        scene.changed("timeout: 30s}]", "timeout: 30s}, {name: typo, command: [/opt/typo]}]"),
    ):
        yield


@contextmanager
def flapping(scene: Scene) -> Iterator[None]:
    with scene.changed("failures: 16, window: 1h, out: 1s, outMax: 1s",
                       "failures: 2, window: 1h, out: 10m, outMax: 10m"):  # fmt: skip
        for _ in range(2):
            with check(scene, 2):
                scene.bed.until(lambda: "node-check-failed" in scene.kinds())
            scene.bed.until(lambda: "node-check-failed" not in scene.kinds())
        yield


@contextmanager
def swallowing(scene: Scene) -> Iterator[None]:
    for owner in ("ann", "ben"):
        spec = f"  owner: {owner}@example.org\n  command: ['false']"
        with scene.job(f"swallowed-{owner}", spec, "Failed"):
            pass
    yield


@contextmanager
def stranger(scene: Scene) -> Iterator[None]:
    with sleeping.sleeper() as process:
        line = f"process 1 {process.pid} 2097152"
        standin.write(scene.site.situation, [line, *standin.machine(2)])
        yield
    standin.write(scene.site.situation, standin.machine(2))


@contextmanager
def unwanted(scene: Scene) -> Iterator[None]:
    """A node comes back with a task that was given up, and that takes its time to end."""
    nodes = scene.bed.cluster.nodes
    assert nodes is not None
    script = "trap '' TERM; echo up; while :; do sleep 1; done"
    with scene.job("orphan", f"  lease: none\n  script: |\n    {script}", "Running"):
        scene.bed.until(lambda: "up" in scene.bed.output("orphan"))
        nodes.kill_agent("virtual-0")
        gone = "  overrides: [{hosts: virtual-0, reason: it burns, gone: true}]\n"
        with scene.changed("  terminationGrace: 5s\n", f"{gone}  terminationGrace: 20s\n"):
            scene.bed.until(
                lambda: all(one["state"] == "Ended" for one in scene.bed.job("orphan")["attempts"])
            )
            nodes.start("virtual-0")
            yield


class DeafNode:
    """A node that reports and does nothing of what it is told."""

    def __init__(self, scene: Scene, name: str) -> None:
        token = scene.bed.cluster.state / "node-token"
        self._connection = http_client.Connection(
            http_client.ControllerTarget(scene.bed.cluster.url, token)
        )
        self._name = name
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)
        self._thread.start()

    def _report(self) -> None:
        inventory = records.Inventory(hostname=self._name, capacity=Resources(1000, 2**30))
        sequence = 0
        while not self._left.wait(1.0):
            sequence += 1
            request = agent_messages.SyncRequest(
                node=self._name,
                boot_id="boot-1",
                incarnation="deaf",
                sequence=sequence,
                inventory=inventory,
            )
            path, body = f"/v1/nodes/{self._name}/sync", msgspec.msgpack.encode(request)
            with contextlib.suppress(http_client.LinkError):
                self._connection.post(path, body, 30.0)

    def close(self) -> None:
        """Report no longer."""
        self._left.set()
        self._thread.join(40)
        self._connection.close()


@contextmanager
def not_started(scene: Scene) -> Iterator[None]:
    """A node is given a task, goes on reporting, and never has it."""
    spec = "  lease: 5s\n  pools: [deaf]\n  resources: {cpu: 0.1}\n  command: ['true']"
    with contextlib.closing(DeafNode(scene, "deaf1")):
        scene.bed.commit({"deaf.yaml": GHOST.replace("ghosts", "deaf").replace("ghost", "deaf")})
        scene.bed.commit({"jobs/stuck.yaml": beds.job("stuck", spec)})
        try:
            yield
        finally:
            scene.bed.commit({"jobs/stuck.yaml": None})
            scene.bed.commit({"deaf.yaml": None})


@contextmanager
def on_fewer_gpus(scene: Scene) -> Iterator[None]:
    spec = "  pools: [virtual]\n  resources: {cpu: 0.1, gpu: 2}\n  command: [sleep, '600']"
    scene.bed.commit({"jobs/holder.yaml": beds.job("holder", spec)})
    scene.bed.until_state("holder", "Running")
    with scene.changed("gpus: {count: 2", "gpus: {count: 1"):
        yield
    scene.bed.commit({"jobs/holder.yaml": None})


@contextmanager
def killed(scene: Scene) -> Iterator[None]:
    spec = "  command: [sleep, '600']\n  retries: {limit: 1, backoff: 10m}"  # it is wanted again
    with scene.job("prey", spec, "Running"):
        os.kill(scene.bed.process("prey"), signal.SIGKILL)
        yield


@contextmanager
def over_limit(scene: Scene) -> Iterator[None]:
    scene.bed.commit({"narrow.yaml": QUEUE % 4})
    with scene.job("wide", "  queue: narrow\n  count: 20\n  command: [sleep, '600']", "Running"):
        scene.bed.commit({"narrow.yaml": QUEUE % 1})
        yield
    scene.bed.until_state("wide", "Cancelled")
    scene.bed.commit({"narrow.yaml": None})


@contextmanager
def orphaned(scene: Scene) -> Iterator[None]:
    """A machine that nobody asked for, and that can't be destroyed.

    Its pool is there from the beginning: it has to be listed twice, five minutes apart.
    """
    yield
    scene.strange.close()


@contextmanager
def left_over(scene: Scene) -> Iterator[None]:
    """A machine that was made, never reports, and can't be destroyed."""
    spec = "  command: ['true']\n  pools: [stale]\n  resources: {cpu: 10}"
    with scene.cloud("stale", "destroy"):
        scene.bed.commit({"jobs/needs.yaml": beds.job("needs", spec)})
        yield
        scene.bed.commit({"jobs/needs.yaml": None})


@contextmanager
def not_growing(scene: Scene) -> Iterator[None]:
    spec = "  command: ['true']\n  pools: [full]\n  resources: {cpu: 10}"
    with scene.cloud("full", "create"):
        scene.bed.commit({"jobs/wants.yaml": beds.job("wants", spec)})
        yield
        scene.bed.commit({"jobs/wants.yaml": None})


@contextmanager
def not_listed(scene: Scene) -> Iterator[None]:
    with scene.cloud("closed", "list"):
        yield


@contextmanager
def overridden(scene: Scene, verb: str, name: str) -> Iterator[None]:
    api = scene.bed.api
    assert api is not None
    with scene.away():
        asked = {"verb": verb, "names": [name], "reason": "it smokes", "for_s": 3600}
        api.post("/v1/overrides", asked)
        yield
    api.delete(f"/v1/overrides/{verb}/{name}")


@contextmanager
def cancelled_behind_git(scene: Scene) -> Iterator[None]:
    job = scene.job("doomed", "  command: [sleep, '600']", "Running")
    with job, overridden(scene, "cancel", "doomed"):
        yield


@contextmanager
def submitted_behind_git(scene: Scene) -> Iterator[None]:
    api = scene.bed.api
    assert api is not None
    document = beds.job("behind", "  command: ['true']")
    with scene.away():
        api.post("/v1/jobs", content=document.encode(), kind="application/yaml")
        yield
    scene.bed.until(lambda: scene.bed.get("/v1/sync")["sync"]["submissions"]["waiting"] == 0)
    # the controller has committed it: what is pushed from the clone comes behind that
    scene.bed.git("pull", "--quiet", "--rebase", folder=scene.bed.clone)


@contextmanager
def refused(scene: Scene) -> Iterator[None]:
    scene.bed.commit({"odd.yaml": BROKEN})
    yield
    scene.bed.commit({"odd.yaml": None})


#: Each kind of drift: the alert that tells of it, and what causes it.
CAUSES: dict[str, tuple[str, Cause]] = {
    "node-undeclared": ("MusterNodeUndeclared", undeclared),
    "node-missing": ("MusterNodeMissing", missing),
    "node-silent": ("MusterNodeSilent", silent),
    "node-inventory": ("MusterNodeInventoryDiffers", short_of_cpus),
    "node-driver": ("MusterNodeDriverDiffers", another_driver),
    "node-mig": ("MusterMigLayoutDiffers", split_by_mig),
    "node-labels": ("MusterNodeLabelsDiffer", other_labels),
    "node-drained-by-override": (
        "MusterOverrideNotCommitted",
        lambda scene: overridden(scene, "drain", "virtual-0"),
    ),
    "node-check-failed": ("MusterHealthCheckFailed", lambda scene: check(scene, 2)),
    "node-check-braked": ("MusterHealthBrake", braked),
    "node-check-trial": ("MusterHealthCheckTrialFailed", tried),
    "node-check-degraded": ("MusterHealthCheckDegraded", lambda scene: check(scene, 1)),
    "node-black-hole": ("MusterNodeTakenOut", swallowing),
    "node-flapping": ("MusterNodeFlapping", flapping),
    "gpu-failed": ("MusterGpuUnusable", gpu_gone),
    "gpu-process-foreign": ("MusterForeignGpuProcess", stranger),
    "task-unwanted": ("MusterTaskUnwanted", unwanted),
    "task-gpu-undeclared": ("MusterTaskGpuUndeclared", on_fewer_gpus),
    "task-missing": ("MusterTaskMissing", not_started),
    "task-killed": ("MusterTaskKilled", killed),
    "queue-over-limit": ("MusterQueueOverLimit", over_limit),
    "instance-left-over": ("MusterInstancesLeft", left_over),
    "pool-not-growing": ("MusterPoolNotGrowing", not_growing),
    "provisioner-failing": ("MusterPoolNotGrowing", not_listed),
    "job-cancelled-by-override": ("MusterOverrideNotCommitted", cancelled_behind_git),
    "suspended-by-override": (
        "MusterOverrideNotCommitted",
        lambda scene: overridden(scene, "suspend", "queue/default"),
    ),
    "submission-not-committed": ("MusterSubmissionsWait", submitted_behind_git),
    "head-not-applied": ("MusterRevisionNotInForce", refused),
    "repository-unreadable": ("MusterRepositoryUnreadable", lambda scene: scene.away()),
    "instance-orphaned": ("MusterInstancesLeft", orphaned),
}
#: What is there while others are caused.
EARLY = frozenset({"instance-orphaned"})
