"""Orders are read once: what is needed is checked, and what another version adds is ignored."""

import json
from pathlib import Path
from typing import Any

import pytest

from agents.supervisor import __main__, connections, orders

START = {
    "op": "start", "id": "a.1", "argv": ["sh", "-c", "true"], "env": {"A": "b"}, "cwd": "/tmp",
    "checkpoint_signal": "SIGUSR1", "grace_s": 10,
}  # fmt: skip


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_start_is_read_with_its_user() -> None:
    user = {"name": "ada", "uid": 1000, "gid": 100, "groups": [4, 24], "shell": "/bin/sh"}
    assert orders.decode(line(**START, user=user, lease_s=30, later="ignored")) == (
        orders.StartOrder(
            "a.1",
            ("sh", "-c", "true"),
            {"A": "b"},
            "/tmp",
            orders.UserIds("ada", 1000, 100, (4, 24)),
            lease_s=30.0,
            checkpoint_signal="SIGUSR1",
            grace_s=10.0,
        )
    )


def test_a_start_may_bound_what_the_folders_take() -> None:
    found = orders.decode(line(**START, scratch_bytes=4096))
    assert isinstance(found, orders.StartOrder)
    assert found.scratch_bytes == 4096


def test_a_start_may_say_who_saves_when_its_lease_is_over() -> None:
    found = orders.decode(line(**START, checkpoint_to="main"))
    assert isinstance(found, orders.StartOrder)
    assert found.checkpoint_to == "main"


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({"op": "hello"}, orders.HelloOrder()),
        (
            {"op": "refuse", "id": "a.1", "reason": "StartFailed", "message": "no"},
            orders.RefuseOrder("a.1", "StartFailed", "no"),
        ),
        (
            {"op": "stop", "id": "a.1", "reason": "Cancelled", "signal": "SIGINT", "grace_s": None},
            orders.StopAttemptOrder("a.1", "Cancelled", "SIGINT", None),
        ),
        (
            {"op": "stop", "id": "a.1", "reason": "Lost", "signal": "SIGINT", "to": "all"},
            orders.StopAttemptOrder("a.1", "Lost", "SIGINT", None, to="all"),
        ),
        ({"op": "renew", "at": 7}, orders.RenewOrder(7.0)),
        ({"op": "forget", "ids": ["a.1"]}, orders.ForgetOrder(["a.1"])),
        (
            {"op": "shutdown", "reason": "Lost", "grace_s": 5},
            orders.ShutdownOrder("Lost", 5.0),
        ),
    ],
)
def test_every_kind_is_read(fields: dict[str, Any], order: orders.Order) -> None:
    found = orders.decode(line(**fields))
    assert (type(found), found) == (type(order), order)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"{}", b'{"op": "dance"}', b'{"op": "start"}', b'{"op": "forget"}']
)
def test_a_line_that_is_no_order_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        orders.decode(text)


@pytest.mark.parametrize(
    "wrong", [{"argv": "sh"}, {"env": None}, {"grace_s": "soon"}, {"user": {"name": "ada"}}]
)
def test_a_start_that_lacks_something_ends_its_attempt(
    wrong: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the controller would wait for it for ever."""
    (tmp_path / "attempts").mkdir()
    made = __main__.Supervisor(str(tmp_path))
    client: Any = connections.ClientConnection.__new__(connections.ClientConnection)
    made.obey(client, line(**{**START, **wrong}, secrets={"token": "s3cret"}))
    record = made.table.records["a.1"]
    assert (record["state"], record["end_reason"]) == ("Ended", "StartFailed")
    assert record["message"].startswith("could not be started: ")
    assert "internal error in a start" in capfd.readouterr().err
