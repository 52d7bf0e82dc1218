"""No end is lost and none is told before it is on disk, whatever fails beside it."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import node_agent
from agents.data import data_cache, staging
from agents.settings import AgentSettings
from agents.supervisor import (
    __main__,
    client,
    connections,
    journal,
    orders,
    reaper,
    record_table,
    spawn,
    task_isolation,
)
from reconciler.model.observed import storage
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

RUNNING = {"id": "a", "state": "Running", "pid": 2**22 + 1, "ticks": 0, "started_at": 1.0}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[__main__.Supervisor]:
    monkeypatch.setenv(task_isolation.VARIABLE, "process-group")
    (tmp_path / "attempts").mkdir()
    one = __main__.Supervisor(str(tmp_path))
    yield one
    os.close(one.table.journal.handle)
    os.close(one.null)


class Agent:
    """The other end of a supervisor's connection."""

    def __init__(self, of: __main__.Supervisor) -> None:
        ours, theirs = socket.socketpair()
        of.clients.poller.register(theirs.fileno())
        self.client = connections.ClientConnection(theirs)
        of.clients._by_handle[theirs.fileno()] = self.client
        self.stream = ours.makefile("rb")
        ours.settimeout(60)
        self.ours = ours

    def hears(self) -> dict[str, Any]:
        """The states of attempts in the next message."""
        message = json.loads(self.stream.readline())
        return {one["id"]: one["state"] for one in message["records"]}

    def close(self) -> None:
        self.stream.close()
        self.ours.close()
        self.client.link.close()


def test_an_end_that_is_not_on_disk_is_told_to_no_agent(made: __main__.Supervisor) -> None:
    """A new agent comes while the disk is full; by the journal the attempt is still to be lost."""
    made.table.records["a"] = RUNNING
    good, made.table.journal.handle = made.table.journal.handle, os.open("/dev/full", os.O_RDWR)
    made.table.end(RUNNING, "Exited")
    made.table.publish(made.clients.tell)
    assert made.table.retry_at, "it could not be written"
    agent = Agent(made)
    made.on_hello(agent.client)
    assert agent.hears() == {"a": "Stopping"}
    os.close(made.table.journal.handle)
    made.table.journal.handle = good
    made.table.publish(made.clients.tell)
    assert agent.hears() == {"a": "Ended"}
    agent.close()


def test_what_could_not_be_brought_to_disk_once_is_written_anew_before_it_is_told(
    made: __main__.Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that could not write a page takes it for written: the next call succeeds at once."""
    made.table.records["a"] = RUNNING
    agent = Agent(made)
    made.on_hello(agent.client)
    assert agent.hears() == {"a": "Running"}
    synced: list[str] = []

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        made.table.end({**RUNNING, "exit_code": 7}, "Exited")
        made.table.publish(made.clients.tell)
    assert made.table.retry_at, "it could not be brought to disk"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note)
        made.table.publish(made.clients.tell)
    assert synced[:1] == [f"{made.table.journal.path}.new"]
    assert journal.read(made.table.journal.path)["a"]["exit_code"] == 7
    assert agent.hears() == {"a": "Ended"}
    made.table.publish(made.clients.tell)
    assert (made.table.retry_at, made.table.journal.doubtful) == (0.0, False)
    agent.close()


@pytest.mark.parametrize(
    ("reason", "status", "ran_s", "told"),
    [
        ("Exited", 2, 1.0, "of the end; of the start; of a failure"),
        ("Exited", 2, record_table.SOON_S + 1, "of the end; of the start"),
        ("Exited", 0, 1.0, "of the end; of the start"),
        ("StartFailed", 127, 0.0, "of the end; of the start"),
        ("StartFailed", 126, 0.0, "of the end"),
        ("CheckFailed", None, 0.0, "of the end"),
        ("OutOfMemory", 137, 1.0, "of the end"),
        ("Preempted", 0, 1.0, "of the end"),
    ],
)
def test_what_was_told_of_a_start_is_no_reason_of_another_end(
    made: __main__.Supervisor, reason: str, status: int | None, ran_s: float, told: str
) -> None:
    start = {"message": "of the start", "hint": "of a failure", "exit_code": status}
    started_at = time.time() - ran_s
    made.table.end({**RUNNING, "started_at": started_at, **start}, reason, message="of the end")
    record = made.table.records["a"]
    assert record["message"] == told
    assert "hint" not in record


def test_a_start_with_a_defect_takes_no_other_along(made: __main__.Supervisor) -> None:
    made.starts.queue = [orders.StartOrder(name) for name in ("a\0", "b", "c")]
    made.starts.run()
    ends = {name: (one["state"], one["end_reason"]) for name, one in made.table.records.items()}
    assert ends.pop("a\0") == ("Ended", "StartFailed")
    assert ends == dict.fromkeys(("b", "c"), ("Ended", "CheckFailed")), "there is no folder of logs"


def test_an_end_is_recorded_where_its_group_can_not_be_read(
    made: __main__.Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(name: str, *, contained: bool) -> dict[str, Any]:
        raise OSError(19, "No such device")

    monkeypatch.setattr(made.isolation, "close", gone)
    attempt = spawn.Attempt(orders.StartOrder("a"), {**RUNNING, "exit_code": 7})
    attempt.exited = True
    made.attempts.by_name["a"], made.table.records["a"] = attempt, attempt.record
    made.attempts.settle()
    assert made.attempts.by_name == {}
    assert (made.table.records["a"]["state"], made.table.records["a"]["exit_code"]) == ("Ended", 7)


def test_news_that_come_with_the_greeting_are_heard(tmp_path: Path) -> None:
    """Nothing more may come for hours: an end must not lie in the agent's buffer."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "supervisor.sock"))
    listener.listen()
    hello = {"hello": 1, "records": [RUNNING, {**RUNNING, "id": "b"}]}
    news = {"records": [{**RUNNING, "state": "Ended", "end_reason": "Exited"}]}

    def greet() -> None:
        link, _ = listener.accept()
        with link:
            link.recv(100)
            link.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in (hello, news)))

    thread = threading.Thread(target=greet)
    thread.start()
    node = client.SupervisorClient(tmp_path)
    found = {one.id: one.state for one in node.connect(threading.Event())}
    thread.join()
    node.close()
    listener.close()
    assert found == {"a": AttemptState.ENDED, "b": AttemptState.RUNNING}


def test_a_copy_out_that_ends_at_once_is_told_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in another thread while its beginning is being told; its end is what stays."""
    agent = node_agent.Agent(AgentSettings(server="http://127.0.0.1:1", name="n", root=tmp_path))
    agent.prepare()
    store = storage.VolumeStore("out", str(tmp_path / "target"))
    plan = storage.StagingPlan(outs=(storage.Out("made", store, "x", "always"),), timeout_s=60.0)
    wanted = staging.StagingRequest(plan, None, "u", os.geteuid(), os.getegid(), {})
    stager = agent.launcher.stager
    stager.cache.put("a", data_cache.CacheNote(outs=msgspec.to_builtins(wanted)))
    told = threading.Event()

    def no_process(*_: object, **_more: object) -> None:
        raise OSError(11, "no more processes")

    def hold(reports: list[AttemptReport], later: Any) -> list[AttemptReport]:
        def end(report: AttemptReport) -> None:
            later(report)
            told.set()

        found = staging.Stager.hold(stager, reports, end)
        told.wait(1.0)  # where it can be told now, it is
        return found

    monkeypatch.setattr(stager._runner, "run", no_process)
    monkeypatch.setattr(stager, "hold", hold)
    ours, theirs = socket.socketpair()
    agent.supervisor.link = ours
    ended = {**RUNNING, "state": "Ended", "end_reason": "Exited", "exit_code": 0}
    theirs.sendall(json.dumps({"records": [ended]}).encode() + b"\n")
    reports = agent.supervisor.receive()
    assert reports is not None
    agent.lifecycle.reported(reports)
    assert told.wait(60)
    (report,) = agent.dialogue.request(0.0, complete=True).attempts
    assert report.state is AttemptState.ENDED
    assert report.end_reason is EndReason.STAGE_FAILED
    theirs.close()
    agent.supervisor.close()
    agent.leave()


def test_a_supervisor_does_not_leave_with_an_end_that_is_on_no_disk(
    made: __main__.Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, it stays for as long as it takes; told to leave, for a while."""
    monkeypatch.setattr(__main__, "ALONE_S", 0.0)
    monkeypatch.setattr(made, "wait_s", lambda: 0.0)
    listener = socket.socket(socket.AF_UNIX)
    made.table.records["a"] = RUNNING
    made.table.end({**RUNNING, "exit_code": 7}, "Exited")
    good, made.table.journal.handle = made.table.journal.handle, os.open("/dev/full", os.O_RDWR)
    for _ in range(3):
        made.turn(listener, -1)
    assert not made.leaving
    made.leaving = True
    assert not made.may_leave()
    made.leave_at = 0.001
    assert made.may_leave(), "what can't be written never keeps it for ever"
    made.leaving, made.leave_at = False, 0.0
    os.close(made.table.journal.handle)
    made.table.journal.handle = good
    for _ in range(3):
        made.turn(listener, -1)
    assert made.leaving
    assert made.may_leave()
    assert journal.read(made.table.journal.path)["a"]["exit_code"] == 7
    listener.close()


def test_a_name_that_is_no_text_is_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(task_isolation.VARIABLE, "process-group")
    (tmp_path / "attempts").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "attempts") + b"/a\xff")).mkdir()
    (tmp_path / "attempts/b").mkdir()
    bad = json.dumps({"record": {**RUNNING, "id": "c\udcff"}})
    (tmp_path / "journal").write_text(f"{bad}\n")
    made = __main__.Supervisor(str(tmp_path))
    made.recover()
    assert set(made.table.records) == {"b"}
    assert "its name is no UTF-8" in capfd.readouterr().err
    os.close(made.table.journal.handle)
    os.close(made.null)


def test_an_older_supervisor_that_names_such_a_one_is_understood(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    names = ("a\udcff", "b")
    records = [{**RUNNING, "id": one, "pid": 0, "message": "x\udcff"} for one in names]
    line = json.dumps({"hello": 1, "records": records}).encode() + b"\n"
    theirs.sendall(line)
    node = client.SupervisorClient(tmp_path)
    found = node._greet(ours)
    assert found is not None
    assert [one.id for one in found] == ["a?", "b"]
    theirs.sendall(line)
    assert [one.id for one in node.receive() or ()] == ["a?", "b"]
    theirs.sendall(b"no message\n")
    assert node.receive() is None
    node.close()
    theirs.close()


def test_who_leaves_in_order_does_so_though_its_reaper_was_killed(tmp_path: Path) -> None:
    one = reaper.Reaper("none.0", str(tmp_path), ("", "", []))
    one.start()
    os.kill(one.pid, signal.SIGKILL)
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    one.dismiss()
    with pytest.raises(ChildProcessError):
        os.waitpid(one.pid, os.WNOHANG)
    os.close(one._pipe)
