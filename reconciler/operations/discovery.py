"""From nodes that are there to pools that declare them: how a site begins with Muster.

Nodes as the API shows them come in; groups of alike ones go out as documents, with their names
folded to host lists and with amounts that every node of the group has. What is written is observed
only, so that committing it changes nothing on the machines.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from reconciler.desired.documents import yaml_writer
from reconciler.model.state.states import NodeState
from reconciler.model.values import hostlists, quantities

Json = Any

#: Memory of alike machines differs by what firmware and kernel keep for themselves.
MEMORY_TOLERANCE = 0.05
_GIB = 2**30
_NAME_CHARACTERS_MAX = 40


class DiscoveredNode(msgspec.Struct, frozen=True):
    """Properties of one node. ``gpu_memory_bytes`` is the least of its devices."""

    name: str
    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    labels: dict[str, str] = {}


class DiscoveredPool(msgspec.Struct, frozen=True):
    """Nodes that are alike, under a name that says what they have."""

    name: str
    nodes: tuple[DiscoveredNode, ...]


def seen(items: Iterable[Json], *, declared: bool) -> list[DiscoveredNode]:
    """Return the nodes of ``GET /v1/nodes`` that have reported their hardware and are not gone.

    ``declared``: include those of pools.
    """
    found = []
    for item in items:
        if (item["pool"] and not declared) or not item["capacity"]["cpu"]:
            continue
        if item["state"] == NodeState.GONE:
            continue
        gpus = item["gpus"]
        models = sorted({gpu["model"] for gpu in gpus})
        found.append(
            DiscoveredNode(
                name=item["name"],
                cpus=int(item["capacity"]["cpu"]),
                memory_bytes=int(item["capacity"]["memory"]),
                gpus=int(item["capacity"]["gpu"]),
                gpu_model=models[0] if len(models) == 1 else "",
                gpu_memory_bytes=min((int(gpu["memory"]) for gpu in gpus), default=0),
                labels=dict(item["labels"]),
            )
        )
    return found


def pools(nodes: Iterable[DiscoveredNode], taken: Iterable[str] = ()) -> list[DiscoveredPool]:
    """Alike nodes together: as many CPUs and GPUs of one make, and about as much memory.

    ``taken``: names of pools that there are, which new ones can't have.
    """
    names = set(taken)
    kinds: dict[tuple[int, str, int, int], list[DiscoveredNode]] = {}
    for node in nodes:
        key = (node.gpus, node.gpu_model, node.gpu_memory_bytes // _GIB, node.cpus)
        kinds.setdefault(key, []).append(node)
    groups: list[list[DiscoveredNode]] = []
    for _, alike in sorted(kinds.items(), reverse=True):
        least = 0.0
        for node in sorted(alike, key=lambda one: (one.memory_bytes, one.name)):
            if not least or node.memory_bytes > least * (1 + MEMORY_TOLERANCE):
                groups.append([])
                least = node.memory_bytes
            groups[-1].append(node)
    made: list[DiscoveredPool] = []
    for group in groups:
        ordered = tuple(sorted(group, key=lambda one: one.name))
        made.append(DiscoveredPool(_name(ordered[0], names), ordered))
        names.add(made[-1].name)
    return made


def _name(like: DiscoveredNode, taken: set[str]) -> str:
    """Return a name such as ``h200-8`` or ``cpu-64``, with a number after it if it is taken."""
    model = re.sub(r"^nvidia\s+", "", like.gpu_model.casefold())
    word = re.sub(r"[^a-z0-9]+", "-", model).strip("-")[:_NAME_CHARACTERS_MAX].strip("-")
    base = f"{word or 'gpu'}-{like.gpus}" if like.gpus else f"cpu-{like.cpus}"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def document(pool: DiscoveredPool, *, observe: bool = True) -> dict[str, Json]:
    """Return the NodePool with what every node of a group has."""
    first = pool.nodes[0]
    nodes: dict[str, Json] = {
        "cpu": first.cpus,
        "memory": _floor(min(node.memory_bytes for node in pool.nodes)),
    }
    if first.gpus:
        nodes["gpus"] = {"count": first.gpus}
        if first.gpu_model:
            nodes["gpus"]["model"] = first.gpu_model
        memory = min(node.gpu_memory_bytes for node in pool.nodes)
        if memory:
            nodes["gpus"]["memory"] = _floor(memory)
    spec: dict[str, Json] = {"hosts": hostlists.fold(node.name for node in pool.nodes)}
    if observe:
        spec["mode"] = "observe"
    spec["nodes"] = nodes
    common = dict(first.labels)
    for node in pool.nodes[1:]:
        common = {key: value for key, value in common.items() if node.labels.get(key) == value}
    if common:
        spec["labels"] = dict(sorted(common.items()))
    return {
        "apiVersion": "muster/v1",
        "kind": "NodePool",
        "metadata": {"name": pool.name},
        "spec": spec,
    }


def _floor(amount: int) -> str:
    """Return an amount in whole GiB, or in MiB if there is less than one."""
    unit = _GIB if amount >= _GIB else 2**20
    return quantities.format_memory(max(unit, amount - amount % unit))


def text(made: Sequence[DiscoveredPool], *, observe: bool = True) -> str:
    """Return the documents as YAML."""
    parts = [yaml_writer.yaml_text(document(pool, observe=observe)) for pool in made]
    return "---\n".join(parts)
