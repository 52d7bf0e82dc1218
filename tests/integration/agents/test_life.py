"""The life of attempts on a node: start, exit, stop, report, acknowledgement."""

import random

import pytest

from agents.host import processes
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller


@pytest.mark.parametrize(
    ("command", "exit_code", "signal"),
    [
        (("/bin/true",), 0, None),
        (("true",), 0, None),
        (("sh", "-c", "exit 7"), 7, None),
        (("sh", "-c", "kill -9 $$"), None, 9),
    ],
)
def test_exit_is_reported(
    agent: Node,
    controller: Controller,
    command: tuple[str, ...],
    exit_code: int | None,
    signal: int | None,
) -> None:
    controller.assign("a.1", *command)
    report = controller.ended("a.1")
    assert (report.exit_code, report.signal) == (exit_code, signal)
    assert report.end_reason is EndReason.EXITED
    assert report.started_at is not None
    assert report.ended_at is not None
    assert report.started_at <= report.ended_at


@pytest.mark.parametrize(
    ("template", "exit_code", "message"),
    [
        (TaskTemplate("job", 1, "g", command=("no-such-program",)), 127, "no-such-program"),
        (TaskTemplate("job", 1, "g", command=("/etc/passwd",)), 126, "/etc/passwd"),
        (
            TaskTemplate("job", 1, "g", command=("true",), working_directory="/no/where"),
            127,
            "/no/where",
        ),
        (
            TaskTemplate("job", 1, "g", script="#!/opt/none/python3\nprint(1)\n"),
            127,
            "its interpreter /opt/none/python3 is not on this node",
        ),
        (
            TaskTemplate("job", 1, "g", script="#!/bin/sh\r\necho hi\r\n"),
            127,
            "its first line ends as in Windows (CR LF): save it with LF alone",
        ),
        (TaskTemplate("job", 1, "g"), None, "neither a command nor a script"),
        (
            TaskTemplate("job", 1, "g", command=("true",), checkpoint_path="../out"),
            None,
            "'../out'",
        ),
    ],
)
def test_what_can_not_start_says_why(
    agent: Node,
    controller: Controller,
    template: TaskTemplate,
    exit_code: int | None,
    message: str,
) -> None:
    controller.assign("a.1", template=template)
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert report.exit_code == exit_code
    assert message in report.message


def test_acknowledged_end_is_deleted_and_never_starts_again(
    agent: Node, controller: Controller
) -> None:
    controller.acknowledge = True
    controller.assign("a.1", "sh", "-c", "echo hello")
    controller.ended("a.1")
    folder = agent.root / "attempts" / "a.1"
    controller.wait(lambda: not folder.exists(), "deletion of the directory")
    controller.assign("a.2", "true")
    controller.ended("a.2")
    controller.wait(lambda: controller.listed == (), "a report of nothing")
    assert (agent.root / "logs" / "a.1.stdout").read_text() == "hello\n"
    assert not folder.exists()


def test_stop_gives_the_reason_and_the_true_exit(agent: Node, controller: Controller) -> None:
    controller.assign(
        "a.1", "sh", "-c", "trap 'exit 5' USR1; echo up; while :; do sleep 0.05; done"
    )
    log = agent.root / "logs" / "a.1.stdout"
    controller.wait(lambda: log.exists() and log.read_text() == "up\n", "the task")
    controller.stop("a.1", signal="SIGUSR1", reason=EndReason.PREEMPTED)
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.PREEMPTED
    assert report.exit_code == 5


def test_stop_kills_after_grace_and_a_later_order_shortens(
    agent: Node, controller: Controller
) -> None:
    controller.assign("a.1", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    log = agent.root / "logs" / "a.1.stdout"
    controller.wait(lambda: log.exists() and log.read_text() == "up\n", "the task")
    controller.stop("a.1", grace_s=3600)
    controller.in_state("a.1", AttemptState.STOPPING)
    controller.stop("a.1", grace_s=0, reason=EndReason.TIMED_OUT)
    report = controller.ended("a.1")
    assert report.signal == 9
    assert report.end_reason is EndReason.CANCELLED


def test_stop_before_start_never_starts(agent: Node, controller: Controller) -> None:
    with controller.news:
        controller.assign("a.1", "sh", "-c", "echo started")
        controller.stop("a.1", reason=EndReason.PREEMPTED)
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.PREEMPTED
    assert report.started_at is None
    assert not (agent.root / "logs" / "a.1.stdout").exists()


def test_what_is_no_longer_assigned_is_stopped(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    controller.remove("a.1")
    report = controller.ended("a.1")
    assert (report.end_reason, report.signal) == (EndReason.CANCELLED, 15)


def test_another_boot_is_refused(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "true", boot_id="yesterday")
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.REFUSED
    assert "yesterday" in report.message


def sleepers(mark: str) -> list[int]:
    """Live processes whose command line holds a mark, whatever their environment."""
    return [p for p in processes.processes() if mark in started.command_of(p)]


@pytest.mark.parametrize(
    "script",
    [
        "setsid sh -c 'sleep {0}' & echo up; wait",
        "(setsid sh -c 'setsid sleep {0} & sleep {0}' &) ; echo up; sleep {0}",
        "env -i setsid sleep {0} & echo up; sleep {0}",
    ],
)
@pytest.mark.parametrize("by_exit", [False, True])
def test_descendants_are_killed(
    agent: Node, controller: Controller, script: str, by_exit: bool
) -> None:
    mark = f"36{random.randrange(10**9)}"
    body = script.format(mark)
    controller.assign("a.1", "sh", "-c", f"({body}) & sleep 0.2" if by_exit else body)
    if not by_exit:
        log = agent.root / "logs" / "a.1.stdout"
        controller.wait(lambda: log.exists() and log.read_text() == "up\n", "the task")
        controller.stop("a.1", grace_s=0)
    controller.ended("a.1")
    assert not sleepers(mark)


def test_a_burst_is_reported_whole(agent: Node, controller: Controller) -> None:
    names = [f"a.{i}" for i in range(200)]
    with controller.news:
        for name in names:
            controller.assign(name, "true")
    for name in names:
        assert controller.ended(name).exit_code == 0


def test_usage_comes_along(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
    report = controller.ended("a.1")
    assert report.cpu_s > 0
    assert report.max_memory_bytes > 0
    usage = next(request.usage for request in controller.requests if request.usage)
    assert usage.agent_memory_bytes > 2**20
    assert usage.disk_total_bytes >= usage.disk_used_bytes > 0
