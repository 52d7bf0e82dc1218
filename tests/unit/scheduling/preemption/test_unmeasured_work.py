"""What leaves for a guarantee of GPUs though no queue has a share of it."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.preemption import victim_rules
from tests.unit.scheduling.situations import Situation, evicted, started

GPUS, CPUS = 4, 8
EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)


class Held(NamedTuple):
    """Work that runs on one of the nodes."""

    queue: str
    node: int
    gpu: int
    cpu: int
    preemptible: bool
    exclusive: bool


@st.composite
def running(draw: st.DrawFn) -> list[Held]:
    """Work of queues other than that of the claim, as it fits, within guarantees of GPUs."""
    found: list[Held] = []
    for _ in range(draw(st.integers(1, 6))):
        queue = draw(st.sampled_from(["b", "none"]))
        one = Held(
            queue,
            draw(st.integers(0, 1)),
            draw(st.sampled_from([0, 0, 1])) if queue == "b" else 0,
            draw(st.integers(1, CPUS)),
            draw(st.sampled_from([True, True, True, False])),
            draw(st.sampled_from([False, False, True])),
        )
        there = [other for other in found if other.node == one.node]
        alone = one.exclusive or any(other.exclusive for other in there)
        if (there and alone) or sum(other.cpu for other in there) + one.cpu > CPUS:
            continue
        if sum(other.gpu for other in found) + one.gpu <= GPUS:
            found.append(one)
    return found


def situation(held: list[Held], gpu: int, cpu: int) -> Situation:
    s = Situation().queue("a", guaranteed=GPUS).queue("b", guaranteed=GPUS).queue("none")
    for node in range(2):
        s.node(f"n{node}", gpu=GPUS, cpu=CPUS)
    for index, (queue, node, gpus, cpus, preemptible, exclusive) in enumerate(held):
        s.job(
            f"r{index}",
            queue,
            gpu=gpus,
            cpu=cpus,
            preemptible=preemptible,
            exclusive=exclusive,
            on=(f"n{node}",),
        )
    return s.job("claim", "a", gpu=gpu, cpu=cpu)


def could_hold(held: list[Held], node: int, gpu: int, cpu: int) -> bool:
    """Whether a node has room for a claim beside work of this list."""
    there = [one for one in held if one.node == node]
    return not any(one.exclusive for one in there) and (
        sum(one.gpu for one in there) + gpu <= GPUS and sum(one.cpu for one in there) + cpu <= CPUS
    )


@EXAMPLES
@given(running(), st.integers(1, GPUS), st.integers(1, CPUS))
def test_a_guarantee_of_gpus_gets_what_only_work_without_gpus_is_in_the_way_of(
    held: list[Held], gpu: int, cpu: int
) -> None:
    s = situation(held, gpu, cpu)
    decisions = s.decide()
    stays = [one for one in held if one.gpu or not one.preemptible]
    now = any(could_hold(held, node, gpu, cpu) for node in range(2))
    later = any(could_hold(stays, node, gpu, cpu) for node in range(2))
    assert (started(decisions), bool(evicted(decisions))) == (
        ["claim"] if now else [],
        later and not now,
    )
    gone = {name for name, _ in evicted(decisions)}
    assert gone <= {f"r{i}" for i, one in enumerate(held) if one not in stays}
    assert len({held[int(name[1:])].node for name in gone}) <= 1
    if gone:
        assert "claim" in started(s.apply(decisions).left().decide())


@EXAMPLES
@given(running(), st.integers(1, CPUS))
def test_work_without_gpus_takes_nothing_back(held: list[Held], cpu: int) -> None:
    """Else it and a claim of GPUs would evict each other for ever."""
    s = situation(held, 0, cpu)
    assert evicted(s.decide()) == []


def test_own_work_that_was_promised_room_in_the_same_cycle_counts() -> None:
    s = Situation().queue("a", guaranteed=1).queue("b").node("n", gpu=1, cpu=CPUS)
    s.job("other", "b", cpu=4, on=("n",)).job("borrows", "b", gpu=1, cpu=4, on=("n",))
    s.job("own", "a", cpu=4).job("claim", "a", gpu=1, cpu=4)
    decisions = s.decide()
    assert evicted(decisions) == [("borrows", "own")]
    s.apply(decisions).left()
    assert (started(again := s.decide()), evicted(again)) == (["own"], [])
    assert evicted(s.apply(again).decide()) == []


@pytest.mark.parametrize("near", [False, True])
def test_nobody_is_looked_at_where_no_cpus_are_in_the_way(*, near: bool) -> None:
    """Work without GPUs is most of what runs in many clusters; each look at some of it costs.

    The claim lacks GPUs, or GPUs ``near`` each other while CPUs suffice.
    """
    s = Situation().queue("a", guaranteed=GPUS).queue("b", guaranteed=GPUS).queue("none")
    s.node("n", gpu=GPUS, cpu=2 * CPUS, numa=(0, 0, 1, 1) if near else ())
    s.job("gpus", "b", gpu=2 if near else GPUS, devices=(0, 2) if near else (), on=("n",))
    for index in range(CPUS):
        s.job(f"r{index}", "none", on=("n",))
    s.job("claim", "a", gpu=2, cpu=2 if near else CPUS, near=near or None)
    cycle = scheduling_cycle.SchedulingCycle(scheduling_cycle.prepared(s.snapshot()))
    decisions = cycle.run()
    assert (started(decisions), evicted(decisions)) == ([], [])
    assert cycle.evictor.budget == victim_rules.UNITS_MAX
