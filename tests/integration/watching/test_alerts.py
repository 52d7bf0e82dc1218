"""Something drifts in a live cluster: Prometheus sees it, Alertmanager tells, and tells its end.

The rules are the project's own but for their ``for``, which is made short; with promtool the
real ones are tested. A cancel behind git is told by the alert of drains behind git.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.integration.nvml import sites
from tests.integration.watching import peers
from tests.nvml import standin

pytestmark = [pytest.mark.slow, peers.needs_peers]

FOR_S = 2
GHOST = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: ghosts}
spec: {hosts: ghost1, nodes: {cpu: 1, memory: 1Gi}}
"""
BROKEN = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: odd}\nspec: {parent: nobody}\n"


class Scene:
    """A live cluster that is watched."""

    def __init__(self, folder: Path) -> None:
        self.site = sites.Site(folder / "site", standin.build(folder))
        self.bed = self.site.bed
        self.prometheus = peers.Prometheus(folder / "prometheus")
        self.alertmanager = peers.Alertmanager(folder / "alertmanager")
        self.webhook = peers.Webhook()
        self.rules = folder / "rules"
        self.rules.mkdir()

    def start(self) -> None:
        """Bring all of it up, and wait until every page was scraped."""
        self.site.start()
        self.alertmanager.start(self.webhook.url)
        self.prometheus.start(
            self.bed.cluster.url,
            self.bed.cluster.state / "token",
            peers.hurried(self.rules, FOR_S),
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

    def sync(self) -> str:
        """How the repository stands, after the controller was told to look at it."""
        assert self.bed.api is not None
        self.bed.api.post("/v1/hooks/git")
        return str(self.bed.get("/v1/sync")["sync"]["sync"])

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


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if standin.COMPILER is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("watched")
    (folder / "site").mkdir()
    made = Scene(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


Cause = Callable[[Scene], AbstractContextManager[None]]


@contextmanager
def undeclared(scene: Scene) -> Iterator[None]:
    whole = (scene.bed.clone / "cluster.yaml").read_text()
    scene.bed.commit({"cluster.yaml": whole.replace("count: 1", "count: 0")})
    yield
    scene.bed.commit({"cluster.yaml": whole})


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
def short_of_gpus(scene: Scene) -> Iterator[None]:
    lost = f"return:* 1 {standin.GPU_IS_LOST}"
    standin.write(scene.site.situation, [lost, *standin.machine(2)])
    yield
    standin.write(scene.site.situation, standin.machine(2))


@contextmanager
def stranger(scene: Scene) -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"]) as process:
        line = f"process 1 {process.pid} 2097152"
        standin.write(scene.site.situation, [line, *standin.machine(2)])
        yield
        process.kill()
    standin.write(scene.site.situation, standin.machine(2))


@contextmanager
def refused(scene: Scene) -> Iterator[None]:
    scene.bed.commit({"odd.yaml": BROKEN})
    yield
    scene.bed.commit({"odd.yaml": None})


@contextmanager
def unreadable(scene: Scene) -> Iterator[None]:
    with scene.away():
        yield


@contextmanager
def drained_behind_git(scene: Scene) -> Iterator[None]:
    api = scene.bed.api
    assert api is not None
    with scene.away():
        asked = {"verb": "drain", "names": ["virtual-0"], "reason": "it smokes", "for_s": 3600}
        api.post("/v1/overrides", asked)
        yield
    api.delete("/v1/overrides/drain/virtual-0")


CAUSES: dict[str, tuple[str, Cause]] = {
    "node-undeclared": ("MusterNodeUndeclared", undeclared),
    "node-missing": ("MusterNodeMissing", missing),
    "node-silent": ("MusterNodeSilent", silent),
    "node-inventory": ("MusterNodeInventoryDiffers", short_of_gpus),
    "gpu-process-foreign": ("MusterForeignGpuProcess", stranger),
    "head-not-applied": ("MusterRevisionNotInForce", refused),
    "repository-unreadable": ("MusterRepositoryUnreadable", unreadable),
    "node-drained-by-override": ("MusterOverrideNotCommitted", drained_behind_git),
}


@pytest.mark.parametrize("kind", CAUSES)
def test_drift_is_told_and_its_end_is_told(
    scene: Scene, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alert, cause = CAUSES[kind]
    began = time.time()

    def told(status: str, since: float) -> tuple[float, peers.Json] | None:
        at, found = scene.webhook.told(status, alert, since, kind=kind)
        return (at, found) if found else None

    with cause(scene):
        drifted = scene.bed.until(
            lambda: [d for d in scene.bed.get("/v1/drift")["items"] if d["kind"] == kind]
        )
        seen_at = time.time()
        assert drifted
        fired_at, found = peers.until(lambda: told("firing", began), f"{alert} at the webhook")
        assert found["annotations"]["runbook_url"].endswith(f"#{alert.lower()}")
    scene.bed.until(
        lambda: all(d["kind"] != kind for d in scene.bed.get("/v1/drift")["items"]) or None
    )
    healed_at = time.time()
    over_at, _ = peers.until(lambda: told("resolved", fired_at), f"the end of {alert}")
    with capsys.disabled():
        print(
            f"\n  {kind:<26} {alert:<28} told {fired_at - seen_at:5.1f} s after it was seen "
            f"(for {FOR_S} s, a scrape each {peers.EVERY_S} s), "
            f"its end {over_at - healed_at:5.1f} s after",
            end="",
        )
