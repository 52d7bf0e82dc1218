"""A job of MPI, as a person submits it, on virtual nodes with networks of their own.

Controller, agents and Open MPI are the real ones: what is scheduled is a gang of two, whose first
task runs ``mpirun``, and whose ranks add up their numbers from one network namespace to another.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from agents.isolation import network_namespaces
from tests.integration import beds
from tests.integration.agents.test_mpi import PROGRAM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("openmpi-bin"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces here"),
    pytest.mark.skipif(
        bool(network_namespaces.problem()), reason=network_namespaces.problem() or "-"
    ),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no Open MPI here"),
]

SPEC = """\
  framework: mpi
  tasksPerNode: 1
  count: 2
  resources: {{cpu: 3}}
  environment: {{OMPI_ALLOW_RUN_AS_ROOT: "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1"}}
  command: [mpirun, --oversubscribe, {python}, {program}]
"""


def test_mpi_over_two_virtual_nodes_with_networks_of_their_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    text = beds.job("sum", SPEC.format(python=sys.executable, program=program))
    with beds.Bed(tmp_path, isolate=True) as bed:
        assert bed.cluster.not_isolated == ""
        addresses = {one["address"] for one in bed.get("/v1/nodes")["items"]}
        assert len(addresses) == 2
        assert "127.0.0.1" not in addresses
        bed.commit({"jobs/sum.yaml": text})
        job = bed.until_state("sum", "Succeeded", "Failed")
        said = bed.output("sum", task="main-0")
        assert job["state"] == "Succeeded", said
        assert {one["node"] for one in job["attempts"]} == {"virtual-0", "virtual-1"}
        lines = sorted(line for line in said.splitlines() if line.startswith("rank"))
        # three slots a task: six ranks, of which each node has three
        assert lines == sorted(f"rank {n} total 15 on virtual-{n // 3}" for n in range(6))
