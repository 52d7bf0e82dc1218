"""A cluster to measure: repository, controller, four virtual nodes, all as users have them.

The repository is a bare one that a clone pushes to, as a team has it, or the one in which the
commits are made, as somebody has who runs a cluster over a folder of their own.
"""

import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reconciler.operations.client import api_client
from reconciler.operations.local import free_ports, local_cluster

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {{name: virtual}}
spec:
  provisioner: virtual
  count: {nodes}
  nodes: {{cpu: {cpus}, memory: 8Gi}}
"""


class Bed:
    """A running cluster and the repository that commits go to."""

    def __init__(
        self, folder: Path, cluster: local_cluster.LocalCluster, *, in_place: bool
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self._in_place = in_place
        self.api = api_client.ApiClient(cluster.endpoint)

    def commit(self, files: dict[str, str], message: str) -> None:
        """Put files into the branch by one commit, and push it unless it is there already."""
        self.stage(files)
        self.publish(message)

    def stage(self, files: dict[str, str]) -> None:
        """Write files and add them, as somebody has who is about to commit."""
        clone = self.folder / "clone"
        for name, text in files.items():
            path = clone / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git(clone, "add", "--all")

    def publish(self, message: str) -> None:
        """``git commit`` what is staged, and ``git push`` it unless it is there already."""
        clone = self.folder / "clone"
        git(clone, "commit", "--quiet", "--message", message)
        if not self._in_place:
            git(clone, "push", "--quiet", "origin", "HEAD:main")


def git(folder: Path, *arguments: str) -> None:
    """Run git with an identity of its own."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        environment[f"GIT_{role}_NAME"] = "bench"
        environment[f"GIT_{role}_EMAIL"] = "bench@localhost"
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True)


@contextmanager
def folder_of_its_own(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """A temporary folder; below ``within``, which its owner deletes, it is left as it is."""
    if within is not None:
        yield Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        return
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def running(
    *,
    nodes: int = 4,
    cpus: int = 32,
    within: Path | None = None,
    isolation: str = "auto",
    in_place: bool = False,
) -> Iterator[Bed]:
    """A cluster for the length of a ``with`` block, all of its nodes ready."""
    with folder_of_its_own("bench-", within) as folder:
        for one in (folder, within):  # tasks of other users have to reach theirs
            if one is not None:
                one.chmod(0o755)
        repository = _repository(folder, POOL.format(nodes=nodes, cpus=cpus), in_place=in_place)
        options = local_cluster.LocalClusterOptions(
            folder=folder,
            repository=str(repository),
            branch="main",
            listen=f"127.0.0.1:{free_ports.free_port()}",
            isolation=isolation,
        )
        cluster = local_cluster.LocalCluster(options)
        try:
            cluster.start()
            bed = Bed(folder, cluster, in_place=in_place)
            wait_until(lambda: _ready(bed, nodes), timeout_s=60)
            yield bed
            bed.api.close()
        finally:
            cluster.stop()


def _repository(folder: Path, pool: str, *, in_place: bool) -> Path:
    """A repository with one commit, and ``clone``, which is another or the same."""
    clone = folder / "clone"
    git(folder, "init", "--quiet", "--initial-branch", "main", "clone")
    (clone / "pool.yaml").write_text(pool, encoding="utf-8")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "a pool")
    if in_place:
        return clone
    bare = folder / "repository.git"
    git(folder, "clone", "--quiet", "--bare", "clone", bare.name)
    git(clone, "remote", "add", "origin", str(bare))
    return bare


def _ready(bed: Bed, nodes: int) -> bool:
    found = bed.api.get("/v1/nodes")["items"]
    return bool(sum(node["state"] == "Ready" for node in found) == nodes)


def one(database: Path, query: str, *values: object) -> Any:
    """The first value that a query of a store finds; None where there is none."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
    try:
        row = connection.execute(query, values).fetchone()
    finally:
        connection.close()
    return row[0] if row else None


def wait_until(condition: Callable[[], bool], timeout_s: float, look_s: float = 0.05) -> None:
    """Wait for a condition.

    Raises:
        RuntimeError: it did not come true in time.
    """
    ends_at = time.monotonic() + timeout_s
    while time.monotonic() < ends_at:
        if condition():
            return
        time.sleep(look_s)
    raise RuntimeError(f"it took longer than {timeout_s:.0f} s")
