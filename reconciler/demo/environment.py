"""Environment of the demo: a repository, a clone to commit in, and a cluster.

The demo changes the cluster by commits and by ending processes, and reads the results from the API.
Everything is below one folder, which ``DemoEnvironment`` makes and clears.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reconciler import interpreter, package_data
from reconciler.operations import local_git
from reconciler.operations.client import api_client
from reconciler.operations.local import free_ports, local_cluster

#: Who makes the demo's commits, in the environment of git.
IDENTITY = {
    f"GIT_{whom}_{what}": value
    for whom in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Demo"), ("EMAIL", "demo@example.org"))
}
#: Exit code of a command that finds changes, such as `muster plan`.
CHANGES = 2
#: How often the story looks at the cluster while it waits for something.
LOOK_S = 0.1
FINISHED = frozenset({"Succeeded", "Failed", "Cancelled", "TimedOut"})

Json = Any


class StoryError(Exception):
    """Error: a step did not happen; the message has what was expected and what was found."""


class Interrupted(Exception):  # noqa: N818 - not an error: the user pressed Ctrl-C
    """The user pressed Ctrl-C."""


class DemoEnvironment:
    """Folder, repository, clone and cluster of one run of the demo."""

    def __init__(self, folder: Path, interrupted: Callable[[], bool]) -> None:
        self.folder = folder.resolve()
        self.clone = self.folder / "clone"
        self._interrupted = interrupted
        #: Whether the folder is this performance's.
        self.prepared = False
        self.cluster = local_cluster.LocalCluster(
            local_cluster.LocalClusterOptions(
                folder=self.folder,
                repository=str(self.folder / "repository.git"),
                branch="main",
                listen=f"127.0.0.1:{free_ports.free_port()}",
                identity="demo@example.org",
            )
        )
        self._api: api_client.ApiClient | None = None

    @property
    def api(self) -> api_client.ApiClient:
        """A client of the cluster's API."""
        if self._api is None:
            self._api = api_client.ApiClient(self.cluster.endpoint)
        return self._api

    def prepare(self) -> None:
        """Clear the folder; make the repository and the clone, with everything but the jobs.

        Raises:
            StoryError: the folder is somebody else's, or a cluster is up in it.
        """
        if self.folder.exists():
            if self.cluster.is_up():
                raise StoryError(
                    f"a cluster is up in {self.folder}: end that demo first, by Ctrl-C where it "
                    "runs, or name another folder with --folder"
                )
            if not (self.folder / ".muster-demo").exists() and any(self.folder.iterdir()):
                raise StoryError(f"{self.folder} is there and no demo made it; name another")
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        (self.folder / ".muster-demo").touch()
        self.prepared = True
        self.git("init", "--quiet", "--bare", "--initial-branch", "main", "repository.git")
        self.git("clone", "--quiet", "repository.git", "clone")
        for path in sorted(package_data.cluster_state().glob("*.yaml")):
            shutil.copy(path, self.clone / path.name)
        self.commit("Describe the cluster: a pool of four nodes, queues, priorities")

    def start(self) -> None:
        """Start the controller and the nodes.

        Raises:
            StoryError: it does not come up.
            Interrupted: somebody pressed Ctrl-C.
        """
        try:
            self.cluster.start(self._interrupted)
        except local_cluster.StartStoppedError:
            raise Interrupted from None
        except local_cluster.ClusterError as error:
            raise StoryError(str(error)) from error

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        """Run git with an identity of the demo's own and nobody's configuration."""
        environment = {
            **local_git.environment(),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            **IDENTITY,
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder or self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if self._interrupted():  # Ctrl-C reaches git as well, which may have ended by it
            raise Interrupted
        if done.returncode:
            raise StoryError(f"`git {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def muster(self, *arguments: str) -> str:
        """Run a command in the clone, and return what it printed.

        Raises:
            StoryError: it failed.
            Interrupted: somebody pressed Ctrl-C.
        """
        kept = {name: one for name, one in os.environ.items() if not name.startswith("MUSTER_")}
        done = subprocess.run(
            interpreter.module_command("reconciler.cli.main", *arguments),
            cwd=self.clone,
            env=kept | IDENTITY | {"COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if self._interrupted():
            raise Interrupted
        if done.returncode not in {0, CHANGES}:
            raise StoryError(f"`muster {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout

    def commit(self, message: str) -> str:
        """Commit and push what changed in the clone, and return the revision."""
        self.git("add", "--all", folder=self.clone)
        self.git("commit", "--quiet", "--message", message, folder=self.clone)
        self.git("push", "--quiet", "origin", "HEAD:main", folder=self.clone)
        return self.git("rev-parse", "HEAD", folder=self.clone)

    def add_jobs(self, *names: str) -> None:
        """Copy jobs of the example into the clone and commit them."""
        folder = self.clone / "jobs"
        folder.mkdir(exist_ok=True)
        for name in names:
            source = package_data.cluster_state() / "jobs" / f"{name}.yaml"
            shutil.copy(source, folder / source.name)
        self.commit(f"Submit {', '.join(names)}")

    def until(self, what: str, look: Callable[[], Json], timeout_s: float = 60.0) -> Json:
        """Wait until ``look`` returns something true, and return it.

        Raises:
            StoryError: it does not within ``timeout_s``.
            Interrupted: somebody pressed Ctrl-C.
        """
        ends_at = time.monotonic() + timeout_s
        while time.monotonic() < ends_at:
            if self._interrupted():
                raise Interrupted
            if not self.cluster.controller_alive:
                raise StoryError(f"the controller has ended while this was waited for: {what}")
            try:
                found = look()
            except api_client.ApiError as error:
                if error.status not in (0, 404, 503):
                    raise
                found = None
            if found:
                return found
            time.sleep(LOOK_S)
        raise StoryError(f"waited {timeout_s:.0f} s for this and it did not come: {what}")

    def job(self, name: str) -> Json:
        """Return a job as the API shows it."""
        return self.api.get(f"/v1/jobs/{name}")["job"]

    def until_state(self, name: str, *states: str, timeout_s: float = 60.0) -> Json:
        """Wait until a job is in one of ``states``; fail at once if it ends in another."""

        def look() -> Json:
            job = self.job(name)
            if job["state"] in states:
                return job
            if job["state"] in FINISHED:
                raise StoryError(f"{name} is {job['state']}: {job['message']}")
            return None

        return self.until(f"{name} is {' or '.join(states)}", look, timeout_s)

    def output(self, name: str, **query: str) -> str:
        """Return a task's output so far."""
        pieces = self.api.stream(f"/v1/jobs/{name}/logs", query)
        return b"".join(pieces).decode(errors="replace")

    def shared_file(self, *parts: str) -> Path:
        """Return a file in the folder shared by all nodes."""
        return self.cluster.state.joinpath("shared", *parts)

    def close(self) -> None:
        """End the cluster and all its processes."""
        if self._api is not None:
            self._api.close()
        self.cluster.stop()
