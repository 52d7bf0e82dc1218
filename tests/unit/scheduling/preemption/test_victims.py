"""Units on columns are those one would find looking at each holding, in the same order."""

import dataclasses

import numpy as np
import pytest

from reconciler.scheduling.inputs import flavors, pending_groups
from reconciler.scheduling.inputs.snapshots import Allocation, Snapshot
from reconciler.scheduling.preemption import victims, victims_by_node
from reconciler.scheduling.quota import quota_ledger
from tests.unit.scheduling import drawn
from tests.unit.scheduling.situations import Situation

SEEDS = range(60)


def situations() -> list[Snapshot]:
    """Drawn ones that have something running, and one with many alike."""
    drawn_ones = [drawn.situation(seed)[0].snapshot() for seed in SEEDS]
    found = [flavors.within(one) for one in drawn_ones]
    s = Situation().queue("a", guaranteed=4).queue("b", guaranteed=1)
    s.now = 1000.0
    for node in ("n0", "n1", "n2"):
        s.node(node, gpu=8)
    for number in range(12):
        on, cost_s = (f"n{number % 3}",), float(number * 7 % 5)
        s.job(f"r{number}", "a", gpu=1 + number % 2, cost_s=cost_s, on=on)
    s.job("w", "b", gpu=3).job("x", "a", gpu=5)
    return [one for one in found if one.holdings] + [s.snapshot()]


def test_columns_say_what_holdings_say() -> None:
    for situation in situations():
        running = situation.running
        for name in (
            *("queue", "priority", "order", "element", "shape", "since", "protected_until"),
            *("ends_at", "preemptible", "leaving", "doubtful", "movable"),
        ):
            assert getattr(running, name).tolist() == [getattr(h, name) for h in situation.holdings]
        totals = [
            flavors.total_of(situation, holding.tasks)[: flavors.BASE]
            for holding in situation.holdings
        ]
        assert list(map(tuple, running.total.tolist())) == totals
        assert running.tasks.tolist() == [len(h.tasks) for h in situation.holdings]
        spares = [sum(task.spare for task in h.tasks) for h in situation.holdings]
        assert running.spares.tolist() == spares
        assert running.elastic.tolist() == [bool(h.least) for h in situation.holdings]
        nodes = [h.tasks[0].node if len(h.tasks) == 1 else -1 for h in situation.holdings]
        assert running.node.tolist() == nodes


def test_a_holding_that_is_replaced_has_columns_of_its_own() -> None:
    holding = situations()[-1].holdings[0]
    other = dataclasses.replace(holding, queue=holding.queue + 1)
    assert other.packed != holding.packed
    assert dataclasses.replace(other, queue=holding.queue) == holding


def named(units: list[victims.Victim]) -> list[tuple[str, int]]:
    return [(unit.name.partition(victims.TASK)[0], unit.rank[6]) for unit in units]


def may_leave(situation: Snapshot, queue: int) -> list[Allocation]:
    return [
        holding
        for holding in situation.holdings
        if holding.queue == queue
        and not (holding.leaving or holding.doubtful)
        and holding.protected_until <= situation.now
    ]


def expected(situation: Snapshot, queue: int) -> list[tuple[str, int]]:
    """Names and numbers of the units of a queue, by looking at each holding."""
    found = []
    for holding in may_leave(situation, queue):
        name = f"{holding.job}[{holding.element}]"
        total = flavors.total_of(situation, holding.tasks)
        weight = total[2] / 1000 if total[2] else total[0] / 1000
        cost = round(max(0.0, situation.now - holding.since) * weight, 3)
        spare = sum(task.spare for task in holding.tasks)
        rest = (-holding.order, holding.job, -holding.element)
        numbers = range(1, spare + 1)
        found += [((False, holding.priority, 0.0, *rest, -number), name) for number in numbers]
        if holding.preemptible and spare < len(holding.tasks):
            found.append(((True, holding.priority, cost, *rest, 0), name))
    return [(name, rank[6]) for rank, name in sorted(found)]


def one_by_one(
    ledger: quota_ledger.QuotaLedger, queue: int, left: list[victims.Victim]
) -> list[victims.Victim]:
    """Units in their order: of the first few that are alike always the least undercut."""
    found = []
    while left:
        alike = [unit for unit in left if unit.rank[:2] == left[0].rank[:2]]
        ahead = alike[: victims.LOOK_MAX]
        best = min(ahead, key=lambda unit: victims.undercut(ledger, queue, unit.total))
        left.remove(best)
        found.append(best)
    return found


@pytest.mark.parametrize("look", [1, 2, victims.LOOK_MAX])
def test_units_go_in_their_order(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "LOOK_MAX", look)
    moved = 0
    for situation in situations():
        ledger = quota_ledger.QuotaLedger(situation, pending_groups.columns_of(situation.lines))
        pool = victims.Victims(situation)
        for queue in range(len(situation.queues.names)):
            units = still_there(pool.units(queue))
            assert named(units) == expected(situation, queue)
            for _ in range(2):
                ordered = pool.ordered(ledger, queue, spare=False)
                found = [ordered.units.unit(place) for place in ordered.place.tolist()]
                assert named(found) == named(
                    one_by_one(ledger, queue, still_there(pool.units(queue)))
                )
                moved += named(found) != named(units)
                assert entries(ordered) == [
                    (at, node, *freed)
                    for at, unit in enumerate(found)
                    for node, freed in victims._by_node(unit)
                ]
                if found:  # what was told to leave is among them no more
                    pool.take(found[len(found) // 2])
                    units.remove(found[len(found) // 2])
            assert named(still_there(pool.units(queue))) == named(units)
    assert moved or look == 1


def still_there(units: victims.VictimColumns) -> list[victims.Victim]:
    return [units.unit(place) for place in np.flatnonzero(units.there).tolist()]


def entries(ordered: victims.Ordered) -> list[tuple[int, ...]]:
    rows = zip(
        ordered.unit.tolist(), ordered.node.tolist(), *ordered.amounts.T.tolist(), strict=True
    )
    return list(rows)


def test_work_of_one_age_goes_by_name() -> None:
    s = Situation().node("n", gpu=8).queue("a", guaranteed=1)
    for name in ("m", "z", "c"):
        s.job(name, "a", gpu=1, on=("n",))
    found = s.snapshot()
    same = tuple(dataclasses.replace(holding, order=7) for holding in found.holdings)
    pool = victims.Victims(dataclasses.replace(found, holdings=same))
    assert [unit.holding.job for unit in still_there(pool.units(0))] == ["c", "m", "z"]


@pytest.mark.parametrize("portion", [1, 3, victims_by_node.PORTION])
def test_rows_in_portions_come_in_the_order_of_all_keys(
    portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(victims_by_node, "PORTION", portion)
    rng = np.random.default_rng(3)
    for size in (0, 1, 5, 200):
        keys = [rng.integers(0, most, size) for most in (2, 1, 4, 50)]
        found = list(victims_by_node.ascending(keys, np.arange(size)))
        assert found == np.lexsort(keys[::-1]).tolist()
