"""Pools for nodes that are there: alike ones together, and what is written holds for each."""

import random

import pytest

from reconciler.core.nodes import mismatches
from reconciler.desired.apply import validate
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from reconciler.model.values.resources import Resources
from reconciler.operations import discovery
from reconciler.operations.discovery import DiscoveredNode

GI = 2**30


def h200(name: str, memory: int = 2000 * GI) -> DiscoveredNode:
    return DiscoveredNode(name, 192, memory, 8, "NVIDIA H200", 141 * GI - 5 * 2**20, {"room": "b2"})


def test_alike_nodes_are_one_pool_with_its_names_folded() -> None:
    nodes = [h200(f"gpu{n:03}", 2000 * GI - n * 2**20) for n in range(1, 17)]
    nodes += [DiscoveredNode(f"login{n}", 16, 64 * GI) for n in (1, 2)]
    nodes.append(DiscoveredNode("odd", 16, 128 * GI))
    made = discovery.pools(nodes)
    assert [(pool.name, len(pool.nodes)) for pool in made] == [
        ("h200-8", 16), ("cpu-16", 2), ("cpu-16-2", 1),
    ]  # fmt: skip
    assert discovery.text(made[:2]) == """\
apiVersion: muster/v1
kind: NodePool
metadata:
  name: h200-8
spec:
  hosts: gpu[001-016]
  mode: observe
  nodes:
    cpu: 192
    memory: 1999Gi
    gpus:
      count: 8
      model: NVIDIA H200
      memory: 140Gi
  labels:
    room: b2
---
apiVersion: muster/v1
kind: NodePool
metadata:
  name: cpu-16
spec:
  hosts: login[1-2]
  mode: observe
  nodes:
    cpu: 16
    memory: 64Gi
"""  # fmt: skip
    assert "mode:" not in discovery.text(made, observe=False)


def test_only_what_no_pool_declares_is_written_unless_all_is_asked_for() -> None:
    def item(
        name: str, pool: str, cpu: float = 4, state: str = NodeState.DRAINED
    ) -> dict[str, object]:
        capacity = {"cpu": cpu, "memory": GI, "gpu": 0}
        told = {"name": name, "pool": pool, "state": state, "capacity": capacity}
        return {**told, "gpus": [], "labels": {}}

    items = [item("a", ""), item("b", "p"), item("untold", "", 0)]
    items.append(item("left", "", state=NodeState.GONE))
    assert [node.name for node in discovery.seen(items, declared=False)] == ["a"]
    assert [node.name for node in discovery.seen(items, declared=True)] == ["a", "b"]


def test_a_new_pool_has_a_name_that_none_has() -> None:
    """Two pools of one name refuse the structure of the revision that adopts the nodes."""
    nodes = [DiscoveredNode("a", 16, 64 * GI), DiscoveredNode("b", 16, 128 * GI)]
    made = discovery.pools(nodes, taken=["cpu-16", "other"])
    assert [pool.name for pool in made] == ["cpu-16-2", "cpu-16-3"]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_is_accepted_and_true_of_every_node(seed: int) -> None:
    chance = random.Random(seed)
    nodes = []
    for number in range(chance.randint(1, 40)):
        gpus = chance.choice([0, 0, 1, 4, 8])
        model = chance.choice(["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4", "", "?!"])
        nodes.append(
            DiscoveredNode(
                chance.choice(["gpu", "n-", "rack1-node"]) + str(number),
                chance.choice([1, 8, 64]),
                chance.randint(300 * 2**20, 900 * GI),
                gpus,
                model if gpus else "",
                chance.randint(2**20, 80 * GI) if gpus else 0,
                {"room": chance.choice(["a", "b"])},
            )
        )
    text = discovery.text(discovery.pools(nodes))
    found = validate.check({"pools.yaml": text.encode()})
    assert [problem.text() for problem in found.status.problems] == []
    pools = {node: pool for pool in found.structure.pools.values() for node in pool.nodes}
    assert set(pools) == {node.name for node in nodes}
    for node in nodes:
        devices = tuple(
            records.Gpu(i, f"G{i}", node.gpu_model, node.gpu_memory_bytes) for i in range(node.gpus)
        )
        inventory = records.Inventory(
            capacity=Resources(node.cpus * 1000, node.memory_bytes, node.gpus * 1000),
            gpus=devices,
            labels=node.labels,
        )
        pool = pools[node.name]
        assert pool.observe_only
        assert mismatches.find_mismatches(inventory, pool) == []
        assert list(mismatches.labels(inventory, pool)) == []
