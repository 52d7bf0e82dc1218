"""A node that makes events without end pushes out its own history, and not that of others."""

import collections
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa

from reconciler import store
from tests.unit.store import samples

KEPT: dict[str, Any] = {"events_before": 0.0, "journal_before": 0.0, "history_before": 0.0}


def test_the_node_with_most_events_loses_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.store.retention.EVENTS_MAX", 50)
    monkeypatch.setattr("reconciler.store.retention.EVENTS_OF_NODE_MAX", 20)
    opened = store.Store.open(f"sqlite:///{tmp_path / 'muster.db'}")
    epoch = opened.lead("one", 50.0)
    quiet = [samples.event("x", node=f"n{number % 4}") for number in range(20)]
    jobs = [samples.event("x", job="train") for _ in range(10)]
    loud = [samples.event(str(number), node="liar") for number in range(100)]
    opened.commit(epoch, 1, samples.cycle(events=tuple(quiet + jobs + loud)), store.CycleExtras())
    assert opened.prune(epoch, 100.0, **KEPT) == 81
    found = opened.reader.events()
    counts = collections.Counter(event.node for event in found)
    assert counts == {"n0": 5, "n1": 5, "n2": 5, "n3": 5, "": 10, "liar": 19}
    (oldest, *_) = (event.message for event in found if event.node == "liar")
    assert oldest == "81", "the newest stay"
    assert opened.prune(epoch, 100.0, **KEPT) == 0
    # where everybody keeps to a share, the oldest go
    more = [samples.event("x", job=f"job-{number}") for number in range(15)]
    opened.commit(epoch, 2, samples.cycle(events=tuple(more)), store.CycleExtras())
    assert opened.prune(epoch, 100.0, **KEPT) == 17
    assert collections.Counter(event.node for event in opened.reader.events())["liar"] == 19
    opened.close()


def test_the_owner_with_most_events_loses_their_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds and releases jobs all day pushes out nobody else's history."""
    monkeypatch.setattr("reconciler.store.retention.EVENTS_MAX", 50)
    monkeypatch.setattr("reconciler.store.retention.EVENTS_OF_OWNER_MAX", 20)
    opened = store.Store.open(f"sqlite:///{tmp_path / 'muster.db'}")
    epoch = opened.lead("one", 50.0)
    quiet = [samples.event("x", node=f"n{number % 4}") for number in range(20)]
    mine = [samples.event("x", job="mine") for _ in range(10)]
    loud = [samples.event(str(number), job=f"loud-{number % 5}") for number in range(100)]
    jobs = (
        samples.job("mine", owner="me@example.org"),
        *(samples.job(f"loud-{number}", owner="loud@example.org") for number in range(5)),
    )
    decided = samples.cycle(jobs=jobs, events=tuple(quiet + mine + loud))
    opened.commit(epoch, 1, decided, store.CycleExtras())
    # jobs that are gone from git are still theirs
    gone = samples.cycle(left_jobs=("loud-0", "loud-1"))
    opened.commit(epoch, 2, gone, store.CycleExtras())
    assert opened.prune(epoch, 100.0, **KEPT) == 81
    found = opened.reader.events()
    counts = collections.Counter(event.job.partition("-")[0] for event in found)
    assert counts == {"": 20, "mine": 10, "loud": 19}
    assert min(int(event.message) for event in found if event.job.startswith("loud")) == 81
    opened.close()


def test_a_name_that_several_people_had_is_nobodys(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes a name again does not push out what it says of who had it before."""
    monkeypatch.setattr("reconciler.store.retention.EVENTS_MAX", 50)
    monkeypatch.setattr("reconciler.store.retention.EVENTS_OF_OWNER_MAX", 20)
    opened = store.Store.open(f"sqlite:///{tmp_path / 'muster.db'}")
    epoch = opened.lead("one", 50.0)
    hers = tuple(samples.event("x", job="train") for _ in range(15))
    first = (samples.job("train", owner="alice@example.org"),)
    opened.commit(epoch, 1, samples.cycle(jobs=first, events=hers), store.CycleExtras())
    again = (
        samples.job("train", run=2, owner="eve@example.org"),
        samples.job("flood", owner="eve@example.org"),
    )
    loud = tuple(samples.event("x", job="flood") for _ in range(60))
    opened.commit(epoch, 2, samples.cycle(jobs=again, events=loud), store.CycleExtras())
    assert opened.prune(epoch, 100.0, **KEPT) == 28
    counts = collections.Counter(event.job for event in opened.reader.events())
    assert counts == {"train": 15, "flood": 32}
    opened.close()


def test_events_are_not_counted_for_each_batch(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.store.retention.EVENTS_MAX", 50)
    monkeypatch.setattr("reconciler.store.retention.EVENTS_OF_NODE_MAX", 20)
    monkeypatch.setattr("reconciler.store.retention.BATCH", 4)
    opened = store.Store.open(f"sqlite:///{tmp_path / 'muster.db'}")
    epoch = opened.lead("one", 50.0)
    counted: list[str] = []

    def note(_c: object, _u: object, statement: str, *_more: object) -> None:
        counted.extend([statement] if "count(*)" in statement else [])

    sa.event.listen(opened._engine, "before_cursor_execute", note)

    def prune() -> int:
        return opened.prune(epoch, 100.0, **KEPT)

    loud = tuple(samples.event("x", node="liar") for _ in range(60))
    first = samples.event("x", node="n")
    opened.commit(epoch, 1, samples.cycle(events=(first, *loud)), store.CycleExtras())
    assert [prune() for _ in range(4)] == [4, 4, 4, 2], "down to below the bound"
    once = len(counted)
    assert 0 < once <= 3, "of all, of owners, of nodes"
    assert prune() == 0
    some = tuple(samples.event("x", node="n") for _ in range(3))
    opened.commit(epoch, 2, samples.cycle(events=some), store.CycleExtras())
    assert [prune() for _ in range(3)] == [0, 0, 0]
    assert len(counted) == once + 1, "there is room, until as many have come"
    opened.commit(epoch, 3, samples.cycle(events=some), store.CycleExtras())
    assert prune() == 4
    opened.close()
