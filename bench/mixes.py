"""Mixes of work for ``bench scale``: jobs and queues as clusters have them, drawn from a seed.

A mix is a set of the names in ``TRAITS``; each trait changes jobs or the structure on its own, so
that its cost can be measured alone, and all of them together are the mix ``all``.
"""

import random
from collections.abc import Collection

import msgspec

from reconciler.core.snapshot import learned_mix
from reconciler.model import desired
from reconciler.model.state.scheduler_state import NOTHING, SchedulerState

#: What each trait makes of the plain work: one task a job, no limit, priority 50, one pool.
TRAITS = {
    "limits": "time limits of 1, 4, 12 or 24 hours, which bring reservations and backfill",
    "gangs": "a fifth are gangs of 2, 4 or 8 tasks",
    "shares": "half take an eighth, a quarter, 0.47 or half of one GPU",
    "priorities": "priorities 20, 50 (half of them) and 80",
    "learned": "the scheduler knows the mix of arrivals, as any controller that has run for a day",
    "tree": "queues in three levels: 5 divisions, 10 teams, 50 queues",
    "flavors": "two pools, with a guarantee of each queue in either",
    "unschedulable": "5 % ask for more GPUs than any node has",
    "preemption": "half of the queues are guaranteed nothing, so that others reclaim from them",
}
_LIMITS_S = tuple(hours * 3600 for hours in (1, 4, 12, 24))
_SHARES_MILLI = (125, 250, 470, 500)
#: Arrivals from which the mix is learned: as many as count half.
_LEARNED = learned_mix.ARRIVALS_HALVED


def parse(text: str) -> frozenset[str]:
    """Return the traits that a comma-separated list names; ``plain`` is none, ``all`` is all.

    Raises:
        ValueError: an unknown name.
    """
    names = [name for name in text.split(",") if name and name != "plain"]
    unknown = [name for name in names if name not in TRAITS and name != "all"]
    if unknown:
        raise ValueError(f"there is no mix {unknown[0]!r}: name some of plain, {', '.join(TRAITS)}")
    return frozenset(TRAITS) if "all" in names else frozenset(names)


class JobVariation:
    """The changes of a mix to jobs, drawn beside the draws of the plain work."""

    def __init__(self, traits: Collection[str], seed: int) -> None:
        self._traits = frozenset(traits)
        self._random = random.Random(seed + 1)

    def vary(self, job: desired.Job) -> desired.Job:
        """Return the job with what this mix makes of it."""
        traits, draw = self._traits, self._random
        group, changes = job.groups[0], {}
        if "limits" in traits:
            changes["time_limit_s"] = draw.choice(_LIMITS_S)
        if "priorities" in traits:
            changes["priority"] = draw.choice((20, 50, 50, 80))
        if "shares" in traits and draw.random() < 0.5:
            amounts = msgspec.structs.replace(group.resources, gpu_milli=draw.choice(_SHARES_MILLI))
            group = msgspec.structs.replace(group, resources=amounts)
        if "gangs" in traits and draw.random() < 0.2:
            group = msgspec.structs.replace(group, count=draw.choice((2, 4, 8)))
        if "unschedulable" in traits and draw.random() < 0.05:
            amounts = msgspec.structs.replace(group.resources, gpu_milli=16_000)
            group = msgspec.structs.replace(group, resources=amounts)
        return msgspec.structs.replace(job, groups=(group,), **changes)


def structure(
    traits: Collection[str], pool: desired.Pool, queues: list[desired.Queue]
) -> desired.Structure:
    """Return pools and queues of a mix, from those of the plain work.

    The queues keep their names, so that jobs of every mix go to the same ones.
    """
    pools = {pool.name: pool}
    if "preemption" in traits:
        double = [desired.QuotaAmounts(gpu_milli=2 * (q.guaranteed.gpu_milli or 0)) for q in queues]
        queues = [
            msgspec.structs.replace(
                queue, guaranteed=double[number] if number % 2 else desired.QuotaAmounts()
            )
            for number, queue in enumerate(queues)
        ]
    if "flavors" in traits:
        half = len(pool.nodes) // 2
        pools = {
            name: msgspec.structs.replace(pool, name=name, nodes=nodes)
            for name, nodes in (("east", pool.nodes[:half]), ("west", pool.nodes[half:]))
        }
        queues = [_with_flavors(queue, tuple(pools)) for queue in queues]
    if "tree" in traits:
        queues = _as_tree(queues)
    return desired.Structure(pools=pools, queues={queue.name: queue for queue in queues})


def _with_flavors(queue: desired.Queue, pools: tuple[str, ...]) -> desired.Queue:
    gpu_milli = (queue.guaranteed.gpu_milli or 0) // len(pools) // 1000 * 1000
    amounts = desired.QuotaAmounts(gpu_milli=gpu_milli)
    flavors = tuple(desired.QueueFlavor(pool, guaranteed=amounts) for pool in pools)
    return msgspec.structs.replace(queue, guaranteed=desired.QuotaAmounts(), flavors=flavors)


def _as_tree(queues: list[desired.Queue]) -> list[desired.Queue]:
    """Put the queues below 10 teams, and these below 5 divisions."""
    divisions = [desired.Queue(name=f"division-{number}") for number in range(5)]
    teams = [desired.Queue(name=f"team-{n}", parent=f"division-{n // 2}") for n in range(10)]
    leaves = [
        msgspec.structs.replace(queue, parent=f"team-{number % 10}")
        for number, queue in enumerate(queues)
    ]
    return [*divisions, *teams, *leaves]


def learned(traits: Collection[str], jobs: list[desired.Job]) -> SchedulerState:
    """Return what the scheduler remembers when a cycle begins beside these jobs."""
    if "learned" not in traits:
        return NOTHING
    return SchedulerState(arrivals=learned_mix.with_arrivals((), jobs[:_LEARNED]))
