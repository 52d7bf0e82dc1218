"""Virtual nodes in namespaces of their own: they see each other, and nothing else."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.isolation import network_namespaces
from agents.virtual import VirtualNode, VirtualNodes
from tests.integration.agents.controller import Controller

pytestmark = pytest.mark.skipif(
    bool(network_namespaces.problem()), reason=network_namespaces.problem() or "-"
)

LISTEN = """\
import os, socket
with socket.create_server((os.environ["WHERE"], 5000)) as server:
    link, _ = server.accept()
    link.sendall(socket.gethostname().encode())
"""
CALL = """\
import os, socket, time
until = time.monotonic() + 60
while True:
    try:
        link = socket.create_connection((os.environ["WHERE"], 5000), 5)
        break
    except OSError:
        assert time.monotonic() < until
        time.sleep(0.1)
print(link.recv(100).decode(), socket.gethostname(), sorted(os.sched_getaffinity(0)))
print(*(name for _, name in socket.if_nameindex()))
try:
    socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 2)
    print("reaches the machine")
except OSError:
    print("alone")
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[network_namespaces.Network]:
    made = network_namespaces.Network(tmp_path)
    made.begin()
    yield made
    made.end()
    _assert_nothing_left(made)


def _assert_nothing_left(network: network_namespaces.Network) -> None:
    """The kernel takes the links of a namespace away a while after the namespace."""
    ends_at = time.monotonic() + 60
    while left := _left(network):
        assert time.monotonic() < ends_at, left
        time.sleep(0.05)


def _left(network: network_namespaces.Network) -> list[str]:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in (links.stdout + spaces.stdout).splitlines() if network._token in line]


def test_tasks_reach_the_other_node_by_its_address_and_nothing_of_the_machine(
    tmp_path: Path, network: network_namespaces.Network
) -> None:
    python = shutil.which("python3") or "python3"
    controllers, groups = [], []
    try:
        for name in ("gpu.one", "gpu.two"):
            controller = Controller()
            controllers.append(controller)
            seat = network.add(name)
            node = VirtualNode(name, cpus="1", address=seat.address, enter=seat.enter)
            groups.append(VirtualNodes(controller.url, tmp_path / "nodes", [node]))
            groups[-1].start(name)
        one, two = controllers
        where = network.add("gpu.one").address
        port = one.url.rpartition(":")[2]
        one.assign("a.1", "env", f"WHERE={where}", python, "-c", LISTEN)
        two.assign("b.1", "env", f"WHERE={where}", f"PORT={port}", python, "-c", CALL)
        assert one.ended("a.1").exit_code == 0
        assert two.ended("b.1").exit_code == 0
        assert one.inventory is not None
        assert one.inventory.address == where
    finally:
        for group in groups:
            group.stop_all()
        for controller in controllers:
            controller.close()
    said = (tmp_path / "nodes" / "gpu.two" / "logs" / "b.1.stdout").read_text().splitlines()
    cores = sorted(os.sched_getaffinity(0))
    assert said[0] == f"gpu-one gpu-two [{cores[1 % len(cores)]}]"
    assert set(said[1].split()) >= {"lo", network_namespaces.INTERFACE}
    assert said[2] == "alone"


def test_nodes_know_the_names_of_all_nodes_and_those_of_the_machine(
    network: network_namespaces.Network,
) -> None:
    """Without its own name a framework takes loopback for its address."""

    def asks(seat: network_namespaces.Seat, name: str) -> str:
        words = [*seat.enter, "getent", "ahostsv4", name]
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        return said.split()[0]

    one = network.add("gpu.one")
    hosts = Path("/etc/hosts").read_bytes()
    # a node that is there sees those that come later, because the file is the same
    two = network.add("gpu_two")
    for seat in (one, two):
        assert asks(seat, "gpu.one") == asks(seat, "gpu-one") == one.address
        assert asks(seat, "gpu_two") == asks(seat, "gpu-two") == two.address
        assert asks(seat, "localhost") == "127.0.0.1"
    assert Path("/etc/hosts").read_bytes() == hosts


def test_what_a_killed_one_has_left_is_removed(tmp_path: Path) -> None:
    left = network_namespaces.Network(tmp_path)
    left.begin()
    left.add("n1")
    again = network_namespaces.Network(tmp_path)
    again.begin()
    assert again.add("n1").address == left.add("n1").address
    again.end()
    _assert_nothing_left(again)


@pytest.mark.parametrize(
    ("node", "host"),
    [("gpu.one", "gpu-one"), ("a_b", "a-b"), ("x" * 80, "x" * 63), ("...", "node")],
)
def test_names_of_hosts(node: str, host: str) -> None:
    assert network_namespaces.host_name(node) == host
