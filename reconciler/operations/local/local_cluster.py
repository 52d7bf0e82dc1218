"""A whole cluster on this machine: a controller and the virtual nodes of its pools.

``muster up`` and ``muster demo`` use it. Tokens, sockets, store and the nodes' folders are below
one state folder; stopping ends every process that was started.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agents import virtual
from agents.host import processes
from agents.isolation import network_namespaces
from reconciler import lock_file
from reconciler.desired.git import git_commands, remote_urls
from reconciler.model import desired
from reconciler.model.values import found_values, quantities
from reconciler.operations import os_errors
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.local import (
    free_ports,
    local_controller,
    local_nodes,
    local_tokens,
    log_files,
)

#: How long a controller may take until it answers.
READY_S_MAX = 60.0
#: How often the processes are looked after, and how often the pools in force.
LOOK_S = 0.5
FOLLOW_POOLS_S = 2.0
#: Held by the cluster of a folder, in its state folder.
LOCK = "up.lock"
#: After how long the reason is shown why a controller isn't ready.
TELL_AFTER_S = 3.0


class ClusterError(Exception):
    """Error: the cluster could not be started; the message has what to check."""


class StartStoppedError(Exception):
    """Somebody had it stopped before it was up."""


def never() -> bool:
    """Nobody stops it."""
    return False


def unsaid(_: str) -> None:
    """Say nothing."""


def parse_address(listen: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        ClusterError: it is no such address.
    """
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        raise ClusterError(
            f"--listen: found {found_values.quote(listen)}, expected HOST:PORT with a port from "
            "1 to 65535, such as "
            "127.0.0.1:7420"
        )
    return host.strip("[]"), int(port)


def _require_free(place: tuple[str, int], listen: str) -> None:
    """Raise ClusterError if the address is in use."""
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        raise ClusterError(
            f"can't listen on {listen}: {error.strerror or error}. To fix: stop the program there, "
            f"or choose another address, such as --listen 127.0.0.1:{free_ports.free_port()}"
        ) from None


def require_repository(address: str) -> None:
    """Raise ClusterError where a path of this machine is no repository; of others git will say."""
    if not Path(address).exists():
        if ":" in address:
            _require_no_password(address)
            return
        raise ClusterError(f"there is no folder {address}: name your repository with --repo")
    if Path(address).is_file():
        return  # a bundle
    try:
        git_commands.git_folder(Path(address))
    except git_commands.GitError as error:
        try:
            found = git_commands.run(Path(address), "rev-parse", "--show-toplevel").stdout
        except git_commands.GitError:
            found = b""
        top = found.decode(errors="replace").strip()
        if top and Path(top) != Path(address).resolve():
            raise ClusterError(
                f"{address} is a folder inside the repository {top}: run it there, or name it "
                f"with --repo {top}; --path names a folder of it"
            ) from None
        why = "" if "not a git repository" in str(error) else f" ({error})"
        raise ClusterError(
            f"{address} is no git repository{why}. To fix: create one with `muster init FOLDER`, "
            "or name one with --repo"
        ) from None


def _require_no_password(address: str) -> None:
    """Raise ClusterError if a URL holds a password."""
    try:
        remote_urls.require_no_password(address)
    except remote_urls.PasswordInUrlError as error:
        raise ClusterError(f"--repo: {error}") from None


class LocalClusterOptions(msgspec.Struct, kw_only=True):
    """Options of a cluster on this machine.

    Attributes:
        folder: commands in this folder and below find the cluster; its state is in
            ``folder/.muster``.
        repository: path or URL.
        branch, sub_path: branch to read, and folder of it with the cluster's YAML.
        listen: address and port of the API.
        identity: of the user's token.
        nodes: number of virtual nodes, whatever the pools declare; None: as many as they declare.
        signing_key: SSH key that signs the controller's commits.
        provisioners: folder of scripts for pools with ``provisioner: exec``.
        isolation: of tasks, as agents have it.
        isolate: give each node its own network, host name and cores, if possible.
        accept_revision: a revision to accept although it does not follow the one in force.
        secrets: folder with secrets of jobs, as agents have it.
        notify_secrets: folder with keys and tokens of notifications; None: in the state folder.
        log_format: format of the logs of the controller and the agents.
        controller_module: module to run as the controller.
        controller_options: more options of ``muster controller``.
    """

    folder: Path
    repository: str
    branch: str
    sub_path: str = ""
    listen: str = "127.0.0.1:7420"
    identity: str = "local"
    nodes: int | None = None
    signing_key: Path | None = None
    provisioners: Path | None = None
    isolation: str = "auto"
    isolate: bool = False
    accept_revision: str | None = None
    secrets: Path | None = None
    notify_secrets: Path | None = None
    log_format: str = "readable"
    controller_module: str = local_controller.MODULE
    controller_options: tuple[str, ...] = ()


class LocalCluster:
    """A controller and virtual nodes over one repository."""

    def __init__(self, options: LocalClusterOptions) -> None:
        self.options = options
        self.folder = options.folder.resolve()
        self.state = self.folder / ".muster"
        self.nodes: virtual.VirtualNodes | None = None
        #: Why nodes share the machine's network although ``isolate`` is set.
        self.not_isolated = ""
        self.network = network_namespaces.Network(self.state) if options.isolate else None
        self._controller = local_controller.ControllerProcess(
            self.state,
            (
                *("--repo", options.repository, "--branch", options.branch),
                *("--path", options.sub_path, "--listen", options.listen),
                # any port: several clusters may be on this machine
                *("--relay-listen", f"{options.listen.rpartition(':')[0]}:0"),
                *options.controller_options,
            ),
            options.controller_module,
        )
        self._api: api_client.ApiClient | None = None
        self._following: local_nodes.PoolNodes | None = None
        #: The last message about why the repository's state is not in force.
        self._obstacle = ""
        #: Held while this cluster is the one of its folder.
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """URL of the API."""
        return f"http://{self.options.listen}"

    @property
    def endpoint(self) -> endpoints.Endpoint:
        """Address and token for users."""
        return endpoints.Endpoint(url=self.url, token_file=str(self.state / "token"))

    def claim(self) -> None:
        """Take the folder, where repository and address are such that a cluster can be started.

        Raises:
            ClusterError: they are not, or the folder has a cluster that is up; nothing is left.
        """
        require_repository(self.options.repository)
        place = parse_address(self.options.listen)
        self.state.mkdir(parents=True, exist_ok=True, mode=0o711)
        ignored = self.state / ".gitignore"
        if not ignored.exists():  # the folder is often a clone's, and holds tokens
            ignored.write_text("*\n", encoding="utf-8")
        self._take_folder()
        try:
            _require_free(place, self.options.listen)
        except ClusterError:
            self.stop()
            raise

    def start(
        self, stopped: Callable[[], bool] = never, say: Callable[[str], None] = unsaid
    ) -> None:
        """Start the controller, wait until it answers, start the nodes.

        Args:
            stopped: whether to give up; asked while it waits. say: is told what keeps it waiting.

        Raises:
            ClusterError: it does not come up, or the folder has a cluster that is up.
            StartStoppedError: it was stopped before.
        """
        if self._lock is None:
            self.claim()
        local_tokens.write(self.state, self.options.identity)
        self._begin_network()
        self.start_controller()
        endpoints.write(self.folder, self.endpoint)
        self.wait_ready(stopped, say)
        self.nodes = virtual.VirtualNodes(
            self.url,
            self.state / "nodes",
            options=virtual.AgentOptions(
                token_file=self.state / "node-token",
                shared=self.state / "shared",
                isolation=self.options.isolation,
                more=(
                    *("--log-format", self.options.log_format),
                    *(("--secrets", str(self.options.secrets)) if self.options.secrets else ()),
                ),
            ),
        )
        self._following = local_nodes.PoolNodes(self.nodes, self.network, self.options.nodes)
        try:
            self.follow_pools()
        except api_client.ApiError:
            raise ClusterError(
                f"another controller answers at {self.url}, not the one that was started. To fix: "
                "stop that one, or choose another address with --listen"
            ) from None

    def _begin_network(self) -> None:
        if self.network is None:
            return
        self.not_isolated = network_namespaces.problem()
        if not self.not_isolated:
            try:
                self.network.begin()
            except network_namespaces.NetworkError as problem:
                self.not_isolated = str(problem)
        if self.not_isolated:
            self.network = None

    def _take_folder(self) -> None:
        """Lock the folder: a second cluster would take tokens and endpoint from the first."""
        try:
            lock = lock_file.open_file(self.state / LOCK)
        except OSError as error:
            raise ClusterError(os_errors.told(error, self.state / LOCK)) from None
        try:
            lock_file.lock(lock)
        except lock_file.LockHeldError:
            os.close(lock)
            raise ClusterError(
                f"a cluster already runs in {self.folder} (see `muster status` there). To fix: "
                "stop it first, or use another folder"
            ) from None
        self._lock = lock

    def is_up(self) -> bool:
        """Return True if a cluster, this one or another, is up in the folder."""
        return processes.is_locked(str(self.state / LOCK))

    def start_controller(self) -> None:
        """Start the controller process alone."""
        self._controller.start(
            {
                "--signing-key": self.options.signing_key,
                "--provisioners": self.options.provisioners,
                "--accept-revision": self.options.accept_revision,
                "--notify-secrets": self.options.notify_secrets,
                "--log-format": self.options.log_format,
            }
        )

    def kill_controller(self) -> None:
        """End the controller as a crash would."""
        self._controller.kill()

    @property
    def controller_alive(self) -> bool:
        """True if the controller process runs."""
        return self._controller.is_alive

    @property
    def controller_exit_code(self) -> int | None:
        """Exit code of the controller process; None while it runs or was never started."""
        return self._controller.exit_code

    def wait_ready(
        self, stopped: Callable[[], bool] = never, say: Callable[[str], None] = unsaid
    ) -> None:
        """Wait until the controller has a revision and answers.

        Args:
            stopped: whether to give up. say: is told what keeps it waiting.

        Raises:
            ClusterError: it has ended, or does not answer in time.
            StartStoppedError: it was stopped before.
        """
        ends_at = time.monotonic() + READY_S_MAX
        tell_at = time.monotonic() + TELL_AFTER_S
        while time.monotonic() < ends_at:
            if stopped():
                raise StartStoppedError
            if not self.controller_alive:
                raise ClusterError(f"the controller has ended: {self._controller.last_words()}")
            with api_client.ApiClient(self.endpoint) as api:
                try:
                    api.get("/readyz")
                except api_client.ApiError:
                    time.sleep(0.05)
                else:
                    return
                if time.monotonic() > tell_at:
                    tell_at = time.monotonic() + FOLLOW_POOLS_S
                    self._tell_obstacle(api, say)
        why = self._obstacle or self._controller.last_words()
        raise ClusterError(f"the controller is not ready after {READY_S_MAX:.0f} s: {why}")

    def _tell_obstacle(self, api: api_client.ApiClient, say: Callable[[str], None]) -> None:
        """Say why not all is in force yet, once for each reason."""
        try:
            problem = obstacle(api.get("/v1/sync")["sync"])
        except api_client.ApiError:
            return
        if problem and problem != self._obstacle:
            say(f"not all of what git says is in force: {problem}")
        self._obstacle = problem

    def shortfall(self) -> str:
        """Return a message if fewer nodes are declared than requested, or an empty string if there
        are enough.
        """
        if self._following is not None and (told := self._following.left_out()):
            return told
        declared = len(self.nodes.names()) if self.nodes is not None else 0
        if self.options.nodes is None or declared >= self.options.nodes:
            return ""
        nodes_text = quantities.counted(self.options.nodes, "node", one="was", many="were")
        return (
            f"{nodes_text} asked for, and the virtual pools declare {declared}: "
            "raise `count` of a pool and commit"
        )

    def follow_pools(self) -> list[str]:
        """Start and stop nodes as the virtual pools in force say; tells what was done."""
        if self._following is None:
            return []
        if self._api is None:
            self._api = api_client.ApiClient(self.endpoint)
        try:
            return self._following.follow(self._api)
        except network_namespaces.NetworkError as problem:
            raise ClusterError(f"a node can't be isolated: {problem}") from None

    def _all_ready(self) -> str:
        """Return ``4 nodes take work`` once all that were started do, else an empty string."""
        wanted = set(self.nodes.names()) if self.nodes is not None else set()
        items = self._api.get("/v1/nodes")["items"] if self._api is not None else []
        ready = wanted & {item["name"] for item in items if item["state"] == "Ready"}
        if not ready or ready != wanted:
            return ""
        return quantities.counted(len(ready), "node", one="takes work", many="take work")

    def keep(self, stopped: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Keep everything alive until ``stopped``.

        Raises:
            ClusterError: the controller has ended, and does not come up again.
            StartStoppedError: it was stopped while that was tried.
        """
        follow_at, reported, unheard = 0.0, self.nodes is None, ""
        while not stopped():
            time.sleep(LOOK_S)
            if not self.controller_alive:
                say(f"the controller has ended, starting it again: {self._controller.last_words()}")
                self.start_controller()
                self.wait_ready(stopped, say)
            if self.nodes is not None:
                for name in self.nodes.poll():
                    say(f"the agent of {name} had ended and was started again")
            if time.monotonic() < follow_at:
                continue
            follow_at = time.monotonic() + FOLLOW_POOLS_S
            log_files.bound(self.state / "controller.log")
            try:
                for line in self.follow_pools():
                    say(line)
                if not reported and (ready := self._all_ready()):
                    reported = True
                    say(f"ready: {ready}")
                if not reported and self._api is not None:
                    self._tell_obstacle(self._api, say)
            except api_client.ApiError as error:
                if str(error) != unheard:
                    say(f"{error} (its log: {self._controller.last_words()})")
                unheard = str(error)
            else:
                if unheard:
                    say("the controller answers again")
                unheard = ""

    def stop(self) -> None:
        """End controller, nodes and tasks; no process of the cluster is left.

        The controller first, so that it places nothing anew on nodes that are about to stop: of
        tasks that are ended here it hears from its nodes when the cluster is up again.
        """
        if self._api is not None:
            self._api.close()
            self._api = None
        self._controller.stop()
        if self.nodes is not None:
            self.nodes.stop_all()
        if self.network is not None:
            self.network.end()
        if self._lock is not None:
            (self.folder / endpoints.ENDPOINT_FILE).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def obstacle(sync: dict[str, Any]) -> str:
    """Return why a repository's state is not in force, from ``/v1/sync``; empty: it is."""
    if sync["sync"] == "Synced":
        return ""
    held = [str(one["message"]) for one in sync.get("held") or []]
    wrong = [desired.Problem(**one).text() for one in sync.get("problems") or []]
    return next(iter([*held, *filter(None, [str(sync.get("message") or "")]), *wrong]), "")
