"""What a cluster of four nodes costs while nothing happens: CPU and memory, part by part.

A share is of one core, from the kernel's own run time of every thread, in nanoseconds.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from agents.host import process_memory, processes
from bench import agent_cost, cluster
from bench.throughput import CPUS, NODES, QUEUE

_SETTLE_S = 5.0
_CONTROLLER_GOAL, _AGENT_GOAL = 1.0, 0.5


def parts(folder: Path) -> dict[str, list[int]]:
    """Pids of a cluster's processes: loop, server, and of each node agent and supervisor."""
    found: dict[str, list[int]] = {}
    for pid, (_, words) in process_memory.read(processes.processes(), ()).items():
        if not any(word.startswith(str(folder)) for word in words):
            continue
        if "reconciler.controller.process" in words:
            found.setdefault("loop", []).append(pid)
        elif "reconciler.server" in words:
            found.setdefault("server", []).append(pid)
        elif "agents" in words and "--name" in words:
            found.setdefault(f"node {words[words.index('--name') + 1]}", []).append(pid)
        elif words[-2].endswith("/supervisor/__main__.py"):
            found.setdefault(f"node {Path(words[-1]).name}", []).append(pid)
    return found


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 3), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to measure")
    options = parser.parse_args(arguments)
    with cluster.running(nodes=NODES, cpus=CPUS) as bed:
        bed.commit({"queue.yaml": QUEUE}, "a queue")
        time.sleep(_SETTLE_S)
        pids = parts(bed.folder.resolve())
        before = {name: agent_cost.cpu_s(found) for name, found in pids.items()}
        began = time.monotonic()
        time.sleep(options.seconds)
        passed_s = time.monotonic() - began
        percent = {
            name: 100 * (agent_cost.cpu_s(found) - before[name]) / passed_s
            for name, found in pids.items()
        }
        memory = {
            name: [agent_cost.memory_mib(pid) for pid in found] for name, found in pids.items()
        }
    nodes = [name for name in pids if name.startswith("node ")]
    if len(nodes) != NODES or "loop" not in pids or "server" not in pids:
        raise RuntimeError(f"some processes of the cluster were not found: {sorted(pids)}")
    controller, worst = percent["loop"] + percent["server"], max(percent[name] for name in nodes)
    unit = "% of a core"
    return [
        _row(
            "controller_cpu_percent",
            controller,
            unit,
            goal=f"value < {_CONTROLLER_GOAL:g}",
            met=controller < _CONTROLLER_GOAL,
        ),
        _row("loop_cpu_percent", percent["loop"], unit),
        _row("server_cpu_percent", percent["server"], unit),
        _row(
            "node_cpu_percent_most",
            worst,
            unit,
            goal=f"value < {_AGENT_GOAL:g}",
            met=worst < _AGENT_GOAL,
        ),
        _row("loop_memory_mib", sum(memory["loop"]), "MiB"),
        _row("server_memory_mib", sum(memory["server"]), "MiB"),
        _row("node_memory_mib_most", max(sum(memory[name]) for name in nodes), "MiB"),
        _row("measured_s", passed_s, "s"),
    ]
