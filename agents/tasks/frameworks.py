"""Environment variables and command lines of gangs, by framework. Pure.

Everything is derived from ranks, hosts in rank order with their numbers of tasks, their addresses,
and a block of ports that belongs to the gang.
"""

import hashlib
import json
import shlex
import sys
from pathlib import Path

import msgspec

from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.values import hostlists

#: Run next to tasks as a script, so it is not imported.
LAUNCHER = str(Path(__file__).resolve().with_name("mpi_launcher.py"))


class Gang(msgspec.Struct, frozen=True):
    """A task's place in its gang.

    Attributes:
        cpus: CPUs of one task, at least 1.
        hosts: (name, address, tasks), starting with the host of rank 0.
        array_bounds: lowest and highest index of its array, if it leaves indexes out.
        run_id: name of the run, unique among those of its job.
        folder: where the task starts.
        memory_bytes: of one task; 0 for no limit.
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
    array_bounds: tuple[int, int] | None = None
    run_id: str = ""
    folder: str = ""
    memory_bytes: int = 0


def gang_of(assignment: Assignment, template: TaskTemplate, node: str, folder: str = "") -> Gang:
    """Return the gang of an assignment, whose task starts in a folder.

    A node without a known address uses its name.
    """
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
        array_bounds=assignment.array_bounds,
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
        run_id=template.told.get("MUSTER_RUN_ID", str(template.run)),
        folder=folder,
        memory_bytes=template.memory_bytes,
    )


def environment(framework: str, gang: Gang) -> dict[str, str]:
    """Return the variables of a framework, beyond those of every gang."""
    if framework == "none":
        return {}
    variables = {
        "MUSTER_RANK": str(gang.rank),
        "MUSTER_WORLD_SIZE": str(gang.world_size),
        "MUSTER_LOCAL_RANK": str(gang.local_rank),
        "MUSTER_LOCAL_WORLD_SIZE": str(gang.local_world_size),
        "MUSTER_NODE_RANK": str(gang.node_rank),
        "MUSTER_NODE_COUNT": str(len(gang.hosts)),
        "MUSTER_NODE_ADDRESS": own_address(gang),
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
    return variables | (special(gang) if special else {})


def own_address(gang: Gang) -> str:
    """Return the address by which the other tasks reach a task's node; its name if unknown."""
    return next((address for name, address, _ in gang.hosts if name == gang.node), gang.node)


def port_of(gang: Gang, number: int, local: int) -> int:
    """Return the port of a task, by its node's number in the gang and its own number on that node.

    A gang's ports belong to it at each address. Nodes with the same address, like virtual nodes,
    use consecutive ports.
    """
    own = gang.hosts[number][1]
    before = sum(tasks for _, address, tasks in gang.hosts[:number] if address == own)
    return gang.port + before + local


def torch(gang: Gang) -> dict[str, str]:
    """Return the variables of PyTorch's ``env://`` rendezvous.

    Each task is a PyTorch node with one process, like a pod: it sees only its own GPUs, numbered
    from 0, and has its own temporary folders. So the local rank is always a valid device number,
    and "once per node" happens once per task.
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
    """Return ``TF_CONFIG``, in which every task is a worker with its own port."""
    workers = [
        f"{address}:{port_of(gang, number, local)}"
        for number, (_, address, count) in enumerate(gang.hosts)
        for local in range(count)
    ]
    task = {"type": "worker", "index": gang.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def jax(gang: Gang) -> dict[str, str]:
    """Return the variables that ``jax.distributed.initialize()`` reads."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"{gang.address}:{gang.port}",
        "JAX_NUM_PROCESSES": str(gang.world_size),
        "JAX_PROCESS_ID": str(gang.rank),
        "JAX_LOCAL_DEVICE_IDS": ",".join(str(number) for number in range(len(gang.gpus))),
    }


def ray(gang: Gang) -> dict[str, str]:
    """Return the address of the Ray head. The rank tells which task starts it."""
    return {
        "RAY_ADDRESS": f"{gang.address}:{gang.port}",
        "MUSTER_RAY_PORT": str(gang.port),
        "MUSTER_RAY_IS_HEAD": "1" if gang.rank == 0 else "0",
    }


def defaults(framework: str, secret: str) -> dict[str, str]:
    """Return variables of a framework that a job may change.

    Without a token whoever reaches the ports of a Ray cluster can run code there. Where the user
    has one of earlier clusters, only the head would ask for that.

    A worker of Ray that is told to end asks its head first to move its work elsewhere, and waits
    30 s for an answer. When it is told, the head has mostly ended, and the try ends without it.
    """
    if framework != "ray":
        return {}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret} if secret else {}
    return {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", **token}


def slurm(gang: Gang) -> dict[str, str]:
    """Return the variables that scripts written for Slurm use.

    Lightning, submitit and others need ``SLURM_JOB_ID`` to be a number, and take ports from it. So
    it is one of the run, and in an array of the element, the same in each of its tries.
    """
    job_id, array_id = job_numbers(gang)
    names = hostlists.fold_in_order(name for name, _, _ in gang.hosts)
    counts = hostlists.fold_counts(count for _, _, count in gang.hosts)
    files = {
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NAME": gang.job,
        "SLURM_NTASKS": str(gang.world_size),
        "SLURM_NPROCS": str(gang.world_size),
        "SLURM_PROCID": str(gang.rank),
        "SLURM_LOCALID": str(gang.local_rank),
        "SLURM_NODEID": str(gang.node_rank),
        "SLURM_NNODES": str(len(gang.hosts)),
        "SLURM_JOB_NUM_NODES": str(len(gang.hosts)),
        # a gang is the only step of its run; JAX and TensorFlow look for the names of a step
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NUM_NODES": str(len(gang.hosts)),
        "SLURM_STEP_NUM_TASKS": str(gang.world_size),
        "SLURM_STEP_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NTASKS_PER_NODE": str(gang.local_world_size),
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
    if gang.folder:
        files["SLURM_SUBMIT_DIR"] = gang.folder
    if gang.gpus:
        files["SLURM_GPUS_PER_TASK"] = str(len(gang.gpus))
    if gang.memory_bytes:
        files["SLURM_MEM_PER_NODE"] = str(gang.memory_bytes * gang.local_world_size >> 20)
    if gang.array_count is not None:
        first, last = gang.array_bounds or (0, gang.array_count - 1)
        files |= {
            "SLURM_ARRAY_JOB_ID": array_id,
            "SLURM_ARRAY_TASK_ID": str(gang.element),
            "SLURM_ARRAY_TASK_COUNT": str(gang.array_count),
            "SLURM_ARRAY_TASK_MIN": str(first),
            "SLURM_ARRAY_TASK_MAX": str(last),
            "SLURM_ARRAY_TASK_STEP": "1",
        }
    return files


def job_numbers(gang: Gang) -> tuple[str, str]:
    """Return the number of a gang's job, that of its element in an array, and of the whole array,
    as in ``SLURM_JOB_ID`` and ``SLURM_ARRAY_JOB_ID``.
    """
    array_id = _job_number(gang.job, gang.run_id)
    if gang.array_count is None:
        return array_id, array_id
    return _job_number(gang.job, gang.run_id, str(gang.element)), array_id


def _job_number(*words: str) -> str:
    """Return a number of nine digits for a job, as Slurm would number it."""
    digest = hashlib.sha256("/".join(words).encode()).digest()
    return str(10**8 + int.from_bytes(digest[:8]) % (9 * 10**8))


def host_file(gang: Gang) -> str:
    """Return a host file for ``mpirun`` with a slot for each CPU of each task.

    Nodes with the same address, like virtual nodes, are one host, because Open MPI refuses to count
    the slots of a host twice.
    """
    slots: dict[str, int] = {}
    for _, address, count in gang.hosts:
        slots[address] = slots.get(address, 0) + count * gang.cpus
    return "".join(f"{address} slots={count}\n" for address, count in slots.items())


def launch(
    gang: Gang, argv: list[str], folder: str, secret: str
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Return command line, files and variables of a task of an MPI job.

    The first task runs the job's command. Its ``mpirun`` gets the host file and a program that
    replaces ssh. One task on each other node answers that program; the others only wait.
    """
    python = [sys.executable, "-I", "-S", LAUNCHER]
    more = {"MUSTER_GANG_SECRET": secret}
    if gang.rank > 0:
        port = port_of(gang, gang.node_rank, gang.local_rank)
        address = gang.hosts[gang.node_rank][1]
        return [*python, "follow"], {}, {**more, "MUSTER_GANG_LISTEN": f"{address}:{port}"}
    # the first task on each other node answers mpirun; the rest only wait for the end
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
