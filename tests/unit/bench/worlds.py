"""Small clusters and jobs drawn from a seed, and whether the reasons that they get are true.

``python -m tests.unit.bench.worlds FIRST COUNT`` draws as many stories as one likes, prints what is
false and counts what was looked at; the property draws a few.
"""

import random
import re
import sys
from collections import Counter

import msgspec

from bench import moment, truth
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources
from tests.unit.core.world import GI, World, job


def seen(world: World, **changes: object) -> moment.Seen:
    """What a cycle left."""
    memory = world.memory
    plain = moment.Seen(
        now=world.now,
        structure=world.structure,
        job_records=memory.jobs,
        attempts=memory.attempts,
        nodes=memory.nodes,
        why=memory.reasons,
        promised=memory.nominations,
    )
    return msgspec.structs.replace(plain, **changes)


def drawn_world(rng: random.Random) -> World:
    """A few nodes and queues, with a policy."""
    scheduling = desired.Scheduling(
        backfill=rng.choice(["none", "easy", "easy", "conservative"]),
        consolidation=rng.random() < 0.5,
        overdue_after=rng.choice([0.0, 2.0]),
    )

    def amounts(*choices: int | None) -> desired.QuotaAmounts:
        gpu = rng.choice(choices)
        return desired.QuotaAmounts(gpu_milli=None if gpu is None else gpu * 1000)

    queues = [desired.Queue("default", guaranteed=amounts(None, 2), limit=amounts(None, None, 4))]
    queues.append(desired.Queue("top", guaranteed=amounts(None, 4), limit=amounts(None, 6)))
    queues += [
        desired.Queue(
            name,
            parent=rng.choice([None, "top"]),
            guaranteed=amounts(None, 1, 2, 3),
            limit=amounts(None, None, 3),
            lending_limit=amounts(*[None] * 9, 1),
            weight=rng.choice([0.0, 1.0, 2.0]),
            suspend=rng.random() < 0.05,
        )
        for name in ("a", "b")
    ]
    world = World(
        nodes=rng.randint(1, 4),
        cpu=rng.choice([4, 8]),
        gpu=rng.choice([2, 4]),
        queues=tuple(queues),
        settings=desired.ClusterSettings(scheduling=scheduling),
    )
    pool = world.pool
    halves = {name: (f"rack{number // 2}",) for number, name in enumerate(pool.nodes)}
    racked = msgspec.structs.replace(pool, levels=("rack",), domains=halves)
    quotas = {}
    if rng.random() < 0.3:
        quotas["some"] = desired.Quota(
            "some",
            user="ann",
            resources=amounts(None, 2, 3),
            running=rng.choice([None, 1, 2]),
            pending=rng.choice([None, None, 2]),
        )
    world.change_structure(pools={"pool": racked}, quotas=quotas)
    world.hear()
    return world


def drawn_job(rng: random.Random, number: int) -> desired.Job:
    """One of a few kinds."""
    gpu = rng.choice([0, 500, 1000, 1000, 2000, 3000, 4000, 9000])
    count = rng.choice([1, 1, 1, 2, 3])
    near = desired.TopologyConstraint(required=rng.choice(["", "", "", "rack"]))
    elastic = rng.random() < 0.15 and count > 1
    groups = [
        desired.TaskGroup(
            "main",
            count,
            Resources(rng.choice([0, 1000, 1000, 3000]), GI, gpu),
            command=("true",),
            minimum=1 if elastic else None,
            topology=near,
        )
    ]
    if rng.random() < 0.1:
        groups.append(desired.TaskGroup("more", 1, Resources(2000, GI, 0), command=("true",)))
    array = rng.choice([None, None, None, 3])
    depends = desired.Dependency(f"j{number - 1}", rng.choice(["afterOk", "afterNotOk"]))
    return job(
        f"j{number}",
        groups=tuple(groups),
        queue=rng.choice(
            ["default", "a", "b", "a", "b", "gone"] if number % 7 == 0 else ["a", "b"]
        ),
        owner=rng.choice(["ann", "bob"]),
        array_count=array,
        parallelism=rng.choice([None, 1, 2]) if array else None,
        priority=rng.choice([10, 50, 50, 90]),
        preemptible=rng.random() < 0.8,
        exclusive=rng.random() < 0.05,
        suspend=rng.random() < 0.04,
        time_limit_s=rng.choice([None, 60, 600]),
        depends_on=(depends,) if number and rng.random() < 0.1 else (),
        retries=desired.Retries(limit=rng.choice([0, 2])),
        checkpoint=desired.Checkpoint() if rng.random() < 0.4 else None,
        path=f"{number}.yaml",
    )


def live(world: World) -> list[records.AttemptRecord]:
    """Attempts that have not ended, in order."""
    found = [a for a in world.memory.attempts.values() if a.state is not AttemptState.ENDED]
    return sorted(found, key=lambda attempt: attempt.id)


def story(rng: random.Random, counts: Counter[tuple[str, str]]) -> None:
    """Jobs come and end; after each cycle no reason is false. Counts what was looked at."""
    world = drawn_world(rng)
    number = 0
    for _ in range(rng.randint(2, 7)):
        fresh = [drawn_job(rng, number + more) for more in range(rng.randint(0, 5))]
        number += len(fresh)
        world.commit(*fresh)
        for attempt in live(world):
            if rng.random() < 0.15:
                node = world.nodes[attempt.node]
                if attempt.id in node.attempts:
                    node.end(attempt.id, world.now, exit_code=rng.choice([0, 0, 3]))
        if rng.random() < 0.1:
            drain = {rng.choice(world.pool.nodes): desired.NodeDrain("so")}
            pool = msgspec.structs.replace(world.structure.pools["pool"], drains=drain)
            world.change_structure(pools={"pool": pool})
        for _ in range(rng.randint(1, 3)):
            world.hear()
            world.cycle()
            for finding in truth.Checker(seen(world)).findings():
                counts[finding.reason.code.value, finding.verdict.value] += 1
                told = f"{finding.job} at {world.now}: {finding.reason} but {finding.because}"
                assert finding.verdict is not truth.Verdict.FALSE, told
        world.now += rng.choice([0.0, 1.0, 30.0, 100.0])


def main() -> None:
    """Draw many stories: ``python -m tests.unit.bench.worlds``."""
    counts: Counter[tuple[str, str]] = Counter()
    first, count = int(sys.argv[1]), int(sys.argv[2])
    false: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            story(random.Random(seed), counts)
        except AssertionError as error:
            text = str(error).splitlines()[0]
            code = re.search(r"ReasonCode\.(\w+)", text)
            false[code[1] if code else "?"] += 1
            if false[code[1] if code else "?"] <= 3:
                print(seed, text[:700])
    print(sorted(counts.items()), false)


if __name__ == "__main__":
    main()
