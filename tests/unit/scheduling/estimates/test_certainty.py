"""Who is told for certain when it starts: only whom nothing that waits can keep from it."""

import dataclasses

import pytest

from reconciler.scheduling.inputs.snapshots import SchedulingPolicy
from tests.unit.scheduling import foretold
from tests.unit.scheduling.situations import Situation

CALM = SchedulingPolicy(reclaim=False, preempt=False, consolidate=False)


def shared(policy: SchedulingPolicy = CALM) -> Situation:
    """Four GPUs that are taken for a while; of two queues each is guaranteed two."""
    s = Situation().node("n", gpu=4).queue("a", guaranteed=2).queue("b", guaranteed=2)
    s.policy = policy
    s.job("r1", "b", gpu=2, on=("n",), time_limit_s=100)
    s.job("r2", "b", gpu=2, on=("n",), time_limit_s=100)
    return s.job("w", "a", gpu=2, priority=90, time_limit_s=100)


def is_certain(s: Situation, job: str = "w") -> bool:
    found = s.decide().estimates[job]
    assert found.latest == found.at == 100.0
    return found.certain


@pytest.mark.parametrize("policy", [CALM, dataclasses.replace(CALM, preempt=True)])
def test_what_a_guarantee_covers_is_certain_where_nobody_else_waits(
    policy: SchedulingPolicy,
) -> None:
    assert is_certain(shared(policy))
    alone = shared(dataclasses.replace(policy, reclaim=True))
    for queue in alone.queue_list:
        queue.guaranteed = (0, 0, 4000)
    assert is_certain(alone)


def test_what_one_guarantee_covers_one_by_one_but_not_together_is_not_certain() -> None:
    """Once the other of its queue has started, a third goes before it by a guarantee."""
    s = shared().job("late", "b", gpu=1, time_limit_s=1000)
    assert is_certain(s)
    assert not is_certain(s.job("other", "a", gpu=1, time_limit_s=1000))
    s.queue_list[0].guaranteed = (0, 0, 3000)
    assert is_certain(s)


def test_what_may_be_evicted_for_others_makes_no_start_certain() -> None:
    """It comes to be on the same nodes, by whatever right and in whichever queue."""
    policy = dataclasses.replace(CALM, preempt=True)
    s = shared(policy)
    for job in ("r1", "r2"):
        s.jobs[job].priority = 90
    assert is_certain(s.job("some", "b", gpu=1))
    assert not is_certain(s.job("less", "b", gpu=1, priority=10))
    s.policy = CALM
    assert is_certain(s)


@pytest.mark.parametrize("on", [(), ("n",)])
def test_work_without_gpus_that_leaves_for_a_guarantee_makes_no_start_certain(
    on: tuple[str, ...],
) -> None:
    """It holds no more than its queue's share of anything, and leaves for a guarantee all the same.

    ``on``: where it runs, or it waits.
    """
    s = shared(dataclasses.replace(CALM, reclaim=True)).queue("c", guaranteed=4)
    for queue in s.queue_list:
        queue.guaranteed = (0, 0, 4000)
    assert is_certain(s.job("some", "b", gpu=1))
    assert is_certain(s.job("firm", "c", on=on, preemptible=False))
    assert not is_certain(s.job("cpus", "c", on=on))


def test_what_may_be_moved_makes_no_start_certain() -> None:
    s = shared(dataclasses.replace(CALM, consolidate=True)).job("x", "b", gpu=4, priority=10)
    assert is_certain(s)
    s.jobs["r1"].movable = True
    assert not is_certain(s)


def test_who_may_find_its_queue_at_the_limit_by_then_is_not_certain() -> None:
    s = shared()
    s.queue_list[0].limit = (None, None, 3000)
    assert is_certain(s)
    assert not is_certain(s.job("other", "a", gpu=2, priority=10, time_limit_s=1000))


@pytest.mark.parametrize("kind", foretold.KINDS)
@pytest.mark.parametrize("early", [False, True])
def test_nobody_starts_later_than_it_was_told_for_certain(kind: str, *, early: bool) -> None:
    told = {seed: foretold.follow(seed, kind, early=early) for seed in range(25, 55)}
    assert {seed: story.late for seed, story in told.items() if story.late} == {}
    assert any(story.certain for story in told.values()) or kind in {"crowded", "calm"}
