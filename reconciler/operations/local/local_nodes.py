"""Virtual nodes of a cluster on this machine, as its pools declare them.

Pools in force come in from the API. Agents are started, stopped, and restarted if their pool
declares something else, each as soon as nothing runs there: a virtual node gets its resources at
the start.
"""

import math
from typing import Any

import msgspec

from agents import virtual
from agents.isolation import network_namespaces
from reconciler.model.values import hostlists
from reconciler.operations.client import api_client

#: Memory of a simulated GPU if its pool sets none.
SIMULATED_GPU_MEMORY = "16Gi"


class PoolNodes:
    """Follows the pools with ``nodes``.

    ``network`` gives each of them a seat; None: they share the machine's. ``most``: no more are
    started; None: as many as pools declare.
    """

    def __init__(
        self,
        nodes: virtual.VirtualNodes,
        network: network_namespaces.Network | None,
        most: int | None,
    ) -> None:
        self._nodes = nodes
        self._network = network
        self._most = most
        #: Properties with which each was started, and declared nodes last reported missing.
        self._shapes: dict[str, virtual.VirtualNode] = {}
        self._left_out: list[str] = []
        #: Nodes to restart that still have tasks.
        self._waiting: set[str] = set()

    def follow(self, api: api_client.ApiClient) -> list[str]:
        """Start and stop nodes as the virtual pools in force say; tells what was done.

        Raises:
            networks.NetworkError: a node can't be isolated.
        """
        declared = declared_nodes(api.get("/v1/pools")["items"])
        wanted = dict(declared[: self._most])
        done = self._beyond([name for name, _ in declared if name not in wanted])
        for name, node in wanted.items():
            if name not in self._nodes.names():
                self._start(node)
                done.append(f"started {name}")
        # an agent that was killed on purpose is not restarted
        alive = [name for name in self._nodes.names() if self._nodes.alive(name)]
        others = [name for name in alive if wanted.get(name) != self._shapes.get(name)]
        busy = _busy(api) if others else set()
        waiting = {name for name in others if name in busy and name in wanted}
        for name in sorted(waiting - self._waiting):
            done.append(f"{name} becomes what its pool declares now once its tasks have ended")
        self._waiting = waiting
        for name in others:
            if name in busy:
                continue
            self._nodes.remove(name)
            if name in wanted:
                self._start(wanted[name])
                done.append(f"started {name} anew, as its pool declares it now")
            else:
                done.append(f"stopped {name}")
        return done

    def _start(self, node: virtual.VirtualNode) -> None:
        seated = node
        if self._network is not None:
            seat = self._network.add(node.name, math.ceil(float(node.cpus or 1)))
            seated = msgspec.structs.replace(
                node, address=seat.address, interface=seat.interface, enter=seat.enter
            )
        self._nodes.add(seated)
        self._nodes.start(node.name)
        self._shapes[node.name] = node

    def _beyond(self, names: list[str]) -> list[str]:
        """Return a message about declared nodes beyond the requested number, when it changes."""
        if names == self._left_out:
            return []
        self._left_out = names
        return [told] if (told := self.left_out()) else []

    def left_out(self) -> str:
        """Return a message about declared nodes that are not started; empty if all are."""
        names = self._left_out
        if not names:
            return ""
        declared = (self._most or 0) + len(names)
        return (
            f"--nodes {self._most}: {self._most} of {declared} declared nodes started; "
            f"{hostlists.fold(names)} will be told as missing"
        )


def _busy(api: api_client.ApiClient) -> set[str]:
    """Nodes on which something runs: one that leaves its pool stays until that is over."""
    return {item["name"] for item in api.get("/v1/nodes")["items"] if item["attempts"]}


def declared_nodes(pools: list[dict[str, Any]]) -> list[tuple[str, virtual.VirtualNode]]:
    """Name and shape of every node that virtual pools ask for, of ``/v1/pools``."""
    wanted: list[tuple[str, virtual.VirtualNode]] = []
    for pool in pools:
        if pool["provisioner"] != "virtual":
            continue
        for name in hostlists.expand(pool["hosts"]) if pool["hosts"] else []:
            node = virtual.VirtualNode(
                name=name,
                cpus=f"{pool['nodeResources']['cpu']:g}",
                memory=str(int(pool["nodeResources"]["memory"])),
                gpus=int(pool["nodeResources"]["gpu"]),
                gpu_model=pool.get("gpuModel") or "simulated",
                gpu_memory=str(pool.get("gpuMemory") or SIMULATED_GPU_MEMORY),
            )
            wanted.append((name, node))
    return wanted
