"""Output of many tries is shown in the time of one silence, however many ran on the silent node."""

import asyncio
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest

from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, NodeState
from reconciler.server import waits
from reconciler.server.logs import log_output
from reconciler.server.nodes import log_relay
from tests.unit.store import samples

JOB = samples.job("sweep", elements=4)


class Relay:
    """``n1`` sends nothing, others a line; notes which attempts were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def read(
        self, attempt: Any, *_: Any, **__: Any
    ) -> AsyncIterator[agent_messages.LogChunk]:
        self.asked.append(attempt.node)
        if attempt.node == "n1":
            raise log_relay.Silent
        yield agent_messages.LogChunk(b"a line\n", end=True)


def shown(reader: Any, relay: Any, wanted: log_output.LogSelection) -> list[str]:
    """The lines of a text."""

    async def read() -> bytes:
        news = waits.CycleNews(waits.Stopping())
        output = log_output.LogOutput(reader, relay, news, wanted, "ada")
        return b"".join([part async for part in output.pieces(None)])

    return asyncio.run(read()).decode().splitlines()


def test_a_node_that_sends_nothing_is_waited_for_once() -> None:
    nodes = ("n1", "n1", "n2", "n1")
    tries = [
        samples.attempt(JOB, element, state=AttemptState.ENDED, node=node)
        for element, node in enumerate(nodes)
    ]
    reader: Any = types.SimpleNamespace(attempts=lambda *_, **__: tries, node=samples.node)
    asked = Relay()
    wanted = log_output.LogSelection(
        "sweep", "sweep.1.0", 0, "main", 0, None, "stdout", follow=False, every=True,
        any_element=True, any_task=True, array=True,
    )  # fmt: skip

    lines = [line for line in shown(reader, asked, wanted) if "try 1" not in line]
    assert asked.asked == ["n1", "n2"]
    again = "muster: node n1 is not asked again: it has sent nothing"
    assert lines == ["muster: node n1 has sent nothing for 20 s", again, "a line", again]


AWAY = "was last heard at 1970-01-01T00:01:40Z: it has the output of this try, once it is back"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (NodeState.UNKNOWN, f"muster: node n1 is Unknown, {AWAY}"),
        (NodeState.GONE, f"muster: node n1 is Gone, {AWAY}"),
        (None, "muster: the output of this try is on Node/n1, which no longer exists"),
    ],
)
def test_a_node_that_is_known_to_be_away_is_not_waited_for(
    state: NodeState | None, said: str
) -> None:
    one = samples.attempt(JOB, 0, state=AttemptState.ENDED, node="n1")
    node = None if state is None else records.NodeRecord("n1", state, last_report_at=100.0)
    reader: Any = types.SimpleNamespace(attempts=lambda *_, **__: [one], node=lambda _: node)
    asked = Relay()
    wanted = log_output.LogSelection("sweep", "sweep.1.0", 0, "main", 0, 1, "stdout", follow=False)

    assert shown(reader, asked, wanted) == [said]
    assert asked.asked == []


class CrowdedRelay:
    """Has no place for some requests, then a line."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.follows: list[bool] = []

    async def read(
        self, *_: Any, follow: bool, **__: Any
    ) -> AsyncIterator[agent_messages.LogChunk]:
        self.follows.append(follow)
        if len(self.follows) <= self.refused:
            raise log_relay.NoPlace("no place")
        yield agent_messages.LogChunk(b"a line\n", end=True)


@pytest.mark.parametrize("follow", [False, True])
def test_a_place_at_a_node_is_waited_for_and_told_once(
    monkeypatch: pytest.MonkeyPatch, *, follow: bool
) -> None:
    monkeypatch.setattr(log_output, "LOOK_EVERY_S", 0.001)
    one = samples.attempt(JOB, 0, state=AttemptState.ENDED, node="n1")
    reader: Any = types.SimpleNamespace(
        attempts=lambda *_, **__: [one], node=samples.node, run=lambda *_: None
    )
    wanted = log_output.LogSelection("sweep", "sweep.1.0", 0, "main", 0, 1, "stdout", follow=follow)
    crowded = CrowdedRelay(3)
    lines = shown(reader, crowded, wanted)
    assert lines == ["muster: no place; waiting for a place", "a line"]
    assert crowded.follows == [follow] * 4


def test_a_place_is_not_waited_for_for_ever_and_once_for_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_output, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(log_output, "PLACE_S_MAX", 0.01)
    tries = [samples.attempt(JOB, number, state=AttemptState.ENDED) for number in range(2)]
    reader: Any = types.SimpleNamespace(attempts=lambda *_, **__: tries, node=samples.node)
    wanted = log_output.LogSelection(
        "sweep", "sweep.1.0", 0, "main", 0, None, "stdout", follow=False, every=True,
        any_element=True, any_task=True, array=True,
    )  # fmt: skip
    told = [one for one in shown(reader, CrowdedRelay(10**9), wanted) if "try 1" not in one]
    assert told == [
        "muster: no place; waiting for a place",
        "muster: node n1 had no place: this output is missing here",
        "muster: node n1 is not asked again: it has sent nothing",
    ]


class CutRelay(Relay):
    """Has the end of a log of which the first bytes are gone, and which is cut once more."""

    async def read(
        self, attempt: Any, *_: Any, **__: Any
    ) -> AsyncIterator[agent_messages.LogChunk]:
        yield agent_messages.LogChunk(offset=3 * 2**30)
        yield agent_messages.LogChunk(b"late\n", offset=3 * 2**30)
        yield agent_messages.LogChunk(b"later\n", offset=3 * 2**30 + 5)
        yield agent_messages.LogChunk(b"last\n", offset=4 * 2**30 + 999_999, end=True)


@pytest.mark.parametrize("timestamps", [False, True])
def test_what_a_node_keeps_no_more_is_said_where_it_is_missing(*, timestamps: bool) -> None:
    one = samples.attempt(JOB, 0, state=AttemptState.ENDED, node="n2")
    reader: Any = types.SimpleNamespace(attempts=lambda *_, **__: [one], node=samples.node)
    wanted = log_output.LogSelection(
        "sweep", "sweep.1.0", 0, "main", 0, None, "stdout", follow=False, timestamps=timestamps
    )
    lines = [line.removeprefix("- ") for line in shown(reader, CutRelay(), wanted)]
    lacks = "muster: its stdout lacks %s: a node keeps the newest part of a long log (--log-limit)"
    assert lines == [lacks % "3Gi", "late", "later", lacks % "1Gi", "last"]
