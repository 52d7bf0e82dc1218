"""Situations drawn from a seed, and whether two ways to decide them agree.

``python -m tests.unit.scheduling.drawn FIRST COUNT`` draws as many as one likes and says which
differ between a cycle and one in which every line has its turn; the property draws a few. A draw is
small, so that work that waits stands in its own way: policies, queues with guarantees and limits of
GPUs and CPUs, in the cluster and by pool, windows, gangs, arrays, deadlines, amounts of nothing.
"""

import dataclasses
import random
import sys
from collections import Counter
from dataclasses import fields
from typing import Any, Literal

from reconciler.model import desired
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.decisions import Decisions
from reconciler.scheduling.inputs.snapshots import SchedulingPolicy, Snapshot
from tests.unit.scheduling.situations import Situation, amounts, gpus_in

_ENDLESS = float("inf")
_BACKFILL: tuple[Literal["none", "easy", "conservative"], ...] = ("none", "easy", "conservative")


def situation(seed: int) -> tuple[Situation, random.Random]:
    """A situation, and what the rest of its story is drawn from."""
    rng = random.Random(seed)
    s = Situation()
    s.policy = dataclasses.replace(
        SchedulingPolicy(),
        backfill=rng.choice(_BACKFILL),
        consolidate=rng.random() < 0.3,
        any_movable=rng.random() < 0.2,
        reclaim=rng.random() < 0.9,
        preempt=rng.random() < 0.9,
        overdue=rng.choice([0.0, 2.0, 2.0]),
        order=rng.choice(["fit", "fit", "arrival"]),
    )
    s.now = rng.choice([0.0, 10.0, 200.0, 100_000.0])
    pools = rng.choice([["gpu"], ["gpu"], ["gpu", "big"]])
    for index in range(rng.randint(1, 4)):
        s.node(
            f"n{index}",
            gpu=rng.choice([0, 2, 4, 4]),
            cpu=rng.choice([6, 12]),
            memory=rng.choice([6, 12, 200]),
            accepts=rng.random() < 0.9,
            pool=rng.choice(pools),
        )
    names = _queues(rng, s)
    _by_pool(random.Random(-seed - 1), s)
    for index in range(rng.choice([0, 3, 6, 9, 12])):
        _running(rng, s, index, names)
    zero = rng.random() < 0.5
    asks = [_ask(rng, zero=zero) for _ in range(rng.randint(1, 5))]
    for index in range(rng.randint(2, 14)):
        _waiting(rng, s, index, names, (asks, pools))
    if rng.random() < 0.15:
        starts_s = rng.choice([-50.0, 30.0, 300.0])
        chosen = [rng.random() < 0.5 for _ in s.nodes]
        s.window("w", s.now + starts_s, s.now + 500.0, chosen, maintenance=rng.random() < 0.5)
    if seed % 3 == 0:
        _by_node(random.Random(f"nodes {seed}"), s)
    return s, rng


def _by_node(rng: random.Random, s: Situation) -> None:
    """Have half of the gangs run on a number of nodes of their own, one task on each or two."""
    for job in s.jobs.values():
        counts = {count for _, count, _ in job.groups}
        if counts == {2} and rng.random() < 0.5:
            job.per_node = 1 if job.least == 1 else rng.choice([1, 2])


def _queues(rng: random.Random, s: Situation) -> list[str]:
    above: list[str | None] = [None]
    if rng.random() < 0.5:
        s.queue(
            "top",
            guaranteed=rng.choice([0, 4]),
            guaranteed_cpu=rng.choice([0, 0, 6]),
            limit=rng.choice([None, None, 6]),
        )
        above.append("top")
        if rng.random() < 0.3:
            s.queue("mid", "top", guaranteed=rng.choice([0, 3]), weight=rng.choice([0.0, 1.0]))
            above.append("mid")
    names = list("abcd"[: rng.randint(2, 4)])
    for name in names:
        s.queue(
            name,
            rng.choice(above),
            guaranteed=rng.choice([0, 1, 2, 3, 5]),
            guaranteed_cpu=rng.choice([0, 0, 0, 2, 4]),
            limit=rng.choice([None, None, None, 4, 6]),
            limit_cpu=rng.choice([None, None, None, 8]),
            weight=rng.choice([0.0, 1.0, 1.0, 3.0]),
            priority=rng.choice([0, 0, 0, 1]),
            lending=rng.choice([None] * 9 + [1]),
            suspended=rng.random() < 0.03,
            strict=rng.random() < 0.1,
        )
    if "top" in above and rng.random() < 0.1:
        names.append("top")  # work of its own beside that of its children
    return names


def _by_pool(rng: random.Random, s: Situation) -> None:
    """Amounts by pool in every other situation of two pools, and a cap on one now and then."""
    pools = sorted({node.pool for node in s.nodes})
    if len(pools) < 2 or rng.random() < 0.5:
        return
    for queue in s.queue_list:
        if rng.random() < 0.5:
            queue.flavors = tuple(
                gpus_in(
                    pool,
                    rng.choice([None, None, 0, 1, 2]),
                    limit=rng.choice([None, None, 2, 3]),
                    lending=rng.choice([None] * 9 + [1]),
                    weight=rng.choice([None, None, 0.0, 3.0]),
                )
                for pool in rng.sample(pools, rng.randint(1, 2))
            )
    if rng.random() < 0.2:
        cap = desired.QuotaAmounts(gpu_milli=rng.choice([1000, 3000]))
        s.caps = [desired.Quota("cap", pool=rng.choice(pools), resources=cap)]


def _running(rng: random.Random, s: Situation, index: int, names: list[str]) -> None:
    gpu, cpu = rng.choice([0, 1, 1, 2]), rng.choice([1, 2, 3])
    tasks = rng.choice([1, 1, 2])
    nodes, wanted = s.snapshot().nodes, amounts(gpu, cpu, 1)
    places = [
        name
        for row, name in enumerate(nodes.names)
        for _ in range(min(int(nodes.free[row][r]) // wanted[r] for r in range(3) if wanted[r]))
    ]
    if len(places) < tasks:
        return
    rng.shuffle(places)
    s.job(
        f"r{index}",
        rng.choice(names),
        gpu=gpu,
        cpu=cpu,
        tasks=tasks,
        least=rng.choice([None, None, 1]),
        priority=rng.choice([10, 10, 50]),
        preemptible=rng.random() < 0.85,
        cost_s=rng.choice([0.0, 60.0, 7.0]),
        time_limit_s=rng.choice([_ENDLESS, s.now + 300.0, s.now + 70.0]),
        movable=rng.random() < 0.3,
        on=tuple(places[:tasks]),
        leaving=rng.random() < 0.1,
    )


def _ask(rng: random.Random, *, zero: bool) -> dict[str, float | int | None]:
    return {
        "gpu": rng.choice([0, 0.5, 1, 1, 2, 3]),
        "cpu": rng.choice([0, 1, 1, 2, 3] if zero else [1, 1, 2, 3]),
        "memory": rng.choice([0, 1, 1, 4] if zero else [1, 1, 4]),
        "tasks": rng.choice([1, 1, 1, 1, 2]),
        "least": rng.choice([None, None, None, 1]),
    }


def _waiting(
    rng: random.Random,
    s: Situation,
    index: int,
    names: list[str],
    drawn: tuple[list[dict[str, float | int | None]], list[str]],
) -> None:
    asks, pools = drawn
    more: dict[str, Any] = dict(rng.choice(asks))
    if not (more["gpu"] or more["cpu"] or more["memory"]):
        more["cpu"] = 1
    if rng.random() < 0.1:
        more["groups"] = (("x", 1, amounts(1, 1, 1)), ("y", rng.choice([1, 2]), amounts(0, 2, 1)))
    s.job(
        f"w{index}",
        rng.choice(names),
        **more,
        array=rng.choice([1, 1, 1, 3]),
        parallelism=rng.choice([None] * 9 + [0, 1]),
        priority=rng.choice([10, 50, 50, 50, 90]),
        preemptible=rng.random() < 0.85,
        pool=rng.choice([None, None, rng.choice(pools)]),
        owner=rng.choice(["", "x", "y"]),
        slack_s=rng.choice([_ENDLESS] * 15 + [100.0]),
        time_limit_s=rng.choice([_ENDLESS, _ENDLESS, 60.0, 600.0, 59.5]),
        submitted_at=rng.choice([0.0, 1.0, 5.0, max(0.0, s.now - 150.25), s.now]),
        strategy=rng.choice(["least-fragmentation", "least-fragmentation", "pack", "spread"]),
    )


def at_rest_soon(given: Snapshot) -> Decisions:
    """What a cycle decides that asks after each idle turn whether all that are left are idle."""
    return scheduling_cycle.SchedulingCycle(scheduling_cycle.prepared(given), rest_after=1).run()


def one_by_one(given: Snapshot) -> Decisions:
    """What a cycle decides in which every line has its turn."""
    return scheduling_cycle.SchedulingCycle(scheduling_cycle.prepared(given), one_by_one=True).run()


def protect(s: Situation, seed: int) -> None:
    """Give some of the queues a minimum run time."""
    rng = random.Random(f"protected {seed}")
    for queue in s.queue_list:
        queue.min_runtime_s = rng.choice([0.0, 40.0, 300.0])


def differing(seed: int, steps: int = 3, *, protected: bool = False) -> tuple[int, list[str]]:
    """At which step a story goes another way where every line has its turn, and in what.

    ``protected``: with minimum run times.
    """
    s, rng = situation(seed)
    if protected:
        protect(s, seed)
    for step in range(steps):
        given = s.snapshot()
        fast, slow = scheduling_cycle.schedule(given), one_by_one(given)
        found = [
            field.name
            for way in (fast, at_rest_soon(given))
            for field in fields(Decisions)
            if getattr(way, field.name) != getattr(slow, field.name)
        ]
        if found:
            return step, found
        s.apply(fast)
        if rng.random() < 0.5:
            s.left()
        if rng.random() < 0.5:
            s.now += rng.choice([1.0, 60.0])
    return steps, []


def main(arguments: list[str]) -> int:
    """Draw stories and print those that differ."""
    first, count = int(arguments[0]), int(arguments[1])
    kinds: Counter[str] = Counter()
    for seed in range(first, first + count):
        step, found = differing(seed)
        if found:
            kinds[" ".join(found)] += 1
            print(f"seed {seed} step {step}: {' '.join(found)}", flush=True)
    print(f"{count} stories drawn, {sum(kinds.values())} differ {dict(kinds)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
