"""Once something has no room, nothing that takes as much or more is looked for."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reconciler.scheduling.placement.capacity import Capacity
from tests.unit.scheduling.rooms import Node, group, shape, snapshot

SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2))


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2)),
        min_size=1,
        max_size=3,
    ),
    st.lists(SIZES, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["plan", "take", "undo"])), max_size=14),
)
def test_what_has_room_is_what_has_it_in_a_new_room(
    nodes: list[tuple[int, int, int]],
    sizes: list[tuple[int, int, int]],
    steps: list[tuple[int, str]],
) -> None:
    there = [Node(cpu, memory, (1000,) * gpu) for cpu, memory, gpu in nodes]
    everywhere = np.ones(len(there), dtype=np.bool_)
    shapes = [
        dataclasses.replace(
            shape(group(gpu, cpu=cpu, memory=memory), nodes=len(there)), eligible=everywhere
        )
        for cpu, memory, gpu in sizes
    ]
    situation = snapshot(there, shapes)
    room, marks = Capacity(situation), [0]
    taken: list[int] = []
    for number, what in steps:
        at = number % len(sizes)
        if what == "undo" and len(marks) > 1:
            marks.pop()
            room.rollback(marks[-1])
            taken.pop()
            continue
        plan = room.plan(at)
        fresh = Capacity(situation)
        for before in taken:
            known = fresh.plan(before)
            assert known is not None
            fresh.take(before, known)
        assert (plan is None) is (fresh.plan(at) is None)
        if what == "take" and plan is not None:
            room.take(at, plan)
            taken.append(at)
            marks.append(room.mark())
