"""Nodes follow what their pools declare, and what is declared beyond --nodes is told once."""

from pathlib import Path
from typing import Any

import pytest

from agents import virtual
from reconciler.operations.local import local_nodes


def pool(name: str, hosts: str, cpus: float = 2, provisioner: str = "virtual") -> dict[str, Any]:
    amounts = {"cpu": cpus, "memory": 2**30, "gpu": 1}
    return {"name": name, "hosts": hosts, "provisioner": provisioner, "nodeResources": amounts}


def test_only_virtual_pools_have_nodes_here() -> None:
    told = [pool("real", "gpu[1-2]", provisioner="static"), pool("a", "a-[0-1]"), pool("b", "")]
    assert [name for name, _ in local_nodes.declared_nodes(told)] == ["a-0", "a-1"]


#: What is said of nodes that are not started, so that nobody wonders at what is told as missing.
LEFT_OUT = "--nodes {0}: {0} of {1} declared nodes started; {2} will be told as missing"


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (None, [[], [], []]),
        (3, [[], [LEFT_OUT.format(3, 4, "b-0")], []]),
        (2, [[LEFT_OUT.format(2, 3, "a-2")],
             [LEFT_OUT.format(2, 4, "a-2,b-0")], []]),
    ],
)  # fmt: skip
def test_what_is_beyond_the_nodes_asked_for_is_told_when_it_changes(
    tmp_path: Path, most: int | None, told: list[list[str]]
) -> None:
    nodes = local_nodes.PoolNodes(virtual.VirtualNodes("http://unused", tmp_path), None, most)
    steps = [[pool("a", "a-[0-2]")], [pool("a", "a-[0-2]"), pool("b", "b-0")]]
    found = []
    for pools in (steps[0], steps[1], steps[1]):
        names = [name for name, _ in local_nodes.declared_nodes(pools)]
        found.append(nodes._beyond([] if most is None else names[most:]))
    assert found == told
    assert nodes.left_out() == next((one[0] for one in reversed(told) if one), "")
