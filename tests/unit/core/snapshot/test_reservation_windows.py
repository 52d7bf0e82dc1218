"""Occurrences of reservations against a slow reading of crontab(5), minute by minute."""

import datetime as dt
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core import cycle_context
from reconciler.core.jobs import running_gangs
from reconciler.core.snapshot import node_columns, reservation_windows
from reconciler.desired.documents import cron
from reconciler.model import desired
from reconciler.model.rules import recurrence
from reconciler.model.state import records
from reconciler.scheduling.inputs import snapshots
from tests.unit.core.world import World

NOON = 1_700_000_040.0


def slow(text: str, first: int, last: int) -> list[int]:
    """Return the minutes from ``first`` to ``last`` of a schedule of lists and stars."""
    fields = text.split()

    def means(field: str, number: int) -> bool:
        return field == "*" or str(number) in field.split(",")

    found = []
    for minute in range(first, last):
        if not means(fields[0], minute % 60):
            continue
        at = dt.datetime.fromtimestamp(minute * 60, dt.UTC)
        month_day, week_day = means(fields[2], at.day), means(fields[4], at.isoweekday() % 7)
        both = fields[2] != "*" and fields[4] != "*"
        day = (month_day or week_day) if both else (month_day and week_day)
        if (
            means(fields[0], at.minute)
            and means(fields[1], at.hour)
            and means(fields[3], at.month)
            and day
        ):
            found.append(minute)
    return found


def field(low: int, high: int) -> st.SearchStrategy[str]:
    some = st.lists(st.integers(low, high), min_size=1, max_size=3, unique=True)
    return st.one_of(st.just("*"), some.map(lambda numbers: ",".join(map(str, numbers))))


@given(
    st.tuples(
        st.integers(0, 59).map(str), field(0, 23), field(1, 31), field(1, 12), field(0, 6)
    ).map(" ".join),
    st.integers(0, 200_000),
    st.integers(60, 200_000),
)
def test_occurrences(text: str, offset_s: int, duration_s: int) -> None:
    at = NOON + offset_s
    one = desired.Reservation("r", ("n",), schedule=cron.parse(text), duration_s=duration_s)
    found = recurrence.of_reservation(one, at)
    first, last = int((at - duration_s) // 60), int((at + recurrence.HORIZON_S) // 60) + 1
    expected = [
        (minute * 60.0, minute * 60.0 + duration_s)
        for minute in slow(text, first, last)
        if minute * 60 + duration_s > at and minute * 60 < at + recurrence.HORIZON_S
    ]
    assert found == expected[: recurrence.OCCURRENCES_MAX]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/15 0 * * *", ((0, 15, 30, 45), (0,), None, None, None)),
        ("5 1-3 * * 7", ((5,), (1, 2, 3), None, None, (0,))),
        ("1,3 10/6 1 2 *", ((1, 3), (10, 16, 22), (1,), (2,), None)),
    ],
)
def test_fields(text: str, expected: tuple[tuple[int, ...] | None, ...]) -> None:
    assert cron.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "60 * * * *",
        "a * * * *",
        "*/0 * * * *",
        "5- * * * *",
        "* * 0 * *",
        "3-1 * * * *",
    ],
)
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(cron.CronError):
        cron.parse(text)


def opened(
    world: World, *reservations: desired.Reservation, at: float | None = None
) -> tuple[tuple[snapshots.Window, ...], tuple[str, ...]]:
    """Return the windows of reservations, and the names of nodes by row."""
    structure = msgspec.structs.replace(
        world.structure, reservations={one.name: one for one in reservations}
    )
    observed = records.Observed(nodes=dict(world.memory.nodes))
    context = cycle_context.CycleContext(desired.Desired(structure=structure), observed, world.now)
    nodes = node_columns.nodes(
        context.cache,
        structure,
        context.nodes,
        node_columns.GpuDemand(),
        running_gangs.gather(context.cache, context.jobs, context.attempts),
    )
    return reservation_windows.all_of(
        structure, nodes, world.now if at is None else at
    ), nodes.names


def kept(world: World, *reservations: desired.Reservation) -> dict[str, list[str]]:
    """Return the nodes of the first window of each."""
    found, names = opened(world, *reservations)
    return {one.name: [names[row] for row in np.flatnonzero(one.nodes)] for one in found}


def test_amounts_take_as_many_nodes_as_have_them() -> None:
    world = World(nodes=4, cpu=4, gpu=2)
    world.settle()
    all_nodes = world.pool.nodes
    now = world.now

    def some(name: str, begins: float = 0.0, **amounts: int) -> desired.Reservation:
        of = desired.QuotaAmounts(**amounts)
        return desired.Reservation(name, all_nodes, now + begins, now + begins + 60, amounts=of)

    first, second, third, fourth = all_nodes
    assert kept(world, some("a", gpu_milli=3000)) == {"a": [first, second]}
    assert kept(world, some("a", gpu_milli=2000, cpu_milli=12_000)) == {"a": [first, second, third]}
    assert kept(world, some("a", gpu_milli=99_000)) == {"a": list(all_nodes)}
    fixed = desired.Reservation("z", (first, third), now, now + 60)
    assert kept(world, some("a", gpu_milli=2000), fixed) == {"a": [second], "z": [first, third]}
    assert kept(world, some("a", gpu_milli=2000), some("b", gpu_milli=4000)) == {
        "a": [first], "b": [second, third],
    }  # fmt: skip
    assert kept(world, some("a", gpu_milli=2000), some("b", 60.0, gpu_milli=2000)) == {
        "a": [first], "b": [first],
    }  # fmt: skip
    assert fourth not in kept(world, some("a", cpu_milli=9000))["a"]


def test_a_node_that_takes_no_work_is_stood_in_for() -> None:
    world = World(nodes=3, cpu=4)
    world.settle()
    names = world.pool.nodes
    one = desired.Reservation(
        "a", names, world.now, world.now + 60, amounts=desired.QuotaAmounts(cpu_milli=8000)
    )
    assert kept(world, one) == {"a": [names[0], names[1]]}
    drained = msgspec.structs.replace(
        world.pool, drains={names[0]: desired.NodeDrain("broken fan")}
    )
    world.change_structure(pools={"pool": drained})
    world.settle()
    assert kept(world, one) == {"a": [names[1], names[2]]}


def test_what_recurs_says_of_the_last_time_that_is_seen_when_it_begins_again() -> None:
    world = World(nodes=1)
    daily = desired.Reservation("d", ("n0",), schedule=cron.parse("0 8 * * *"), duration_s=3600)
    once = desired.Reservation("o", ("n0",), starts_at=NOON, ends_at=NOON + 60)
    world.settle()
    found, _ = opened(world, daily, once, at=NOON)
    *earlier, last = [window for window in found if window.name == "d"]
    (alone,) = [window for window in found if window.name == "o"]
    assert len(earlier) == 6
    assert {window.again_at for window in (*earlier, alone)} == {math.inf}
    assert last.again_at == last.starts_at + 86_400
