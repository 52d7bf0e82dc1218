"""How many sessions there are, of whom and where."""

from typing import Any

import pytest

from reconciler.server.auth import tokens
from reconciler.server.interactive import session_desk
from reconciler.server.relay import relay_messages
from tests.unit.core.world import World, job


def _wish(user: str = "ada") -> session_desk.SessionWish:
    """A wish for a session in the only task of a cluster."""
    world = World(nodes=1)
    world.commit(job("train"))
    world.settle()
    (attempt,) = world.memory.attempts.values()
    record = world.memory.jobs["train"]
    return session_desk.SessionWish(tokens.Caller(user, "user"), "", record, attempt, "exec")


def _grants(count: int, **changes: Any) -> list[relay_messages.SessionGrant]:
    its: dict[str, Any] = {"user": "ada", "node": "n", "job": "j"} | changes
    made = relay_messages.SessionGrant(
        "s", b"", b"", its["user"], "user", its["node"], its["job"],
        "j.1.x", "a", "exec", 0.0, 1.0, 1.0,
    )  # fmt: skip
    return [made] * count


def test_one_person_does_not_fill_a_node() -> None:
    wish = _wish()
    full = _grants(session_desk.USER_MAX, node=wish.attempt.node)
    with pytest.raises(session_desk.TooManySessionsError, match=r"^ada has"):
        session_desk.require_room(full, wish)
    session_desk.require_room(full, _wish("bob"))


@pytest.mark.parametrize(
    ("changes", "most", "told"),
    [
        ({}, session_desk.USER_MAX, "ada has"),
        ({"user": "bob", "job": "train"}, session_desk.JOB_MAX, "job train has"),
        ({"user": "bob", "node": ""}, session_desk.NODE_MAX, "node .* has"),
    ],
)
def test_users_jobs_and_nodes_have_a_limit(changes: dict[str, str], most: int, told: str) -> None:
    wish = _wish()
    changes = {key: value or wish.attempt.node for key, value in changes.items()}
    session_desk.require_room(_grants(most - 1, **changes), wish)
    with pytest.raises(session_desk.TooManySessionsError, match=f"^{told} {most} sessions"):
        session_desk.require_room(_grants(most, **changes), wish)
