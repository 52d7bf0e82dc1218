"""A node's own page: read from a real agent, with a task, while its controller is away."""

import re
import subprocess
from pathlib import Path

import httpx

from agents import nodepage
from reconciler.model.wire import TaskTemplate
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
    assert (answer.status_code, answer.text) == (503, f"{nodepage.NOT_YET}\n")
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


def test_a_port_that_is_taken_ends_the_agent_before_it_begins(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    node.start(*OPTIONS)
    taken = address(node, controller).removesuffix("/metrics").removeprefix("http://")
    other = node.command("--metrics-listen", taken)
    other[other.index("--root") + 1] = str(tmp_path / "other")
    ended = subprocess.run(other, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert ended.returncode == 1
    assert f"muster-agent n1: --metrics-listen {taken}: Address already in use" in ended.stderr
    assert node.agent is not None
    assert f"process {node.agent.pid} (" in ended.stderr
    assert not (tmp_path / "other" / "attempts").exists()
