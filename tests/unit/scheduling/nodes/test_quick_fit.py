"""What is asked of all plain shapes at once is what each would be told."""

import random

import numpy as np
import pytest

from reconciler.scheduling.nodes import quick_fit
from reconciler.scheduling.placement.capacity import Capacity
from tests.unit.scheduling import drawn


def told(room: Capacity) -> list[int]:
    """Shapes of which amounts alone tell whether they fit: one task, or a gang of whole devices."""
    tasks = room.demanded
    gangs = (tasks[:, 0] >= 0) & ((tasks[:, 3] == 0) | (tasks[:, 4] >= 1000))
    found: list[int] = np.flatnonzero((room.sizes[:, 0] >= 0) | gangs).tolist()
    return found


@pytest.mark.parametrize("seed", range(60))
def test_all_plain_shapes_fit_where_each_does(seed: int) -> None:
    situation = drawn.situation(seed)[0].snapshot()
    room = Capacity(situation)
    every, rng = room.plain(), random.Random(seed)
    for shape in range(len(situation.shapes)):
        if shape in told(room):
            assert every[shape] == Capacity(situation).fits(shape)
        else:
            assert not every[shape]
    for shape in rng.sample(range(len(situation.shapes)), len(situation.shapes)):
        plan = room.plan(shape)
        if plan is not None:
            room.take(shape, plan)
            plain = room.plain()
            assert all(plain[s] == room.fits(s) for s in told(room))


def test_nothing_is_asked_of_nodes_that_are_not_there() -> None:
    sizes = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 0, 0], [1, 0, 5, 1]], dtype=np.int64)
    rows = {0: np.zeros((0, 3), dtype=np.int64), 1: np.array([[-2, 5, 1], [9, 4, 8]])}
    assert quick_fit.fitting(sizes, rows.__getitem__).tolist() == [False, False, False, True]
    some = {0: np.array([[-3, -1, 0]]), 1: rows[0]}
    assert quick_fit.fitting(sizes, some.__getitem__).tolist() == [True, False, False, False]
