"""Agents and the loop hear each other through the server, one agent a node, over cuts."""

import contextlib
import socket
from typing import Any

import httpx
import msgspec
import pytest

from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import records, states
from reconciler.server import agent_sync, errors
from tests.integration.server import parts

SET = agent_messages.AssignmentSet(
    templates={
        "t": agent_messages.TaskTemplate(job="train", run=1, group="main", command=("true",))
    },
    assignments=(agent_messages.Assignment(attempt="a1", template="t", boot_id="boot-1"),),
)


def update(version: int, *, epoch: int = 1, **fields: Any) -> loop_messages.NodeUpdate:
    payload = msgspec.msgpack.encode(SET)
    return loop_messages.NodeUpdate(
        "n1",
        epoch,
        version,
        **({"payload": payload} | fields),
    )


def until_told(served: parts.Served, version: int) -> None:
    served.until(lambda: parts.answer(served.sync()).version == version)


def test_a_set_is_told_once_and_again_when_it_changes(served: parts.Served) -> None:
    first = parts.answer(served.sync())
    assert (first.epoch, first.version, first.set) == (1, 0, None)
    assert first.want_inventory
    assert first.poll_s == 0.5
    served.loop.send(update(3))
    until_told(served, 3)
    assert parts.answer(served.sync()).set == SET
    known = parts.answer(served.sync(have=(1, 3)))
    assert (known.epoch, known.version, known.set) == (1, 3, None)
    assert not known.want_inventory


def test_a_poll_waits_for_news(served: parts.Served) -> None:
    served.sync()
    with parts.in_background(
        lambda: served.sync(wait_s=15, have=(1, 0), usage=records.NodeUsage())
    ) as told:
        served.loop.wait(
            lambda heard: len([m for m in heard if isinstance(m, loop_messages.Reported)]) == 2
        )
        served.loop.send(update(1))
        assert parts.answer(told()).set == SET


def test_acknowledgements_are_told_once(served: parts.Served) -> None:
    served.sync()
    served.loop.send(update(1, payload=None, acknowledged=("a0",)))
    with_ends = parts.answer(served.sync(wait_s=15))
    assert with_ends.acknowledged == ("a0",)
    assert with_ends.set is None
    assert parts.answer(served.sync()).acknowledged == ()


def test_only_news_reaches_the_loop_but_every_answer_does(served: parts.Served) -> None:
    served.sync()
    for _ in range(5):
        served.sync()
    report = records.AttemptReport("a1", states.AttemptState.RUNNING, started_at=5.0)
    served.sync(attempts=(report,), complete=False)
    told = served.loop.wait(lambda _: served.loop.reports("n1")[1:])
    assert [one.attempts for one in told] == [(report,)]
    answers = served.loop.wait(
        lambda heard: [one for one in heard if isinstance(one, loop_messages.Answered)][1:]
    )
    assert answers[-1].node == "n1"


def test_after_a_new_connection_the_loop_hears_all_again(served: parts.Served) -> None:
    served.sync()
    served.loop.send(update(3))
    until_told(served, 3)
    served.loop.cut()
    served.loop.wait_connected(2)
    away = served.sync()
    assert away.status_code == 503
    assert int(away.headers["retry-after"]) >= 1
    assert served.client.get("/readyz").status_code == 503
    served.loop.wait(
        lambda heard: sum(isinstance(one, loop_messages.Answered) for one in heard) >= 2
    )
    before = len(served.loop.reports("n1"))
    served.loop.send(update(4, epoch=2))
    served.loop.publish(epoch=2)
    served.until(lambda: served.client.get("/readyz").status_code == 200)
    again = parts.answer(served.sync(have=(1, 3)))
    assert (again.epoch, again.version, again.set) == (2, 4, SET)
    served.loop.wait(lambda _: len(served.loop.reports("n1")) == before + 1)


def test_before_the_loop_is_ready_nobody_is_served(served: parts.Served) -> None:
    served.loop.publish(ready=False)
    served.until(lambda: served.client.get("/readyz").status_code == 503)
    assert served.sync().status_code == 503
    assert served.client.get("/healthz").json() == {"status": "ok"}


def test_a_second_agent_of_a_name_is_turned_away(served: parts.Served) -> None:
    served.sync()
    with parts.in_background(lambda: served.sync(wait_s=15, usage=records.NodeUsage())) as first:
        served.loop.wait(lambda _: len(served.loop.reports("n1")) == 2)
        second = served.sync(incarnation="two")
        assert second.status_code == 409
        assert "another agent has this name. To fix: stop it" in second.text
        assert not any(word in second.text for word in ("incarnation", "boot-1", "one,"))
        told: dict[str, Any] = {"incarnation": "two", "follows": ("one",)}
        assert served.sync(**told).status_code == 409, "whoever says so is not believed"
        served.loop.send(update(1))
        assert parts.answer(first()).set == SET


def test_a_root_that_proves_itself_takes_over_and_its_proof_stays_here(
    served: parts.Served,
) -> None:
    proof = "a" * 64
    served.loop.publish(poll_s=600)
    with parts.in_background(
        lambda: served.sync(wait_s=15, usage=records.NodeUsage(), folder_proof=proof)
    ) as first:
        served.loop.wait(lambda _: served.loop.reports("n1"))
        told: dict[str, Any] = {"incarnation": "two", "follows": ("one",)}
        for wrong in ("", "b" * 64):
            assert served.sync(**told, folder_proof=wrong).status_code == 409
        assert served.sync(**told, folder_proof="ä" * 64).status_code == 400
        assert served.sync(**told, folder_proof=proof).status_code == 200
        first()
    served.loop.wait(
        lambda _: [one for one in served.loop.reports("n1") if one.incarnation == "two"]
    )
    assert {one.folder_proof for one in served.loop.reports("n1")} == {""}


def test_the_newcomer_takes_over_when_the_connection_is_cut(served: parts.Served) -> None:
    served.sync()
    served.loop.publish(poll_s=600)
    with (
        contextlib.suppress(httpx.ReadTimeout),
        httpx.Client(base_url=served.address, headers=parts.ADMIN) as dying,
    ):
        dying.post("/v1/nodes/n1/sync", content=parts.request(wait_s=30), timeout=0.3)
    served.until(lambda: served.sync(incarnation="two").status_code == 200)
    assert served.loop.wait(
        lambda _: [r for r in served.loop.reports("n1") if r.incarnation == "two"]
    )


def test_a_silent_agent_is_replaced(served: parts.Served) -> None:
    served.sync()
    assert served.sync(incarnation="two").status_code == 409
    served.until(lambda: served.sync(incarnation="two").status_code == 200)


@pytest.mark.parametrize("name", ["a\nb", "a\n", "..", "a\x1b", "a\0", "-a", "x" * 254, "a b", "ä"])
def test_a_name_that_no_pool_could_declare_is_no_node(name: str) -> None:
    with pytest.raises(errors.Failure, match="is no name of a node"):
        agent_sync.parse(name, parts.request(name))
    assert agent_sync.parse("gpu-01.x", parts.request("gpu-01.x")).node == "gpu-01.x"


def test_what_makes_no_sense_is_refused_with_its_reason(served: parts.Served) -> None:
    post = served.client.post
    for content, told in [
        (b"\xc1", "can't be read"),
        (b"", "can't be read"),
        (msgspec.msgpack.encode({"node": 5}), "Expected `str`, got `int`"),
        (parts.request("n2"), "the path says node n1, the body 'n2'"),
        (parts.request(protocol=99), "protocol version 99, this controller 1"),
    ]:
        response = post("/v1/nodes/n1/sync", content=content)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "BadRequest"
        assert told in error["message"]
    large = post("/v1/nodes/n1/sync", content=bytes(agent_messages.SYNC_BYTES_MAX + 1))
    assert large.status_code == 413
    told = f"sync of node 'n1': found {2**23 + 1} bytes, expected at most {2**23}"
    assert large.json()["error"]["message"] == told
    unknown = post("/v1/nodes/n1/sync", content=iter([parts.request()]))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (411, "LengthRequired")
    assert served.loop.reports("n1") == []


def test_a_length_beside_chunks_is_not_believed(served: parts.Served) -> None:
    """The chunks say how long a body is: budgets were charged what the header says instead."""
    body = parts.request()
    head = (
        "POST /v1/nodes/n1/sync HTTP/1.1\r\nHost: x\r\nContent-Type: application/msgpack\r\n"
        f"Authorization: {parts.ADMIN['Authorization']}\r\n"
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    url = httpx.URL(served.address)
    with socket.create_connection((url.host, url.port or 80), parts.PATIENCE_S) as connection:
        connection.sendall(head.encode() + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        answer = connection.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 411 ")
    assert "found a body in chunks, expected a Content-Length" in answer
    assert served.loop.reports("n1") == []


def test_a_node_that_says_too_much_is_refused_and_counted_and_no_other_is(
    served: parts.Served,
) -> None:
    labels = {f"{number}": "x" * 600 for number in range(3)}
    long = served.sync(inventory=records.Inventory(labels=labels))
    assert (long.status_code, long.json()["error"]["code"]) == (422, "Unprocessable")
    assert "inventory.labels: found 600 characters, expected at most 512" in long.text
    noise = records.Inventory(labels={"a": "b" * 7_000_000})
    answers = [served.sync(inventory=noise) for _ in range(5)]
    assert [one.status_code for one in answers] == [422, 422, 422, 429, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert served.sync("n2").status_code == 200
    page = served.client.get("/metrics").text
    for reason, count in (("content", 4), ("rate", 2), ("history", 0)):
        assert f'muster_api_refused_reports_total{{reason="{reason}"}} {count}.0\n' in page
    assert served.loop.reports("n1") == []
    # 21 MB were sent, of 16 MiB at once and 1 MiB a second: it may speak again when they are paid
    served.until(lambda: served.sync().status_code == 200)


def test_words_of_a_node_reach_the_loop_without_control_characters(served: parts.Served) -> None:
    evil = "x\x1b]0;PWNED\x07<script>\n"
    served.sync(inventory=records.Inventory(hostname=evil, labels={evil: evil}))
    (told,) = served.loop.wait(lambda _: served.loop.reports("n1"))
    assert told.inventory is not None
    assert told.inventory.hostname == r"x\x1b]0;PWNED\x07<script>\n"
    assert told.inventory.labels == {told.inventory.hostname: told.inventory.hostname}


def test_a_stop_lets_waiting_agents_go(served: parts.Served) -> None:
    served.sync()
    with parts.in_background(lambda: served.sync(wait_s=50, usage=records.NodeUsage())) as told:
        served.loop.wait(lambda _: len(served.loop.reports("n1")) == 2)
        served.end()
        assert told().status_code in {200, 503}
    assert served.process.wait(parts.PATIENCE_S) is not None


def test_nobody_waits_for_a_long_cycle_and_nothing_is_renewed_before_it_is_over(
    served: parts.Served,
) -> None:
    served.loop.confirms = False
    served.loop.send(update(3))
    served.until(lambda: served.sync(accepts_unrenewed=True).status_code == 200)
    report = records.AttemptReport("a1", states.AttemptState.RUNNING)
    early = parts.answer(served.sync(accepts_unrenewed=True, attempts=(report,), complete=False))
    assert (early.renews, early.set, early.version) == (False, None, 0)
    questions = served.loop.wait(
        lambda heard: [
            m.question for m in heard if isinstance(m, loop_messages.Reported) and m.question
        ]
    )
    assert len(questions) == 1, "asked once, however often the node comes"
    assert not [
        m for m in served.loop.wait(lambda heard: heard) if isinstance(m, loop_messages.Answered)
    ]
    served.loop.wait(  # the server answers before the loop has it
        lambda _: [one for one in served.loop.reports("n1") if one.attempts == (report,)]
    )
    with parts.in_background(
        lambda: served.sync(accepts_unrenewed=True, wait_s=30, usage=records.NodeUsage())
    ) as told:
        served.loop.wait(lambda _: len(served.loop.reports("n1")) >= 3)
        served.loop.send(update(4, confirms=questions[0], lease_s=600.0))
        late = parts.answer(told())
    assert (late.renews, late.set, late.version) == (True, SET, 4)
    served.loop.wait(lambda heard: [m for m in heard if isinstance(m, loop_messages.Answered)])
    again = parts.answer(served.sync(accepts_unrenewed=True, have=(1, 4)))
    assert (again.renews, again.set) == (True, None)


def test_an_agent_that_knows_no_such_answer_is_kept_until_the_loop_has_spoken(
    served: parts.Served,
) -> None:
    served.loop.confirms = False
    with parts.in_background(served.sync) as told:
        reported = served.loop.wait(
            lambda heard: [m for m in heard if isinstance(m, loop_messages.Reported) and m.question]
        )
        served.loop.confirm("n1", reported[0].question)
        assert parts.answer(told()).renews


def test_a_long_poll_that_the_loop_does_not_answer_in_time_renews_nothing(
    served: parts.Served,
) -> None:
    served.loop.confirms = False
    assert not parts.answer(served.sync(accepts_unrenewed=True, wait_s=0.2)).renews
