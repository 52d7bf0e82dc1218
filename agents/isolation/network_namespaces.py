"""A network for virtual nodes of one machine: a bridge, and a namespace with an address per node.

Agents stay in the host's network. A node's supervisor and tasks start in the node's namespaces: a
network with only the other nodes, a host name, an ``/etc/hosts`` that knows all nodes by name, and
cores of its own if there are enough. It needs root and iproute2. What a killed process leaves is
found by its names and removed at the next start.
"""

import contextlib
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from reconciler import child_process

PROGRAMS = ("ip", "nsenter", "unshare", "mount", "taskset", "hostname")
#: The interface of a node, which has its address.
INTERFACE = "eth0"
#: The table of host names that tasks see, and the file in the place of a network that replaces it.
HOSTS = Path("/etc/hosts")
HOSTS_FILE = "network-hosts"
#: Each bridge gets a subnet of 254 addresses.
NODES_MAX = 250
COMMAND_S = 30.0
MESSAGE_BYTES_MAX = 4096


class NetworkError(Exception):
    """A network that cannot be created."""


class Seat(msgspec.Struct, frozen=True):
    """A node's place in the network: its address, the interface that has it, and the prefix of
    commands that run there.
    """

    address: str
    enter: tuple[str, ...]
    interface: str = INTERFACE


def problem() -> str:
    """Return why this machine cannot have such a network; empty if it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


class _Space(NamedTuple):
    """A namespace and its address."""

    name: str
    address: str


#: Names the host, shows it the table of names, and becomes the command.
_ENTER = """\
hostname "$1"
[ ! -e "$3" ] || mount --bind "$2" "$3" || exit
shift 3
exec "$@"
"""


class Network:
    """A bridge. ``place`` distinguishes it from others: the same place gives the same names."""

    def __init__(self, place: Path) -> None:
        token = zlib.crc32(os.fsencode(os.path.realpath(place)))
        self._hosts = Path(os.path.realpath(place)) / HOSTS_FILE
        self._token = f"{token:08x}"
        self._bridge = f"mu{self._token}"
        self._subnet = f"10.{200 + token % 50}.{token // 50 % 250}"
        self._seats: dict[str, Seat] = {}
        self._spaces: dict[str, _Space] = {}
        self._cpus: dict[str, int] = {}
        self._cores = sorted(os.sched_getaffinity(0))
        self._next_core = 0

    def begin(self) -> None:
        """Create the bridge, after removing what an earlier one of this place has left.

        Raises:
            NetworkError: it cannot be created.
        """
        self.end()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")

    def add(self, node: str, cpus: int = 1) -> Seat:
        """Return a node's place, creating its namespace if needed, with ``cpus`` cores if possible.

        An existing namespace gets other cores if their number differs.

        Raises:
            NetworkError: it cannot be created.
        """
        if node in self._seats:
            if self._cpus[node] != cpus:
                self._seats[node] = self._seat(node, self._spaces[node], cpus)
            return self._seats[node]
        number = len(self._seats) + 1
        if number > NODES_MAX:
            raise NetworkError(f"a network of one machine has at most {NODES_MAX} nodes")
        space, outer = f"muster-{self._token}-{number}", f"{self._bridge}n{number}"
        address = f"{self._subnet}.{number}"
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", INTERFACE, "netns", space)
        _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", INTERFACE)
        for link in ("lo", INTERFACE):
            _ip("-n", space, "link", "set", link, "up")
        self._spaces[node] = _Space(space, address)
        self._write_hosts()
        seat = self._seats[node] = self._seat(node, self._spaces[node], cpus)
        return seat

    def _seat(self, node: str, space: _Space, cpus: int) -> Seat:
        self._cpus[node] = cpus
        enter = [
            *("nsenter", f"--net=/run/netns/{space.name}", "unshare", "--uts"),
            # file systems that the machine mounts later appear there too
            *("--mount", "--propagation", "slave"),
            *("taskset", "--cpu-list", self._take_cores(cpus)),
            *("sh", "-c", _ENTER, "sh", host_name(node), str(self._hosts), str(HOSTS)),
        ]
        return Seat(space.address, tuple(enter))

    def _write_hosts(self) -> None:
        """Write the names of all nodes before those of the machine, into the file that nodes see.

        Without them a framework that looks up its own host takes loopback.
        """
        lines = [
            " ".join(dict.fromkeys((space.address, node, host_name(node))))
            for node, space in self._spaces.items()
        ]
        try:
            machine = HOSTS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            machine = "127.0.0.1 localhost\n"
        text = "\n".join([*lines, machine]).encode()
        try:
            # the same file, not another of its name: nodes that run see what is in it
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(self._hosts, flags, 0o644), "wb") as file:
                os.fchmod(file.fileno(), 0o644)  # whatever the umask: tasks of all users read it
                os.ftruncate(file.fileno(), 0)
                file.write(text)
        except OSError as error:
            raise NetworkError(f"the names of nodes can't be written: {error}") from None

    def end(self) -> None:
        """Remove the bridge and everything attached to it."""
        for table in (self._seats, self._spaces, self._cpus):
            table.clear()
        for path in sorted(Path("/run/netns").glob(f"muster-{self._token}-*")):
            with contextlib.suppress(NetworkError):
                _ip("netns", "delete", path.name)
        if Path(f"/sys/class/net/{self._bridge}").exists():
            with contextlib.suppress(NetworkError):
                _ip("link", "delete", self._bridge)
        self._hosts.unlink(missing_ok=True)

    def _take_cores(self, count: int) -> str:
        """Return the next cores in turn; nodes share cores if there are too few."""
        chosen = []
        for _ in range(max(1, min(count, len(self._cores)))):
            chosen.append(self._cores[self._next_core % len(self._cores)])
            self._next_core += 1
        return ",".join(map(str, sorted(chosen)))


def host_name(node: str) -> str:
    """Return a node's name as a valid host name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", node)[:63].strip("-") or "node"


def _ip(*words: str) -> None:
    try:
        result = child_process.run_child(
            child_process.ChildProgram(["ip", *words], stderr=child_process.ChildOutput.READ),
            child_process.ChildLimits(COMMAND_S, MESSAGE_BYTES_MAX, child_process.Excess.KEEP_END),
        )
    except OSError as failure:
        raise NetworkError(f"ip {' '.join(words)}: {failure}") from None
    if result.status is None:
        raise NetworkError(f"ip {' '.join(words)}: did not end within {COMMAND_S:g} s")
    if result.status != 0:
        raise NetworkError(f"ip {' '.join(words)}: {result.stderr.decode().strip()}")
