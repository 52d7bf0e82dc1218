"""Commands around jobs without an agent: whose fault a failure is, and when the node is well."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agents.host.disk_space import FullDiskError
from agents.job_commands.job_tries import JobFaultError
from reconciler.model.observed.health_checks import CheckResult
from reconciler.model.observed.job_commands import JobCommand
from tests.unit.agents.job_commands.bed import TriesBed, command, ended, of_user, task


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
    assert bed.ever_failed == set()


def test_a_command_of_the_user_that_fails_after_a_job_leaves_the_node_well(bed: TriesBed) -> None:
    bed.around((), of_user("bye", "exit 1"), command("scrub"))
    assert bed.run(task("evil")).message == "afterJob command bye failed: status 1"
    assert bed.ever_failed == set()


def test_a_command_of_the_agent_that_fails_before_a_job_is_the_nodes_fault(bed: TriesBed) -> None:
    bed.around((command("a", "echo broken; exit 3"),))
    one = task("job")
    assert bed.enter(one)
    assert bed.decision(one) == "beforeJob command a failed here: status 3: broken"
    assert bed.failing() == {"a": "status 3: broken"}


# Failures and GPUs ------------------------------------------------------------------------------


def scrub(bed: TriesBed) -> JobCommand:
    """A command that fails for the job ``adas`` before a file ``mended`` is there."""
    note = f"echo $MUSTER_JOB >> {bed.root}/log"
    return command("scrub", f"{note}; [ $MUSTER_JOB != adas ] || [ -e {bed.root}/mended ]")


def runs(bed: TriesBed) -> list[str]:
    """The jobs for which the command has run."""
    return (bed.root / "log").read_text().split()


def mend(bed: TriesBed) -> None:
    (bed.root / "mended").touch()


def turn_until_decided(bed: TriesBed, of: str) -> str | Exception:
    """Let the node work on until it has decided of a task."""
    for _ in range(600):
        bed.tries.turn(0.05)
        if of in bed.decided:
            return bed.decided.pop(of)
    raise AssertionError(of)


def test_a_failure_on_one_gpu_outlasts_a_success_on_another_one(bed: TriesBed) -> None:
    bed.around((), scrub(bed))
    adas, bobs = task("adas", 0), task("bobs", 1)
    for one in (adas, bobs):
        bed.enter(one)
    assert bed.run(adas).message == "afterJob command scrub failed: status 1"
    assert bed.run(bobs).message == ""
    assert bed.checks == {"scrub": CheckResult("scrub", "failed", "status 1", (0,))}
    assert not bed.ask(task("evas", 1))


def test_a_task_for_a_gpu_on_which_a_command_has_failed_lets_it_run_again(bed: TriesBed) -> None:
    bed.around((), scrub(bed))
    bed.run(task("adas", 0))
    evas, toms = task("evas", 0), task("toms", 0)
    assert bed.ask(evas)
    assert bed.tries.waiting() == {
        evas.attempt: "commands that have failed run on its GPUs",
    }
    assert turn_until_decided(bed, evas.attempt) == (
        "afterJob command scrub failed here for job adas on GPU 0: status 1"
    )
    assert bed.failing() == {"scrub": "status 1"}
    mend(bed)
    assert bed.ask(toms)
    assert turn_until_decided(bed, toms.attempt) == ""
    assert bed.checks == {}
    assert runs(bed) == ["adas"] * 3
    assert not bed.ask(evas)


def test_another_agent_remembers_a_failure_and_runs_the_command_again(bed: TriesBed) -> None:
    bed.around((), scrub(bed))
    bed.run(task("adas", 0))
    bed.restart()
    assert bed.checks == {"scrub": CheckResult("scrub", "failed", "status 1", (0,))}
    bed.tries.turn(0.0)  # nobody knows yet what the pool's commands are
    mend(bed)
    bed.around((), scrub(bed))
    bed.tries.turn(0.0)
    bed.wait(lambda: not bed.checks, "a node that is well")
    assert runs(bed) == ["adas", "adas"]
    bed.restart()
    assert bed.checks == {}


def test_another_job_on_the_same_gpus_makes_a_failure_good(bed: TriesBed) -> None:
    bed.around((), scrub(bed))
    bed.run(task("adas", 0))
    bed.run(task("bobs", 0, 1))
    assert bed.checks == {}
    assert not bed.ask(task("evas", 0))


def test_a_remedy_makes_the_failures_of_its_command_good(bed: TriesBed) -> None:
    bed.around((), scrub(bed))
    bed.run(task("adas", 0))
    bed.tries.repaired("node-check-failed/n1/other")
    assert bed.failing() == {"scrub": "status 1"}
    bed.tries.repaired("node-check-failed/n1/scrub")
    assert bed.checks == {}
    assert not bed.ask(task("evas", 0))


@pytest.mark.parametrize("kept", [(), (of_user("scrub"),)])
def test_a_command_that_is_no_check_any_more_leaves_no_failure(
    bed: TriesBed, kept: tuple[JobCommand, ...]
) -> None:
    bed.around((), scrub(bed))
    bed.run(task("adas", 0))
    bed.restart()
    bed.around((), *kept)
    assert bed.checks == {}
    assert not bed.ask(task("evas", 0))


def test_a_command_before_a_job_that_runs_again_is_cleaned_up_after(bed: TriesBed) -> None:
    note = f"echo $MUSTER_COMMAND >> {bed.root}/order"
    prepare = command("prepare", f"{note}; [ -e {bed.root}/mended ]")
    bed.around((prepare,), command("clean", note), of_user("bye", f"echo bye >> {bed.root}/order"))
    adas = task("adas", 0, variables={"PATH": "/bin"})
    assert bed.enter(adas)
    bed.decision(adas)
    bed.gone.add(adas.attempt)
    bed.tries.turn(0.0)
    evas = task("evas", 0)
    mend(bed)
    assert bed.ask(evas)
    assert turn_until_decided(bed, evas.attempt) == ""
    order = (bed.root / "order").read_text().split()
    assert order == ["prepare", "clean", "bye", "prepare", "clean"]
    assert bed.checks == {}


def test_a_late_task_of_a_job_does_not_start_where_its_command_has_failed(bed: TriesBed) -> None:
    gate = bed.root / "gate"
    bed.around((), command("scrub", f"until [ -e {gate} ]; do sleep 0.02; done; exit 1"))
    first, late = task("adas", 0), task("adas", 0, index=1)
    bed.enter(first)
    bed.end(first)
    assert bed.enter(late)
    gate.touch()
    assert bed.decision(late) == (
        "afterJob command scrub failed here for job adas on GPU 0: status 1"
    )


def test_no_command_runs_again_below_later_tasks_of_its_job(bed: TriesBed) -> None:
    bed.around((), scrub(bed))
    bed.run(task("adas", 0, elastic=True))
    assert not bed.enter(task("adas", 1, index=1, elastic=True))
    evas = task("evas", 0)
    assert bed.ask(evas)
    assert str(turn_until_decided(bed, evas.attempt)).endswith("job adas on GPU 0: status 1")
    assert runs(bed) == ["adas"]


def test_an_edit_makes_no_node_well_before_the_command_has_succeeded(bed: TriesBed) -> None:
    was = scrub(bed)
    bed.around((), was)
    bed.run(task("adas", 0))
    bed.around((), replace(was, timeout_s=9.0))
    assert bed.failing() == {"scrub": "status 1"}
    evas = task("evas", 0)
    assert bed.ask(evas)
    assert str(turn_until_decided(bed, evas.attempt)).endswith("job adas on GPU 0: status 1")
    assert runs(bed) == ["adas", "adas"]
    mend(bed)
    bed.around((), replace(was, timeout_s=8.0))
    assert bed.failing() == {"scrub": "status 1"}
    bed.tries.turn(0.0)
    bed.wait(lambda: not bed.checks, "a node that is well")
    assert runs(bed) == ["adas", "adas", "adas"]
    assert not bed.ask(evas)


def test_a_command_that_fails_as_it_was_before_an_edit_runs_again(bed: TriesBed) -> None:
    gate = bed.root / "gate"
    bed.around((), command("scrub", f"until [ -e {gate} ]; do sleep 0.02; done; exit 1"))
    adas = task("adas", 0)
    bed.enter(adas)
    bed.end(adas)
    bed.around((), command("scrub"))
    gate.touch()
    assert bed.end_of(adas).message == "afterJob command scrub failed: status 1"
    assert bed.failing() == {"scrub": "status 1"}
    bed.tries.turn(0.0)
    bed.wait(lambda: not bed.checks, "a node that is well")


# Tasks that wait --------------------------------------------------------------------------------


def test_a_full_disk_decides_of_late_tasks_too(bed: TriesBed) -> None:
    gate = bed.root / "gate"
    bed.around((), command("scrub", f"until [ -e {gate} ]; do sleep 0.02; done"))
    first = task("job", elastic=True)
    late = [task("job", index=index, elastic=True) for index in (1, 2)]
    bed.enter(first)
    bed.end(first)
    for one in late:
        assert bed.enter(one)
    notes = bed.root / "job-commands"
    notes.rename(bed.root / "away")  # nothing can be written
    gate.touch()
    for one in late:
        problem = bed.decision(one)
        assert isinstance(problem, FullDiskError)
        assert "commands around the job" in str(problem)
    assert bed.end_of(first).exit_code == 0
    assert not any(map(bed.tries.give_up, (one.attempt for one in late)))


def test_an_internal_error_in_one_task_costs_no_other_one(bed: TriesBed) -> None:
    def fails(_: object) -> None:
        message = "of one task"
        raise RuntimeError(message)

    gate = bed.root / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.02; done"
    bed.around((command("prepare", wait),), command("scrub", wait))
    broken, well = task("job"), task("job", index=1)
    bed.tries.enter(broken, fails)
    bed.enter(well)
    gate.touch()
    assert bed.decision(well) == ""
    gate.unlink()
    bed.tries.hold([ended(broken)], fails)
    bed.end(well)
    bed.tries.enter(task("job", index=2), fails)
    late = task("job", index=3)
    bed.enter(late)
    gate.touch()
    assert bed.end_of(well).exit_code == 0
    assert bed.decision(late) == ""
    assert len(bed.said) == 3  # before the job, after it, and before it again
    assert "RuntimeError: of one task" in bed.said[0]
