"""What the tasks of a gang find in their environment, by framework: pure.

``told`` has everything that any of them can be told from: ranks, hosts in the order of their ranks
with how many tasks each has, their addresses, and a block of ports that is the gang's alone.
"""

import json
import shlex
import sys
from pathlib import Path

import msgspec

from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.values import hostlists

#: Run beside tasks as a script: importing it here would be of no use.
LAUNCHER = str(Path(__file__).resolve().with_name("mpi_launcher.py"))


class Gang(msgspec.Struct, frozen=True):
    """One task's place among those that start with it. ``cpus`` are those of one task, at least 1.

    ``hosts`` are (name, address, tasks), the first with rank 0.
    """

    job: str
    run: int
    element: int
    array_count: int | None
    try_number: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node: str
    group: str
    address: str
    port: int
    cpus: int
    gpus: tuple[int, ...]
    hosts: tuple[tuple[str, str, int], ...]


def gang_of(assignment: Assignment, template: TaskTemplate, node: str) -> Gang:
    """The gang of an assignment; a node that is too old to be told of has its name as address."""
    rank = assignment.rank
    names = hostlists.expand(rank.hosts) if rank.hosts else [node]
    counts = hostlists.expand_counts(rank.tasks_per_host) or [rank.world_size]
    addresses = assignment.addresses
    hosts = tuple(
        (name, addresses.get(name, name), count) for name, count in zip(names, counts, strict=False)
    )
    return Gang(
        job=template.job,
        run=template.run,
        element=assignment.element,
        array_count=assignment.array_count,
        try_number=assignment.try_number,
        rank=rank.rank,
        world_size=rank.world_size,
        local_rank=rank.local_rank,
        local_world_size=rank.local_world_size,
        node_rank=rank.node_rank,
        node=node,
        group=template.group,
        address=rank.master_address,
        port=rank.master_port,
        cpus=max(1, template.cpu_milli // 1000),
        gpus=assignment.devices,
        hosts=hosts,
    )


def environment(framework: str, gang: Gang) -> dict[str, str]:
    """Variables of a framework, over what every gang is told."""
    if framework == "none":
        return {}
    made = {
        "MUSTER_RANK": str(gang.rank),
        "MUSTER_WORLD_SIZE": str(gang.world_size),
        "MUSTER_LOCAL_RANK": str(gang.local_rank),
        "MUSTER_LOCAL_WORLD_SIZE": str(gang.local_world_size),
        "MUSTER_NODE_RANK": str(gang.node_rank),
        "MUSTER_NODE_COUNT": str(len(gang.hosts)),
        "MUSTER_HOSTS": hostlists.fold_in_order(name for name, _, _ in gang.hosts),
        "MUSTER_MASTER_ADDR": gang.address,
        "MUSTER_MASTER_PORT": str(gang.port),
    }
    by_framework = {
        "torchrun": torch,
        "tensorflow": tensorflow,
        "jax": jax,
        "ray": ray,
        "slurm": slurm,
    }
    special = by_framework.get(framework)
    return made | (special(gang) if special else {})


def port_of(gang: Gang, number: int, local: int) -> int:
    """The port of a task, by the number of its node in the gang and its own on that node.

    A gang's ports are nobody else's at an address. Nodes that share one, as virtual ones of one
    machine do, use those after their predecessors'.
    """
    own = gang.hosts[number][1]
    before = sum(tasks for _, address, tasks in gang.hosts[:number] if address == own)
    return gang.port + before + local


def torch(gang: Gang) -> dict[str, str]:
    """How the processes of one PyTorch job find each other, ``env://``.

    To PyTorch each task is a node of its own with one process, as a pod is: it sees its own GPUs
    alone, numbered from 0, and has folders for temporary files of its own. So the local rank is a
    number of a device that there is, and "once for each node" happens once for each task.
    """
    return {
        "MASTER_ADDR": gang.address,
        "MASTER_PORT": str(gang.port),
        "RANK": str(gang.rank),
        "WORLD_SIZE": str(gang.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(gang.rank),
        "GROUP_WORLD_SIZE": str(gang.world_size),
        "ROLE_RANK": str(gang.rank),
        "ROLE_WORLD_SIZE": str(gang.world_size),
    }


def tensorflow(gang: Gang) -> dict[str, str]:
    """``TF_CONFIG``: every task is a worker with a port of its own on its host."""
    workers = [
        f"{address}:{port_of(gang, number, local)}"
        for number, (_, address, count) in enumerate(gang.hosts)
        for local in range(count)
    ]
    task = {"type": "worker", "index": gang.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def jax(gang: Gang) -> dict[str, str]:
    """What ``jax.distributed.initialize()`` looks for."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"{gang.address}:{gang.port}",
        "JAX_NUM_PROCESSES": str(gang.world_size),
        "JAX_PROCESS_ID": str(gang.rank),
        "JAX_LOCAL_DEVICE_IDS": ",".join(str(number) for number in range(len(gang.gpus))),
    }


def ray(gang: Gang) -> dict[str, str]:
    """Where the head listens; which task starts it is told by the rank."""
    return {
        "RAY_ADDRESS": f"{gang.address}:{gang.port}",
        "MUSTER_RAY_PORT": str(gang.port),
        "MUSTER_RAY_IS_HEAD": "1" if gang.rank == 0 else "0",
    }


def slurm(gang: Gang) -> dict[str, str]:
    """The names by which scripts written for Slurm find their way.

    ``SLURM_JOB_ID`` has to be a number for some of them; the run is what comes nearest.
    """
    names = hostlists.fold_in_order(name for name, _, _ in gang.hosts)
    counts = hostlists.fold_counts(count for _, _, count in gang.hosts)
    made = {
        "SLURM_JOB_ID": str(gang.run),
        "SLURM_JOBID": str(gang.run),
        "SLURM_JOB_NAME": gang.job,
        "SLURM_NTASKS": str(gang.world_size),
        "SLURM_NPROCS": str(gang.world_size),
        "SLURM_PROCID": str(gang.rank),
        "SLURM_LOCALID": str(gang.local_rank),
        "SLURM_NODEID": str(gang.node_rank),
        "SLURM_NNODES": str(len(gang.hosts)),
        "SLURM_JOB_NUM_NODES": str(len(gang.hosts)),
        # a gang is the one step of its run; JAX and TensorFlow look for the names of a step alone
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NUM_NODES": str(len(gang.hosts)),
        "SLURM_STEP_NUM_TASKS": str(gang.world_size),
        "SLURM_STEP_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NODELIST": names,
        "SLURM_TASKS_PER_NODE": counts,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_CPUS_PER_TASK": str(gang.cpus),
        "SLURM_CPUS_ON_NODE": str(gang.cpus * gang.local_world_size),
        "SLURMD_NODENAME": gang.node,
        "SLURM_RESTART_COUNT": str(gang.try_number - 1),
        "SLURM_GPUS_ON_NODE": str(len(gang.gpus) * gang.local_world_size),
        "SLURM_LAUNCH_NODE_IPADDR": gang.address,
        "MASTER_ADDR": gang.address,
        "MASTER_PORT": str(gang.port),
    }
    if gang.array_count is not None:
        made |= {
            "SLURM_ARRAY_JOB_ID": str(gang.run),
            "SLURM_ARRAY_TASK_ID": str(gang.element),
            "SLURM_ARRAY_TASK_COUNT": str(gang.array_count),
            "SLURM_ARRAY_TASK_MIN": "0",
            "SLURM_ARRAY_TASK_MAX": str(gang.array_count - 1),
        }
    return made


def host_file(gang: Gang) -> str:
    """A host file for ``mpirun``: a slot for each CPU of each task.

    Nodes that share an address, as virtual ones of one machine do, are one host: Open MPI refuses
    a file that counts the slots of a host twice.
    """
    slots: dict[str, int] = {}
    for _, address, count in gang.hosts:
        slots[address] = slots.get(address, 0) + count * gang.cpus
    return "".join(f"{address} slots={count}\n" for address, count in slots.items())


def launch(
    gang: Gang, argv: list[str], folder: str, secret: str
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """How a task of an MPI job starts: its command line, files of its own, and more variables.

    The first task runs the job's command, whose ``mpirun`` finds the host file and reaches the
    other nodes by a program that takes the place of ssh. One task of each other node answers it,
    and all others only wait for its end.
    """
    python = [sys.executable, "-I", "-S", LAUNCHER]
    more = {"MUSTER_GANG_SECRET": secret}
    if gang.rank > 0:
        port = port_of(gang, gang.node_rank, gang.local_rank)
        address = gang.hosts[gang.node_rank][1]
        return [*python, "follow"], {}, {**more, "MUSTER_GANG_LISTEN": f"{address}:{port}"}
    # the first of each other node, which answer mpirun; then those that wait for the end alone
    followers = [
        [address, port_of(gang, number, 0)]
        for number, (_, address, _) in enumerate(gang.hosts[1:], 1)
    ]
    followers += [
        [address, port_of(gang, number, local)]
        for number, (_, address, count) in enumerate(gang.hosts)
        for local in range(1, count)
    ]
    rsh = " ".join(map(shlex.quote, [*python, "reach"]))
    files = {"hosts": host_file(gang), "rsh": f'#!/bin/sh\nexec {rsh} "$@"\n'}
    host, agent = f"{folder}/hosts", f"{folder}/rsh"
    more |= {
        "MUSTER_GANG_HELPERS": json.dumps(followers),
        "MUSTER_HOSTFILE": host,
        "OMPI_MCA_orte_default_hostfile": host,
        "OMPI_MCA_plm_rsh_agent": agent,
        "PRTE_MCA_prte_default_hostfile": host,
        "PRTE_MCA_plm_ssh_agent": agent,
        "HYDRA_HOST_FILE": host,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
    }
    return [*python, "lead", *argv], files, more
