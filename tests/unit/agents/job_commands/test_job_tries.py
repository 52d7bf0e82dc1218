"""Commands around jobs without an agent: whose fault a failure is, and when the node is well."""

from pathlib import Path
from typing import Any

import pytest

from agents.job_commands.job_tries import JobFaultError
from tests.unit.agents.job_commands.bed import TriesBed, command, of_user, task


@pytest.fixture
def bed(tmp_path: Path) -> TriesBed:
    return TriesBed(tmp_path)


@pytest.mark.parametrize(
    ("fields", "script", "why"),
    [
        ({"environment": {"MINE": "1"}}, "exit ${MINE:-0}", "status 1"),
        ({"environment": {"PATH": "/nowhere"}}, "ls /", "status 127"),
        ({"secrets": (("mine", "TOKEN"),)}, "", "secret 'mine' of ada"),
    ],
)
def test_a_command_of_the_user_that_fails_before_a_job_is_the_jobs_fault(
    bed: TriesBed, fields: dict[str, Any], script: str, why: str
) -> None:
    bed.around((of_user("warm", script),))
    one = task("evil", **fields)
    assert bed.enter(one)
    problem = bed.decision(one)
    assert isinstance(problem, JobFaultError)
    assert str(problem).startswith(f"beforeJob command warm failed here: {why}")
    assert bed.checks == {}


def test_a_command_of_the_user_that_fails_after_a_job_leaves_the_node_well(bed: TriesBed) -> None:
    bed.around((), of_user("bye", "exit 1"), command("scrub"))
    assert bed.run(task("evil")).message == "afterJob command bye failed: status 1"
    assert bed.checks == {}


def test_a_command_of_the_agent_that_fails_before_a_job_is_the_nodes_fault(bed: TriesBed) -> None:
    bed.around((command("a", "echo broken; exit 3"),))
    one = task("job")
    assert bed.enter(one)
    assert bed.decision(one) == "beforeJob command a failed here: status 3: broken"
    assert bed.failing() == {"a": "status 3: broken"}
