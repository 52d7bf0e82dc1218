"""Whole clusters for tests: a bare repository, a clone, controller, server and virtual nodes."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from reconciler.controller.quarantine import internal_errors
from reconciler.operations.client import api_client
from reconciler.operations.local import free_ports, local_cluster, local_controller

Json = Any

POOL = """\
apiVersion: muster/v1
kind: Cluster
metadata: {{name: test}}
spec: {{lease: {lease}, nodeSilence: {silence}}}
---
apiVersion: muster/v1
kind: NodePool
metadata: {{name: virtual}}
spec:
  provisioner: virtual
  count: {nodes}
  terminationGrace: 5s
  nodes: {{cpu: {cpus}, memory: 2Gi, gpus: {{count: {gpus}, model: simulated}}}}
"""


class Bed:
    """One cluster in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 2,
        cpus: int = 4,
        gpus: int = 0,
        lease: str = "5s",
        silence: str = "3s",
        url: bool = False,
        controller: str = local_controller.MODULE,
        expects_defects: bool = False,
        isolate: bool = False,
        isolation: str = "auto",
        options: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.expects_defects = expects_defects
        self.clone = folder / "clone"
        self.git("init", "--quiet", "--bare", "--initial-branch", "main", "repository.git")
        self.git("clone", "--quiet", "repository.git", "clone")
        self.git("checkout", "--quiet", "-B", "main", folder=self.clone)
        self.nodes = nodes
        text = POOL.format(nodes=nodes, cpus=cpus, gpus=gpus, lease=lease, silence=silence)
        self.commit({"cluster.yaml": text})
        self.cluster = local_cluster.LocalCluster(
            local_cluster.LocalClusterOptions(
                folder=folder,
                repository=("file://" if url else "") + str(folder / "repository.git"),
                branch="main",
                listen=f"127.0.0.1:{free_ports.free_port()}",
                identity="tester@example.org",
                controller_module=controller,
                isolate=isolate,
                isolation=isolation,
                controller_options=options,
            )
        )
        self.api: api_client.ApiClient | None = None

    def __enter__(self) -> Self:
        """Bring the cluster up; it ends with the block."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to find the controller."""
        endpoint = self.cluster.endpoint
        given = {"MUSTER_SERVER": endpoint.url}
        if endpoint.token_file is not None:
            given["MUSTER_TOKEN_FILE"] = str(endpoint.token_file)
        return {**os.environ, **given}

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        """Run git with an identity of its own."""
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        for role in ("AUTHOR", "COMMITTER"):
            environment[f"GIT_{role}_NAME"] = "tester"
            environment[f"GIT_{role}_EMAIL"] = "tester@example.org"
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=folder or self.folder,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            )
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None], message: str = "change") -> str:
        """Write (None: remove) files in the clone, commit, push; the revision."""
        for name, text in files.items():
            path = self.clone / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text, encoding="utf-8")
        self.git("add", "--all", folder=self.clone)
        self.git("commit", "--quiet", "--message", message, folder=self.clone)
        self.git("push", "--quiet", "origin", "HEAD:main", folder=self.clone)
        return self.git("rev-parse", "HEAD", folder=self.clone)

    def start(self) -> None:
        """Bring the cluster up; all nodes are ready afterwards."""
        self.cluster.start()
        self.api = api_client.ApiClient(self.cluster.endpoint)
        self.until(self.all_ready)

    def all_ready(self) -> bool:
        """Whether every node is Ready."""
        found = self.get("/v1/nodes")["items"]
        return [node["state"] for node in found] == ["Ready"] * self.nodes

    def get(self, path: str, **query: str | float) -> Json:
        """The JSON of a GET of the users' API."""
        assert self.api is not None
        return self.api.get(path, **query)

    def job(self, name: str) -> Json:
        """A job as the API shows it."""
        return self.get(f"/v1/jobs/{name}")["job"]

    def until(self, look: Callable[[], Json], timeout_s: float = 60.0) -> Json:
        """Wait until ``look`` returns something true; a controller that is away is waited for."""
        ends_at = time.monotonic() + timeout_s
        last: object = None
        while time.monotonic() < ends_at:
            try:
                found = last = look()
            except api_client.ApiError as error:
                if error.status not in (0, 404, 503):
                    raise
                last, found = error, None
            if found:
                return found
            time.sleep(0.05)
        log = (self.cluster.state / "controller.log").read_text(errors="replace")
        raise AssertionError(f"waited {timeout_s} s in vain; last: {last}; log: {log[-2000:]}")

    def until_state(self, name: str, *states: str, timeout_s: float = 60.0) -> Json:
        """Wait until a job is in one of ``states``."""

        def look() -> Json:
            job = self.job(name)
            return job if job["state"] in states else None

        return self.until(look, timeout_s)

    def process(self, name: str) -> int:
        """The main process of the only task of a job that runs: the oldest of its processes.

        The one with the lowest id may be a child, when ids begin anew.
        """
        (attempt,) = self.until_state(name, "Running")["attempts"]
        mark = f"MUSTER_ATTEMPT={attempt['id']}".encode()
        found: list[tuple[int, int]] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        fields = (entry / "stat").read_text().rpartition(")")[2].split()
                        found.append((int(fields[19]), int(entry.name)))
        assert found, f"no process of {attempt['id']}"
        return min(found)[1]

    def output(self, name: str, **query: str) -> str:
        """What a task has written."""
        assert self.api is not None
        return b"".join(self.api.stream(f"/v1/jobs/{name}/logs", query)).decode()

    def stop(self) -> None:
        """End everything."""
        if self.api is not None:
            self.api.close()
        self.cluster.stop()
        require_sound(self.cluster.state, expects_defects=self.expects_defects)


def require_sound(state: Path, *, expects_defects: bool = False) -> None:
    """A controller outlives its own internal errors; a test in which one did has failed."""
    for path in state.glob("controller.log*"):
        log = path.read_text(errors="replace")
        assert expects_defects or internal_errors.MARK not in log, log[-4000:]


def job(name: str, spec: str) -> str:
    """A Job document; ``spec`` is what stands below ``spec:``, indented by two."""
    return f"apiVersion: muster/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n{spec}\n"
