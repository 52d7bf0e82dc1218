"""What a placement costs the mix: tables, and the whole measure against a slow, plain one."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import ArrivalShare, TaskGroupShape
from reconciler.scheduling.nodes import fragmentation
from reconciler.scheduling.nodes.fragmentation import FragmentationForecast

#: Class, CPU, memory, free devices.
Node = tuple[int, int, int, tuple[int, ...]]
NOWHERE = np.zeros(0, dtype=np.bool_)


def task(
    cpu: int = 1, share: int = 1000, devices: int = 1, memory: int = 1, share_bytes: int = 0
) -> TaskGroupShape:
    amounts = (cpu, memory, devices * share)
    return TaskGroupShape("t", 1, amounts, devices=devices, share=share, share_bytes=share_bytes)


def outlook(
    *mix: tuple[TaskGroupShape, float],
    eligible: Sequence[Sequence[bool]] | None = None,
    device_memory: Sequence[int] | None = None,
    shareable: bool = True,
) -> FragmentationForecast:
    """Of one class of nodes, or as many as ``eligible`` has rows."""
    classes = 1 if eligible is None else len(eligible)
    allowed = np.ones((classes, len(mix)), dtype=np.bool_)
    if eligible is not None:
        allowed = np.array(eligible)
    entries = [ArrivalShare(group, NOWHERE, weight) for group, weight in mix]
    memory = np.array(device_memory or [0] * classes, dtype=np.int64)
    return FragmentationForecast(entries, allowed, memory, np.full(classes, shareable))


def node(cpu: int, *devices: int, memory: int = 100, of: int = 0) -> Node:
    return (of, cpu, memory, devices)


def columns(
    look: FragmentationForecast, nodes: Sequence[Node]
) -> tuple[fragmentation.Rows, fragmentation.Amounts, fragmentation.Amounts]:
    return (
        np.array([look.number(of, tuple(sorted(free))) for of, _, _, free in nodes]),
        np.array([cpu for _, cpu, _, _ in nodes], dtype=np.int64),
        np.array([memory for _, _, memory, _ in nodes], dtype=np.int64),
    )


def unused(look: FragmentationForecast, *nodes: Node) -> list[float]:
    return [float(value) for value in look.unused(*columns(look, nodes))]


def alone(look: FragmentationForecast, *nodes: Node) -> list[float]:
    return [float(value) for value in look.alone(*columns(look, nodes))]


def test_what_no_task_of_the_mix_can_use_is_unused() -> None:
    look = outlook((task(cpu=12), 1.0))
    # room for two devices by CPU, for one, for none; and a part of a device
    found = unused(
        look, node(24, 1000, 1000), node(12, 1000, 1000), node(11, 1000, 1000), node(50, 400)
    )
    assert found == pytest.approx(
        [0, 1000 * (1 + fragmentation.ALONE), 2000 * (1 + fragmentation.ALONE), 400 * 1.03]
    )


def test_shares_that_complement_each_other_leave_nothing() -> None:
    look = outlook((task(share=500), 1.0))
    assert unused(look, node(9, 1000), node(9, 500), node(9, 600)) == pytest.approx([0, 0, 100])
    # by the next task alone all of 600 is of use; by streams 100 of it is not
    assert alone(look, node(9, 600)) == pytest.approx([0])


def test_models_that_the_mix_may_not_use_are_unused() -> None:
    look = outlook((task(share=400), 1.0), eligible=[[True], [False]])
    assert unused(look, node(9, 400), node(9, 400, of=1)) == pytest.approx([0, 412])


def test_without_a_mix_all_that_is_free_is_unused() -> None:
    assert unused(outlook(), node(9, 400, 1000)) == pytest.approx([1400 * 1.03])


@pytest.mark.parametrize(
    ("device_memory", "shareable", "left"),
    [
        (80, True, 0.0),  # a quarter
        (24, True, 1000 - 834.0),
        (0, True, 1030.0),  # unknown
        (16, True, 1030.0),  # too small
        (80, False, 1030.0),
    ],
)
def test_a_share_by_memory_depends_on_the_class_of_node(
    device_memory: int, shareable: bool, left: float
) -> None:
    look = outlook((task(share_bytes=20), 1.0), device_memory=[device_memory], shareable=shareable)
    assert unused(look, node(9, 1000)) == pytest.approx([left])


def test_kinds_that_take_no_device_and_slices_do_not_count() -> None:
    lean = outlook((task(share=470), 1.0))
    more = outlook(
        (task(devices=0), 5.0),
        (task(share=470), 1.0),
        (TaskGroupShape("slice", 1, (1, 1, 143), devices=1, profile=0), 3.0),
    )
    assert unused(more, node(9, 470, 1000)) == pytest.approx(unused(lean, node(9, 470, 1000)))


def test_the_order_of_the_mix_does_not_matter() -> None:
    mix = [(task(cpu=3, share=810), 0.3), (task(cpu=8, share=470), 0.5), (task(cpu=12), 0.2)]
    at = (node(30, 1000, 530, 190), node(9, 1000, 1000))
    assert unused(outlook(*mix), *at) == unused(outlook(*mix[::-1]), *at)


def kept(*weights: float) -> FragmentationForecast:
    groups = (task(share=470), task(share=810))
    entries = [ArrivalShare(g, NOWHERE, w) for g, w in zip(groups, weights, strict=True)]
    one = np.ones(1, dtype=np.bool_)
    return fragmentation.outlook(
        entries, np.ones((1, 2), dtype=np.bool_), np.zeros(1, dtype=np.int64), one
    )


def test_a_mix_that_hardly_changed_keeps_its_values_and_they_do_not_depend_on_that() -> None:
    first = kept(0.5, 0.5)
    assert kept(0.501, 0.499) is first
    other = kept(0.8, 0.2)
    assert other is not first
    at = node(9, 1000, 530)
    before = unused(first, at)
    # the same mix by two weights, one of them met before and one not
    assert before == unused(outlook((task(share=470), 0.501), (task(share=810), 0.499)), at)


def test_an_outlook_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "VECTORS_MAX", 3)
    monkeypatch.setattr(fragmentation, "VALUES_MAX", 3)
    look = kept(0.7, 0.3)
    nodes = [node(9, free) for free in range(100, 900, 100)]
    once = unused(look, *nodes)
    assert unused(look, *nodes) == once
    assert look.is_full
    assert kept(0.7, 0.3) is not look


# -- the same, slow and plain --


def plain_unused(
    mix: Sequence[tuple[TaskGroupShape, float, tuple[bool, ...]]],
    drawn: list[list[fragmentation.Offer]],
    one: Node,
) -> float:
    """Play each stream by hand, and let each kind use the node alone."""
    of, cpu, memory, devices = one
    real = [free for free in devices if free > 0]
    lost = (1 + fragmentation.ALONE) * sum(real)
    for stream in drawn:
        left_cpu, left_memory, left = cpu, memory, sorted(real)
        for share, need_cpu, need_memory, many in stream:
            enough = [free for free in left if free >= share]
            if len(enough) < many or left_cpu < need_cpu or left_memory < need_memory:
                continue
            left_cpu -= need_cpu
            left_memory -= need_memory
            for free in enough[:many]:
                left.remove(free)
                left.append(free - share)
            left.sort()
            lost -= many * share / len(drawn)
    total = sum(weight for _, weight, _ in mix)
    for group, weight, allowed in mix:
        enough = [free for free in real if free >= group.share]
        if not allowed[of] or len(enough) < group.devices:
            continue
        if cpu < group.amounts[0] or memory < group.amounts[1]:
            continue
        size = group.devices * group.share
        usable = [float(sum(enough))]
        if group.amounts[0]:
            usable.append(cpu / group.amounts[0] * size)
        if group.amounts[1]:
            usable.append(memory / group.amounts[1] * size)
        lost -= fragmentation.ALONE * weight / total * min(usable)
    return lost


KINDS = st.tuples(
    st.integers(0, 6),
    st.integers(0, 6),
    st.sampled_from([(1, 190), (1, 470), (1, 530), (1, 1000), (2, 1000), (2, 300), (4, 1000)]),
    st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    st.tuples(st.booleans(), st.booleans()),
)
NODES = st.tuples(
    st.integers(0, 1),
    st.integers(0, 24),
    st.integers(0, 24),
    st.lists(st.sampled_from([0, 190, 470, 530, 660, 1000, 1000]), min_size=1, max_size=5),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(KINDS, min_size=1, max_size=6, unique=True), st.lists(NODES, min_size=1, max_size=6)
)
def test_as_the_plain_measure_has_it(
    kinds: list[tuple[int, int, tuple[int, int], float, tuple[bool, bool]]],
    nodes: list[tuple[int, int, int, list[int]]],
) -> None:
    mix = [
        (task(cpu, share, devices, memory), weight, allowed)
        for cpu, memory, (devices, share), weight, allowed in kinds
    ]
    look = outlook(
        *((group, weight) for group, weight, _ in mix),
        eligible=[[allowed[of] for *_, allowed in mix] for of in (0, 1)],
    )
    there: list[Node] = [(of, cpu, memory, tuple(d)) for of, cpu, memory, d in nodes]
    for one, value in zip(there, unused(look, *there), strict=True):
        drawn = look.streams(one[0], len(one[3]))
        assert value == pytest.approx(plain_unused(mix, drawn, one), abs=1e-6)


def test_streams_hold_the_kinds_by_weight() -> None:
    mix = [(task(share=100 * 2**at), 2.0**-at) for at in range(4)]
    drawn = outlook(*mix).streams(0, 8)
    assert len(drawn) == fragmentation.STREAMS
    shares = np.array([[offer[0] for offer in stream] for stream in drawn])
    parts = [float((shares == 100 * 2**at).mean()) for at in range(4)]
    assert parts == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15], abs=0.03)
    # as much as is offered, as far as a stream's length goes
    assert shares.shape[1] <= fragmentation.LENGTH_MAX
    look = outlook((task(share=500), 1.0), (task(), 1.0))
    asked = [sum(offer[0] for offer in stream) for stream in look.streams(0, 8)]
    assert np.mean(asked) == pytest.approx(fragmentation.OFFERED * 8 * snapshots.WHOLE, rel=0.1)
