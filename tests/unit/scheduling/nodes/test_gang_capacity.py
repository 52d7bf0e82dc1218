"""What a tally says of plain gangs is what nodes really have room for, however they changed."""

import random

import numpy as np
import pytest

from reconciler.scheduling.inputs.snapshots import WHOLE, Shape, TaskGroupShape
from reconciler.scheduling.nodes import free_resources, gang_capacity
from reconciler.scheduling.nodes.requirements import TaskRequirements
from reconciler.scheduling.placement import shape_facts
from reconciler.scheduling.placement.capacity import Capacity
from tests.unit.scheduling.situations import Situation

NODES = 4


def _stock(rng: random.Random) -> tuple[Situation, free_resources.FreeResources]:
    s = Situation()
    for index in range(NODES):
        s.node(
            f"n{index}",
            gpu=rng.choice([0, 2, 4]),
            cpu=8,
            memory=8,
            accepts=rng.random() < 0.8,
            shareable=rng.random() < 0.8,
        )
    return s, free_resources.free_now(s.snapshot())


def _change(rng: random.Random, stock: free_resources.FreeResources) -> None:
    node = rng.randrange(NODES)
    row = stock.rows[node]
    kind = rng.randrange(4)
    if kind == 0:
        stock.occupy([node], exclusive=rng.random() < 0.5)
    elif kind == 1:
        stock.leave([node], exclusive=rng.random() < 0.5)
    elif kind == 2:
        stock.put(node, row._replace(cpu=row.cpu - 3_000, memory=row.memory // 2))
    else:
        devices = [free if free < 0 else rng.choice([0, 500, WHOLE]) for free in row.devices]
        stock.put(node, row._replace(devices=tuple(devices)))


@pytest.mark.parametrize("seed", range(80))
def test_a_tally_that_is_kept_up_is_one_that_is_made_anew(seed: int) -> None:
    rng = random.Random(seed)
    s, stock = _stock(rng)
    cpu, devices, need = rng.choice([0, 1_000, 3_000]), rng.choice([0, 1, 2]), rng.randint(1, 6)
    share = rng.choice([125, 470, WHOLE])
    gpu_milli = devices * share
    tasks = random.Random(f"tasks {seed}").choice([0, 0, 1, 2])
    need = max(tasks, 1) * need
    group = TaskGroupShape(
        "main", need, (cpu, 1, gpu_milli), devices=devices, share=share, per_node=tasks
    )
    ask = TaskRequirements(group, s.snapshot().nodes)
    eligible = np.array([rng.random() < 0.8 for _ in range(NODES)])
    within = None if rng.random() < 0.5 else np.array([rng.random() < 0.8 for _ in range(NODES)])
    kept = gang_capacity.GangCapacity.of(stock, ask, need, eligible, within)
    for _ in range(12):
        for _ in range(rng.randrange(3)):
            _change(rng, stock)
        if rng.random() < 0.2:
            kept.renew(stock, ask)
            stock, kept = stock.copy(), kept.copy()
        kept.renew(stock, ask)
        usable = eligible & stock.opened_mask & (True if within is None else within)
        whole = np.minimum(stock.counts(ask, usable), need)
        if tasks:
            whole = np.where(whole >= tasks, tasks, 0)
        assert kept.counts == whole.tolist()
        assert kept.total == whole.sum()


def _shape(**more: object) -> Shape:
    fields = {"required_level": -1, "exclusive": False} | more
    group = TaskGroupShape("main", 2, (1_000, 1, WHOLE), devices=1)
    return Shape((group,), np.ones(NODES, dtype=np.bool_), **fields)  # type: ignore[arg-type]


def test_only_a_gang_whose_tasks_may_lie_anywhere_is_plain() -> None:
    assert shape_facts.is_plain_gang(_shape())
    assert shape_facts.is_plain_gang(_shape(preferred_level=0))
    assert not shape_facts.is_plain_gang(_shape(required_level=0))
    assert not shape_facts.is_plain_gang(_shape(exclusive=True))


def test_a_gang_has_room_when_another_leaves_and_none_when_that_is_undone() -> None:
    s = Situation()
    s.queue("q")
    for index in range(2):
        s.node(f"n{index}", gpu=1)
    s.job("r", "q", gpu=1, on=("n0",))
    s.job("w", "q", gpu=1, tasks=2)
    situation = s.snapshot()
    room, held = Capacity(situation), situation.holdings[0]
    shape = situation.lines[0].shape
    assert not room.fits(shape)
    mark = room.mark()
    room.release(held.tasks)
    assert room.fits(shape)
    assert room.plan(shape) is not None
    room.rollback(mark)
    assert not room.fits(shape)
    assert room.plan(shape) is None
    assert not room.copy().fits(shape)
