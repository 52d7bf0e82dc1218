"""A controller with TLS, an agent and commands that know its authority, and others that do not."""

import datetime as dt
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.link import http_client
from reconciler.operations import own_ca
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.local import free_ports
from reconciler.operations.tokens import token_changes

PATIENCE_S = 60.0
DOCUMENTS = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: test}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec: {hosts: n1, nodes: {cpu: 2, memory: 1Gi}}
---
apiVersion: muster/v1
kind: Job
metadata: {name: hello}
spec: {queue: default, run: 1, resources: {cpu: 1, memory: 64Mi}, command: ["true"]}
---
apiVersion: muster/v1
kind: Job
metadata: {name: stays}
spec: {queue: default, run: 1, resources: {cpu: 1, memory: 64Mi}, command: [sleep, "600"]}
"""


def until(test: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not test():
        assert time.monotonic() < ends_at
        time.sleep(0.1)


class Site:
    """A controller with TLS in a folder, and what is needed to call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = folder / "tls"
        own_ca.init(self.tls, ["localhost", "127.0.0.1"], dt.datetime.now(dt.UTC))
        self.port = free_ports.free_port()
        self.url = f"https://localhost:{self.port}"
        state = folder / "state"
        state.mkdir(mode=0o700)
        self.git("init", "--quiet", "--initial-branch=main", "repository")
        (folder / "repository" / "cluster.yaml").write_text(DOCUMENTS)
        self.git("-C", "repository", "add", ".")
        self.git("-C", "repository", "commit", "--quiet", "-m", "Declare a node")
        (state / "tokens").touch(0o600)
        for identity, role in (("ada@example.org", "admin"), ("n1", "node")):
            token, _ = token_changes.create(state / "tokens", identity, role, None)
            (folder / f"{role}.token").touch(0o600)
            (folder / f"{role}.token").write_text(token)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start(
            *("reconciler.controller.process", "--repo", str(folder / "repository")),
            *("--state", str(state), "--listen", f"127.0.0.1:{self.port}", "--allow-root"),
            *("--tls-cert", str(self.tls / "server.pem")),
            *("--tls-key", str(self.tls / "server.key")),
        )

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True)

    def start(self, *module: str) -> None:
        with (self.folder / "output").open("ab") as output:
            self.processes.append(
                subprocess.Popen([sys.executable, "-m", *module], stdout=output, stderr=output)
            )

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_S)

    def api(self, **changes: str | None) -> api_client.ApiClient:
        fields: dict[str, str | None] = {
            "token_file": str(self.folder / "admin.token"),
            "ca_file": str(self.tls / "ca.pem"),
            **changes,
        }
        url = fields.pop("url", None) or self.url
        return api_client.ApiClient(endpoints.Endpoint(url, **fields))

    def is_ready(self) -> bool:
        try:
            with self.api() as api:
                api.data("/readyz")
        except api_client.ApiError:
            return False
        return True

    def end_of_certificate(self) -> str:
        """Return when the certificate expires that a new connection gets."""
        context = ssl.create_default_context(cafile=self.tls / "ca.pem")
        with (
            socket.create_connection(("127.0.0.1", self.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            found = secured.getpeercert()
        assert found is not None
        return str(found["notAfter"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tls"))
    try:
        until(made.is_ready)
        made.start(
            *("agents", "--server", made.url, "--ca", str(made.tls / "ca.pem"), "--name", "n1"),
            *("--root", str(made.folder / "node"), "--token-file", str(made.folder / "node.token")),
            *("--virtual", "--cpus", "2", "--memory", "1Gi", "--stop-tasks-on-exit"),
        )
        yield made
    finally:
        made.stop()


def test_a_job_runs_over_tls(site: Site) -> None:
    def has_ended() -> bool:
        with site.api() as api:
            found = api.get("/v1/jobs/hello")
        return bool(found["job"]["state"] == "Succeeded")

    until(has_ended)


def test_a_command_in_a_task_goes_over_tls(site: Site) -> None:
    """The relay has the certificate of the API, and the port after its port."""
    command = [sys.executable, "-m", "reconciler.cli.main", "exec", "stays", "--server", site.url]
    command += ["--token-file", str(site.folder / "admin.token")]
    words = ["--", "echo", "over TLS"]

    def run(authority: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--ca", authority, *words],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    until(lambda: run(str(site.tls / "ca.pem")).stdout == "over TLS\n")


def test_a_stranger_to_the_authority_is_told_of_it(site: Site) -> None:
    with site.api(ca_file=None) as api, pytest.raises(api_client.ApiError) as refused:
        api.get("/v1/jobs")
    assert "the certificate of https://localhost" in str(refused.value)
    assert "--ca or MUSTER_CA names the CA that signed it" in str(refused.value)


def test_the_wrong_scheme_is_named(site: Site) -> None:
    with (
        site.api(url=f"http://127.0.0.1:{site.port}") as api,
        pytest.raises(api_client.ApiError, match="its address begins with https://"),
    ):
        api.get("/v1/jobs")


def test_a_file_without_an_authority_is_named(site: Site) -> None:
    path = str(site.folder / "node.token")
    with site.api(ca_file=path) as api, pytest.raises(api_client.ApiError, match="in PEM"):
        api.get("/v1/jobs")


def test_a_command_finds_the_authority_by_option_and_by_variable(site: Site) -> None:
    command = [sys.executable, "-m", "reconciler.cli.main", "nodes", "--server", site.url]
    command += ["--token-file", str(site.folder / "admin.token")]
    bare = {name: value for name, value in os.environ.items() if name != "MUSTER_CA"}
    authority = str(site.tls / "ca.pem")
    for more, variables in (
        (["--ca", authority], {}),
        ([], {"MUSTER_CA": authority}),
    ):
        done = subprocess.run(
            [*command, *more],
            capture_output=True,
            text=True,
            check=False,
            env=bare | variables,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("NAME")


def test_a_renewed_certificate_is_taken_without_a_restart(site: Site) -> None:
    before = site.end_of_certificate()
    own_ca.issue(site.tls, ["localhost"], dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    until(lambda: site.end_of_certificate() != before)
    until(site.is_ready)
    with site.api() as api:
        metrics = api.data("/metrics").decode()
    name = "muster_api_certificate_expires_timestamp_seconds "
    told = next(line for line in metrics.splitlines() if line.startswith(name))
    assert float(told.split()[1]) == ssl.cert_time_to_seconds(site.end_of_certificate())


def test_an_authority_is_replaced_over_a_file_with_both(site: Site) -> None:
    """Agents and commands read their file whenever they connect."""
    known, new = site.folder / "known.pem", site.folder / "new"
    known.write_bytes((site.tls / "ca.pem").read_bytes())
    own_ca.init(new, ["localhost"], dt.datetime.now(dt.UTC))
    link = http_client.Connection(
        http_client.ControllerTarget(site.url, site.folder / "node.token", str(known))
    )

    def is_accepted() -> bool:
        link.close()
        try:
            link.post("/v1/nodes/n1/sync", b"", PATIENCE_S)
            with site.api(ca_file=str(known)) as api:
                api.data("/healthz")
        except (http_client.LinkError, ssl.SSLError, api_client.ApiError):
            return False
        return True

    assert is_accepted()
    known.write_bytes(known.read_bytes() + (new / "ca.pem").read_bytes())
    assert is_accepted()
    before = {name: (site.tls / name).read_bytes() for name in ("server.pem", "server.key")}
    try:
        for name in before:
            (site.tls / name).write_bytes((new / name).read_bytes())
        until(lambda: serves(site, new / "ca.pem"))
        assert is_accepted()
        assert not serves(site, site.tls / "ca.pem"), "who knows the old one alone"
        known.write_bytes((new / "ca.pem").read_bytes())
        assert is_accepted()
    finally:
        link.close()
        for name, text in before.items():
            (site.tls / name).write_bytes(text)
        until(site.is_ready)


def serves(site: Site, authority: Path) -> bool:
    """Whether whoever knows this authority alone is served."""
    try:
        with site.api(ca_file=str(authority)) as api:
            api.data("/healthz")
    except api_client.ApiError:
        return False
    return True
