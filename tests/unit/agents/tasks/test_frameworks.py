"""What tasks of gangs find in their environment."""

import json
from typing import Any

import msgspec
import pytest

from agents.tasks import frameworks, nccl_interfaces
from agents.tasks.node_context import NodeContext
from reconciler.core.jobs import gang_ranks
from reconciler.model.observed.host_facts import Host, RdmaPort
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import Inventory, RankPlacement
from reconciler.model.values import hostlists
from tests import ordering

RANK = RankPlacement(
    rank=5, world_size=7, local_rank=1, local_world_size=3, node_rank=1, master_address="10.0.0.9",
    master_port=29_500, hosts="gpu[009-010]", tasks_per_host="4,3",
)  # fmt: skip
ASSIGNMENT = Assignment(
    "j.1.0.2.main.5.3", "t", "boot", element=2, index=5, try_number=3, array_count=4, rank=RANK,
    devices=(0, 3), addresses={"gpu009": "10.0.0.9", "gpu010": "10.0.0.10"}, secret="hidden",
)  # fmt: skip
GANG = frameworks.gang_of(ASSIGNMENT, TaskTemplate("j", 6, "main"), "gpu010")


def environment(framework: str, **fields: Any) -> dict[str, str]:
    template = TaskTemplate("j", 6, "main", ("a.out",), framework=framework, cpu_milli=2500,
                            allow_root=True, **fields)  # fmt: skip
    place = NodeContext("gpu010", "/r", "/s", fabric={"NCCL_IB_DISABLE": "1"})
    order = ordering.order_for(ASSIGNMENT, template, place)
    return dict(order["env"])


def test_every_gang_is_told_its_ranks() -> None:
    found = environment("ray")
    expected = {
        "MUSTER_RANK": "5", "MUSTER_WORLD_SIZE": "7", "MUSTER_LOCAL_RANK": "1",
        "MUSTER_LOCAL_WORLD_SIZE": "3", "MUSTER_NODE_RANK": "1", "MUSTER_NODE_COUNT": "2",
        "MUSTER_HOSTS": "gpu[009-010]", "MUSTER_MASTER_ADDR": "10.0.0.9",
        "MUSTER_MASTER_PORT": "29500", "MUSTER_NODE_ADDRESS": "10.0.0.10",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert found["NCCL_IB_DISABLE"] == "1"
    assert environment("ray", environment={"NCCL_IB_DISABLE": "0"})["NCCL_IB_DISABLE"] == "0"
    assert "NCCL_IB_DISABLE" not in environment("none")
    assert "MUSTER_RANK" not in environment("none")


EXPECTED: dict[str, dict[str, str]] = {
    "torchrun": {
        "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29500", "RANK": "5", "WORLD_SIZE": "7",
        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "5", "GROUP_WORLD_SIZE": "7",
        "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "7", "MUSTER_LOCAL_RANK": "1",
    },
    "jax": {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.9:29500", "JAX_NUM_PROCESSES": "7",
        "JAX_PROCESS_ID": "5", "JAX_LOCAL_DEVICE_IDS": "0,1",
    },
    "ray": {"RAY_ADDRESS": "10.0.0.9:29500", "MUSTER_RAY_IS_HEAD": "0"},
    "slurm": {
        "SLURM_JOB_NAME": "j", "SLURM_NTASKS": "7", "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "gpu[009-010]", "SLURM_TASKS_PER_NODE": "4,3",
        "SLURM_NTASKS_PER_NODE": "3", "SLURM_SUBMIT_DIR": "/r/attempts/j.1.0.2.main.5.3/work",
        "SLURM_GPUS_PER_TASK": "2", "SLURM_ARRAY_TASK_STEP": "1",
        "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_NODELIST": "gpu[009-010]", "SLURM_STEP_TASKS_PER_NODE": "4,3",
        "SLURM_CPUS_ON_NODE": "6", "SLURM_CPUS_PER_TASK": "2",
        "SLURMD_NODENAME": "gpu010", "SLURM_RESTART_COUNT": "2",
        "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MAX": "3",
        "MASTER_ADDR": "10.0.0.9",
    },
}  # fmt: skip


@pytest.mark.parametrize("framework", EXPECTED)
def test_names_of_frameworks(framework: str) -> None:
    found = environment(framework)
    expected = EXPECTED[framework]
    assert {name: found.get(name) for name in expected} == expected


def test_tasks_of_ray_have_a_token_unless_the_job_says_otherwise() -> None:
    found = environment("ray")
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN"]) == ("token", "hidden")
    assert (
        environment("ray", environment={"RAY_AUTH_MODE": "disabled"})["RAY_AUTH_MODE"] == "disabled"
    )
    assert "RAY_AUTH_TOKEN" not in environment("slurm")


def slurm_ids(**fields: Any) -> tuple[str, str]:
    found = frameworks.slurm(msgspec.structs.replace(GANG, **fields))
    return found["SLURM_JOB_ID"], found["SLURM_ARRAY_JOB_ID"]


def test_each_job_has_a_number_as_slurm_numbers_them() -> None:
    """Lightning takes a port from its last digits; submitit names folders by it."""
    job, array = slurm_ids()
    assert len(job) == len(array) == 9
    assert int(job) != int(array)
    assert slurm_ids(try_number=4, rank=6) == (job, array)
    others = [slurm_ids(element=3), slurm_ids(job="k"), slurm_ids(run_id="7")]
    assert len({job, *(one for one, _ in others)}) == 4
    assert [one == array for _, one in others] == [True, False, False]


def test_memory_of_a_node_is_told_in_mebibytes() -> None:
    assert environment("slurm", memory_bytes=2**30)["SLURM_MEM_PER_NODE"] == "3072"
    assert "SLURM_MEM_PER_NODE" not in environment("slurm")


@pytest.mark.parametrize("framework", ["torchrun", "jax"])
@pytest.mark.parametrize("devices", [(), (3,), (0, 3), (4, 5, 6, 7)])
def test_local_numbers_are_of_devices_that_the_task_sees(
    framework: str, devices: tuple[int, ...]
) -> None:
    for local in range(8):
        rank = msgspec.structs.replace(RANK, local_rank=local, local_world_size=8)
        assignment = msgspec.structs.replace(ASSIGNMENT, rank=rank, devices=devices)
        gang = frameworks.gang_of(assignment, TaskTemplate("j", 6, "main"), "gpu010")
        found = frameworks.environment(framework, gang)
        if framework == "torchrun":  # what torch.cuda.set_device is called with
            assert int(found["LOCAL_RANK"]) in range(max(1, len(devices)))
            assert int(found["LOCAL_RANK"]) < int(found["LOCAL_WORLD_SIZE"])
        else:
            assert found["JAX_LOCAL_DEVICE_IDS"] == ",".join(map(str, range(len(devices))))
        assert found["MUSTER_LOCAL_RANK"] == str(local)


def test_ranks_follow_from_those_of_groups() -> None:
    """As Lightning counts them: of the group's, times its processes, and the local one."""
    found = environment("torchrun")
    group, local = int(found["GROUP_RANK"]), int(found["LOCAL_RANK"])
    assert group * int(found["LOCAL_WORLD_SIZE"]) + local == int(found["RANK"])
    size = int(found["GROUP_WORLD_SIZE"]) * int(found["LOCAL_WORLD_SIZE"])
    assert size == int(found["WORLD_SIZE"])


def test_tensorflow_has_a_port_for_each_worker() -> None:
    found = json.loads(environment("tensorflow")["TF_CONFIG"])
    assert found["task"] == {"type": "worker", "index": 5}
    workers = found["cluster"]["worker"]
    assert workers == [f"10.0.0.9:{29500 + i}" for i in range(4)] + [
        f"10.0.0.10:{29500 + i}" for i in range(3)
    ]
    assert workers[5] == "10.0.0.10:29501"  # its own, by rank and by local rank


def test_mpi_keeps_the_secret_out_of_command_lines() -> None:
    template = TaskTemplate("j", 6, "main", ("mpirun", "a.out"), framework="mpi", allow_root=True)
    order = ordering.order_for(ASSIGNMENT, template, NodeContext("gpu010", "/r", "/s"))
    assert order["argv"][-1] == "follow"
    assert order["env"]["MUSTER_GANG_LISTEN"] == "10.0.0.10:29501"
    assert "hidden" not in " ".join(order["argv"])
    gang = frameworks.gang_of(ASSIGNMENT, template, "gpu010")
    assert frameworks.host_file(gang) == "10.0.0.9 slots=4\n10.0.0.10 slots=3\n"


def test_virtual_nodes_of_one_address_are_one_host_for_mpi() -> None:
    template = TaskTemplate("j", 6, "main", ("mpirun", "a.out"), framework="mpi", cpu_milli=2000)
    of_one = msgspec.structs.replace(
        ASSIGNMENT, addresses=dict.fromkeys(("gpu009", "gpu010"), "127.0.0.1")
    )
    gang = frameworks.gang_of(of_one, template, "gpu010")
    assert frameworks.host_file(gang) == "127.0.0.1 slots=14\n"


@pytest.mark.parametrize("nodes", [1, 2, 3, 64])
def test_tasks_of_one_address_have_ports_of_their_own(nodes: int) -> None:
    ports = gang_ranks.RENDEZVOUS_PORTS
    for address in ("", "127.0.0.1"):
        hosts = tuple((f"n{n}", address or f"10.0.0.{n}", 3) for n in range(nodes))
        gang = msgspec.structs.replace(GANG, hosts=hosts, port=ports.start)
        found = [
            (where, frameworks.port_of(gang, number, local))
            for number, (_, where, count) in enumerate(hosts)
            for local in range(count)
        ]
        assert len(set(found)) == 3 * nodes
        used = {port for _, port in found}
        assert used == set(range(ports.start, ports.start + (3 * nodes if address else 3)))
        config = json.loads(frameworks.tensorflow(gang)["TF_CONFIG"])
        assert config["cluster"]["worker"] == [f"{where}:{port}" for where, port in found]


@pytest.mark.parametrize(
    "names",
    [["a"], ["n2", "n1"], ["n8", "n9", "n10"], ["g001", "g002", "g004", "g003"], ["x", "x1", "x2"]],
)
def test_hosts_keep_their_order(names: list[str]) -> None:
    assert hostlists.expand(hostlists.fold_in_order(names)) == names


@pytest.mark.parametrize(
    ("counts", "text"), [([8, 8, 8, 4], "8(x3),4"), ([1], "1"), ([], ""), ([2, 1, 2], "2,1,2")]
)
def test_counts(counts: list[int], text: str) -> None:
    assert hostlists.fold_counts(counts) == text
    assert hostlists.expand_counts(text) == counts


def ports(*rates: int | None, state: str = "ACTIVE") -> Host:
    found = [RdmaPort(f"mlx5_{i}", 1, state, "InfiniBand", rate) for i, rate in enumerate(rates)]
    return Host(rdma=tuple(found))


@pytest.mark.parametrize(
    ("host", "interface", "expected"),
    [
        (None, "eth0", {}),
        (Host(), "lo", {"NCCL_IB_DISABLE": "1"}),
        (Host(), "eth0", {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth0",
                          "GLOO_SOCKET_IFNAME": "eth0"}),
        (ports(400, 400, 100), "", {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
        (ports(None), "", {"NCCL_IB_HCA": "=mlx5_0:1"}),
        (ports(400, state="DOWN"), "", {"NCCL_IB_DISABLE": "1"}),
    ],
)  # fmt: skip
def test_the_fabric(host: Host | None, interface: str, expected: dict[str, str]) -> None:
    assert nccl_interfaces.settings(host, interface) == expected


def test_a_worker_of_ray_asks_nobody_before_it_ends_unless_its_job_wants_it() -> None:
    name = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    assert environment("ray")[name] == "0"
    assert environment("ray", environment={name: "9"})[name] == "9"
    assert name not in environment("torchrun")


def test_the_interface_that_is_named_need_not_be_one_of_this_process() -> None:
    found = Inventory(address="203.0.113.77", host=Host())
    assert "GLOO_SOCKET_IFNAME" not in nccl_interfaces.of_node(found)
    assert nccl_interfaces.of_node(found, "eth7")["GLOO_SOCKET_IFNAME"] == "eth7"


def test_the_interface_of_an_address() -> None:
    assert nccl_interfaces.interface_of("127.0.0.1") == "lo"
    assert nccl_interfaces.interface_of("203.0.113.77") == ""
