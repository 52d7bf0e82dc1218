"""A node's own page: read from a real agent, with a task, while its controller is away."""

import re
import socket
import subprocess

import httpx

from agents.exporter import metrics_page
from reconciler.model.protocol.agent_messages import TaskTemplate
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import DEADLINE_S, Controller

OPTIONS = ("--metrics-listen", "127.0.0.1:0", "--simulated-gpus", "2", "--gpu-model", "H200")


def address(node: Node, controller: Controller, starts: int = 1) -> str:
    """Where the agent that was started last says that its page is."""

    def said() -> list[str]:
        return re.findall(r"http://127\.0\.0\.1:\d+/metrics", node.log.read_text())

    controller.wait(lambda: len(said()) >= starts, "the address of the page")
    return said()[-1]


def test_the_page_of_a_node_with_a_task(node: Node, controller: Controller) -> None:
    controller.pool = "h200"
    node.start(*OPTIONS)
    url = address(node, controller)

    def page() -> str:
        answer = httpx.get(url, timeout=DEADLINE_S)
        return answer.text if answer.status_code == 200 else ""

    controller.wait(
        lambda: 'muster_node_gpus{node="n1",pool="h200",model="H200"} 2' in page(), "it"
    )
    template = TaskTemplate("train", 1, "main", command=("sleep", "600"), cpu_milli=500, grace_s=1)
    controller.assign("a.1", template=template, devices=(1,))
    controller.running("a.1")
    task = '{node="n1",pool="h200",job_name="train",element="0",task="main-0"'
    shown = (
        f"muster_task_info{task}}} 1",
        f"muster_task_requested_cpus{task}}} 0.5",
        f'muster_task_gpu_info{task},gpu="1"}} 1',
        'muster_node_attempts{node="n1",pool="h200",state="Running"} 1',
        'muster_node_gpu_allocated{node="n1",pool="h200",gpu="1"} 1',
    )
    controller.wait(lambda: set(shown) <= set(page().splitlines()), "the task")
    assert "muster_node_state" not in page()
    # its controller is away
    with controller.news:
        controller.status = 503
    assert set(shown) <= set(page().splitlines())


def test_there_is_no_page_before_the_controller_has_spoken(
    node: Node, controller: Controller
) -> None:
    controller.status = 503
    node.start(*OPTIONS)
    url = address(node, controller)
    answer = httpx.get(url, timeout=DEADLINE_S)
    assert (answer.status_code, answer.text) == (503, f"{metrics_page.NOT_YET}\n")
    assert httpx.get(url.replace("/metrics", "/healthz")).text == "ok\n"


def test_the_next_agent_of_the_node_has_the_same_port(node: Node, controller: Controller) -> None:
    node.start(*OPTIONS)
    port = address(node, controller).removesuffix("/metrics").rpartition(":")[2]
    controller.wait(lambda: bool(controller.requests), "a first request")
    node.kill_agent()
    again = ("--metrics-listen", f"127.0.0.1:{port}")
    node.start(*again)
    url = address(node, controller, starts=2)
    assert f":{port}/" in url
    controller.wait(lambda: httpx.get(url, timeout=DEADLINE_S).status_code == 200, "its page")


def test_an_agent_works_while_another_program_has_its_port(
    node: Node, controller: Controller
) -> None:
    def told() -> list[str]:
        """What the node reported beside its work, each time it told what it is."""
        with controller.news:
            said = [one.inventory for one in controller.requests]
        return [one.notice for one in said if one is not None]

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        node.start("--metrics-listen", taken)
        controller.assign("a.1", template=TaskTemplate("train", 1, "main", command=("sleep", "9")))
        controller.running("a.1")
        controller.wait(lambda: any(told()), "what the agent can't do")
        assert f"the port {taken} of its page can't be opened: Address already in use" in told()[-1]
    assert address(node, controller) == f"http://{taken}/metrics"
    controller.wait(lambda: told()[-1] == "", "that it can")


def test_options_that_cannot_be_right_end_the_agent_before_it_begins(node: Node) -> None:
    token = node.root / "metrics-token"
    token.write_text("secret")
    token.chmod(0o644)
    wrong = node.command("--metrics-listen", "127.0.0.1:0", "--metrics-token-file", str(token))
    wrong[wrong.index("--root") + 1] = str(node.root / "other")
    ended = subprocess.run(wrong, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (ended.returncode, "chmod 600" in ended.stderr) == (1, True)
    assert not (node.root / "other" / "attempts").exists()
