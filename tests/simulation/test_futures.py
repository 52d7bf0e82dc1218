"""What a plan says of the next moments is what a cluster then does: drawn clusters, drawn changes.

A cluster of a drawn story has run for a while. A change is drawn, and from a snapshot that has been
through bytes its future is worked out; then the cluster itself gets the change. Who is told to
leave by the first two cycles, why and for whom, has to be the same. Images are left out: a future
takes it that what is being fetched has come.
"""

import functools
import random
from typing import NamedTuple

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.operations.plan import cluster_snapshot
from reconciler.simulation.engine import observer, simulated_cluster, world
from reconciler.simulation.forecast import cluster_forecast
from tests.simulation import plans, stories, work

#: The cycle that learns of the change, and the next one. Of starts a future hears later.
WITHIN_S = 0.6
AGES_S = (20.0, 120.0, 700.0)


class Leaving(NamedTuple):
    """An element that is told to leave, why, and for whom."""

    job: str
    element: int
    reason: str
    by: str


class Watcher(observer.NoWatcher):
    """Notes who is told to leave."""

    def __init__(self) -> None:
        self.seen: set[Leaving] = set()

    def decided(self, result: outcome.Outcome) -> None:
        """A cycle has decided."""
        for one in result.attempts:
            stop = one.stop
            if stop and stop.at == result.now and stop.reason in cluster_forecast.MADE_TO_LEAVE:
                self.seen.add(Leaving(one.job, one.element, stop.reason.value, stop.by))


def plain(job: desired.Job) -> desired.Job:
    """The job without an image."""
    return msgspec.structs.replace(job, runtime="process", image="")


def grown_up(
    chance: random.Random, plan: plans.Plan, watcher: Watcher
) -> simulated_cluster.SimulatedCluster:
    """The cluster of a story after a while, with all its work, so that it is full, and no fault."""
    age_s = chance.choice(AGES_S)
    timing = world.Timing(cycle_every_s=cluster_forecast.CYCLE_EVERY_S)
    made = simulated_cluster.SimulatedCluster(
        plan.structure,
        now=plans.BEGIN,
        surroundings=world.World(timing=timing),
        watcher=watcher,
    )
    jobs = [plain(step.job) for step in plan.steps if step.what == "submit" and step.job]
    jobs += work.filling(plan.structure)
    for job in jobs:
        at = plans.BEGIN + 0.9 * age_s * chance.random()
        made.at(at, functools.partial(made.commit, [job]))
    made.run(plans.BEGIN + age_s)
    return made


def changed(chance: random.Random, before: simulated_cluster.SimulatedCluster) -> desired.Desired:
    """What git may want next."""
    structure, jobs = before.structure, dict(before.jobs)
    pool = before.structure.pools[chance.choice(sorted(before.structure.pools))]
    kind = chance.choice(("remove", "urgent", "priority", "undeclared", "drained", "limit"))
    if kind == "remove":
        for name in chance.sample(sorted(jobs), min(len(jobs), 6)):
            del jobs[name]
    elif kind == "urgent":
        for number in range(chance.randint(1, 3)):
            job = plain(work.a_job(chance, f"urgent{number}", []))
            jobs[job.name] = msgspec.structs.replace(job, priority=200, depends_on=())
    elif kind == "priority":
        for name in chance.sample(sorted(jobs), min(len(jobs), 3)):
            priority = chance.choice((0, 50, 200))
            jobs[name] = msgspec.structs.replace(jobs[name], priority=priority)
    else:
        node, limit = chance.choice(pool.nodes), chance.randint(0, 4)
        of_kind = {
            "undeclared": plans.Changes(undeclared=node),
            "drained": plans.Changes(drained=node),
            "limit": plans.Changes(limit=limit),
        }
        structure = plans.structure_with(structure, of_kind[kind])
    return desired.Desired(2, structure, jobs)


@pytest.mark.parametrize("seed", range(16))
def test_who_has_to_leave_at_once_is_who_then_leaves(seed: int) -> None:
    chance, watcher = random.Random(f"{seed} future"), Watcher()
    cluster = grown_up(chance, stories.draw(seed), watcher)
    now = cluster.now
    structure, observed = cluster.structure, cluster.memory.observed((), {})
    live = cluster_snapshot.Live("0", now, None, None, observed, tuple(structure.pools.values()))
    head = changed(chance, cluster)
    future = cluster_forecast.future(
        head,
        cluster_snapshot.unpack(cluster_snapshot.pack(live), "here").live.observed,
        now,
        base_nodes=frozenset(name for pool in structure.pools.values() for name in pool.nodes),
        horizon_s=600.0,
    )
    watcher.seen.clear()
    cluster.jobs = dict(head.jobs)
    cluster.change_structure(head.structure)
    cluster.run(now + WITHIN_S)
    told = {
        Leaving(one.job, one.element, one.reason, one.by)
        for one in future.evictions
        if one.at <= now + WITHIN_S
    }
    assert told == watcher.seen
