"""Gangs over virtual nodes with networks of their own, as nodes of a real cluster have them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.isolation import network_namespaces
from tests.frameworks import jobs
from tests.integration import beds

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or bool(network_namespaces.problem()),
    reason=network_namespaces.problem() or "only root can make network namespaces here",
)


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    """Two virtual nodes that reach each other by their addresses alone."""
    folder = tmp_path_factory.mktemp("isolated")
    with beds.Bed(folder, nodes=2, cpus=4, lease="30s", silence="20s", isolate=True) as made:
        assert made.cluster.not_isolated == ""
        yield made


def test_ranks_of_pytorch_reach_each_other_over_the_network(
    isolated: beds.Bed, tmp_path: Path
) -> None:
    said = jobs.python(
        isolated, "ranks", jobs.RANKS, tmp_path,
        framework="torchrun", count=2, resources={"cpu": 3},
    )  # fmt: skip
    assert "rank 0 of 2 task 0 sum 1" in said


def test_gloo_finds_the_network_without_a_named_interface(
    isolated: beds.Bed, tmp_path: Path
) -> None:
    """A framework that is told nothing looks up the name of its own host."""
    said = jobs.python(
        isolated, "plain-ranks", jobs.RANKS, tmp_path,
        framework="torchrun", count=2, resources={"cpu": 3},
        environment={**jobs.ENVIRONMENT, "GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": ""},
    )  # fmt: skip
    assert "rank 0 of 2 task 0 sum 1" in said


def test_workers_of_ray_join_from_other_nodes(isolated: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(jobs.TUNE)
    said = jobs.run(
        isolated, "ray", jobs.guides_ray(), tmp_path, framework="ray", count=2, resources={"cpu": 3}
    )
    assert "squares [0, 1, 4, 9]" in said
