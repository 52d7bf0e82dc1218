"""What people and nodes are told around a defect is what became of it, and of nothing else."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.core import journal
from reconciler.model import desired
from reconciler.operations import replaying
from reconciler.operations import views as shown
from reconciler.store import Reader
from tests.unit.core.world import World, job
from tests.unit.test_containing import POISON, Contained
from tests.unit.test_replay import url


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Contained]:
    made = Contained(tmp_path, World(nodes=4))
    yield made
    made.close()


def test_what_was_told_of_queues_can_be_replayed_without_what_was_refused(
    leader: Contained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views_of = shown.desired_views

    def views(wanted: desired.Desired) -> dict[str, bytes]:
        if POISON in wanted.jobs:
            raise KeyError(POISON)
        return views_of(wanted)

    monkeypatch.setattr(shown, "desired_views", views)
    for _ in range(2):
        leader.now += 1
        leader.revision(job("fine", cpu=1))
        leader.hear(*leader.world.nodes)
        leader.cycle()
    leader.revision(job("fine", cpu=1), job(POISON, cpu=4, count=4))
    leader.now += 1
    leader.cycle()
    assert leader.counts == {"revision": 1}, "it raised when all was decided"
    for _ in range(2):
        leader.now += 1
        leader.hear(*leader.world.nodes)
        leader.cycle()
    leader.store.close()
    with contextlib.closing(Reader.open(url(tmp_path))) as reader:
        found = list(replaying.replay_all(reader))
    assert {queue.demand[0] for one in found for queue in one.call.told.queues} == {1000}


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
    (attempt,) = leader.loop._memory.attempts.values()
    leader.world.nodes[attempt.node].end(attempt.id, leader.now, exit_code=0)
    leader.loop._journal.anew()
    with monkeypatch.context() as broken:
        broken.setattr(journal, "pack_snapshot", fail)
        cycle()
    assert leader.counts == {"journal": 1}
    cycle()
    leader.loop._journal.anew()
    cycle()
    leader.store.close()
    with contextlib.closing(Reader.open(url(tmp_path))) as reader:
        last = list(replaying.replay_all(reader))[-1]
    assert [queue.demand[0] for queue in last.call.told.queues] == [0]
