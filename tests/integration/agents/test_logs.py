"""Output of tasks on its way to a reader."""

import os

import pytest

from reconciler.model.protocol.agent_messages import LogRequest, TaskTemplate
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller


def ask(controller: Controller, request: LogRequest) -> None:
    """Ask the node for a log."""
    with controller.news:
        controller.log_requests.append(request)
        controller.news.notify_all()


def text(controller: Controller, name: str) -> bytes:
    """What has come so far."""
    return b"".join(chunk.data for chunk in controller.chunks.get(name, ()))


def ended(controller: Controller, name: str) -> bool:
    """Whether the last piece has come."""
    return any(chunk.end for chunk in controller.chunks.get(name, ()))


def test_follow_until_the_end(agent: Node, controller: Controller) -> None:
    controller.assign(
        "a.1",
        "sh",
        "-c",
        "echo one; while [ ! -e $MUSTER_NODE_ROOT/go ]; do sleep 0.02; done; echo two",
    )
    controller.running("a.1")
    ask(controller, LogRequest("l1", "a.1", follow=True))
    controller.wait(lambda: text(controller, "l1") == b"one\n", "the first line")
    (agent.root / "go").touch()
    controller.wait(lambda: ended(controller, "l1"), "the end of the log")
    assert text(controller, "l1") == b"one\ntwo\n"
    assert [chunk.offset for chunk in controller.chunks["l1"] if chunk.data] == [0, 4]


def test_a_large_log_comes_in_pieces_from_an_offset(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "sh", "-c", "yes | head -c 700000 >&2")
    controller.ended("a.1")
    ask(controller, LogRequest("l1", "a.1", stream="stderr", offset=100_000))
    controller.wait(lambda: ended(controller, "l1"), "the end of the log")
    assert len(text(controller, "l1")) == 600_000
    assert max(len(chunk.data) for chunk in controller.chunks["l1"]) <= 256 * 1024


def test_a_reader_who_left_ends_it(agent: Node, controller: Controller) -> None:
    controller.assign("a.1", "sh", "-c", "while :; do echo x; sleep 0.01; done")
    controller.running("a.1")
    ask(controller, LogRequest("l1", "a.1", follow=True))
    controller.wait(lambda: bool(text(controller, "l1")), "a first piece")
    controller.gone.add("l1")
    count = len(controller.chunks["l1"])
    controller.wait(lambda: len(controller.chunks["l1"]) > count, "a refused piece")
    ask(controller, LogRequest("l2", "a.1"))
    controller.wait(lambda: ended(controller, "l2"), "another log")
    assert not ended(controller, "l1")


def test_what_there_is_no_log_of(agent: Node, controller: Controller) -> None:
    for name, request in {
        "l1": LogRequest("l1", "b.1", follow=True),
        "l2": LogRequest("l2", "../secret"),
        "l3": LogRequest("l3", "b.1", stream="passwd"),
    }.items():
        ask(controller, request)
        controller.wait(lambda name=name: ended(controller, name), "an answer")  # type: ignore[misc]
        assert controller.chunks[name][-1].error


def test_a_log_that_grows_is_turned_over_while_its_task_runs(
    node: Node, controller: Controller
) -> None:
    node.start("--log-limit", "4Ki")
    controller.assign("a.1", "sh", "-c", "yes | head -c 10000; exec sleep 3600")
    controller.running("a.1")
    log = node.root / "logs" / "a.1.stdout"
    turned = log.with_name("a.1.stdout.1")
    controller.wait(turned.exists, "a turned log")
    controller.wait(lambda: log.stat().st_size == 0, "an empty log")
    assert turned.stat().st_size == 4096


def test_the_end_of_a_task_brings_all_logs_within_their_limit(
    node: Node, controller: Controller
) -> None:
    node.start("--logs-total", "100Ki")
    for name in ("a.1", "a.2"):
        controller.assign(name, "sh", "-c", "yes | head -c 80000")
        controller.ended(name)
    controller.wait(lambda: not (node.root / "logs" / "a.1.stdout").exists(), "an old log to go")
    assert (node.root / "logs" / "a.2.stdout").stat().st_size == 80_000


def test_a_log_is_read_across_its_turning_over(node: Node, controller: Controller) -> None:
    """Who follows sees it as one text; who comes later sees what was kept, and what came since."""
    node.start("--log-limit", "4Ki")
    lines = b"".join(b"%099d\n" % number for number in range(70))
    kept, more = node.root / "logs" / "a.1.stdout.1", node.root / "more"
    # below the limit at first; of what comes then nothing is cut that may not have been read yet
    script = (
        f"seq -f %099.0f 0 29; while [ ! -e {more} ]; do sleep 0.02; done; seq -f %099.0f 30 69; "
        f"while [ ! -s {kept} ]; do sleep 0.02; done; echo last"
    )
    controller.assign("a.1", "sh", "-c", script)
    controller.running("a.1")
    ask(controller, LogRequest("l1", "a.1", follow=True))
    controller.wait(lambda: text(controller, "l1") == lines[:3000], "what was written first")
    more.touch()
    controller.wait(lambda: ended(controller, "l1"), "the end of the log")
    assert text(controller, "l1") == lines + b"last\n"
    ask(controller, LogRequest("l2", "a.1"))
    controller.wait(lambda: ended(controller, "l2"), "what is kept")
    assert text(controller, "l2") == lines[-4096:] + b"last\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_nobody_has_the_logs_of_others_deleted(node: Node, controller: Controller) -> None:
    """By a size that takes no space, or by writing much: who has most loses the oldest."""
    node.start("--logs-total", "1Mi")
    for folder in [node.root, *node.root.parents]:
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)

    def run(name: str, user: str, script: str) -> None:
        template = TaskTemplate(name, 1, "g", script=script, user=user)
        controller.assign(name, template=template)
        assert controller.ended(name).exit_code == 0

    logs = node.root / "logs"
    run("a.1", "games", "yes ada | head -c 100000")
    run("b.1", "news", "truncate --size 1T /proc/self/fd/1")
    for number in range(2, 6):
        run(f"b.{number}", "news", "yes bob | head -c 400000")
    controller.wait(lambda: not (logs / "b.2.stdout").exists(), "the end of the oldest log")
    assert (logs / "a.1.stdout").stat().st_size == 100_000
    assert (logs / "b.5.stdout").exists()
