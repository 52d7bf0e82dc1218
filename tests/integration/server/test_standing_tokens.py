"""A call that lasts is answered by the token as it is then."""

import pathlib
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.operations.tokens import token_file
from tests.integration.server import parts
from tests.unit.store import samples

ALL = ("ada user", "n1 node", "op admin", "the-test admin")
#: Longer than a test waits for the token to be lost.
WAIT_S = 30.0
#: Not what a call is told that begins without a valid token.
LOST = "the token of this call is not valid any more"


def write_tokens(path: pathlib.Path, *people: str) -> None:
    """Let these have a token that is their name."""
    lines = []
    for one in people:
        token, role = one.split()
        identity = "ada@x.org" if role == "user" else "local"
        lines.append(token_file.line_of(token, "n1" if role == "node" else identity, role).text())
    token_file.write_private(path, token_file.joined(lines))


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[parts.Served]:
    write_tokens(tmp_path / "people", *ALL)
    made = parts.Served(tmp_path, "--token-file", str(tmp_path / "people"))
    try:
        yield made.ready()
    finally:
        made.close()


def ask(served: parts.Served, token: str, method: str, path: str, body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}
    with httpx.Client(base_url=served.address, timeout=parts.PATIENCE_S, headers=headers) as one:
        return one.request(method, path, content=body)


def lose(served: parts.Served, token: str, now: str = "") -> None:
    """Take a token away, or give it another role; the server knows afterwards."""
    kept = [one for one in ALL if one.split()[0] != token]
    write_tokens(served.folder / "people", *kept, *filter(None, [now]))
    wanted = 200 if now else 401
    served.until(lambda: ask(served, token, "GET", "/v1/jobs", b"").status_code == wanted)


def poll(served: parts.Served) -> Callable[[], httpx.Response]:
    body = parts.request(have=(1, 0), wait_s=WAIT_S)
    return lambda: ask(served, "n1", "POST", "/v1/nodes/n1/sync", body)


def assigned() -> loop_messages.NodeUpdate:
    template = agent_messages.TaskTemplate("train", 1, "main", ("true",))
    assignment = agent_messages.Assignment(attempt="a1", template="t", boot_id="boot-1")
    payload = agent_messages.AssignmentSet({"t": template}, (assignment,))
    return loop_messages.NodeUpdate("n1", 1, 1, msgspec.msgpack.encode(payload))


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ("", LOST),
        ("n1 user", "the token of this call is somebody else's now"),
    ],
)
def test_a_poll_is_told_nothing_after_its_token_was_lost(
    now: str, reason: str, served: parts.Served
) -> None:
    with parts.in_background(poll(served)) as told:
        served.loop.wait(lambda _heard: served.loop.reports("n1"))
        lose(served, "n1", now)
        served.loop.send(assigned())
        found = told()
    assert (found.status_code, found.json()["error"]["message"]) == (401, reason)
    assert b"train" not in found.content


def test_followed_events_are_told_nothing_after_their_token_was_lost(served: parts.Served) -> None:
    where = urlsplit(served.address)
    path = f"/v1/events?after=0&wait_s={WAIT_S}"
    calls = [
        f"GET {one} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ada\r\n{last}\r\n"
        for one, last in (("/v1/jobs", ""), (path, "Connection: close\r\n"))
    ]
    with socket.create_connection((where.hostname, where.port), parts.PATIENCE_S) as link:
        link.sendall("".join(calls).encode())
        with link.makefile("rb") as answer:
            # the second call of a connection begins as the first one is answered
            assert b" 200 " in answer.readline()
            lose(served, "ada")
            served.commit(events=(samples.event("it goes on", job="train"),))
            served.loop.publish(events=1)
            rest = answer.read()
    assert b" 401 " in rest
    assert LOST.encode() in rest
    assert b"it goes on" not in rest


def test_what_was_changed_is_said_although_the_token_was_lost_meanwhile(
    served: parts.Served,
) -> None:
    """Who is told that nothing was allowed tries again, and does it twice."""
    served.loop.answers = None
    body = b'{"verb": "drain", "names": ["n1"], "reason": "smoke"}'

    def asked(heard: list[loop_messages.ToLoop]) -> loop_messages.OverrideAsked | None:
        return next((one for one in heard if isinstance(one, loop_messages.OverrideAsked)), None)

    def drain() -> httpx.Response:
        headers = {"Authorization": "Bearer op", "Content-Type": "application/json"}
        with httpx.Client(base_url=served.address, timeout=parts.PATIENCE_S) as one:
            return one.post("/v1/overrides", content=body, headers=headers)

    with parts.in_background(drain) as told:
        request = served.loop.wait(asked).request
        lose(served, "op")
        served.loop.send(loop_messages.OverrideAnswered(request.id, ""))
        found = told()
    assert found.status_code == 200, found.text


def test_a_body_that_comes_after_its_token_was_lost_is_not_read(served: parts.Served) -> None:
    body, where = parts.request(), urlsplit(served.address)
    head = [
        "POST /v1/nodes/n1/sync HTTP/1.1",
        "Host: x",
        "Connection: close",
        "Authorization: Bearer n1",
        "Content-Type: application/msgpack",
        f"Content-Length: {len(body)}",
    ]
    with socket.create_connection((where.hostname, where.port), parts.PATIENCE_S) as link:
        link.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body[:-1])
        lose(served, "n1")
        link.sendall(body[-1:])
        with link.makefile("rb") as answer:
            assert LOST.encode() in answer.read()
    assert not served.loop.reports("n1")
