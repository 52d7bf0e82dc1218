"""After an internal error, people and nodes are told its consequences, and nothing else."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.controller.quarantine import internal_errors
from reconciler.core import cycle_journal
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import outcome
from reconciler.operations.views import stored_views
from reconciler.store import StoreReader
from tests.unit import replays
from tests.unit.controller.quarantine.test_containment import POISON, Contained, server
from tests.unit.core.world import World, job
from tests.unit.test_replay import url


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Contained]:
    made = Contained(tmp_path, World(nodes=4))
    yield made
    made.close()


def test_what_was_told_of_queues_can_be_replayed_without_what_was_refused(
    leader: Contained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views_of = stored_views.desired_views

    def views(wanted: desired.Desired) -> dict[str, bytes]:
        if POISON in wanted.jobs:
            raise KeyError(POISON)
        return views_of(wanted)

    monkeypatch.setattr(stored_views, "desired_views", views)
    for _ in range(2):
        leader.now += 1
        leader.revision(job("fine", cpu=1))
        leader.hear(*leader.world.nodes)
        leader.cycle()
    leader.revision(job("fine", cpu=1), job(POISON, cpu=4, count=4))
    leader.now += 1
    leader.cycle()
    assert leader.counts == {"job": 1}, "it raised when all was decided"
    for _ in range(2):
        leader.now += 1
        leader.hear(*leader.world.nodes)
        leader.cycle()
    leader.store.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        found = list(replays.replay_all(reader))
    assert {queue.demand[0] for one in found for queue in one.call.told.queues} == {1000}


@pytest.mark.parametrize("restarted", [False, True])
def test_news_that_cannot_be_made_end_nothing_where_there_is_nothing_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """What is in force is not the cause. Refusing it as well would end the loop."""
    leader = Contained(tmp_path, World(nodes=4))
    leader.revision(job("fine"))
    leader.hear(*leader.world.nodes)
    leader.cycle()
    before = desired.Desired(structure=leader.world.structure, status=leader.sync())

    def none_of(_: outcome.Outcome) -> dict[str, bytes]:
        raise LookupError("no news")

    monkeypatch.setattr(stored_views, "cycle_views", none_of)
    if restarted:
        leader.close()
        leader = Contained(tmp_path, leader.world, before=before, accepted=b"then")
        leader.generation = 1
    leader.core.jobs = {POISON}
    leader.now += 1
    leader.revision(job("fine"), *([] if restarted else [job(POISON)]))
    leader.hear(*leader.world.nodes)
    leader.cycle()
    assert leader.states().keys() == {"fine"}
    status = stored_views.stored_sync(leader.store.reader.view(stored_views.SYNC))
    assert status is not None
    assert [one.rule for one in status.problems] == [internal_errors.RULE]
    leader.now += 1
    leader.hear(*leader.world.nodes)
    leader.cycle()
    leader.close()


def test_what_was_told_while_nothing_could_be_written_down_is_known_afterwards(
    leader: Contained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise LookupError("no snapshot can be made")

    def cycle() -> None:
        leader.now += 1
        leader.hear(*leader.world.nodes)
        leader.cycle()

    leader.revision(job("fine", cpu=1))
    cycle()
    (attempt,) = leader.loop._state.attempts.values()
    leader.world.nodes[attempt.node].end(attempt.id, leader.now, exit_code=0)
    leader.loop._commits.journal.restart()
    with monkeypatch.context() as broken:
        broken.setattr(cycle_journal, "pack_snapshot", fail)
        cycle()
    assert leader.counts == {"journal": 1}
    cycle()
    leader.loop._commits.journal.restart()
    cycle()
    leader.store.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        last = list(replays.replay_all(reader))[-1]
    assert [queue.demand[0] for queue in last.call.told.queues] == [0]


def test_nodes_whose_sets_cannot_be_made_are_named_each_minute_and_tried_again(
    leader: Contained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = leader.loop._engine
    real, broken = engine.update, {"n1"}
    told: set[str] = set()

    def update(node: str, *args: Any) -> loop_messages.NodeUpdate:
        if node in broken:
            raise KeyError(node)
        told.add(node)
        return real(node, *args)

    def cycle() -> None:
        leader.now += 1
        leader.hear("n0")
        leader.cycle()

    monkeypatch.setattr(engine, "update", update)
    leader.revision(job("fine", count=4, cpu=3))
    leader.hear(*leader.world.nodes)
    for _ in range(70):
        cycle()
    said = [one for one in caplog.messages if "prevents updates of" in one]
    assert len(said) == 2, "once a minute"
    assert all("node n1:" in one and internal_errors.MARK in one for one in said)
    assert told == leader.world.nodes.keys() - broken
    broken.clear()
    cycle()
    assert "n1" in told
    assert not leader.loop._dispatcher._unserved


def test_a_plan_that_cannot_be_compared_costs_its_node_alone(
    leader: Contained, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = leader.loop._engine
    for name in leader.world.nodes:
        leader.loop._dispatcher.questions[name] = 1
    leader.revision(job("fine"))
    leader.hear(*leader.world.nodes)
    leader.cycle()
    asked: list[str] = []

    def is_behind(node: str, *_: object) -> bool:
        asked.append(node)
        if node == "n1":
            raise KeyError(node)
        return True

    monkeypatch.setattr(engine, "is_behind", is_behind)
    with server(leader) as client:
        client()
        leader.revision(job("fine"), job("more"), queue="more")
        leader.now += 1
        leader.cycle()
        told = {one.node for one in client() if isinstance(one, loop_messages.NodeUpdate)}
    assert set(asked) == leader.world.nodes.keys()
    assert told >= leader.world.nodes.keys() - {"n1"}
    assert leader.counts == {"tell": 1}
    assert leader.loop._dispatcher._unserved <= {"n1"}


def test_orders_that_could_not_be_given_are_given_again(tmp_path: Path) -> None:
    given: list[int] = []

    def provision(orders: object) -> None:
        given.append(len(given))
        if len(given) == 1:
            raise LookupError("once")

    leader = Contained(tmp_path, World(nodes=1), provision=provision)
    for _ in range(3):
        leader.now += 1
        leader.revision(job("fine"))
        leader.cycle()
    assert given == [0, 1]
    leader.close()
