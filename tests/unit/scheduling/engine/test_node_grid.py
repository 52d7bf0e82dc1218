"""Cells: the tightest node that fits, whatever happened before."""

import random

import pytest

from reconciler.scheduling.engine.placement import ElementPlacer
from reconciler.scheduling.engine.searches import NodeChanges
from reconciler.scheduling.inputs.arrays import WHOLE
from reconciler.scheduling.inputs.snapshots import Snapshot
from tests.unit.scheduling.engine import differing


def placer_of(snapshot: Snapshot) -> ElementPlacer:
    """Return the nodes of a snapshot, of which nothing has changed."""
    return ElementPlacer.of(snapshot, [NodeChanges({}, 0)])[0]


def tightest(placer: ElementPlacer, number: int) -> tuple[int, ...] | None:
    """Return what is left of the tightest node that fits a task, by a look at all of them."""
    shape, state = placer.table.shapes[number], placer.state
    usable = placer.usable(number)
    found = [
        (sum(d for d in state.devices[node] if d > 0), state.cpu[node], state.memory[node])
        for node in range(len(state.cpu))
        if usable[node] and state.holds(node, shape)
    ]
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(60))
def test_a_task_goes_to_the_tightest_node(seed: int) -> None:
    snapshot = differing.situation(seed).snapshot()
    placer = placer_of(snapshot)
    rng = random.Random(seed)
    single = [
        number
        for number, shape in enumerate(placer.table.shapes)
        if shape.tasks == 1 and shape.share >= WHOLE
    ]
    for _ in range(30 if single else 0):
        number = rng.choice(single)
        plan, expected = placer.find(number), tightest(placer, number)
        assert (plan is None) == (expected is None)
        if plan is not None:
            node, state = plan[0].node, placer.state
            gpus = sum(d for d in state.devices[node] if d > 0)
            assert (gpus, state.cpu[node], state.memory[node]) == expected
            places = placer.take(number, plan)
            if rng.random() < 0.3:  # it leaves again
                state.hold(placer.table.shapes[number], places, 1)
                placer.forget()


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_knows_nothing_of_what_comes_after(seed: int) -> None:
    placer = placer_of(differing.situation(seed).snapshot())
    twin = placer.copy()
    before = [twin.copy().find(number) for number in range(len(placer.table.shapes))]

    for number in range(len(placer.table.shapes)):
        plan = placer.find(number)
        if plan is not None:
            placer.take(number, plan)

    assert [twin.copy().find(number) for number in range(len(before))] == before
