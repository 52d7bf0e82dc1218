"""A reader who follows a log loses it with the token, or with the role that allowed it."""

import pathlib
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.protocol import agent_messages
from reconciler.model.state.states import AttemptState, JobState
from reconciler.operations.tokens import token_file
from reconciler.operations.views import stored_views
from reconciler.server.logs import standing_rights
from tests.integration.server import parts
from tests.unit.store import samples

TRAIN = samples.job(owner="ada@x.org", state=JobState.RUNNING)
READ = access.AccessRule(("read",), queues=("default",))
#: Time to see it, beside other work on the machine.
ENDS_S = standing_rights.AGAIN_S + 30.0


def write_tokens(path: pathlib.Path, *people: str) -> None:
    lines = [token_file.line_of(who, f"{who}@x.org", "user").text() for who in people]
    token_file.write_private(path, token_file.joined([*lines, "the-test local admin"]))


def grant(served: parts.Served, *roles: access.Role) -> None:
    known = {f"{who}@x.org": access.Identity(f"{who}@x.org") for who in ("ada", "lead", "other")}
    structure = desired.Structure(
        queues={"default": desired.Queue("default")}, access=access.Access(known, roles)
    )
    status = desired.SyncStatus("Synced", "abc", "abc", "abc")
    served.commit(
        views=stored_views.desired_views(desired.Desired(structure=structure, status=status))
    )


LEADS = access.Role("leads", ("lead@x.org",), (READ,))
OTHERS = access.Role("others", ("other@x.org",), (READ,))


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[parts.Served]:
    write_tokens(tmp_path / "people", "ada", "lead")
    made = parts.Served(tmp_path, "--token-file", str(tmp_path / "people"))
    try:
        made.ready()
        grant(made, LEADS)
        running = samples.attempt(TRAIN, state=AttemptState.RUNNING)
        made.commit(nodes=(samples.node("n1"),), jobs=(TRAIN,), attempts=(running,))
        yield made
    finally:
        made.close()


def followed(served: parts.Served, who: str) -> list[bytes]:
    """The lines that somebody who follows gets until the answer ends."""
    headers = {"Authorization": f"Bearer {who}"}
    path, query = "/v1/jobs/train/logs", {"follow": "true"}
    with (
        httpx.Client(base_url=served.address, timeout=parts.PATIENCE_S, headers=headers) as client,
        client.stream("GET", path, params=query) as response,
    ):
        return b"".join(response.iter_bytes()).splitlines()


def log_request(served: parts.Served) -> agent_messages.LogRequest:
    for _ in range(12):
        found = parts.answer(served.sync("n1", wait_s=10)).log_requests
        if found:
            return found[0]
    raise AssertionError("the node was not asked for any output")


def write_until_refused(served: parts.Served, request: agent_messages.LogRequest) -> None:
    """A task that writes a line again and again, until nobody reads."""
    until, offset = time.monotonic() + ENDS_S, 0
    while time.monotonic() < until:
        piece = agent_messages.LogChunk(b"loss 0.5\n", offset=offset)
        answer = served.client.post(
            f"/v1/nodes/n1/logs/{request.id}", content=msgspec.msgpack.encode(piece)
        )
        if answer.status_code == 410:
            return
        assert answer.status_code == 204, answer.text
        offset += len(piece.data)
        threading.Event().wait(0.1)
    raise AssertionError(f"output was taken for {ENDS_S} s")


@pytest.mark.parametrize(
    ("who", "lose", "reason"),
    [
        (
            "ada",
            lambda served: write_tokens(served.folder / "people", "lead"),
            b"the token of this call is not valid any more",
        ),
        ("lead", lambda served: grant(served, OTHERS), b"no role of lead@x.org allows read on"),
    ],
    ids=["token", "role"],
)
def test_output_ends_soon_after_the_right_to_read_it(
    served: parts.Served, who: str, lose: Callable[[parts.Served], None], reason: bytes
) -> None:
    with parts.in_background(lambda: followed(served, who)) as lines:
        request = log_request(served)
        lose(served)
        write_until_refused(served, request)
        *shown, last = lines()
    assert set(shown) == {b"loss 0.5"}
    assert last.startswith(b"muster: this output ends here: " + reason)
