"""A real Open MPI run over two nodes in network namespaces, as their agents would start it."""

import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.host import processes
from agents.supervisor import client, task_isolation
from agents.tasks.node_context import NodeContext
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import AttemptReport, RankPlacement
from reconciler.model.state.states import AttemptState
from tests import ordering
from tests.integration.agents.supervised import DEADLINE_S, wait

pytestmark = [
    pytest.mark.needs("openmpi-bin"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces here"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("mpirun", "ip", "nsenter", "unshare"))),
        reason="no Open MPI or no iproute2 here",
    ),
]

#: Adds up all ranks by the library itself, and says where it ran.
PROGRAM = """
import ctypes, os, socket
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(None, None) == 0
symbol = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
world, rank, total = symbol("ompi_mpi_comm_world"), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, symbol("ompi_mpi_int"),
                  symbol("ompi_mpi_op_sum"), world)
os.write(1, f"rank {rank.value} total {total.value} on {socket.gethostname()}\\n".encode())
mpi.MPI_Finalize()
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Nodes:
    """Two supervisors, each in a network namespace and with a host name of its own."""

    def __init__(self, folder: Path) -> None:
        word = secrets.token_hex(3)
        self.names = [f"{word}a", f"{word}b"]
        third = secrets.randbelow(250)
        self.addresses = [f"10.213.{third}.1", f"10.213.{third}.2"]
        self.clients: list[client.SupervisorClient] = []
        self.roots: list[Path] = []
        self.reports: dict[str, AttemptReport] = {}
        self.supervisors: list[subprocess.Popen[bytes]] = []
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.names[0], "netns", self.names[0], "type", "veth",
           "peer", "name", self.names[1], "netns", self.names[1])  # fmt: skip
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
            root = folder / name
            root.mkdir()
            self.roots.append(root)
            command = ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "sh", "-c",
                       'hostname "$1"; shift; exec "$@"', "sh", name,
                       sys.executable, "-I", "-S", str(client.SCRIPT), str(root)]  # fmt: skip
            self.supervisors.append(subprocess.Popen(command))
            wait((root / "supervisor.sock").exists, "a supervisor")
            made = client.SupervisorClient(root)
            made.connect(threading.Event())
            self.clients.append(made)

    def place(self, number: int) -> NodeContext:
        (self.roots[number] / "shared").mkdir(exist_ok=True)
        root = str(self.roots[number])
        return NodeContext(self.names[number], root, f"{root}/shared", as_root=True)

    def start(self, template: TaskTemplate, per_node: int, port: int) -> None:
        """Start the gang as the agents of the two would."""
        secret = secrets.token_hex(16)
        rank = RankPlacement(
            world_size=2 * per_node, local_world_size=per_node, master_address=self.addresses[0],
            master_port=port, hosts=",".join(self.names), tasks_per_host=f"{per_node}(x2)",
        )  # fmt: skip
        for number in range(2 * per_node):
            node, local = divmod(number, per_node)
            own = msgspec.structs.replace(rank, rank=number, local_rank=local, node_rank=node)
            assignment = Assignment(
                f"m.{number}", "t", "b", index=number, rank=own, secret=secret,
                addresses=dict(zip(self.names, self.addresses, strict=True)),
            )  # fmt: skip
            self.clients[node].send([ordering.order_for(assignment, template, self.place(node))])

    def ended(self, number: int, per_node: int) -> AttemptReport:
        name = f"m.{number}"
        while name not in self.reports or self.reports[name].state is not AttemptState.ENDED:
            heard = self.clients[number // per_node].receive()
            assert heard is not None
            self.reports |= {report.id: report for report in heard}
        return self.reports[name]

    def said(self, number: int, per_node: int) -> str:
        logs = self.roots[number // per_node] / "logs"
        return (logs / f"m.{number}.stdout").read_text() + (logs / f"m.{number}.stderr").read_text()

    def close(self) -> None:
        for made, root, supervisor in zip(self.clients, self.roots, self.supervisors, strict=True):
            made.close()
            supervisor.kill()
            supervisor.wait(DEADLINE_S)
            assert processes.kill_leftovers(str(root), [])
            assert task_isolation.clean_up(str(root))
        for name in self.names:
            ip("netns", "delete", name)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(Path(os.path.realpath(tmp_path)))
    yield made
    made.close()


def template(*command: str, **fields: Any) -> TaskTemplate:
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return TaskTemplate(
        "job", 1, "main", command, framework="mpi", allow_root=True, environment=environment,
        **{"cpu_milli": 2000, **fields},
    )  # fmt: skip


@pytest.mark.parametrize("per_node", [1, 2])
def test_mpirun_over_two_nodes(nodes: Nodes, tmp_path: Path, per_node: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ranks = 4 * per_node  # two slots for each task
    nodes.start(template("mpirun", sys.executable, str(program)), per_node, 30_100)
    first = nodes.ended(0, per_node)
    said = nodes.said(0, per_node)
    assert first.exit_code == 0, said
    lines = sorted(line for line in said.splitlines() if line.startswith("rank"))
    total = sum(range(ranks))
    half = ranks // 2
    assert lines == sorted(
        f"rank {rank} total {total} on {nodes.names[rank // half]}" for rank in range(ranks)
    )
    for number in range(1, 2 * per_node):
        assert nodes.ended(number, per_node).exit_code == 0, nodes.said(number, per_node)


def test_the_first_ones_failure_is_its_own(nodes: Nodes) -> None:
    nodes.start(template("sh", "-c", "mpirun -n 4 false; exit 5"), 1, 30_200)
    assert nodes.ended(0, 1).exit_code == 5
    assert nodes.ended(1, 1).exit_code == 0


def test_whoever_does_not_know_the_secret_starts_nothing(nodes: Nodes, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"""
import json, socket
link = socket.create_connection(("{nodes.addresses[1]}", 30300))
link.sendall(json.dumps({{"secret": "guess"}}).encode() + b"\\n")
print(link.recv(100), flush=True)
try:
    link.sendall(json.dumps({{"do": "run", "line": "touch {mark}", "cwd": "/"}}).encode() + b"\\n")
    print(link.recv(100), flush=True)
except OSError:
    print("closed")
"""
    nodes.start(template(sys.executable, "-c", script), 1, 30_300)
    assert nodes.ended(0, 1).exit_code == 0, nodes.said(0, 1)
    assert "no" in nodes.said(0, 1)
    nodes.ended(1, 1)
    assert not mark.exists()


def test_when_the_first_is_gone_the_others_leave(nodes: Nodes) -> None:
    nodes.start(
        template("sh", "-c", "mpirun -n 4 sleep 999 & sleep 3; kill -KILL $PPID"), 1, 30_400
    )
    assert nodes.ended(0, 1).signal == 9
    assert nodes.ended(1, 1).exit_code == 97
    assert "has gone" in nodes.said(1, 1)
