"""News of jobs, nodes and drift: which a cycle brings, who chose them, and that each comes once."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, outcome, records
from reconciler.model.state.states import JobState, NodeState
from reconciler.notifications import delivery, message_queue, messages, triggers
from tests.unit.store import samples

NODE = samples.node()
TRAIN = samples.job("train", state=JobState.RUNNING)
HEAT = drift_kinds.Drift(
    "gpu-hot", "n1/0", "it is hot", "warning", "report", 1.0, pool="cpu", node="n1"
)
KNOWN = records.Observed(jobs={"train": TRAIN}, nodes={NODE.name: NODE})


def event(kind: str, job: str = "train", message: str = "") -> events.Event:
    return events.Event(at=5.0, kind=kind, message=message, job=job)


def news(known: records.Observed = KNOWN, **parts: Any) -> list[messages.Notice]:
    structure = desired.Structure(desired.ClusterSettings(name="main"))
    status = desired.SyncStatus(jobs_revision="r" * 40)
    wanted = desired.Desired(structure=structure, status=status)
    return triggers.of_cycle(samples.cycle(**parts), known, wanted)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("JobSucceeded", "job-ended"),
        ("JobCancelled", "job-ended"),
        ("JobFailed", "job-failed"),
        ("JobTimedOut", "job-failed"),
        ("JobEvicted", "job-evicted"),
        ("JobPlaced", None),
        ("NodeSeen", None),
    ],
)
def test_what_becomes_of_jobs(kind: str, reason: str | None) -> None:
    found = news(events=(event(kind, message="for a reason"),))
    assert [one.reason for one in found] == ([reason] if reason else [])
    for one in found:
        assert (one.object, one.revision, one.message) == ("Job/train", "r" * 40, "for a reason")
        assert one.about["queue"] == TRAIN.spec.queue
        assert one.about["owner"] == TRAIN.spec.owner
        assert one.about["cluster"] == "main"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (NodeState.READY, NodeState.UNKNOWN, "node-lost"),
        (NodeState.DRAINING, NodeState.GONE, "node-lost"),
        (NodeState.UNKNOWN, NodeState.GONE, None),
        (NodeState.UNKNOWN, NodeState.READY, "node-back"),
        (NodeState.UNHEALTHY, NodeState.READY, None),
        (None, NodeState.READY, None),
    ],
)
def test_nodes_that_are_lost_and_come_back(
    before: NodeState | None, after: NodeState, reason: str | None
) -> None:
    nodes = {} if before is None else {"n1": msgspec.structs.replace(NODE, state=before)}
    found = news(records.Observed(nodes=nodes), nodes=(msgspec.structs.replace(NODE, state=after),))
    assert [one.reason for one in found] == ([reason] if reason else [])
    assert all(one.about["pool"] == NODE.pool for one in found)


def test_drift_that_comes_and_goes() -> None:
    ignored = msgspec.structs.replace(HEAT, subject="n2/0", action="ignore")
    (came,) = news(drift=(HEAT, ignored))
    assert (came.object, came.reason) == ("Drift/gpu-hot:n1/0", "drift")
    assert came.about == {"kind": "gpu-hot", "severity": "warning", "pool": "cpu", "node": "n1"}
    there = msgspec.structs.replace(KNOWN, drift=(HEAT,))
    assert news(there, drift=(msgspec.structs.replace(HEAT, message="hotter", tries=1),)) == []
    (went,) = news(there, drift=())
    assert (went.object, went.reason) == (came.object, "drift-ended")
    assert came.message == "it is hot"
    assert re.fullmatch(r"no longer, after \w+: it is hot", went.message)


def channel(**changes: Any) -> desired.NotificationChannel:
    values = {"name": "chat", "kind": "webhook", "url": "http://127.0.0.1:9/", "secret": "key"}
    return desired.NotificationChannel(
        **(values | {"on": ("job-failed", "node-lost", "drift")} | changes)
    )


FAILED = messages.Notice(
    "Job/train", "job-failed", "r", "m", "t", about={"queue": "research-a", "owner": "a@x"}
)
LOST = messages.Notice("Node/n1", "node-lost", "r", "m", "t", about={"pool": "h200"})
LATE = messages.Notice("Drift/git:main", "drift", "r", "m", "t", about={"kind": "git"})


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({}, [FAILED, LOST, LATE]),
        ({"on": ("node-lost",)}, [LOST]),
        ({"queues": ("research-*",)}, [FAILED, LOST, LATE]),
        ({"queues": ("product",)}, [LOST, LATE]),
        ({"queues": ("research-*",), "owners": ("b@x",)}, [LOST, LATE]),
        ({"owners": ("a@x",), "pools": ("a100", "h*")}, [FAILED, LOST, LATE]),
        ({"pools": ("a100",)}, [FAILED, LATE]),
    ],
)
def test_a_channel_chooses_by_queue_owner_and_pool(
    chosen: dict[str, Any], told: list[messages.Notice]
) -> None:
    one = channel(**chosen)
    assert [notice for notice in (FAILED, LOST, LATE) if messages.is_wanted(one, notice)] == told


@pytest.fixture
def notifier(tmp_path: Path) -> delivery.Notifier:
    """One that is not running: what it would send waits."""
    return delivery.Notifier(
        tmp_path, tmp_path / "n.json", clock=lambda: 1.0, monotonic=lambda: 1.0, random=lambda: 0.0
    )


def tell(
    notifier: delivery.Notifier, channels: tuple[desired.NotificationChannel, ...], **parts: Any
) -> int:
    """What waits once a cycle is told of."""
    settings = desired.ClusterSettings(notifications=channels)
    wanted = desired.Desired(structure=desired.Structure(settings=settings))
    decided: outcome.Outcome = samples.cycle(**parts)
    triggers.tell(notifier, decided, KNOWN, wanted)
    return notifier.waiting()


def test_the_same_news_of_one_object_waits_once(notifier: delivery.Notifier) -> None:
    chat = (channel(on=("job-evicted",)),)
    assert tell(notifier, chat, events=(event("JobEvicted"), event("JobEvicted"))) == 1
    assert tell(notifier, chat, events=(event("JobEvicted"), event("JobEvicted", "other"))) == 2


def test_a_node_that_is_back_takes_the_place_of_its_loss(notifier: delivery.Notifier) -> None:
    both = (channel(on=("node-lost", "node-back")), channel(name="log", on=("node-lost",)))
    notifier.tell([LOST], both)
    assert notifier.waiting() == 2
    notifier.tell([msgspec.structs.replace(LOST, reason="node-back")], both)
    assert notifier.waiting() == 1


def test_nobody_who_did_not_ask_is_told(notifier: delivery.Notifier) -> None:
    quiet = (channel(on=("applied", "held")),)
    assert tell(notifier, quiet, events=(event("JobFailed"),), drift=(HEAT,)) == 0


def test_what_is_forgotten_leaves_nothing(
    notifier: delivery.Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_queue, "QUEUE_MAX", 3)
    for number in range(50):
        notifier.tell([msgspec.structs.replace(FAILED, object=f"Job/{number}")], [channel()])
    assert notifier.waiting() == 3
    assert len(notifier._queue._by_object) == 3  # the index goes with what it is of
    notifier.tell([], [])
    assert (notifier.waiting(), notifier._queue._by_object) == (0, {})


def told(notifier: delivery.Notifier) -> set[str]:
    return {key[2] for key in notifier._queue.waiting_keys()}


def test_nodes_that_are_lost_are_told_of_however_many_jobs_go_with_them(
    notifier: delivery.Notifier, caplog: pytest.LogCaptureFixture
) -> None:
    extra = 50
    evicted = tuple(event("JobEvicted", f"j{n}") for n in range(delivery.AT_ONCE_MAX + extra))
    lost = (msgspec.structs.replace(NODE, state=NodeState.UNKNOWN),)
    chat = (channel(on=("job-evicted", "node-lost")), channel(name="log", on=("node-lost",)))
    assert tell(notifier, chat, events=evicted, nodes=lost) == delivery.AT_ONCE_MAX + 2
    assert told(notifier) == {"job-evicted", "node-lost"}
    assert next(iter(notifier._queue.waiting_keys()))[2] == "node-lost"
    assert notifier.counts()["chat", "dropped"] == extra
    assert notifier.counts()["log", "dropped"] == 0
    (line,) = caplog.messages
    assert "chat" in line
    assert f"{extra} more" in line


def test_what_nobody_chose_takes_no_room_of_what_is_chosen(notifier: delivery.Notifier) -> None:
    events = tuple(event("JobSucceeded", f"j{n}") for n in range(delivery.AT_ONCE_MAX))
    chat = (channel(on=("job-failed",)),)
    assert tell(notifier, chat, events=(*events, event("JobFailed", "late"))) == 1


def test_what_no_longer_is_so_is_forgotten_beyond_the_limit_too(
    notifier: delivery.Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "AT_ONCE_MAX", 1)
    both = (channel(on=("node-lost", "node-back")),)
    other = msgspec.structs.replace(LOST, object="Node/n2")
    notifier.tell([LOST], both)
    notifier.tell([other], both)
    back = [msgspec.structs.replace(one, reason="node-back") for one in (LOST, other)]
    notifier.tell(back, both)
    assert {key[1:3] for key in notifier._queue.waiting_keys()} == {("Node/n1", "node-back")}


def test_news_of_jobs_give_way_to_those_of_nodes(
    notifier: delivery.Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_queue, "QUEUE_MAX", 2)
    failures = [msgspec.structs.replace(FAILED, object=f"Job/{number}") for number in range(3)]
    notifier.tell([LOST, *failures], [channel()])
    assert [key[1] for key in notifier._queue.waiting_keys()] == ["Node/n1", "Job/2"]
    notifier.tell([LATE, failures[0]], [channel()])
    assert [key[1] for key in notifier._queue.waiting_keys()] == ["Node/n1", "Drift/git:main"]
