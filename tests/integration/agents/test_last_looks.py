"""Whether a task that was asked to save did, as its end says it."""

import pytest

from reconciler.model.observed.task_reports import CheckpointRule
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

NOT_WRITTEN = "no checkpoint was written within the grace"
#: Saves in its trap, to the place that it is given, and leaves.
SAVES = "trap '{save}; exit 0' USR1; echo up; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("save", "rule", "saved"),
    [
        ("echo w > $MUSTER_CHECKPOINT_DIR/step-7", CheckpointRule("step-*"), "step-7"),
        (":", CheckpointRule("step-*"), None),
        ("echo w > $MUSTER_CHECKPOINT_DIR/other", CheckpointRule("step-*"), None),
        # without a pattern nobody but the task knows which files are checkpoints
        ("echo w > $MUSTER_CHECKPOINT_DIR/other", CheckpointRule(), None),
        (":", CheckpointRule(), None),
    ],
)
def test_an_end_says_if_nothing_was_saved(
    agent: Node, controller: Controller, save: str, rule: CheckpointRule, saved: str | None
) -> None:
    template = TaskTemplate(
        "job", 1, "g", script=SAVES.format(save=save), checkpoint_path="c", saves=rule,
        checkpoint_signal="SIGUSR1",
    )  # fmt: skip
    controller.assign("a.1", template=template)
    log = agent.root / "logs" / "a.1.stdout"
    controller.wait(lambda: log.exists() and log.read_text() == "up\n", "the task")
    controller.stop("a.1", reason=EndReason.PREEMPTED, signal="SIGUSR1", grace_s=60, to="main")
    report = controller.ended("a.1")
    assert (report.end_reason, report.exit_code) == (EndReason.PREEMPTED, 0)
    assert (report.checkpoint.path if report.checkpoint else None) == saved
    was_written = saved is not None or (save != ":" and not rule.pattern)
    assert report.message == ("" if was_written else NOT_WRITTEN)


def test_a_task_that_ends_by_itself_says_nothing(agent: Node, controller: Controller) -> None:
    template = TaskTemplate(
        "job", 1, "g", command=("true",), checkpoint_path="c", saves=CheckpointRule("step-*")
    )
    controller.assign("a.1", template=template)
    report = controller.ended("a.1")
    assert (report.end_reason, report.message) == (EndReason.EXITED, "")
    assert agent.root.exists()


def test_a_cancelled_task_says_nothing(agent: Node, controller: Controller) -> None:
    template = TaskTemplate(
        "job", 1, "g", command=("sleep", "600"), checkpoint_path="c",
        saves=CheckpointRule("step-*"),
    )  # fmt: skip
    controller.assign("a.1", template=template)
    controller.running("a.1")
    controller.stop("a.1", reason=EndReason.CANCELLED)
    report = controller.ended("a.1")
    assert (report.end_reason, report.message) == (EndReason.CANCELLED, "")
    assert agent.root.exists()
