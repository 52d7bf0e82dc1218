"""The environment variables of a task.

Later sources win: a clean base, environment modules, the submitter's Python environment, the
variables of the job, those of the system (``MUSTER_*`` and the framework's), and last the values of
secrets.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from agents.submitted import submit_folders
from agents.tasks import frameworks
from agents.tasks.node_context import NodeContext
from agents.tasks.task_users import TaskUser
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate

RESERVED_PREFIX = "MUSTER_"


class TaskSurroundings(NamedTuple):
    """The folder and Python of a task's submission, as this node has them, and its modules.

    Attributes:
        modules: variables that its environment modules set.
    """

    place: submit_folders.FoundPlace = submit_folders.FoundPlace()
    modules: Mapping[str, str] = MappingProxyType({})


def environment_of(
    assignment: Assignment,
    template: TaskTemplate,
    node: NodeContext,
    user: TaskUser,
    *,
    instances: tuple[MigInstance, ...] = (),
    data: Mapping[str, str] | None = None,
    surroundings: TaskSurroundings | None = None,
) -> dict[str, str]:
    """Return the environment of a task.

    Args:
        instances: MIG instances given to the attempt.
        data: variables that name the task's data: its checkpoint and the files copied for it.
        surroundings: what it has of the place where it was submitted.
    """
    folder = node.attempt_folder(assignment.attempt)
    base = _base(folder, template, node, user, surroundings or TaskSurroundings())
    base |= frameworks.defaults(template.framework, assignment.secret)
    chosen = {k: v for k, v in template.environment.items() if not k.startswith(RESERVED_PREFIX)}
    reserved = {
        "MUSTER_JOB": template.job,
        "MUSTER_RUN": str(template.run),
        "MUSTER_GROUP": template.group,
        "MUSTER_TASK_INDEX": str(assignment.index),
        "MUSTER_ATTEMPT": assignment.attempt,
        "MUSTER_TRY": str(assignment.try_number),
        "MUSTER_NODE": node.name,
        "MUSTER_NODE_ROOT": node.root,
        "MUSTER_SHARED_DIR": node.shared,
        "MUSTER_METRICS": f"{folder}/metrics",
        **_gpu_variables(assignment, node, instances),
        **dict.fromkeys((staged_variable(item.name) for item in template.stage.ins), ""),
        **(data or {}),
    }
    if assignment.array_count is not None:
        reserved["MUSTER_ARRAY_INDEX"] = str(assignment.element)
        reserved["MUSTER_ARRAY_COUNT"] = str(assignment.array_count)
    if template.stage.outs:
        reserved["MUSTER_OUT_DIR"] = f"{folder}/work"
    if template.secrets:
        reserved["MUSTER_SECRETS_DIR"] = f"{folder}/secrets"
        # Only names: the launcher adds the values, which only the order may hold.
        chosen |= {variable: "" for _, variable in template.secrets if variable}
    if template.code:
        reserved["MUSTER_CODE_DIR"] = f"{folder}/work"
    if template.framework != "none":
        place = start_folder(template, surroundings or TaskSurroundings(), folder)
        gang = frameworks.gang_of(assignment, template, node.name, place)
        reserved |= frameworks.environment(template.framework, gang)
    # Last, so that it hides no module of the same name in the job's own path.
    paths = [chosen["PYTHONPATH"]] if chosen.get("PYTHONPATH") else []
    reserved["PYTHONPATH"] = ":".join([*paths, f"{node.root}/lib"])
    return base | chosen | template.told | reserved


def start_folder(template: TaskTemplate, around: TaskSurroundings, folder: str) -> str:
    """Return the folder that a task starts in.

    Args:
        folder: the attempt's.
    """
    if template.working_directory:
        return template.working_directory
    if template.code:
        return f"{folder}/work/{template.code.folder}".rstrip("/")
    return around.place.folder or f"{folder}/work"


def _base(
    folder: str,
    template: TaskTemplate,
    node: NodeContext,
    user: TaskUser,
    around: TaskSurroundings,
) -> dict[str, str]:
    """Return the variables that a job may change."""
    base = {
        "PATH": user.path,
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "TMPDIR": f"{folder}/tmp",  # noqa: S108 - the task's own
    }
    if template.framework != "none":
        base |= node.fabric
    base |= around.modules
    return base | around.place.variables(base["PATH"])


def staged_variable(name: str) -> str:
    """Return the variable that holds the path of data copied under a name."""
    return f"MUSTER_STAGED_{name.upper().replace('-', '_')}"


def _gpu_variables(
    assignment: Assignment, node: NodeContext, instances: tuple[MigInstance, ...]
) -> dict[str, str]:
    uuids = {gpu.index: gpu.uuid for gpu in node.gpus}
    visible = [uuids.get(index, str(index)) for index in assignment.devices]
    visible += [instance.uuid for instance in instances]
    variables = {
        "MUSTER_GPUS": ",".join(map(str, assignment.devices)),
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
    }
    if assignment.share_milli < 1000:
        variables["MUSTER_GPU_SHARE"] = f"{assignment.share_milli / 1000:g}"
    if assignment.instances:
        variables["MUSTER_MIG_PROFILE"] = assignment.mig_profile
        variables["MUSTER_MIG_INSTANCES"] = ",".join(map(str, assignment.instances))
    return variables
