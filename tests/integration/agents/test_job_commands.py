"""The site's commands before and after jobs, by a real agent: when, as whom, and how often."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.host import processes
from agents.isolation import cgroups
from reconciler.model.observed.job_commands import JobCommand, JobCommands
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.records import RankPlacement
from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

FIRST, SECOND = "job.1.aaaa.0.g.0.1", "job.1.aaaa.0.g.1.1"


class Site:
    """Commands of a site that tell in a file what they do."""

    def __init__(self, folder: Path, controller: Controller) -> None:
        self.folder = folder
        self.controller = controller
        self.log = folder / "log"
        self.log.touch(mode=0o666)
        self.log.chmod(0o666)

    def command(self, name: str, script: str = "", **fields: Any) -> JobCommand:
        """A command that notes its name and moment, and then runs a script."""
        text = f'echo "{name} $MUSTER_MOMENT" >> {self.log}\n{script}'
        return JobCommand(name, ("/bin/sh", "-c", text), **fields)

    def around(self, before: list[JobCommand], after: list[JobCommand]) -> None:
        """Have a node's pool declare commands."""
        self.controller.job_commands = JobCommands(tuple(before), tuple(after))
        self.controller.change()

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_for(self, line: str) -> None:
        self.controller.wait(lambda: line in self.lines(), line)

    def task(self, attempt: str = FIRST, script: str = "", **fields: Any) -> None:
        """Assign a task that notes that it runs."""
        text = f"echo task >> {self.log}\n{script}"
        template = TaskTemplate(
            "job", 1, "g", command=("/bin/sh", "-c", text), owner="ada@example.org", grace_s=5,
            **{key: fields.pop(key) for key in ("user", "environment") if key in fields},
        )  # fmt: skip
        self.controller.assign(attempt, template=template, **fields)

    def failing(self) -> dict[str, str]:
        """The messages of the node's failed checks."""
        inventory = self.controller.inventory
        checks = inventory.checks if inventory is not None else ()
        return {one.name: one.message for one in checks if one.verdict == "failed"}


@pytest.fixture
def site(tmp_path: Path, controller: Controller) -> Iterator[Site]:
    made = Site(tmp_path, controller)
    yield made
    gate = tmp_path / "gate"
    if gate.exists():
        gate.unlink()


def test_commands_run_before_and_after_a_job(agent: Node, site: Site) -> None:
    site.around([site.command("a"), site.command("b")], [site.command("c")])
    site.task()
    report = site.controller.ended(FIRST)
    assert (report.end_reason, report.exit_code, report.message) == (EndReason.EXITED, 0, "")
    assert site.lines() == ["a beforeJob", "b beforeJob", "task", "c afterJob"]
    assert site.failing() == {}


def test_a_job_that_is_stopped_is_cleaned_up_after_too(agent: Node, site: Site) -> None:
    site.around([], [site.command("c")])
    site.task(script="sleep 600")
    site.wait_for("task")
    site.controller.stop(FIRST, reason=EndReason.PREEMPTED)
    assert site.controller.ended(FIRST).end_reason is EndReason.PREEMPTED
    assert site.lines() == ["task", "c afterJob"]


def test_a_failed_command_before_a_job_is_the_nodes_fault(agent: Node, site: Site) -> None:
    site.around(
        [site.command("a", "echo it is broken; exit 3"), site.command("b")], [site.command("c")]
    )
    site.task()
    report = site.controller.ended(FIRST)
    assert (report.end_reason, report.started_at) == (EndReason.CHECK_FAILED, None)
    assert report.message == "beforeJob command a failed here: status 3: it is broken"
    assert site.lines() == ["a beforeJob", "c afterJob"]
    assert site.failing() == {"a": "status 3: it is broken"}
    # an edit makes no node well: the command runs again for the job
    site.around([site.command("a", "echo worse; exit 3")], [site.command("c")])
    site.controller.wait(lambda: site.failing() == {"a": "status 3: worse"}, "another run")
    site.around([site.command("a")], [site.command("c")])
    site.controller.wait(lambda: site.failing() == {}, "a node that is well")
    site.controller.wait(lambda: site.lines() == 3 * ["a beforeJob", "c afterJob"], "its cleaning")


def test_a_failed_command_of_the_user_is_the_jobs_fault(agent: Node, site: Site) -> None:
    script = site.folder / "warm"
    script.write_text("#!/bin/bash\ntrue\n")
    evil = site.folder / "evil"
    evil.write_text("exit 1\n")
    warm = JobCommand("warm", ("/bin/bash", str(script)), run_as="user")
    site.around([warm], [site.command("c")])
    site.task(environment={"BASH_ENV": str(evil)})
    report = site.controller.ended(FIRST)
    assert (report.end_reason, report.started_at) == (EndReason.START_FAILED, None)
    assert report.message == "beforeJob command warm failed here: status 1"
    assert site.failing() == {}


def test_a_failed_command_after_a_job_leaves_its_result(agent: Node, site: Site) -> None:
    site.around([], [site.command("c", "echo dirty >&2; exit 1"), site.command("d")])
    site.task(script="exit 7")
    report = site.controller.ended(FIRST)
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 7)
    assert report.message == "afterJob command c failed: status 1: dirty"
    assert site.lines() == ["task", "c afterJob", "d afterJob"]
    assert site.failing() == {"c": "status 1: dirty"}


def test_a_command_has_a_time_limit_and_leaves_nothing(agent: Node, site: Site) -> None:
    script = f"sleep 600 & echo $! >> {site.folder}/pids; sleep 600"
    site.around([site.command("a", script, timeout_s=0.5)], [])
    site.task()
    report = site.controller.ended(FIRST)
    assert report.message == "beforeJob command a failed here: it did not end within 0.5 s"
    pid = int((site.folder / "pids").read_text())
    site.controller.wait(lambda: processes.process_facts(pid) is None, "the end of its child")


def test_commands_of_the_agent_get_nothing_of_the_jobs_environment(agent: Node, site: Site) -> None:
    site.around([site.command("a", f"env > {site.folder}/env")], [])
    evil = {"LD_PRELOAD": "/evil.so", "BASH_ENV": "/evil", "PATH": "/evil", "PYTHONPATH": "/evil"}
    site.task(environment={**evil, "MINE": "x", "MUSTER_JOB": "other"}, devices=(1,))
    site.controller.ended(FIRST)
    told = dict(line.split("=", 1) for line in (site.folder / "env").read_text().splitlines())
    assert "/evil" not in " ".join(told.values())
    assert {name for name in told if not name.startswith("MUSTER_")} <= {
        "PATH", "LANG", "CUDA_VISIBLE_DEVICES", "PWD", "SHLVL", "_",
    }  # fmt: skip
    assert told["MUSTER_JOB"] == "job"
    assert told["MUSTER_OWNER"] == "ada@example.org"
    assert told["MUSTER_UID"] == str(os.geteuid())
    assert (told["MUSTER_ATTEMPT"], told["MUSTER_RANKS"]) == (FIRST, "0")
    assert (told["MUSTER_NODES"], told["CUDA_VISIBLE_DEVICES"]) == ("n1", "1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_commands_of_the_user_get_the_jobs_environment_and_limits(
    everybodys: Node, controller: Controller, site: Site
) -> None:
    everybodys.start()
    script = (
        f"env > {site.folder}/out/env; id -u > {site.folder}/out/id; "
        f"cat /proc/self/cgroup > {site.folder}/out/cgroup; "
        f"grep NoNewPrivs /proc/self/status > {site.folder}/out/status"
    )
    nobody = pwd.getpwnam("nobody")
    (site.folder / "out").mkdir()
    os.chown(site.folder / "out", nobody.pw_uid, nobody.pw_gid)
    site.around([site.command("a", script, run_as="user")], [])
    # the loader of each program with these variables writes a file, as the program's user
    loads = {"LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": f"{site.folder}/out/ld"}
    site.task(user="nobody", environment={"MINE": "x", **loads})
    report = controller.ended(FIRST)
    assert report.exit_code == 0, report
    told = (site.folder / "out" / "env").read_text().splitlines()
    assert {"MINE=x", "LD_DEBUG=statistics", f"MUSTER_ATTEMPT={FIRST}"} <= set(told)
    assert {path.stat().st_uid for path in (site.folder / "out").glob("ld.*")} == {nobody.pw_uid}
    assert (site.folder / "out" / "id").read_text().split()[-1] == str(nobody.pw_uid)
    if cgroups.offers(cgroups.discover())[0] != "process-group":
        assert f"commands/job-{FIRST}" in (site.folder / "out" / "cgroup").read_text()
    assert (site.folder / "out" / "status").read_text().split()[-1] == "1"


def test_tasks_of_one_job_share_the_commands(agent: Node, site: Site) -> None:
    site.around([site.command("a")], [site.command("c")])
    go = site.folder / "go"
    with site.controller.news:
        for rank, attempt in enumerate((FIRST, SECOND)):
            script = f"until [ -e {go} ]; do sleep 0.02; done" if rank else ""
            placed = RankPlacement(rank=rank, world_size=2, local_world_size=2)
            site.task(attempt, script, rank=placed)
    # the first has succeeded, and keeps what it holds until the other one has, too
    report = site.controller.in_state(FIRST, AttemptState.STOPPING)
    assert report.message == "waiting for the other tasks of its job on this node"
    begun = ["a beforeJob", "task", "task"]
    site.controller.wait(lambda: site.lines() == begun, "both tasks")
    go.touch()
    for attempt in (FIRST, SECOND):
        assert site.controller.ended(attempt).exit_code == 0
    assert site.lines() == [*begun, "c afterJob"]


def test_a_failed_task_is_told_at_once_and_its_gpus_stay_taken(agent: Node, site: Site) -> None:
    site.around([], [site.command("c")])
    go = site.folder / "go"
    with site.controller.news:
        site.task(FIRST, "exit 1", devices=(0,))
        site.task(SECOND, f"until [ -e {go} ]; do sleep 0.02; done", devices=(1,))
    assert site.controller.ended(FIRST).exit_code == 1
    site.task("other.1.bbbb.0.g.0.1", devices=(0,))
    waits = site.controller.in_state("other.1.bbbb.0.g.0.1", AttemptState.FETCHING)
    assert waits.message == "commands after job job run on its GPUs"
    go.touch()
    assert site.controller.ended("other.1.bbbb.0.g.0.1").exit_code == 0
    assert site.lines() == ["task", "task", "c afterJob", "task", "c afterJob"]


def test_an_agent_that_died_during_a_command_after_a_job_is_followed(
    agent: Node, site: Site
) -> None:
    gate = site.folder / "gate"
    gate.touch()
    script = f"while [ -e {gate} ]; do sleep 0.02; done; echo over >> {site.log}"
    site.around([], [site.command("c"), site.command("d", script), site.command("e")])
    site.task()
    site.wait_for("d afterJob")
    agent.kill_agent()
    site.controller.seen.clear()
    agent.start()
    site.controller.wait(lambda: site.lines().count("d afterJob") == 2, "another run")
    gate.unlink()
    assert site.controller.ended(FIRST).exit_code == 0
    # what had ended is not repeated, and what was interrupted was killed first
    assert site.lines() == [
        "task", "c afterJob", "d afterJob", "d afterJob", "over", "e afterJob",
    ]  # fmt: skip


def test_a_gpu_on_which_a_command_has_failed_is_kept_back_until_it_succeeds(
    agent: Node, site: Site
) -> None:
    dirty = site.folder / "dirty"
    dirty.touch()
    site.around([], [site.command("c", f"echo $MUSTER_JOB; ! [ -e {dirty} ]")])
    site.task(FIRST, devices=(0,))
    assert site.controller.ended(FIRST).message == "afterJob command c failed: status 1: job"
    agent.kill_agent()
    site.controller.inventory = None
    agent.start()
    site.controller.wait(lambda: site.controller.inventory is not None, "a report")
    assert site.failing() == {"c": "status 1: job"}
    refused, let_in = "other.1.bbbb.0.g.0.1", "third.1.cccc.0.g.0.1"
    site.task(refused, devices=(0,))
    report = site.controller.ended(refused)
    assert (report.end_reason, report.started_at) == (EndReason.CHECK_FAILED, None)
    assert report.message == ("afterJob command c failed here for job job on GPU 0: status 1: job")
    dirty.unlink()
    site.task(let_in, devices=(0,))
    assert site.controller.ended(let_in).exit_code == 0
    site.controller.wait(lambda: site.failing() == {}, "a node that is well")


def test_a_job_that_ended_without_an_agent_is_cleaned_up_after_once(
    agent: Node, site: Site
) -> None:
    go = site.folder / "go"
    site.around([site.command("a")], [site.command("c")])
    site.task(script=f"until [ -e {go} ]; do sleep 0.02; done; echo over >> {site.log}")
    site.wait_for("task")
    agent.kill_agent()
    go.touch()
    site.wait_for("over")
    agent.start()
    assert site.controller.ended(FIRST).exit_code == 0
    assert site.lines() == ["a beforeJob", "task", "over", "c afterJob"]
    site.controller.acknowledge = True
    site.controller.want_inventory = True
    site.controller.change()
    notes = agent.root / "job-commands"
    site.controller.wait(lambda: not list(notes.iterdir()), "the deletion of its note")
    assert site.lines().count("c afterJob") == 1


def test_a_job_that_is_stopped_before_its_start_ends_its_command(agent: Node, site: Site) -> None:
    site.around([site.command("a", "sleep 600")], [site.command("c")])
    site.task()
    site.wait_for("a beforeJob")
    waits = site.controller.in_state(FIRST, AttemptState.FETCHING)
    assert waits.message == "running beforeJob command a"
    site.controller.stop(FIRST, reason=EndReason.CANCELLED)
    report = site.controller.ended(FIRST)
    assert (report.end_reason, report.started_at) == (EndReason.CANCELLED, None)
    assert site.lines() == ["a beforeJob", "c afterJob"]
    assert site.failing() == {}
