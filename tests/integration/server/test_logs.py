"""A task's output reaches its reader from the node, over attempts, and stops when nobody reads."""

from typing import Any

import msgspec
import pytest

from reconciler.model.protocol import agent_messages
from reconciler.model.state.states import AttemptState, JobState, NodeState
from reconciler.server.nodes import log_relay
from tests.integration.server import parts
from tests.unit.store import samples

TRAIN = samples.job(state=JobState.RUNNING)
#: How often a node looks, 10 s at the most each time, before it is not asked any more.
ASKED_MAX = 12


@pytest.fixture(autouse=True)
def nodes(served: parts.Served) -> None:
    """Two nodes that are there and heard of."""
    served.commit(nodes=(samples.node("n1"), samples.node("n2")))


def read(served: parts.Served, **query: str | int) -> str:
    response = served.client.get("/v1/jobs/train/logs", params=query)
    assert response.status_code == 200, response.text
    return response.text


def asked(served: parts.Served, node: str = "n1", **fields: Any) -> agent_messages.LogRequest:
    """The next log request that a node is told of."""
    for _ in range(ASKED_MAX):
        found = parts.answer(served.sync(node, wait_s=10, **fields)).log_requests
        if found:
            return found[0]
    raise AssertionError(f"{node} was not asked for any output")


def post(
    served: parts.Served,
    request: agent_messages.LogRequest,
    *pieces: agent_messages.LogChunk,
    node: str = "n1",
) -> int:
    status = 0
    for piece in pieces:
        status = served.client.post(
            f"/v1/nodes/{node}/logs/{request.id}", content=msgspec.msgpack.encode(piece)
        ).status_code
    return status


def test_output_is_relayed(served: parts.Served) -> None:
    attempt = samples.attempt(TRAIN, state=AttemptState.RUNNING)
    served.commit(jobs=(TRAIN,), attempts=(attempt,))
    with parts.in_background(lambda: read(served, stream="stderr")) as text:
        request = asked(served)
        assert (request.attempt, request.stream, request.follow) == (attempt.id, "stderr", False)
        pieces = [
            agent_messages.LogChunk(b"step %d\n" % step, offset=7 * step) for step in range(20)
        ]
        assert post(served, request, *pieces, agent_messages.LogChunk(end=True)) == 204
        assert text() == "".join(f"step {step}\n" for step in range(20))
    assert post(served, request, agent_messages.LogChunk(b"more")) == 410


def test_the_last_lines(served: parts.Served) -> None:
    served.commit(jobs=(TRAIN,), attempts=(samples.attempt(TRAIN),))
    with parts.in_background(lambda: read(served, tail=2)) as text:
        post(
            served,
            asked(served),
            agent_messages.LogChunk(b"a\nb\nc\n"),
            agent_messages.LogChunk(end=True),
        )
        assert text() == "b\nc\n"


def test_following_goes_on_with_the_next_attempt(served: parts.Served) -> None:
    served.commit(jobs=(TRAIN,), attempts=(samples.attempt(TRAIN),))
    with parts.in_background(lambda: read(served, follow="true")) as text:
        request = asked(served)
        assert request.follow
        post(
            served,
            request,
            agent_messages.LogChunk(b"first\n"),
            agent_messages.LogChunk(offset=6, end=True),
        )
        served.commit(
            jobs=(TRAIN,),
            attempts=(
                samples.attempt(TRAIN, state=AttemptState.ENDED, concluded=True),
                samples.attempt(TRAIN, try_number=2, node="n2"),
            ),
        )
        served.loop.publish()
        request = asked(served, "n2")
        done = msgspec.structs.replace(TRAIN, state=JobState.SUCCEEDED)
        served.commit(jobs=(done,))
        post(
            served,
            request,
            agent_messages.LogChunk(b"second\n"),
            agent_messages.LogChunk(end=True),
            node="n2",
        )
        assert text() == "first\nmuster: try 2 on n2\nsecond\n"


def test_an_agent_that_starts_again_is_asked_for_the_rest(served: parts.Served) -> None:
    served.commit(jobs=(TRAIN,), attempts=(samples.attempt(TRAIN, state=AttemptState.RUNNING),))
    with parts.in_background(lambda: read(served, attempt=1, follow="true")) as text:
        first = asked(served, folder_proof="a" * 64)
        post(served, first, agent_messages.LogChunk(b"one\n"))
        again = asked(served, incarnation="two", follows=("one",), folder_proof="a" * 64)
        assert (again.attempt, again.offset) == (first.attempt, 4)
        assert post(served, first, agent_messages.LogChunk(b"late\n", offset=4)) == 410
        post(
            served,
            again,
            agent_messages.LogChunk(b"two\n", offset=4),
            agent_messages.LogChunk(offset=8, end=True),
        )
        assert text() == "one\ntwo\n"


def test_what_the_node_can_not_give_is_said(served: parts.Served) -> None:
    served.commit(jobs=(TRAIN,), attempts=(samples.attempt(TRAIN),))
    with parts.in_background(lambda: read(served)) as text:
        post(served, asked(served), agent_messages.LogChunk(end=True, error="it was deleted"))
        assert text() == "muster: it was deleted\n"


def test_what_is_not_there_is_refused(served: parts.Served) -> None:
    get = served.client.get
    assert get("/v1/jobs/train/logs").status_code == 404
    served.commit(jobs=(TRAIN,))
    assert read(served) == "muster: no attempt at this task of job train was made yet\n"
    told = get("/v1/jobs/train/logs?task=worker-3")
    assert told.status_code == 404
    assert "it has main-0" in told.json()["error"]["message"]
    assert get("/v1/jobs/train/logs?element=1").status_code == 404
    assert get("/v1/jobs/train/logs?attempt=7").status_code == 404
    unasked = served.client.post("/v1/nodes/n1/logs/x", content=b"\xc1")
    assert unasked.status_code == 410
    served.commit(attempts=(samples.attempt(TRAIN),))
    with served.client.stream("GET", "/v1/jobs/train/logs?follow=true"):
        path = f"/v1/nodes/n1/logs/{asked(served).id}"
        assert served.client.post(path, content=b"\xc1").status_code == 400
        large = bytes(log_relay.PIECE_BYTES_MAX + 1)
        assert served.client.post(path, content=large).status_code == 413


def test_a_node_stops_when_its_reader_has_gone(served: parts.Served) -> None:
    served.commit(jobs=(TRAIN,), attempts=(samples.attempt(TRAIN),))
    with served.client.stream("GET", "/v1/jobs/train/logs?follow=true") as response:
        request = asked(served)
        assert post(served, request, agent_messages.LogChunk(b"x\n")) == 204
        assert next(response.iter_text()) == "x\n"
    served.until(lambda: post(served, request, agent_messages.LogChunk(b"y\n", offset=2)) == 410)


def test_all_tries_are_shown_under_their_headings(served: parts.Served) -> None:
    first = msgspec.structs.replace(
        samples.attempt(TRAIN, state=AttemptState.ENDED, concluded=True), started_at=102.0
    )
    second = msgspec.structs.replace(
        samples.attempt(TRAIN, try_number=2, node="n2", state=AttemptState.RUNNING),
        started_at=5000.0,
    )
    served.commit(jobs=(TRAIN,), attempts=(first, second))

    def read_all(query: dict[str, str], **outputs: bytes) -> str:
        with parts.in_background(lambda: read(served, **query)) as text:
            for node, output in outputs.items():
                request = asked(served, node)
                post(
                    served,
                    request,
                    agent_messages.LogChunk(output),
                    agent_messages.LogChunk(end=True),
                    node=node,
                )
            return str(text())

    told = read_all({"every": "true"}, n1=b"one\n", n2=b"two\n")
    assert told == (
        "muster: main-0, try 1 on n1, 1970-01-01T00:01:42Z, 1.0s, status 0\none\n"
        "muster: main-0, try 2 on n2, 1970-01-01T01:23:20Z\ntwo\n"
    )
    later = read_all({"since": "1970-01-01T01:00:00Z"}, n2=b"two\n")
    assert later == "muster: main-0, try 2 on n2, 1970-01-01T01:23:20Z\ntwo\n"
    nothing = read_all({"until": "1970-01-01T00:00:10Z"})
    assert nothing == "muster: no attempt at this task of job train ran in that time\n"
    assert served.client.get("/v1/jobs/train/logs?since=noon").status_code == 400
    assert served.client.get("/v1/jobs/train/logs?run=7").status_code == 404


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (NodeState.UNKNOWN, "muster: node n1 is Unknown, was last heard at "),
        (NodeState.GONE, "muster: node n1 is Gone, was last heard at "),
        (None, "muster: the output of this try is on Node/n1, which no longer exists\n"),
    ],
)
def test_a_node_that_nobody_can_ask_is_told_at_once(
    served: parts.Served, state: NodeState | None, told: str
) -> None:
    served.commit(jobs=(TRAIN,), attempts=(samples.attempt(TRAIN),))
    if state is None:
        served.commit(left_nodes=("n1",))
    else:
        served.commit(nodes=(samples.node("n1", state=state),))
    assert told in read(served)
