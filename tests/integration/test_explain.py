"""What a live cluster tells of a moment that has passed, after commits and a restart since."""

import contextlib
import json
import sqlite3
import time
import zlib
from collections.abc import Iterator

import msgspec
import pytest

from reconciler.core import cycle_journal
from reconciler.model.values.times import format_time
from reconciler.operations.client import api_client
from tests.integration import beds
from tests.integration.test_overrides import muster


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("explain"), gpus=2)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _gpus(name: str, count: int, command: str) -> str:
    return beds.job(name, f"  resources: {{gpu: {count}}}\n  command: {command}")


def _without_times(explanation: beds.Json) -> beds.Json:
    # of two looks at one cycle these differ; the live one also counts what came after it
    return {key: explanation[key] for key in ("job", "reasons", "queue", "revision")}


def test_a_moment_that_has_passed_is_told_as_it_was(bed: beds.Bed) -> None:
    began = time.time()
    names = {f"hold-{n}": _gpus(f"hold-{n}", 2, "[sleep, '600']") for n in range(2)}
    bed.commit({f"jobs/{name}.yaml": text for name, text in names.items()})
    for name in names:
        bed.until_state(name, "Running")
    waits: dict[str, str | None] = {
        f"jobs/{name}.yaml": _gpus(name, gpu, "['true']")
        for name, gpu in (("early", 1), ("late", 2))
    }
    revision = bed.commit(waits)
    bed.until(lambda: bed.job("late")["reasons"])
    bed.until(lambda: bed.get("/v1/jobs/late/explain")["revision"] == revision)
    then, live = time.time(), bed.get("/v1/jobs/late/explain")
    assert live["job"]["place"] == 2

    bed.commit({"jobs/hold-0.yaml": None, "jobs/hold-1.yaml": None})
    for name in ("early", "late"):
        bed.until_state(name, "Succeeded")
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()

    told = bed.get("/v1/jobs/late/explain", at=format_time(then))
    assert _without_times(told) == _without_times(live)
    assert told["reasons"][0]["code"] == "InsufficientResources"
    assert sum(step["count"] for step in told["reasons"][0]["funnel"]) == 2
    replayed = told["replayed"]
    assert replayed["disagreements"] == []
    assert (replayed["revision"], replayed["structureRevision"]) == (revision, revision)
    assert replayed["decided"] <= format_time(then)
    assert told["events"] == [e for e in live["events"] if e["at"] <= replayed["decided"]]
    now = bed.get("/v1/jobs/late/explain")
    assert (now["job"]["state"], now["replayed"]) == ("Succeeded", None)

    running = bed.get("/v1/jobs/hold-0/explain", at=format_time(then))["job"]
    assert running["state"] == "Running"
    assert [attempt["state"] for attempt in running["attempts"]] == ["Running"]
    after = bed.get("/v1/jobs/late/explain", at=format_time(time.time()))["job"]
    assert after == now["job"]

    with pytest.raises(
        api_client.ApiError, match=r"there was no Job/late at .* \(cycle \d+"
    ) as told_no:
        bed.get("/v1/jobs/late/explain", at=format_time(began))
    assert told_no.value.status == 404
    _command_line(bed, then, replayed)
    _disagreement(bed, then, replayed)


def _disagreement(bed: beds.Bed, then: float, replayed: beds.Json) -> None:
    """Something else was recorded than is decided again: the answer comes, with a warning."""
    place = (replayed["epoch"], replayed["cycle"])
    with contextlib.closing(sqlite3.connect(bed.cluster.state / "store.db", timeout=60)) as store:
        where = "WHERE epoch = ? AND cycle = ?"
        (body,) = store.execute(f"SELECT body FROM journal {where}", place).fetchone()  # noqa: S608
        inputs = [
            msgspec.structs.replace(one, checks=(1, *one.checks[1:]))
            for one in cycle_journal.unpack_inputs(body)
        ]
        forged = zlib.compress(msgspec.msgpack.encode(inputs))
        store.execute(f"UPDATE journal SET body = ? {where}", (forged, *place))  # noqa: S608
        store.commit()
    told = bed.get("/v1/jobs/late/explain", at=format_time(then))
    assert told["replayed"]["disagreements"] == ["jobs"]
    text, said = muster(bed, "explain", "late", "--at", format_time(then), code=1)
    assert "late was Pending." in text
    assert "differs from what Muster 0." in said


def _command_line(bed: beds.Bed, then: float, replayed: beds.Json) -> None:
    """The same by command, as text and as JSON, by time and by duration."""
    text, _ = muster(bed, "explain", "late", "--at", format_time(then))
    lines = text.splitlines()
    assert lines[0].startswith(f"Cycle {replayed['cycle']}, ")
    assert lines[0].endswith(f", revision {replayed['revision'][:12]}:")
    assert lines[2] == "late was Pending."
    assert lines[4].startswith("InsufficientResources: ")
    assert "Queue default:" in lines
    why = "it is unknown when enough becomes free; work without a time limit may run on"
    assert lines[-2:] == ["Place in its queue: 2.", f"No estimated start: {why}."]
    ago = f"{int(time.time() - then)}s"
    out, _ = muster(bed, "explain", "late", "--at", ago, "-o", "json")
    assert json.loads(out)["job"]["name"] == "late"
    _, said = muster(bed, "explain", "late", "--at", "2020-01-01T00:00:00Z", code=1)
    assert "is before the first cycle in the journal; the oldest that can be replayed is" in said
    _, said = muster(bed, "explain", "late", "--at", "2999-01-01T00:00:00Z", code=1)
    assert "is in the future" in said
    _, said = muster(bed, "explain", "late", "--at", "2020-01-01T00:00:00", code=64)
    assert "has no offset from UTC" in said
    muster(bed, "explain", "late", "--at", "yesterday", code=64)


def test_a_job_that_was_refused_then_says_why(bed: beds.Bed) -> None:
    revision = bed.commit({"jobs/bad.yaml": beds.job("bad", "  comand: [echo]")})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["attemptedRevision"] == revision)
    then = time.time()
    bed.commit({"jobs/bad.yaml": beds.job("bad", "  command: ['true']")})
    bed.until_state("bad", "Succeeded")
    told = bed.get("/v1/jobs/bad/explain", at=format_time(then))
    assert told["reasons"][0]["code"] == "Invalid"
    assert "comand" in told["reasons"][0]["message"]


def test_an_element_that_was_cancelled_says_who_did_it_and_why(bed: beds.Bed) -> None:
    sweep = _gpus("sweep", 0, "[sleep, '600']")
    whole = f"{sweep}  array: {{count: 3}}\n"
    bed.commit({"jobs/sweep.yaml": whole})
    bed.until(lambda: (bed.job("sweep")["elements"]).get("Running") == 3)
    cancelled = whole.replace("3}", "3, cancelled: '1'}")
    commit = bed.commit({"jobs/sweep.yaml": cancelled}, "Cancel Job/sweep[1]: wrong data")
    bed.until(lambda: bed.job("sweep")["elements"].get("Cancelled") == 1)
    said, _ = muster(bed, "explain", "sweep[1]")
    assert "Element 1 cancelled by " in " ".join(said.split())
    assert f"in {commit[:7]}: wrong data" in " ".join(said.split())
    assert commit[:7] in bed.job("sweep")["message"]
    other, _ = muster(bed, "explain", "sweep[2]")
    assert commit[:7] not in other
    whole_array, _ = muster(bed, "explain", "sweep")
    assert whole_array.count(commit[:7]) == 1
    bed.commit({"jobs/sweep.yaml": None})
    bed.until_state("sweep", "Cancelled")
