"""One user can't take the places of all readers of logs."""

import contextlib
import pathlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from reconciler.model import desired
from reconciler.model.state.states import AttemptState, JobState
from reconciler.operations.views import stored_views
from reconciler.server.logs import log_readers
from reconciler.server.nodes import log_relay
from tests.integration.server import parts
from tests.unit.store import samples

TOKENS = "the-test local admin\ntok-bob bob@x.org user\ntok-ada ada@x.org user\n"


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[parts.Served]:
    tokens = parts.own_tokens(tmp_path)
    tokens.write_text(TOKENS)
    made = parts.Served(tmp_path, "--token-file", str(tokens))
    try:
        yield made.ready()
    finally:
        made.close()


def follow(served: parts.Served, token: str) -> socket.socket:
    """A connection that has begun to follow."""
    address = urlsplit(served.address)
    connection = socket.create_connection((address.hostname, address.port), parts.PATIENCE_S)
    connection.sendall(
        b"GET /v1/jobs/train/logs?follow=true HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
    )
    return connection


def test_followers_of_one_user_leave_room_for_others(served: parts.Served) -> None:
    structure = desired.Structure(queues={"default": desired.Queue("default")})
    status = desired.SyncStatus("Synced", "abc", "abc", "abc")
    served.commit(
        views=stored_views.desired_views(desired.Desired(structure=structure, status=status)),
        nodes=(samples.node("n1"),),
        jobs=(samples.job(state=JobState.PENDING),),
    )
    bob, ada = ({"Authorization": f"Bearer tok-{name}"} for name in ("bob", "ada"))

    def listed(headers: dict[str, str]) -> list[dict[str, object]]:
        found: list[dict[str, object]] = served.client.get(
            "/v1/log-readers", headers=headers
        ).json()["items"]
        return found

    with contextlib.ExitStack() as held:
        for _ in range(300):
            held.enter_context(follow(served, "tok-bob"))
        most = log_readers.READERS_OF_USER_MAX
        served.until(lambda: len(listed(bob)) == most)
        path = "/v1/jobs/train/logs"
        refused = served.client.get(path, headers=bob)
        assert refused.status_code == 429
        assert "bob@x.org reads 80 logs already" in refused.text
        assert "GET /v1/log-readers" in refused.text
        read = served.client.get(path, headers=ada)
        assert (read.status_code, "no attempt" in read.text) == (200, True)
        assert listed(ada) == []
        assert len(listed(parts.ADMIN)) == most, "an administrator sees all"
        assert listed(bob)[0] | {"since": ""} == {
            "identity": "bob@x.org", "job": "train", "task": "main-0", "stream": "stdout",
            "follows": True, "since": "",
        }  # fmt: skip
    served.until(lambda: listed(parts.ADMIN) == [])
    assert served.client.get(path, headers=bob).status_code == 200


def test_followers_of_one_user_leave_places_at_a_node_for_others(served: parts.Served) -> None:
    structure = desired.Structure(queues={"default": desired.Queue("default")})
    status = desired.SyncStatus("Synced", "abc", "abc", "abc")
    job = samples.job(state=JobState.RUNNING)
    served.commit(
        views=stored_views.desired_views(desired.Desired(structure=structure, status=status)),
        nodes=(samples.node("n1"),),
        jobs=(job,),
        attempts=(samples.attempt(job, state=AttemptState.RUNNING),),
    )
    bob = {"Authorization": "Bearer tok-bob"}
    path = "/v1/jobs/train/logs"

    def status_of_bob() -> int:
        with served.client.stream("GET", path, headers=bob) as answer:
            return answer.status_code

    with contextlib.ExitStack() as held:
        for _ in range(log_relay.NODE_READERS_MAX // 2):
            held.enter_context(follow(served, "tok-bob"))
        served.until(lambda: status_of_bob() == 429)
        told = served.client.get(path, headers=bob)
        assert int(told.headers["retry-after"]) == 10
        assert "bob@x.org reads 32 logs of node n1, which has 32 of 64 places left" in told.text
        assert "To fix: end one" in told.text
        ada = held.enter_context(follow(served, "tok-ada"))
        assert ada.recv(12) == b"HTTP/1.1 200"
