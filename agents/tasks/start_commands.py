"""Builds the command to start an attempt from what the launcher has prepared.

An assignment, its template and the prepared resources come in; a JSON object goes out. Nothing
here waits, reads storage or starts a process. What a task must not choose for itself overrides
what its template says.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from agents.data import staging
from agents.gpus import mps
from agents.isolation import task_limits, task_privileges
from agents.job_commands import job_task
from agents.state import ATTEMPT_PATTERN
from agents.supervisor.commands import (
    CleanupCommand,
    EnterCommand,
    RefuseCommand,
    StartCommand,
    TaskProgram,
)
from agents.tasks import container_runtimes, frameworks, images, task_environment
from agents.tasks.node_context import NodeContext, UnstartableError
from agents.tasks.task_users import TaskUser
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import Gpu
from reconciler.model.state.states import EndReason
from reconciler.model.values import exec_limits


class StartResources(msgspec.Struct, frozen=True):
    """The preparations of the launcher for one attempt, made before its command is built.

    Attributes:
        image: the container's image; None for a plain process.
        cpus: cores to pin the task to, as the kernel lists them; empty for all.
        instances: MIG instances given to the attempt.
        shared_gpu: the device that the task shares through MPS.
        data: variables that name the task's checkpoint and the data copied for it.
        secrets: values by secret name; None if the task uses no secrets.
        surroundings: what it has of the place where it was submitted.
    """

    user: TaskUser
    image: images.ImageRequest | None = None
    cpus: str = ""
    instances: tuple[MigInstance, ...] = ()
    shared_gpu: mps.MpsShare | None = None
    data: dict[str, str] = {}
    secrets: dict[str, str] | None = None
    surroundings: task_environment.TaskSurroundings = task_environment.TaskSurroundings()


class _Execution(msgspec.Struct, frozen=True):
    """The command line of a task, and files that the supervisor writes for it."""

    argv: list[str]
    script: str | None
    cwd: str
    environment: dict[str, str]
    files: dict[str, str]


def check(assignment: Assignment, template: TaskTemplate) -> None:
    """Raise UnstartableError if no command can be built, before anything is prepared for it."""
    if not ATTEMPT_PATTERN.fullmatch(assignment.attempt):
        raise UnstartableError(f"attempt id {assignment.attempt!r} can't be the name of a folder")
    if template.script is None and not template.command:
        raise UnstartableError(f"job {template.job} has neither a command nor a script")
    if len((template.script or "").encode()) > exec_limits.SCRIPT_BYTES_MAX:
        raise UnstartableError(
            f"script of job {template.job} is larger than {exec_limits.SCRIPT_BYTES_MAX} bytes"
        )


def start_command(
    assignment: Assignment, template: TaskTemplate, node: NodeContext, resources: StartResources
) -> StartCommand:
    """Return the command to start an attempt, whose ids and sizes :func:`check` has accepted."""
    execution = _execution(assignment, template, node, resources)
    build = _process if resources.image is None else _container
    fields = {
        "op": "start",
        "id": assignment.attempt,
        "user": resources.user.credentials,
        "lease_s": template.lease_s,
        "checkpoint_signal": template.checkpoint_signal,
        "grace_s": template.grace_s,
        "script": execution.script,
        **build(assignment, template, node, resources, execution),
    }
    command = cast("StartCommand", fields)  # type checkers merge no dictionaries of two types
    if template.checkpoint_to:
        command["checkpoint_to"] = template.checkpoint_to
    if template.code:
        command["code"] = True
    if template.scratch_bytes:
        command["scratch_bytes"] = template.scratch_bytes
    if resources.secrets is not None:
        command["secrets"] = resources.secrets
    if notes := resources.surroundings.place.notes:
        # a container rarely misses the folder, so that only its failure makes it worth a word
        command["note" if template.runtime == "process" else "hint"] = "; ".join(notes)
    return command


def commands_task(
    assignment: Assignment,
    template: TaskTemplate,
    node: NodeContext,
    resources: StartResources,
    tasks: Sequence[Assignment],
) -> job_task.JobTask:
    """Return what the commands around the job of an attempt need of it.

    Args:
        tasks: all of its try on this node.
    """
    others = [one for one in tasks if one.attempt != assignment.attempt]
    tasks = [assignment, *others]
    user = resources.user
    named = job_task.JobUser(user.name, user.uid, user.gid, user.groups, user.switch)
    uuids = {gpu.index: gpu.uuid for gpu in node.gpus}
    devices = sorted({device for one in tasks for device in one.devices})
    visible = [uuids.get(device, str(device)) for device in devices]
    visible += [instance.uuid for instance in resources.instances]
    plain = msgspec.structs.replace(resources, secrets=None)
    restricted = template.privileges == task_privileges.RESTRICTED and user.uid != 0
    return job_task.JobTask(
        assignment.attempt,
        template.job,
        named,
        elastic="MUSTER_TASKS_MIN" in template.told,
        devices=assignment.devices,
        variables=job_task.variables(
            tasks, template, named, (node.name, node.root),
            {"CUDA_VISIBLE_DEVICES": ",".join(visible)},
        ),
        environment=_execution(assignment, template, node, plain).environment,
        secrets=tuple(pair for pair in template.secrets if pair[1]),
        memory_bytes=template.memory_bytes,
        cpu_milli=template.cpu_milli,
        denied=tuple(
            task_limits.denied_gpus(node.gpus, assignment.reachable, resources.instances).values()
        ),
        restricts=node.isolation.restricts if restricted else (),
    )  # fmt: skip


def refusal(attempt: str, reason: EndReason, message: str) -> RefuseCommand:
    """Return the command to record the end of an attempt that never started."""
    return {"op": "refuse", "id": attempt, "reason": reason.value, "message": message}


def _execution(
    assignment: Assignment, template: TaskTemplate, node: NodeContext, resources: StartResources
) -> _Execution:
    """Return the command, its working directory and its environment."""
    folder = node.attempt_folder(assignment.attempt)
    argv = list(template.command)
    if template.script is not None:
        path = f"{folder}/script"
        start = [path] if template.script.startswith("#!") else ["/bin/sh", path]
        argv = [*start, *template.arguments]
    environment = task_environment.environment_of(
        assignment,
        template,
        node,
        resources.user,
        instances=resources.instances,
        data=resources.data,
        surroundings=resources.surroundings,
    )
    files: dict[str, str] = {}
    if template.framework == "mpi":
        gang = frameworks.gang_of(assignment, template, node.name)
        argv, files, variables = frameworks.launch(gang, argv, folder, assignment.secret)
        environment |= variables
    if resources.shared_gpu is not None:
        gpu = next(gpu for gpu in node.gpus if gpu.index == resources.shared_gpu.device)
        mps_folder = f"{node.mps_folder}/{resources.shared_gpu.name}"
        environment |= mps.environment(mps_folder, assignment.share_milli, gpu.memory_bytes)
    secrets = resources.secrets or {}
    environment |= {
        variable: secrets[name]
        for name, variable in template.secrets
        if name in secrets and variable
    }
    cwd = task_environment.start_folder(template, resources.surroundings, folder)
    return _Execution(argv, template.script, cwd, environment, files)


def _limits(
    template: TaskTemplate, node: NodeContext, resources: StartResources, denied: dict[str, str]
) -> dict[str, Any]:
    return task_limits.limits_of(
        node.isolation, template.cpu_milli, template.memory_bytes, resources.cpus, denied
    )


def _process(
    assignment: Assignment,
    template: TaskTemplate,
    node: NodeContext,
    resources: StartResources,
    execution: _Execution,
) -> TaskProgram:
    """Return the program of a plain process."""
    denied = task_limits.denied_gpus(node.gpus, assignment.reachable, resources.instances)
    # root is root: a task that a pool lets run as root is given its rights on purpose
    restricted = template.privileges == task_privileges.RESTRICTED and resources.user.uid != 0
    if restricted:
        denied |= task_limits.FUSE
    paths = task_limits.ViewedPaths(
        node.attempt_folder(assignment.attempt),
        (node.root, node.shared),
        (execution.cwd, execution.argv[0]),
    )
    view = task_limits.view_of(
        node.isolation,
        paths,
        memory_bytes=template.memory_bytes,
        denied=list(denied),
        alone=resources.user.switch,
        # a daemon of MPS and its clients have to be in one IPC namespace
        gang=None
        if resources.shared_gpu is not None
        else _gang_on_node(assignment, template, resources.user),
        restricted=restricted,
    )
    if hidden := task_limits.hidden_path(view, paths):
        raise UnstartableError(
            f"job {template.job} has {hidden} as its working directory or command, and tasks of "
            f"its pool don't see {task_limits.USERS_SERVICES}. To fix: choose a folder elsewhere, "
            "or a pool with privileges: unrestricted"
        )
    return {
        "argv": execution.argv,
        "files": execution.files,
        "env": execution.environment
        | task_limits.short_temporary(view, paths, execution.environment),
        "cwd": execution.cwd,
        "limits": _limits(template, node, resources, denied),
        "privileges": task_privileges.RESTRICTED if restricted else "",
        "private": view,
    }


def _gang_on_node(assignment: Assignment, template: TaskTemplate, user: TaskUser) -> str:
    """Return a name for the tasks on this node that share memory; empty if it is only one."""
    if assignment.rank.local_world_size <= 1:
        return ""
    words = (template.job, template.run, assignment.element, assignment.try_number, user.uid)
    return "/".join(map(str, words))


def _container(
    assignment: Assignment,
    template: TaskTemplate,
    node: NodeContext,
    resources: StartResources,
    execution: _Execution,
) -> TaskProgram:
    """Return the program of a container, which is that of its runtime."""
    user, image = resources.user, resources.image
    assert image is not None  # noqa: S101 - for the type checker
    folder = node.attempt_folder(assignment.attempt)
    own = f"{folder}/tmp"  # noqa: S108 - nobody else's folder
    binds = [(folder, False), (node.shared, False), (f"{node.root}/lib", True), *template.mounts]
    if template.stage.ins:
        binds.append((f"{node.root}/cache/{user.uid}", True))
    # Runtimes know nothing of simulated devices; a node offers either those or real ones.
    is_simulated = any(gpu.simulated for gpu in node.gpus)
    box = container_runtimes.ContainerTask(
        attempt=assignment.attempt,
        root=node.root,
        image=template.image,
        argv=tuple(execution.argv),
        cwd=execution.cwd,
        environment={**execution.environment, "PATH": user.path},
        binds=tuple(dict(binds).items()),
        gpus=tuple(gpu for gpu in node.gpus if gpu.index in assignment.devices),
        instances=() if is_simulated else tuple(instance.uuid for instance in resources.instances),
        memory_bytes=template.memory_bytes,
        pids_max=node.isolation.pids_max,
        as_root=user.uid == 0,
        cgroup=f"{node.isolation.path}/{assignment.attempt}" if node.isolation.path else "",
        cpus=resources.cpus,
        limits=container_runtimes.limits_of_process(),
        temporary=own if execution.environment["TMPDIR"] == own else "",
    )
    # Root's runtime creates control groups of its own, which could not allow the usual devices.
    denied = (
        {}
        if user.uid == 0
        else task_limits.denied_gpus(node.gpus, assignment.reachable, resources.instances)
    )
    remove = image.runtime.remove(box.name)
    cleanup: CleanupCommand | None = None
    if remove:
        cleanup = {"argv": remove, "env": dict(image.environment), "user": user.credentials}
    pipes = image.runtime.enter(box, terminal=False)
    terminal = image.runtime.enter(box, terminal=True)
    enter: EnterCommand | None = None
    if pipes and terminal:
        enter = {"pipes": pipes, "terminal": terminal, "env": dict(image.environment)}
    return {
        "argv": image.runtime.run(box),
        "env": image.runtime.environment(box),
        # The runtime starts in a folder that exists; it enters the task's inside the container.
        "cwd": f"{folder}/work",
        "limits": _limits(template, node, resources, denied),
        "cleanup": cleanup,
        "contained": True,
        "enter": enter,
    }


def image_request(
    template: TaskTemplate, node: NodeContext, user: TaskUser
) -> images.ImageRequest | None:
    """Return the image that a task needs; None for a plain process.

    The runtime is the node's. The job's own ``PATH`` is useless in its container, and could lead
    the agent to a file system that hangs.

    Raises:
        UnstartableError: the container runtime is not installed on this node.
    """
    if template.runtime == "process":
        return None
    runtime = container_runtimes.find(template.runtime, node.podman, user.path)
    if runtime is None:
        raise UnstartableError(
            f"job {template.job} runs by {template.runtime}, which is not installed on node "
            f"{node.name}. To fix: install it, or limit the job to pools that have it"
        )
    # As the task's, because the runtime finds its storage by them.
    own = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    chosen = template.environment | template.told
    environment = {"PATH": user.path} | {name: chosen.get(name, own[name]) for name in own}
    return images.ImageRequest(
        runtime,
        template.image,
        user.credentials,
        tuple(environment.items()),
        template.image_timeout_s,
    )


def mps_share(
    assignment: Assignment, template: TaskTemplate, gpus: tuple[Gpu, ...], user: TaskUser
) -> mps.MpsShare | None:
    """Return the device that a plain process shares through MPS; None if it uses no MPS."""
    if not template.mps or assignment.share_milli >= 1000 or template.runtime != "process":
        return None
    given = [gpu for gpu in gpus if gpu.index in assignment.devices and not gpu.simulated]
    if len(given) != 1:
        return None
    return mps.MpsShare(given[0].index, given[0].uuid, user.credentials)


def staging_request(
    assignment: Assignment, template: TaskTemplate, user: TaskUser
) -> staging.StagingRequest | None:
    """Return what is copied for a task and as which user; None if nothing is copied."""
    if not template.stage:
        return None
    words = {
        "job": template.job, "run": str(template.run), "element": str(assignment.element),
        "group": template.group, "index": str(assignment.index), "try": str(assignment.try_number),
    }  # fmt: skip
    return staging.StagingRequest(
        template.stage, user.credentials, user.name, user.uid, user.gid, words,
        template.lease_s, template.grace_s,
    )  # fmt: skip
