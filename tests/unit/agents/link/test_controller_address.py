"""By which address other nodes look for a node's tasks: by none that leads back to themselves."""

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import node_agent, settings
from agents.host import host_info
from agents.link import controller_address
from agents.node import inventory
from agents.preflight import option_findings
from agents.settings import AgentSettings
from agents.tasks import nccl_interfaces
from reconciler.model.observed.host_facts import Host, RdmaPort

ROOT = Path("/nowhere")
#: From which a controller at another machine is reached, for whom it is.
OWN = "192.0.2.7"


class Machine:
    """What the resolver and the kernel of a machine say; nothing is sent anywhere."""

    def __init__(self, patch: pytest.MonkeyPatch, *, named: str | None, routed: str | None) -> None:
        self.named, self.routed = named, routed
        patch.setattr(socket, "gethostbyname", self.by_name)
        patch.setattr(socket, "getaddrinfo", self.info)
        patch.setattr(socket.socket, "connect", self.connect)
        patch.setattr(socket.socket, "getsockname", lambda _: (self.routed, 40000))

    def by_name(self, _name: str) -> str:
        if self.named is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return self.named

    def info(self, host: str, port: int, *_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, port))]

    def connect(self, _where: Any) -> None:
        if self.routed is None:
            raise OSError(101, "Network is unreachable")


def asked(server: str = "http://192.0.2.1:8470", **more: Any) -> AgentSettings:
    return AgentSettings(server, "n1", ROOT, **more)


@pytest.mark.parametrize(
    ("named", "routed", "expected"),
    [
        ("192.0.2.9", OWN, "192.0.2.9"),  # a name server knows the machine
        ("127.0.1.1", OWN, OWN),  # /etc/hosts of Debian and Ubuntu
        ("127.0.0.1", OWN, OWN),
        (None, OWN, OWN),
        ("127.0.1.1", "127.0.0.1", "127.0.1.1"),  # the controller is on this machine
        ("127.0.1.1", None, "127.0.1.1"),  # the network is not up yet
        (None, None, "127.0.0.1"),
    ],
)
def test_the_address_is_one_that_leads_here(
    monkeypatch: pytest.MonkeyPatch, named: str | None, routed: str | None, expected: str
) -> None:
    Machine(monkeypatch, named=named, routed=routed)
    assert controller_address.address_of(asked()) == expected


def test_what_is_said_holds_and_virtual_nodes_are_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Machine(monkeypatch, named="192.0.2.9", routed=OWN)
    assert controller_address.address_of(asked(address="10.0.0.5")) == "10.0.0.5"
    assert controller_address.address_of(asked(virtual=True)) == "127.0.0.1"
    assert controller_address.toward("no url at all") == ""


def test_the_way_to_a_controller_on_this_machine_is_no_address_for_others() -> None:
    assert controller_address.toward("http://127.0.0.1:8470") == ""


def test_a_network_that_comes_up_after_the_agent_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, named="127.0.1.1", routed=None)
    before = inventory.inventory_of(asked())
    assert before.address == "127.0.1.1"
    machine.routed = OWN
    now = inventory.address_now(before, asked())
    assert now == OWN
    after = inventory.with_host(before, host_info.read(), now, asked())
    assert after.address == OWN
    machine.routed = "192.0.2.8"  # another way to the controller is no other node
    assert inventory.address_now(after, asked()) == OWN


def test_ports_that_come_up_after_the_agent_are_those_of_the_next_gang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subnet manager may start long after the node: without this no gang would ever use RDMA."""
    port = RdmaPort("mlx5_0", 1, "INIT", "InfiniBand", 400 * 10**9)
    host = Host(rdma=(port,))
    monkeypatch.setattr(host_info, "read", lambda: host)
    agent = node_agent.Agent(AgentSettings(server="http://127.0.0.1:1", name="n", root=tmp_path))
    agent.prepare()
    try:
        assert agent.launcher.node.fabric["NCCL_IB_DISABLE"] == "1"
        host = Host(rdma=(msgspec.structs.replace(port, state="ACTIVE"),))
        agent.refresh_host()
        assert agent.launcher.node.fabric == nccl_interfaces.of_node(agent.monitor.inventory)
        assert agent.launcher.node.fabric["NCCL_IB_HCA"] == "=mlx5_0:1"
        assert "NCCL_IB_DISABLE" not in agent.launcher.node.fabric
    finally:
        agent.leave()


@pytest.mark.parametrize(
    ("words", "named", "level", "found"),
    [
        ([], "192.0.2.9", "ok", "other nodes reach this one at 192.0.2.9"),
        ([], "127.0.1.1", "note", "127.0.1.1, which on each node means that node itself"),
        (["--address", "10.1.2.3"], "127.0.1.1", "ok", "at 10.1.2.3"),
        (["--address", "127.0.0.1"], "192.0.2.9", "note", "127.0.0.1, which on each node"),
    ],
)
def test_a_check_tells_by_which_address_a_node_is_reached(
    monkeypatch: pytest.MonkeyPatch, words: list[str], named: str, level: str, found: str
) -> None:
    Machine(monkeypatch, named=named, routed=None)
    given = settings.parser(required=False).parse_args(
        ["--check", "--server", "http://192.0.2.1:8470", *words]
    )
    (told,) = option_findings.address(given)
    assert told.level == level
    assert found in told.found
    assert (told.do != "") is (level == "note")


def test_a_virtual_node_is_asked_for_no_address() -> None:
    given = settings.parser(required=False).parse_args(
        ["--check", "--virtual", "--server", "http://192.0.2.1:8470"]
    )
    assert list(option_findings.address(given)) == []
