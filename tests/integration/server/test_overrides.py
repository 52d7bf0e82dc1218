"""Overrides over HTTP: checked, tried as a commit, and else told to the loop."""

import pathlib
from typing import Any

import httpx
import pytest

from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import records
from reconciler.operations.views import stored_views
from reconciler.server.changes import overrides
from tests.integration.server import parts
from tests.unit.store import samples

WEEK_S = 7 * 86400


def put(served: parts.Served, **changes: Any) -> httpx.Response:
    body = {"verb": "drain", "names": ["n1"], "reason": "smoke", **changes}
    return served.client.post("/v1/overrides", json=body)


def heard(served: parts.Served) -> records.OverrideRequest:
    found: loop_messages.OverrideAsked = served.loop.wait(
        lambda all_heard: next(
            (m for m in all_heard if isinstance(m, loop_messages.OverrideAsked)), None
        )
    )
    return found.request


def test_the_loop_is_told_who_what_why_and_until_when(served: parts.Served) -> None:
    answer = put(served, names=["n1"], for_s=60)
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["items"]
    request = heard(served)
    assert isinstance(request, records.PutOverride)
    one = request.override
    assert (one.verb, one.subject, one.reason, one.owner) == ("drain", "n1", "smoke", "local")
    assert one.expires_at - one.made_at == 60
    assert (item["name"], item["commit"]) == ("n1", None)
    assert item["override"]["commit"] == "muster drain n1 --reason 'smoke'"


def test_an_override_has_one_name_however_it_is_asked_for(served: parts.Served) -> None:
    """The loop knows no other, and the right is asked for that one."""
    answer = put(served, verb="suspend", names=["Queue/team"])
    assert [item["name"] for item in answer.json()["items"]] == ["queue/team"]
    request = heard(served)
    assert isinstance(request, records.PutOverride)
    assert request.override.subject == "queue/team"


@pytest.mark.parametrize(
    ("subject", "status"), [("Queue/team", 200), ("CLUSTER", 200), ("team", 400)]
)
def test_an_override_is_ended_by_that_name_too(
    served: parts.Served, subject: str, status: int
) -> None:
    assert served.client.delete(f"/v1/overrides/suspend/{subject}").status_code == status
    if status == 200:
        request = heard(served)
        assert isinstance(request, records.ClearOverride)
        assert request.subject == subject.lower()


def test_four_hours_unless_said_otherwise(served: parts.Served) -> None:
    assert put(served).status_code == 200
    request = heard(served)
    assert isinstance(request, records.PutOverride)
    assert request.override.expires_at - request.override.made_at == 4 * 3600


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"names": []}, "names: found 0, expected 1 to 1000"),
        ({"names": ["n1", "n1"]}, "each once"),
        ({"names": [f"n{number}" for number in range(1001)]}, "names: found 1001"),
        ({"verb": "suspend", "names": ["queue/a", "Queue/a"]}, "each once"),
        ({"verb": "suspend", "names": ["job/a"]}, "expected cluster, queue/NAME"),
        ({"reason": "  "}, "an override needs a reason"),
        ({"reason": "x" * 1001}, "reason: found 1001 characters"),
        ({"for_s": 0}, "for_s: found 0 s"),
        ({"for_s": WEEK_S + 1}, "expected 1 to 604800 s (7 days)"),
        ({"verb": "hold"}, ""),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(
    served: parts.Served, changes: dict[str, Any], told: str
) -> None:
    answer = put(served, **changes)
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]["message"]


def test_the_longest_and_the_shortest_are_taken(served: parts.Served) -> None:
    assert put(served, for_s=WEEK_S).status_code == 200
    assert put(served, for_s=1).status_code == 200


def test_the_loop_may_refuse(served: parts.Served) -> None:
    served.loop.answers = "there is no Node/n1"
    answer = put(served)
    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == "n1: there is no Node/n1; 0 of 1 done"
    cleared = served.client.delete("/v1/overrides/drain/n1")
    assert cleared.status_code == 404
    assert "`muster overrides` lists" in cleared.json()["error"]["message"]


def test_those_in_force_are_listed_and_cleared(served: parts.Served) -> None:
    one = records.Override("cancel", "train", "it's wild", "alice", 1000.0, 2000.0, "train.1.x")
    served.commit(overrides=(one,))
    (item,) = served.client.get("/v1/overrides").json()["items"]
    assert item == {
        "verb": "cancel",
        "subject": "train",
        "reason": "it's wild",
        "owner": "alice",
        "made": "1970-01-01T00:16:40.000Z",
        "expires": "1970-01-01T00:33:20.000Z",
        "commit": "muster cancel train --reason 'it'\\''s wild'",
        "committed": None,
        "refused": None,
    }
    assert served.client.delete("/v1/overrides/cancel/train").status_code == 200
    request = heard(served)
    assert isinstance(request, records.ClearOverride)
    assert (request.verb, request.subject, request.owner) == ("cancel", "train", "local")


def test_without_a_loop_nothing_is_promised(tmp_path: pathlib.Path) -> None:
    made = parts.Served(tmp_path, loop=False)
    try:
        answer = put(made)
        assert answer.status_code == 503
        assert "not connected" in answer.json()["error"]["message"]
    finally:
        made.close()


def test_a_node_may_not(tmp_path: pathlib.Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("n n1 node\nu alice user\n")
    made = parts.Served(tmp_path, "--token-file", str(tokens))
    try:
        made.ready().commit(nodes=(samples.node(),))
        headers = {"Authorization": "Bearer u"}
        body = {"verb": "drain", "names": ["n1"], "reason": "smoke"}
        early = made.client.post("/v1/overrides", json=body, headers=headers)
        assert early.status_code == 403, "nobody's rights are known before a structure is in force"
        assert "no structure is in force yet" in early.json()["error"]["message"]
        in_force = desired.SyncStatus("Synced", "abc", "abc", "abc")
        made.commit(views=stored_views.desired_views(desired.Desired(status=in_force)))
        headers = {"Authorization": "Bearer n"}
        body = {"verb": "drain", "names": ["n1"], "reason": "smoke"}
        assert made.client.post("/v1/overrides", json=body, headers=headers).status_code == 403
        headers = {"Authorization": "Bearer u"}
        assert made.client.post("/v1/overrides", json=body, headers=headers).status_code == 200
        request = heard(made)
        assert isinstance(request, records.PutOverride)
        assert request.override.owner == "alice"
    finally:
        made.close()


def test_limits_are_those_of_the_guide() -> None:
    assert (overrides.FOR_S_DEFAULT, overrides.FOR_S_MAX) == (4 * 3600, WEEK_S)
