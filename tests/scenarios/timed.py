"""Small clusters in time drawn from a seed: who starts only to be told to leave at once.

Jobs with and without time limits come at drawn moments, so that reservations, overdue claims,
priorities and guarantees meet. ``python -m tests.scenarios.timed FIRST COUNT`` draws as many as one
likes and prints what started and was evicted at one moment though nobody had come meanwhile.
"""

import random
import sys
from typing import Any

from reconciler.core import reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records, states
from reconciler.simulation.scenarios import builder, runner, schema
from tests.scenarios.dense import Document

#: Until when a story is followed, in seconds.
UNTIL_S = 1300.0


def drawn(seed: int) -> Document:
    """One or two nodes, two to four queues, three to nine jobs."""
    rng = random.Random(seed)
    nodes = {f"n{i}": {"gpu": rng.choice([2, 4, 4])} for i in range(rng.randint(1, 2))}
    sizes = [node["gpu"] for node in nodes.values()]
    queues, leaves = _queues(rng, sum(sizes))
    return {
        "scenario": f"in time {seed}",
        "source": "own",
        "nodes": nodes,
        "queues": queues,
        "jobs": [_job(rng, f"j{i}", leaves, max(sizes)) for i in range(rng.randint(3, 9))],
        "until": UNTIL_S,
        "policy": rng.choice([{}, {}, {"backfill": "conservative"}]),
        "expect": {"jobs": {}},
    }


def _queues(rng: random.Random, total: int) -> tuple[list[Document], list[str]]:
    """Queues, all at the top or two of them below one, and those that take jobs."""
    nested = rng.random() < 0.3
    found: list[Document] = []
    if nested:
        found.append({"name": "top", "guaranteed": {"gpu": rng.choice([0, total // 2])}})
    left = total - sum(queue["guaranteed"]["gpu"] for queue in found)
    names = [f"q{i}" for i in range(rng.randint(2, 4))]
    for number, name in enumerate(names):
        below = nested and number < 2
        guaranteed = 0 if below else rng.choice([0, 0, rng.randint(0, left)])
        left -= guaranteed
        queue: Document = {"name": name, "guaranteed": {"gpu": guaranteed}}
        if below:
            queue["parent"] = "top"
        if rng.random() < 0.3:
            queue["weight"] = rng.choice([0, 2, 3])
        if rng.random() < 0.2:
            queue["priority"] = 10
        found.append(queue)
    return found, names


def _job(rng: random.Random, name: str, leaves: list[str], most: int) -> Document:
    """One task or two, of up to a whole node."""
    duration = rng.choice([30, 60, 120, 300])
    gpus = min(rng.choice([1, 1, 2, 4]), most)
    job: Document = {
        "name": name,
        "queue": rng.choice(leaves),
        "submit": rng.choice([0, 0, 10, 50, 130, 200, 310]),
        "duration": duration,
        "tasks": [{"gpu": gpus}] * (2 if gpus <= 2 and rng.random() < 0.3 else 1),
    }
    if rng.random() < 0.85:
        job["timeLimit"] = duration + rng.choice([0, 0, 60])
    if rng.random() < 0.3:
        job["priority"] = rng.choice([10, 90])
    if rng.random() < 0.3:
        job["preemptible"] = False
    return job


class _Watch:
    """The controller's one function, and when what it starts is told to leave."""

    def __init__(self) -> None:
        self.born: dict[str, float] = {}
        self.evicted: dict[str, float] = {}
        self.found: list[tuple[float, str, str]] = []

    def __call__(
        self, wanted: desired.Desired, observed: records.Observed, now: float, **more: Any
    ) -> outcome.Outcome:
        result = reconcile.reconcile(wanted, observed, now, **more)
        for attempt in result.attempts:
            self.born.setdefault(attempt.id, now)
            stop = attempt.stop
            if stop is None or stop.reason is not states.EndReason.PREEMPTED:
                continue
            if attempt.id not in self.evicted:
                self.evicted[attempt.id] = now
                if now == self.born[attempt.id]:
                    self.found.append((now - builder.BEGIN, attempt.job, stop.by))
        return result


def run(document: Document) -> tuple[list[tuple[float, str, str]], int]:
    """Who was evicted when it started, as moment, job and for whom; and how many evictions.

    At a moment at which somebody comes more than one cycle may be, and all of them be right.
    """
    watch = _Watch()
    cluster = runner.begun(builder.build(schema.parse(document)), watch)
    cluster.run(builder.BEGIN + document["until"])
    comes = {float(job["submit"]) for job in document["jobs"]}
    return [one for one in watch.found if one[0] not in comes], len(watch.evicted)


def main() -> int:
    """Draw and print."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    restless = evictions = 0
    for seed in range(first, first + count):
        found, evicted = run(drawn(seed))
        evictions += evicted
        restless += bool(found)
        for at, job, other in found:
            print(f"{seed}: {job} starts at {at:g} and leaves at once for {other}", flush=True)
    print(f"{count} drawn, {evictions} evictions, {restless} with work that left at once")
    return 1 if restless else 0


if __name__ == "__main__":
    sys.exit(main())
