"""Whose fault it is that a task does not start: its node's, or its job's."""

import errno
import os

import pytest

from agents.supervisor import exit_reasons, spawn


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (spawn.node_fault(system(errno.EINVAL), "control group of the task"), "control group"),
        (spawn.node_fault(system(errno.ENOSPC), "the task's own folders"), "own folders"),
        (spawn.node_fault(system(errno.EIO), "log of the attempt", on_disk=True), "log of the"),
        (system(errno.EAGAIN), "process of the task: Resource temporarily"),
    ],
)
def test_what_a_node_must_provide_costs_no_retry(problem: Exception, says: str) -> None:
    failed = exit_reasons.not_started(problem)
    assert failed.reason == "CheckFailed"
    assert says in failed.message
    assert failed.facts == {"exit_code": None, "node_fault": True}


def test_a_full_disk_is_left_to_the_checks_of_the_disk() -> None:
    full = spawn.node_fault(system(errno.ENOSPC), "folder of the attempt", on_disk=True)
    failed = exit_reasons.not_started(full)
    assert (failed.reason, failed.facts) == ("CheckFailed", {"exit_code": None})


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (spawn.refused(system(errno.ENOENT), "working directory /no"), 127),
        (spawn.refused_program(system(errno.EACCES), "/etc/passwd"), 126),
        (spawn.SpawnError(127, "command 'nosuch' was not found in PATH"), 127),
        (ValueError("embedded null byte"), None),
    ],
)
def test_what_a_job_names_is_its_own_fault(problem: Exception, code: int | None) -> None:
    failed = exit_reasons.not_started(problem)
    assert (failed.reason, failed.facts.get("exit_code")) == ("StartFailed", code)
    assert "node_fault" not in failed.facts
