"""Small clusters drawn dense from a seed, run to rest and judged by ``laws``.

``python -m tests.scenarios.dense KIND FIRST COUNT`` draws as many as one likes and prints which
break a law; the property draws a few. ``crowded``: trees of queues and work of all sizes, some of
it waiting. ``taken``: others' shares and gangs are all over the devices of a queue that wants back
what it is guaranteed; hardest for whoever looks for victims.
"""

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from reconciler.model.state.states import AttemptState
from reconciler.simulation.scenarios import builder, runner, schema
from tests.scenarios import laws

ROUND_S = 60.0
#: After so many rounds nothing may move any more for as many again.
ROUNDS = 11
_PRESENT = {
    AttemptState.ASSIGNED,
    AttemptState.STARTING,
    AttemptState.RUNNING,
    AttemptState.STOPPING,
}

Document = dict[str, Any]
#: By node what of each device is left.
_Left = dict[str, list[int]]


def crowded(seed: int) -> Document:
    """Up to three nodes, trees of queues up to three deep, up to ten jobs."""
    rng = random.Random(seed)
    nodes = {f"n{i}": {"gpu": rng.choice([1, 2, 2, 3, 4])} for i in range(rng.randint(1, 3))}
    queues: list[Document] = []
    leaves: list[str] = []
    left = sum(node["gpu"] for node in nodes.values())
    for i in range(rng.randint(1, 3)):
        guaranteed = _part(rng, left)
        left -= guaranteed
        queues.append(_queue(rng, "pqr"[i], None, guaranteed))
        leaves += _below(rng, queues, "pqr"[i], guaranteed)
    free = {name: [laws.WHOLE] * node["gpu"] for name, node in nodes.items()}
    jobs = [_job(rng, f"j{i}", leaves, free) for i in range(rng.randint(2, 10))]
    policy: Document = {}
    if rng.random() < 0.3:
        policy["consolidation"] = False
    if rng.random() < 0.3:
        policy["backfill"] = rng.choice(["none", "conservative"])
    return _document(seed, nodes, queues, jobs, policy)


def _document(
    seed: int, nodes: Document, queues: list[Document], jobs: list[Document], policy: Document
) -> Document:
    found = {
        "scenario": f"seed {seed}",
        "source": "own",
        "nodes": nodes,
        "queues": queues,
        "jobs": jobs,
        "rounds": {"settle": 1, "stable": 1},
        "expect": {},
    }
    return found | ({"policy": policy} if policy else {})


def _part(rng: random.Random, left: int) -> int:
    return rng.randint(0, left) if rng.random() < 0.7 else 0


def _queue(rng: random.Random, name: str, parent: str | None, guaranteed: int) -> Document:
    found: Document = {"name": name, "guaranteed": {"gpu": guaranteed}}
    if parent is not None:
        found["parent"] = parent
    if rng.random() < 0.3:
        found["weight"] = rng.choice([0, 1, 2, 3])
    if rng.random() < 0.25:
        found["priority"] = rng.choice([1, 5])
    if rng.random() < 0.2:
        found["limit"] = {"gpu": guaranteed + rng.randint(0, 3)}
    return found


def _below(rng: random.Random, queues: list[Document], root: str, guaranteed: int) -> list[str]:
    """Queues below a root, often with some below these; the lowest of all."""
    if rng.random() >= 0.6:
        return [root]
    leaves: list[str] = []
    left = guaranteed
    for j in range(rng.randint(1, 3)):
        part = _part(rng, left)
        left -= part
        queues.append(_queue(rng, f"{root}{j}", root, part))
        if rng.random() >= 0.25:
            leaves.append(f"{root}{j}")
            continue
        for k in range(rng.randint(1, 2)):
            least = _part(rng, part)
            part -= least
            queues.append(_queue(rng, f"{root}{j}{k}", f"{root}{j}", least))
            leaves.append(f"{root}{j}{k}")
    return leaves


def _job(rng: random.Random, name: str, leaves: list[str], free: _Left) -> Document:
    """A job that runs, or as much of it as fits, or waits."""
    size = rng.choice([1, 1, 1, 1, 2, 2, 3, 0.5, 0.5])
    count = rng.choice([1, 1, 1, 1, 2, 2, 3])
    job: Document = {
        "name": name,
        "queue": rng.choice(leaves),
        "priority": rng.choice([50, 50, 50, 10, 90]),
    }
    if rng.random() < 0.12:
        job["preemptible"] = False
    runs = rng.random() < 0.6
    tasks = [_task(rng, size, free) if runs else {"gpu": size} for _ in range(count)]
    running = [task for task in tasks if "node" in task]
    if count > 1 and rng.random() < 0.4:
        job["min"] = rng.randint(1, count)
    if len(running) < job.get("min", count):
        for task in running:
            _give_back(task, free)
        running = []
    waiting = [{"gpu": size}] * (count - len(running))
    return job | {"tasks": [*running, *waiting]}


def _task(rng: random.Random, size: float, free: _Left) -> Document:
    """A task where there is room, or one that waits."""
    spots: list[tuple[str, list[int]]] = []
    for node, there in free.items():
        if size < 1:
            need = round(size * laws.WHOLE)
            spots += [(node, [d]) for d, left in enumerate(there) if left >= need]
        else:
            idle = [d for d, left in enumerate(there) if left == laws.WHOLE]
            spots += [(node, idle[: int(size)])] if len(idle) >= size else []
    if not spots:
        return {"gpu": size}
    node, devices = rng.choice(spots)
    for device in devices:
        free[node][device] -= round(min(size, 1) * laws.WHOLE)
    held = [str(device) for device in devices]
    return {"gpu": size, "state": "running", "node": node, "devices": held}


def _give_back(task: Mapping[str, Any], free: _Left) -> None:
    for device in task["devices"]:
        free[task["node"]][int(device)] += round(min(task["gpu"], 1) * laws.WHOLE)


def taken(seed: int) -> Document:
    """Up to three nodes full of others' work, and one or two jobs of who is owed the GPUs."""
    rng = random.Random(seed * 7919 + 1)
    nodes = {f"n{i}": {"gpu": rng.choice([2, 2, 3, 4])} for i in range(rng.randint(1, 3))}
    queues, leaves = _owned(rng, sum(node["gpu"] for node in nodes.values()))
    free = {name: [laws.WHOLE] * node["gpu"] for name, node in nodes.items()}
    jobs: list[Document] = []
    for i in range(rng.randint(4, 14)):
        job = _running(rng, f"j{i}", leaves, free)
        jobs += [job] if job else []
    for i in range(rng.randint(1, 2)):
        size, count = rng.choice([1, 1, 2, 2, 3, 0.5]), rng.choice([1, 1, 2])
        preemptible = rng.random() < 0.8
        tasks = [{"gpu": size} for _ in range(count)]
        owner = {"name": f"w{i}", "queue": "own", "priority": 50}
        jobs.append({**owner, "preemptible": preemptible, "tasks": tasks})
    policy: Document = {"consolidation": False} if rng.random() < 0.5 else {}
    return _document(seed, nodes, queues, jobs, policy)


def _owned(rng: random.Random, total: int) -> tuple[list[Document], list[str]]:
    """A queue that is owed some GPUs, others for the rest, and the names of those."""
    guaranteed = rng.randint(1, total)
    left = total - guaranteed
    queues: list[Document] = [{"name": "own", "guaranteed": {"gpu": guaranteed}}]
    deep = rng.random() < 0.4
    if deep:
        queues.append({"name": "top", "guaranteed": {"gpu": left}})
    leaves: list[str] = []
    for i in range(rng.randint(1, 3)):
        part = rng.randint(0, left)
        queue: Document = {"name": f"b{i}", "guaranteed": {"gpu": part}}
        if deep and rng.random() < 0.7:
            queue["parent"] = "top"
        elif deep:
            queue["guaranteed"] = {"gpu": 0}
            part = 0
        left -= part
        queues.append(queue)
        leaves.append(f"b{i}")
    return queues, leaves


def _running(rng: random.Random, name: str, leaves: list[str], free: _Left) -> Document | None:
    """A job all of which runs; None where it has no room."""
    size = rng.choice([1, 1, 1, 2, 0.5, 0.5, 0.25, 0.75])
    count = rng.choice([1, 1, 1, 2, 2, 3])
    queue = rng.choice(leaves if rng.random() < 0.85 else ["own"])
    job: Document = {"name": name, "queue": queue, "priority": rng.choice([50, 50, 10])}
    if rng.random() < 0.06:
        job["preemptible"] = False
    tasks: list[Document] = []
    while len(tasks) < count:
        task = _task(rng, size, free)
        if "node" not in task:
            for other in tasks:
                _give_back(other, free)
            return None
        tasks.append(task)
    if count > 1 and rng.random() < 0.2:
        job["min"] = rng.randint(1, count)
    return job | {"tasks": tasks}


def run(document: Document) -> list[str]:
    """What of the laws does not hold once a document has come to rest; ``laws.broken``."""
    situation = builder.build(schema.parse(document))
    cluster = runner.begun(situation)
    before: dict[str, list[laws.Task]] = {}
    moved_at = 0
    for number in range(1, 2 * ROUNDS + 1):
        cluster.run(builder.BEGIN + number * ROUND_S, inclusive=False)
        running: dict[str, list[laws.Task]] = {}
        for attempt in cluster.memory.attempts.values():
            if attempt.state in _PRESENT:
                task = laws.Task(attempt.index, attempt.node, attempt.devices)
                running.setdefault(attempt.job, []).append(task)
        for tasks in running.values():
            tasks.sort()
        moved_at = number if running != before else moved_at
        before = running
    found = laws.broken(laws.Rest(document, before))
    return found + ([f"tasks still move after {moved_at} rounds"] if moved_at > ROUNDS else [])


KINDS: dict[str, Callable[[int], Document]] = {"crowded": crowded, "taken": taken}


def main() -> int:
    """Draw and print."""
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = 0
    for seed in range(first, first + count):
        told = run(KINDS[kind](seed))
        found += bool(told)
        for sentence in told:
            print(f"{kind} {seed}: {sentence}", flush=True)
    print(f"{count} drawn, {found} break a law")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
