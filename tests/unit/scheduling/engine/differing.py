"""Situations that the engine should cover, drawn from a seed, and where it decides otherwise.

``python -m tests.unit.scheduling.engine.differing FIRST COUNT`` draws as many as one likes and
counts how many are decided alike, not covered, or otherwise than by the present cycle. With
``--stories`` each goes on for some cycles: work starts, leaves, ends and arrives between them.
"""

import dataclasses
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from reconciler.scheduling.cycle import engine_cycle, scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.engine.refusals import NotCovered
from reconciler.scheduling.inputs.snapshots import ArrivalShare, SchedulingPolicy, Snapshot
from tests.unit.scheduling import drawn
from tests.unit.scheduling.situations import Situation, gpus_in


def situation(seed: int) -> Situation:
    """Draw a cluster with a backlog: a queue tree, priorities, limits, arrays, gangs, shares."""
    rng = random.Random(seed)
    s = Situation()
    s.policy = dataclasses.replace(
        SchedulingPolicy(),
        reclaim=rng.random() < 0.8,
        preempt=rng.random() < 0.8,
        consolidate=rng.random() < 0.5,
        overdue=rng.choice([0.0, 2.0]),
        order=rng.choice(["fit", "arrival"]),
        backfill=rng.choice(["none", "easy", "conservative"]),
    )
    s.now = rng.choice([0.0, 200.0, 400_000.0])
    s.turn = rng.randrange(100)
    pools = rng.choice([["gpu"], ["gpu", "big"]])
    for index in range(rng.randint(1, 12)):
        s.node(
            f"n{index:02d}",
            gpu=rng.choice([0, 2, 4, 8, 8]),
            cpu=rng.choice([6, 12, 32]),
            memory=rng.choice([6, 12, 200]),
            accepts=rng.random() < 0.95,
            pool=rng.choice(pools),
        )
    names = _queues(rng, s)
    if len(pools) > 1 and rng.random() < 0.5:
        _by_pool(rng, s)
    _running(rng, s, names)
    _pending(rng, s, names, pools)
    return s


def _queues(rng: random.Random, s: Situation) -> list[str]:
    above: list[str | None] = [None]
    for name in ("top", "mid"):
        if rng.random() < 0.4:
            s.queue(
                name,
                rng.choice(above),
                guaranteed=rng.choice([0, 4, 12]),
                limit=rng.choice([None, None, 10]),
                priority=rng.choice([0, 0, 1]),
            )
            above.append(name)
    names = list("abcdef"[: rng.randint(1, 6)])
    for name in names:
        s.queue(
            name,
            rng.choice(above),
            guaranteed=rng.choice([0, 1, 3, 8]),
            guaranteed_cpu=rng.choice([0, 0, 4]),
            limit=rng.choice([None, None, None, 5]),
            limit_cpu=rng.choice([None, None, None, 9]),
            weight=rng.choice([0.0, 1.0, 1.0, 3.0]),
            priority=rng.choice([0, 0, 0, 1]),
            suspended=rng.random() < 0.05,
            strict=rng.random() < 0.1,
        )
    if "top" in above and rng.random() < 0.2:
        names.append("top")  # work of its own beside that of the queues below it
    return names


def _by_pool(rng: random.Random, s: Situation) -> None:
    """Give queues amounts in pools."""
    pools = sorted({node.pool for node in s.nodes})
    for queue in s.queue_list:
        if rng.random() < 0.6:
            queue.flavors = tuple(
                gpus_in(
                    pool,
                    rng.choice([None, None, 0, 1, 4]),
                    limit=rng.choice([None, None, 2, 6]),
                    weight=rng.choice([None, None, 0.0, 3.0]),
                )
                for pool in rng.sample(pools, rng.randint(1, len(pools)))
            )


def _running(rng: random.Random, s: Situation, names: list[str]) -> None:
    """Put some work on nodes, most of which nobody may evict."""
    for index in range(rng.choice([0, 0, 0, 2, 5])):
        nodes = s.snapshot().nodes
        free = [name for row, name in enumerate(nodes.names) if nodes.free[row].min() >= 2000]
        if free:
            s.job(
                f"r{index}",
                rng.choice(names),
                gpu=rng.choice([1, 2]),
                preemptible=rng.random() < 0.1,
                on=(rng.choice(free),),
                time_limit_s=rng.choice([math.inf, s.now + 300.0, s.now + 70.0]),
            )


def _pending(rng: random.Random, s: Situation, names: list[str], pools: list[str]) -> None:
    kinds: list[dict[str, Any]] = [
        {
            "gpu": rng.choice([0, 0.25, 0.47, 0.5, 1, 1, 2, 3, 8]),
            "cpu": rng.choice([0, 1, 1, 2, 5]),
            "memory": rng.choice([0, 1, 1, 4]),
            "tasks": rng.choice([1, 1, 1, 2, 4]),
        }
        for _ in range(rng.randint(1, 6))
    ]
    limits_s = rng.choice([[math.inf], [60.0, 600.0, 3600.0], [math.inf, 600.0]])
    moments = sorted(rng.choice([1.0, 2.0, 5.0, s.now or 1.0]) for _ in range(40))
    for index in range(rng.randint(2, 40)):
        kind = dict(rng.choice(kinds))
        if not (kind["gpu"] or kind["cpu"] or kind["memory"]):
            kind["cpu"] = 1
        s.job(
            f"w{index:02d}",
            rng.choice(names),
            **kind,
            array=rng.choice([1, 1, 1, 3]),
            parallelism=rng.choice([None] * 9 + [0, 1]),
            priority=rng.choice([10, 50, 50, 90]),
            preemptible=rng.random() < 0.9,
            pool=rng.choice([None, None, rng.choice(pools)]),
            submitted_at=moments[index],
            time_limit_s=rng.choice(limits_s),
            strategy=rng.choice(["least-fragmentation", "pack"]),
        )


def with_mix(given: Snapshot, seed: int) -> Snapshot:
    """Return a snapshot with a learned mix of some of its shapes, in every third situation."""
    rng = random.Random(f"mix {seed}")
    if rng.random() < 0.67 or not given.shapes:
        return given
    shapes = rng.sample(given.shapes, min(len(given.shapes), rng.randint(1, 4)))
    mix = [ArrivalShare(one.groups[0], one.eligible, 1 / len(shapes)) for one in shapes]
    return dataclasses.replace(given, mix=tuple(mix))


def story(seed: int, steps: int = 6) -> Iterator[Snapshot]:
    """Yield the snapshots of a cluster cycle by cycle, as the present cycle decides.

    Even seeds begin as ``situation`` draws them, odd ones as ``drawn.situation`` does.
    """
    rng = random.Random(f"story {seed}")
    s = drawn.situation(seed)[0] if seed % 2 else situation(seed)
    names = [queue.name for queue in s.queue_list]
    for step in range(steps):
        given = s.snapshot()
        yield with_mix(given, seed)
        s.apply(scheduling_cycle.schedule(given))
        if rng.random() < 0.7:
            s.left()
        s.turn += 1
        s.now += rng.choice([0.0, 1.0, 60.0, 300.0])
        running = [held for held in s.held if not held.leaving]
        gone = {id(held) for held in running if rng.random() < 0.2}
        s.held = [held for held in s.held if id(held) not in gone]
        for index in range(rng.choice([0, 0, 1, 3])):
            s.job(
                f"s{step}{index}",
                rng.choice(names),
                gpu=rng.choice([0.5, 1, 1, 2, 4]),
                tasks=rng.choice([1, 1, 2]),
                priority=rng.choice([10, 50, 90]),
                submitted_at=s.now,
                time_limit_s=rng.choice([math.inf, 60.0, 600.0]),
            )


def _snapshots(seed: int, *, stories: bool) -> Iterator[Snapshot]:
    if stories:
        yield from story(seed)
    else:
        yield with_mix(situation(seed).snapshot(), seed)


def differing(given: Snapshot) -> list[str]:
    """Return the fields of ``Decisions`` in which engine and present cycle differ.

    Raises:
        NotCovered: the engine does not cover the snapshot.
    """
    mine, present = engine_cycle.decide(given), scheduling_cycle.schedule(given)
    return [f.name for f in fields(Decisions) if getattr(mine, f.name) != getattr(present, f.name)]


def main(arguments: list[str]) -> int:
    """Draw situations and print those that differ."""
    first, count = int(arguments[0]), int(arguments[1])
    kinds: Counter[str] = Counter()
    for seed in range(first, first + count):
        for step, given in enumerate(_snapshots(seed, stories="--stories" in arguments)):
            try:
                found = differing(given)
            except NotCovered as error:
                kinds[str(error)] += 1
                continue
            kinds["differ: " + " ".join(found) if found else "alike"] += 1
            if found:
                print(f"seed {seed} step {step}: {' '.join(found)}", flush=True)
    for kind, number in kinds.most_common():
        print(number, kind)
    return any(kind.startswith("differ") for kind in kinds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
