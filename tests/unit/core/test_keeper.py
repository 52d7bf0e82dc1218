"""Columns that are kept by deltas are those that would be built anew."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bench import situations
from reconciler.core import keeper
from reconciler.scheduling import lines as line_columns
from reconciler.scheduling.snapshot import Claim, HeldTask, Holding, Line, LineColumns, Snapshot

NODES, JOBS = 3, [f"j{number}" for number in range(8)]
QUEUES = [
    situations.Queue("root"),
    situations.Queue("a", parent=0),
    situations.Queue("b", parent=0),
]
KINDS = st.builds(
    keeper.Kind,
    queue=st.sampled_from([1, 2]),
    shape=st.integers(0, 1),
    priority=st.sampled_from([10, 50]),
    preemptible=st.booleans(),
)


def claims(job: str) -> st.SearchStrategy[Claim]:
    return st.builds(
        Claim,
        job=st.just(job),
        order=st.integers(0, 9).map(lambda order: 10 * JOBS.index(job) + order),
        elements=st.sampled_from([(0,), (0, 1, 2)]),
        startable=st.just(1),
        slack_s=st.sampled_from([float("inf"), 7.0]),
        promised=st.integers(0, 1),
        missing=st.sampled_from([(), ((0, 1),)]),
    )


def tasks() -> st.SearchStrategy[HeldTask]:
    return st.builds(
        HeldTask,
        node=st.integers(0, NODES - 1),
        amounts=st.sampled_from([(1000, 5, 1000), (500, 1, 250)]),
        devices=st.sampled_from([(0,), (1,)]),
        share=st.sampled_from([1000, 250]),
        spare=st.booleans(),
    )


class Kept(RuleBasedStateMachine):
    """What was told, beside the keeper that was told."""

    @initialize()
    def begin(self) -> None:
        self.nodes = situations.nodes(NODES, (8000, 100, 2000))
        self.presence = np.zeros((1, NODES), dtype=np.int64)
        self.keeper = keeper.Keeper(self.nodes, situations.queues(QUEUES), self.presence)
        self.pending: dict[str, tuple[keeper.Kind, Claim]] = {}
        self.holdings: dict[str, Holding] = {}
        self.accepts = [True] * NODES
        self.capacity = [(8000, 100)] * NODES
        self.before: Snapshot | None = None

    @rule(data=st.data(), job=st.sampled_from(JOBS), kind=KINDS)
    def put(self, data: st.DataObject, job: str, kind: keeper.Kind) -> None:
        claim = data.draw(claims(job))
        self.keeper.lines.put(kind, claim)
        self.pending[job] = (kind, claim)
        assert self.keeper.lines.kind_of(job) == kind
        assert self.keeper.lines.claim_of(job) == claim

    @rule(job=st.sampled_from(JOBS))
    def drop(self, job: str) -> None:
        self.keeper.lines.drop(job)
        self.pending.pop(job, None)
        assert self.keeper.lines.claim_of(job) is None

    @rule(
        job=st.sampled_from(JOBS),
        queue=st.sampled_from([1, 2]),
        held=st.lists(tasks(), min_size=1, max_size=3),
        preemptible=st.booleans(),
        matches=st.sampled_from([(), (0,)]),
    )
    def start(
        self,
        job: str,
        queue: int,
        held: list[HeldTask],
        preemptible: bool,
        matches: tuple[int, ...],
    ) -> None:
        holding = Holding(job, 0, queue, 50, 1, tuple(held), preemptible, matches=matches)
        self.keeper.started(holding)
        self.holdings[job] = holding

    @rule(job=st.sampled_from(JOBS))
    def end(self, job: str) -> None:
        self.keeper.ended(job, 0)
        self.holdings.pop(job, None)

    @rule(job=st.sampled_from(JOBS))
    def leave(self, job: str) -> None:
        if job in self.holdings:
            self.holdings[job] = dataclasses.replace(self.holdings[job], leaving=True)
            self.keeper.told(self.holdings[job])

    @rule(row=st.integers(0, NODES - 1), accepts=st.booleans(), cpu=st.sampled_from([4000, 8000]))
    def change_node(self, row: int, accepts: bool, cpu: int) -> None:
        self.keeper.node_changed(row, accepts=accepts, capacity=(cpu, 100, 2000))
        self.accepts[row], self.capacity[row] = accepts, (cpu, 100)

    @rule()
    def look(self) -> None:
        """A snapshot that went out stays what it was."""
        self.before = self.keeper.snapshot(())
        self.copy = (self.before.nodes.free.copy(), self.before.queues.allocated.copy())
        self.old_lines = [(line, line.claims) for line in self.before.lines]

    @invariant()
    def equals_a_rebuild(self) -> None:
        if not hasattr(self, "keeper"):
            return
        found = self.keeper.snapshot(())
        members: dict[keeper.Kind, list[Claim]] = {}
        for kind, claim in self.pending.values():
            members.setdefault(kind, []).append(claim)
        wanted = {
            Line(
                kind.queue,
                kind.shape,
                kind.priority,
                kind.preemptible,
                tuple(sorted(there, key=lambda c: (c.order, c.job))),
            )
            for kind, there in members.items()
        }
        assert {line for line in found.lines if line.claims} == wanted
        for field in dataclasses.fields(LineColumns):
            np.testing.assert_array_equal(
                getattr(found.line_columns, field.name),
                getattr(line_columns.columns_of(found.lines), field.name),
            )
        self.check_amounts(found)
        assert {h.job: h for h in found.holdings} == self.holdings
        if self.before is not None:
            np.testing.assert_array_equal(self.before.nodes.free, self.copy[0])
            np.testing.assert_array_equal(self.before.queues.allocated, self.copy[1])
            assert [(line, line.claims) for line in self.before.lines] == self.old_lines

    def check_amounts(self, found: Snapshot) -> None:
        free = np.array([(*capacity, 2000) for capacity in self.capacity], dtype=np.int64)
        devices = np.full((NODES, 2), 1000, dtype=np.int64)
        occupied, presence = np.zeros(NODES, dtype=np.int64), np.zeros((1, NODES), dtype=np.int64)
        allocated = np.zeros((len(QUEUES), 3), dtype=np.int64)
        firm = allocated.copy()
        for holding in self.holdings.values():
            for node in {task.node for task in holding.tasks}:
                occupied[node] += 1
            for task in holding.tasks:
                free[task.node] -= task.amounts
                for device in task.devices:
                    devices[task.node, device] -= task.share
                if holding.matches:
                    presence[0, task.node] += 1
                for queue in (holding.queue, 0):
                    allocated[queue] += task.amounts
                    if not holding.preemptible and not task.spare:
                        firm[queue] += task.amounts
        np.testing.assert_array_equal(found.nodes.free, free)
        np.testing.assert_array_equal(found.nodes.devices, devices)
        np.testing.assert_array_equal(found.nodes.occupied, occupied)
        np.testing.assert_array_equal(found.presence, presence)
        np.testing.assert_array_equal(found.nodes.accepts, self.accepts)
        np.testing.assert_array_equal(found.queues.allocated, allocated)
        np.testing.assert_array_equal(found.queues.firm, firm)


TestKept = Kept.TestCase
TestKept.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_kinds_without_claims_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "EMPTY_LINES_MIN", 4)
    lines = keeper.Lines()
    for number in range(20):
        kind = keeper.Kind(0, number, 50, preemptible=True)
        lines.put(kind, Claim(f"j{number}", number, (0,), 1))
    for number in range(18):
        lines.drop(f"j{number}")
    found, there = lines.take()
    assert [line.claims[0].job for line in found] == ["j18", "j19"]
    assert there.shape.tolist() == [18, 19]
    lines.put(keeper.Kind(0, 3, 50, preemptible=True), Claim("new", 99, (0,), 1))
    lines.drop("j19")
    found, _ = lines.take()
    assert [[claim.job for claim in line.claims] for line in found] == [["j18"], [], ["new"]]


def test_a_node_is_found_by_name() -> None:
    kept = keeper.Keeper(situations.nodes(3), situations.queues(QUEUES))
    assert kept.row("n00001") == 1
    with pytest.raises(KeyError):
        kept.row("n7")


def test_what_an_element_holds_does_not_change_unsaid() -> None:
    kept = keeper.Keeper(situations.nodes(3), situations.queues(QUEUES))
    with pytest.raises(ValueError, match=r"j\[0\] holds something else"):
        kept.told(Holding("j", 0, 1, 50, 1, (HeldTask(0, (1, 1, 0)),)))
