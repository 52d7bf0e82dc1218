"""Variables of the commands around a job: Muster's own, and the job's environment.

Assignments and their template come in; variables come out. Commands that run as the agent get
nothing that the job has chosen but its name.
"""

from collections.abc import Mapping, Sequence

import msgspec

from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.values import hostlists

#: The path of programs that a command of the agent's user starts by their names.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The most tasks of a job on one node that the variables name.
TASKS_MAX = 1024


class JobUser(msgspec.Struct, frozen=True):
    """The Unix user of a job. ``switch``: it is not the agent's own."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    switch: bool = False


class JobTask(msgspec.Struct, frozen=True):
    """One task of a job that is about to start, and what the commands around the job need.

    Attributes:
        elastic: the job goes on if some of its tasks leave.
        devices: numbers of the task's own GPUs.
        variables: of Muster, for commands of the agent's user.
        environment: of the task, without values of secrets.
        secrets: names of secrets, with the variable that gets the value.
        memory_bytes, cpu_milli: limits of the task; 0 for none.
        denied: rules of devices that it must not use.
        restricts: privileges that are taken from it, by name.
    """

    attempt: str
    job: str
    user: JobUser
    elastic: bool = False
    devices: tuple[int, ...] = ()
    variables: dict[str, str] = {}
    environment: dict[str, str] = {}
    secrets: tuple[tuple[str, str], ...] = ()
    memory_bytes: int = 0
    cpu_milli: int = 0
    denied: tuple[str, ...] = ()
    restricts: tuple[str, ...] = ()


def variables(
    tasks: Sequence[Assignment],
    template: TaskTemplate,
    user: JobUser,
    node: tuple[str, str],
    visible: Mapping[str, str],
) -> dict[str, str]:
    """Return Muster's variables for the tasks of one job on this node.

    Args:
        tasks: all of the job's try on the node; the first is the one that starts first.
        node: name and root of the node.
        visible: variables of GPUs that the first task has.
    """
    first, tasks = tasks[0], tasks[:TASKS_MAX]
    told = {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "MUSTER_JOB": template.job,
        "MUSTER_RUN": str(template.run),
        "MUSTER_OWNER": template.owner,
        "MUSTER_USER": user.name,
        "MUSTER_UID": str(user.uid),
        "MUSTER_GID": str(user.gid),
        "MUSTER_ATTEMPT": first.attempt,
        "MUSTER_ATTEMPTS": ",".join(one.attempt for one in tasks),
        "MUSTER_TRY": str(first.try_number),
        "MUSTER_NODE": node[0],
        "MUSTER_NODE_ROOT": node[1],
        "MUSTER_NODES": first.rank.hosts or hostlists.fold([node[0]]),
        "MUSTER_RANKS": ",".join(str(one.rank.rank) for one in tasks),
        "MUSTER_WORLD_SIZE": str(first.rank.world_size),
        "MUSTER_GPUS": ",".join(
            str(device) for device in sorted({device for one in tasks for device in one.devices})
        ),
        **visible,
    }
    if first.array_count is not None:
        told["MUSTER_ARRAY_INDEX"] = str(first.element)
        told["MUSTER_ARRAY_COUNT"] = str(first.array_count)
    return told
