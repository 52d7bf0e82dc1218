"""The jobs of fault stories: of any shape, endless, or requesting a guarantee."""

import random
from typing import Literal

import msgspec

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from tests.simulation import plans, sizes
from tests.simulation.plans import GI

#: On each node so many hogs at the most take what others were too large for.
REST = 4


def a_job(chance: random.Random, name: str, others: list[str]) -> desired.Job:
    """Return a job of any shape."""
    choose = chance.choice
    gpu = choose([0, 0, 1000, 1000, 2000, 500, 250])
    count = choose([1, 1, 1, 2, 3])
    array = choose([None, None, None, 2, 4])
    needs: list[desired.Dependency] = []
    if others and chance.random() < 0.25:
        condition: Literal["afterOk", "afterAny", "afterNotOk"]
        condition = choose(["afterOk", "afterAny", "afterNotOk"])
        needs.append(desired.Dependency(choose([*others[-5:], "never"]), condition))
    minimum = choose([None, 1]) if count > 1 else None
    shapes = [None, 1, *([2] if count == 2 and minimum is None else [])] if count > 1 else [None]
    group = desired.TaskGroup(
        name="main",
        count=count,
        resources=Resources(choose([500, 1000, 2000]), choose([1, 2, 8]) * GI, gpu),
        command=("true",),
        minimum=minimum,
        tasks_per_node=random.Random(f"nodes {name}").choice(
            shapes
        ),  # not what the rest is drawn by
    )
    return desired.Job(
        name=name,
        run=1,
        hash="0123456789abcdef",
        queue=choose(["default", "default", "near", "far", "batch"]),
        owner=choose(["", *plans.OWNERS]),
        groups=(group,),
        suspend=chance.random() < 0.08,
        priority=choose([10, 50, 50, 90]),
        preemptible=chance.random() < 0.8,
        framework=choose(["none", "none", "torchrun"]),
        array_count=array,
        parallelism=choose([None, 1, 2]) if array else None,
        depends_on=tuple(needs),
        pools=choose([(), (), (), ("gpu",)]),
        time_limit_s=choose([None, None, 30, 120]),
        deadline=plans.BEGIN + chance.uniform(50, plans.STORM_S)
        if chance.random() < 0.08
        else None,
        retries=desired.Retries(limit=choose([0, 1, 3]), backoff_s=choose([0, 5, 20])),
        checkpoint=desired.Checkpoint(grace_s=choose([2, plans.GRACE_S]))
        if choose([0, 1])
        else None,
        grace_s=choose([None, 1, plans.GRACE_S]),
        lease_s=choose([None, plans.LEASE_S, plans.LEASE_S, 20]),
        exclusive=chance.random() < 0.03,
    )


def narrow(job: desired.Job, wide_max: int) -> desired.Job:
    """Return a job with at most so many tasks of a group and elements of an array."""
    groups = tuple(
        msgspec.structs.replace(
            group, count=min(group.count, wide_max), tasks_per_node=group.tasks_per_node and 1
        )
        if wide_max < group.count
        else group
        for group in job.groups
    )
    array_count = None if job.array_count is None else min(job.array_count, wide_max)
    return msgspec.structs.replace(job, groups=groups, array_count=array_count)


def endless(name: str) -> bool:
    """Return True if a job's tasks run until they are stopped."""
    return name.startswith(("hog", "owed"))


def hogs(chance: random.Random, size: sizes.Size) -> list[desired.Job]:
    """Return preemptible work without a guarantee that takes everything and gives nothing back."""
    return [
        msgspec.structs.replace(
            narrow(a_job(chance, f"hog{number}", []), size.wide_max),
            queue=chance.choice(["default", "batch"]),
            owner="",
            preemptible=True,
            suspend=False,
            deadline=None,
            time_limit_s=None,
            exclusive=False,
        )
        for number in range(chance.choice(size.hogs))
    ]


def filling(structure: desired.Structure) -> list[desired.Job]:
    """Return hogs for the rest of each pool, so that guarantees have to be reclaimed.

    First elements of one GPU, then of two CPUs, then some of the smallest request.
    """
    found = []
    for pool in structure.pools.values():
        has = pool.node_resources
        for what, priority, cpu_milli, gpu_milli, most in (
            ("gpu", 90, 500, 1000, has.gpu_milli // 1000),
            ("cpu", 50, 2000, 0, has.cpu_milli // 2000),
            ("rest", 10, 500, 0, REST),
        ):
            if most:
                each = Resources(cpu_milli, GI // 8, gpu_milli)
                found.append(
                    desired.Job(
                        name=f"hog-{pool.name}-{what}",
                        run=1,
                        hash="0123456789abcdef",
                        queue="default",
                        groups=(desired.TaskGroup("main", 1, each, ("true",)),),
                        array_count=most * len(pool.nodes),
                        priority=priority,
                        pools=(pool.name,),
                    )
                )
    return found


def owed(seed: int) -> list[desired.Job]:
    """Return work that requests what is guaranteed, once all is calm."""
    chance = random.Random(f"{seed} owed")
    found = []
    for number in range(3):
        group = desired.TaskGroup(
            name="main",
            count=1,
            resources=Resources(chance.choice([500, 1000]), GI, chance.choice([0, 500, 1000])),
            command=("true",),
        )
        found.append(
            desired.Job(
                name=f"owed{number}",
                run=1,
                hash="0123456789abcdef",
                queue=chance.choice(["near", "far"]),
                groups=(group,),
                preemptible=chance.random() < 0.7,
            )
        )
    return found


def is_flaky(name: str) -> bool:
    """Return True if most tries of a job's tasks fail."""
    return name.startswith("flaky")
