"""A live controller tells a real receiver what becomes of revisions, signed, and once each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.notifications import messages
from tests.integration import beds
from tests.unit.notifications import test_delivery

SPEC = (
    "spec: {{{{lease: 5s, nodeSilence: 3s, sync: {{{{limits: {{{{gpus: 2}}}}}}}}, notifications: "
    "[{{{{name: chat, kind: webhook, url: '{url}/hook', secret: key}}}}, "
    "{{{{name: forge, kind: github, url: '{url}', repository: o/r, secret: key}}}}]}}}}"
)


@pytest.fixture
def receiver() -> Iterator[test_delivery.Receiver]:
    made = test_delivery.Receiver()
    yield made
    made.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path, nodes=4, gpus=2)
    folder = made.cluster.state / "notify"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "key").write_text("s3cret")
    (folder / "key").chmod(0o600)
    yield made
    made.stop()


def told(receiver: test_delivery.Receiver, reason: str, revision: str) -> list[dict[str, object]]:
    found = []
    for path, headers, body in list(receiver.got):
        if path == "/hook":
            expected = messages.signature("s3cret", headers["Muster-Timestamp"], body)
            assert headers["Muster-Signature"] == expected
            notice = json.loads(body)["notice"]
            if (notice["reason"], notice["revision"]) == (reason, revision):
                found.append(notice)
    return found


def statuses(receiver: test_delivery.Receiver, revision: str) -> list[str]:
    where = f"/repos/o/r/statuses/{revision}"
    return [json.loads(body)["state"] for path, _, body in list(receiver.got) if path == where]


def noted(bed: beds.Bed) -> set[tuple[str, str]]:
    """Channel and revision of what is noted as told."""
    listed = json.loads((bed.cluster.state / "notified.json").read_text())
    return {(channel, revision) for channel, _, _, revision in listed}


def test_what_becomes_of_revisions_is_told(bed: beds.Bed, receiver: test_delivery.Receiver) -> None:
    old = "spec: {{lease: {lease}, nodeSilence: {silence}}}"
    assert old in beds.POOL
    bound = bed.cluster.state / "notify" / "key.hosts"
    bound.write_text(receiver.url.removeprefix("http://"))
    bound.chmod(0o600)
    text = beds.POOL.replace(old, SPEC.format(url=receiver.url))
    four, two = (text.format(nodes=n, cpus=4, gpus=2) for n in (4, 2))
    first = bed.commit({"cluster.yaml": four})
    bed.start()
    bed.until(lambda: told(receiver, "applied", first) and statuses(receiver, first))
    second = bed.commit({"cluster.yaml": two})
    (held, *_) = bed.until(lambda: told(receiver, "held", second))
    assert "4 GPUs leave service, and at most 2 may" in str(held["message"])
    (command,) = held["approve"]
    bed.until(lambda: statuses(receiver, second) == ["pending"])
    # A restart tells nothing twice, of what was noted as told before it.
    bed.until(lambda: {("chat", second), ("forge", second)} <= noted(bed))
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    digest = str(command).split()[-1]
    third = bed.commit({"note.txt": "x"}, message=f"Go on\n\nMuster-Approve: {digest}")
    bed.until(lambda: told(receiver, "applied", third) and statuses(receiver, third))
    assert len(told(receiver, "held", second)) == 1
    assert len(told(receiver, "applied", first)) == 1
    metrics = bed.api.data("/metrics").decode() if bed.api else ""
    assert 'muster_notifications_total{channel="chat",result="sent"}' in metrics
    # Who can't be told, and notes that can't be written, stand in the status until that is over.
    assert untold(bed) == {}
    receiver.statuses = [403]
    lock = bed.folder / "repository.git" / "refs" / "notes" / "muster.lock"
    lock.touch()
    bed.commit({"note.txt": "y"})
    found = bed.until(lambda: (now := untold(bed)).keys() == NOT_TOLD and now)
    assert found["chat"] == "status 403"
    assert "muster" in found["git notes"]
    receiver.statuses = [200]
    lock.unlink()
    bed.commit({"note.txt": "z"})
    bed.until(lambda: untold(bed) == {})
    for name in ("controller.log", "server.log", "notified.json"):
        assert "s3cret" not in (bed.cluster.state / name).read_text()


NOT_TOLD = {"chat", "forge", "git notes"}


def untold(bed: beds.Bed) -> dict[str, str]:
    return {one["channel"]: one["why"] for one in bed.get("/v1/sync")["sync"]["untold"]}


WATCH = (
    "spec: {{{{lease: 5s, nodeSilence: 3s, notifications: "
    "[{{{{name: chat, kind: webhook, url: '{url}/hook', secret: key, "
    "on: [job-failed, node-lost, node-back, drift], queues: ['default']}}}}]}}}}"
)


def of_objects(receiver: test_delivery.Receiver) -> list[tuple[str, str]]:
    """What was told, in order: object and reason."""
    found = []
    for _, headers, body in list(receiver.got):
        signed = messages.signature("s3cret", headers["Muster-Timestamp"], body)
        assert headers["Muster-Signature"] == signed
        notice = json.loads(body)["notice"]
        found.append((notice["object"], notice["reason"]))
    return found


def test_jobs_nodes_and_drift_are_told_to_who_asked(
    bed: beds.Bed, receiver: test_delivery.Receiver
) -> None:
    old = "spec: {{lease: {lease}, nodeSilence: {silence}}}"
    text = beds.POOL.replace(old, WATCH.format(url=receiver.url))
    bed.commit({"cluster.yaml": text.format(nodes=4, cpus=4, gpus=2)})
    bed.start()
    bed.commit(
        {
            "jobs/bad.yaml": beds.job("bad", "  queue: default\n  command: ['false']"),
            "jobs/good.yaml": beds.job("good", "  queue: default\n  command: ['true']"),
        }
    )
    bed.until_state("bad", "Failed")
    bed.until_state("good", "Succeeded")
    bed.until(lambda: ("Job/bad", "job-failed") in of_objects(receiver))
    nodes = bed.cluster.nodes
    assert nodes is not None
    name = nodes.names()[0]
    nodes.kill_node(name)
    bed.until(lambda: (f"Node/{name}", "node-lost") in of_objects(receiver))
    bed.until(lambda: any(one[1] == "drift" for one in of_objects(receiver)))
    nodes.restart(name)
    bed.until(lambda: (f"Node/{name}", "node-back") in of_objects(receiver))
    assert receiver.url not in (bed.cluster.state / "controller.log").read_text()
    told = of_objects(receiver)
    assert len(told) == len(set(told))
    assert {reason for one, reason in told if one.startswith("Job/")} == {"job-failed"}
