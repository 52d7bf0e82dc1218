"""What must hold when the agent, the supervisor, the controller or the whole node dies."""

import os
import signal

import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller


def test_a_killed_agent_leaves_its_tasks_and_the_next_adopts_them(
    agent: Node, controller: Controller
) -> None:
    controller.assign("a.1", "sleep", "3600")
    controller.assign(
        "a.2", "sh", "-c", "while [ ! -e $MUSTER_NODE_ROOT/go ]; do sleep 0.02; done; exit 3"
    )
    first = controller.running("a.1")
    controller.running("a.2")
    agent.kill_agent()
    (agent.root / "go").touch()
    supervisor = agent.supervisor()
    controller.wait(lambda: len(agent.tasks()) == 1, "the end of one task")
    controller.seen.clear()
    agent.start()
    assert controller.running("a.1").started_at == first.started_at
    assert controller.ended("a.2").exit_code == 3
    assert agent.supervisor() == supervisor


def test_a_killed_supervisor_means_lost_and_no_process_left(
    agent: Node, controller: Controller
) -> None:
    controller.assign("a.1", "sh", "-c", "setsid sh -c 'setsid sleep 3600 & sleep 3600' & wait")
    controller.assign("a.2", "true")
    controller.running("a.1")
    controller.ended("a.2")
    before = agent.tasks()
    assert before
    supervisor = agent.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    assert controller.ended("a.1").end_reason is EndReason.LOST
    assert not agent.tasks()
    assert agent.supervisor() not in {0, supervisor}
    # What was told before is told again, unchanged; what is new starts under the new supervisor.
    assert controller.seen["a.2"].end_reason is EndReason.EXITED
    controller.assign("a.3", "true")
    assert controller.ended("a.3").exit_code == 0


def test_agent_and_supervisor_killed_together(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    agent.kill_agent()
    agent.kill_supervisor()
    controller.wait(lambda: not agent.tasks(), "the task's end, with nobody left to enforce leases")
    agent.start()
    assert controller.ended("a.1").end_reason is EndReason.LOST
    assert not agent.tasks()


def test_a_directory_without_a_record_is_lost(node: Node, controller: Controller) -> None:
    (node.root / "attempts" / "a.1").mkdir(parents=True)
    node.start()
    controller.assign("a.1", "true")
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.LOST
    assert report.started_at is None


@pytest.mark.parametrize("point", ["sent-not-spawned", "exited-not-acknowledged"])
def test_agent_dies_at(agent: Node, controller: Controller, point: str) -> None:
    agent.crash_at(point)
    controller.assign("a.1", "sh", "-c", "echo once; exit 4")
    assert agent.agent is not None
    agent.agent.wait(120)
    agent.start()
    assert controller.ended("a.1").exit_code == 4
    assert (agent.root / "logs" / "a.1.stdout").read_text() == "once\n"


def test_agent_dies_before_it_deletes(agent: Node, controller: Controller) -> None:
    controller.acknowledge = True
    agent.crash_at("acknowledged-not-deleted")
    controller.assign("a.1", "sh", "-c", "echo once")
    assert agent.agent is not None
    agent.agent.wait(120)
    agent.start()
    folder = agent.root / "attempts" / "a.1"
    controller.wait(lambda: not folder.exists(), "deletion of the directory")
    assert (agent.root / "logs" / "a.1.stdout").read_text() == "once\n"


@pytest.mark.parametrize("point", ["spawned-not-recorded", "exited-not-recorded"])
def test_supervisor_dies_at(agent: Node, controller: Controller, point: str) -> None:
    agent.crash_at(point)
    long = point == "spawned-not-recorded"
    controller.assign("a.1", "sh", "-c", "echo once >> $MUSTER_NODE_ROOT/trace; exec sleep $0",
                      "3600" if long else "0")  # fmt: skip
    report = controller.ended("a.1")
    assert agent.reached(point)
    assert report.end_reason is EndReason.LOST
    assert not agent.tasks()
    trace = agent.root / "trace"
    # it may have been killed between opening the file and writing
    assert not trace.exists() or trace.read_text() in {"", "once\n"}


def test_a_lease_ends_a_task_of_a_node_that_hears_nothing(
    agent: Node, controller: Controller
) -> None:
    leased = TaskTemplate(
        "job", 1, "g", lease_s=1.0, grace_s=20, checkpoint_signal="SIGUSR2",
        script="trap 'echo saved; exit 9' USR2; echo up; while :; do sleep 0.05; done",
    )  # fmt: skip
    controller.assign("a.1", template=leased)
    controller.assign("a.2", "sleep", "3600")
    log = agent.root / "logs" / "a.1.stdout"
    controller.wait(lambda: log.exists() and log.read_text() == "up\n", "the task")
    controller.running("a.2")
    with controller.news:
        controller.status = 503
        controller.news.notify_all()
    controller.wait(lambda: log.read_text() == "up\nsaved\n", "the checkpoint")
    controller.status = 200
    report = controller.ended("a.1")
    assert (report.end_reason, report.exit_code) == (EndReason.LEASE_EXPIRED, 9)
    assert controller.seen["a.2"].state is AttemptState.RUNNING


def test_a_lease_is_kept_while_the_controller_answers(agent: Node, controller: Controller) -> None:
    leased = TaskTemplate("job", 1, "g", lease_s=2.0, command=("sleep", "5"))
    controller.assign("a.1", template=leased)
    assert controller.ended("a.1").end_reason is EndReason.EXITED


def test_a_lease_runs_out_while_every_answer_renews_nothing(
    agent: Node, controller: Controller
) -> None:
    leased = TaskTemplate("job", 1, "g", lease_s=2.0, grace_s=0, command=("sleep", "3600"))
    controller.assign("a.1", template=leased)
    controller.in_state("a.1", AttemptState.RUNNING)
    controller.renews = False
    assert controller.ended("a.1").end_reason is EndReason.LEASE_EXPIRED
    asked = controller.requests[-1]
    assert asked.accepts_unrenewed
    assert asked.have == (controller.epoch, controller.version), "it keeps what it has"


def test_an_inventory_is_told_until_an_answer_renews(node: Node, controller: Controller) -> None:
    controller.renews = False
    node.start()
    controller.wait(
        lambda: len(controller.requests) > 4 and all(one.inventory for one in controller.requests),
        "the inventory, again and again",
    )
    controller.renews = True
    controller.wait(lambda: controller.requests[-1].inventory is None, "a request without")


def test_a_lease_runs_out_without_an_agent(agent: Node, controller: Controller) -> None:
    leased = TaskTemplate("job", 1, "g", lease_s=1.0, grace_s=0, command=("sleep", "3600"))
    controller.assign("a.1", template=leased)
    controller.running("a.1")
    agent.kill_agent()
    controller.wait(lambda: not agent.tasks(), "the end of the task")
    agent.start()
    assert controller.ended("a.1").end_reason is EndReason.LEASE_EXPIRED


def test_an_older_epoch_is_refused_even_by_the_next_agent(
    agent: Node, controller: Controller
) -> None:
    controller.epoch = 7
    controller.assign("a.1", "sleep", "3600")
    controller.running("a.1")
    agent.kill_agent()
    controller.epoch, controller.assignments, controller.requests = 6, {}, []
    controller.seen.clear()
    agent.start()
    controller.wait(lambda: len(controller.requests) > 2, "some requests")
    assert agent.tasks()
    controller.epoch = 8
    controller.change()
    assert controller.ended("a.1").end_reason is EndReason.CANCELLED


def test_a_controller_that_comes_back_hears_what_happened(
    agent: Node, controller: Controller
) -> None:
    controller.assign("a.1", "sh", "-c", "while [ ! -e $MUSTER_NODE_ROOT/go ]; do sleep 0.02; done")
    controller.running("a.1")
    with controller.news:
        controller.status = 503
        controller.news.notify_all()
    (agent.root / "go").touch()
    controller.wait(lambda: not agent.tasks(), "the end of the task")
    controller.seen.clear()
    controller.status = 200
    assert controller.ended("a.1").exit_code == 0


@pytest.mark.parametrize(
    ("status", "words"),
    [(409, "another agent holds"), (401, "token"), (413, "too large"), (500, "answered 500")],
)
def test_a_refusal_is_said_and_ridden_out(
    node: Node, controller: Controller, status: int, words: str
) -> None:
    controller.status = status
    node.start()
    controller.wait(lambda: words in node.log.read_text(), "a clear line")
    controller.status = 200
    controller.assign("a.1", "true")
    assert controller.ended("a.1").exit_code == 0
