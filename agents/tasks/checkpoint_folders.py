"""The variables that name a job's checkpoint folder, and the checkpoint to resume from.

The shared storage may be slow or hang, so nothing here may be called under the agent's lock.
"""

import time

from agents.job_data import checkpoint_places, checkpoints
from agents.tasks.node_context import UnstartableError
from agents.tasks.task_users import TaskUser
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate


def checkpoint_variables(
    assignment: Assignment, template: TaskTemplate, shared: str, user: TaskUser
) -> dict[str, str]:
    """Create the checkpoint folder and return the variables that name it and its newest checkpoint.

    Raises:
        UnstartableError: the folder cannot be created, or belongs to another user.
    """
    if template.checkpoint_path is None:
        return {}
    try:
        below = checkpoint_places.make(shared, template.checkpoint_path, user.acting)
    except checkpoint_places.CheckpointPlaceError as problem:
        raise UnstartableError(str(problem)) from None
    folder = f"{shared}/{below}"
    variables = {"MUSTER_CHECKPOINT_DIR": folder}
    newest = checkpoints.newest(
        checkpoints.CheckpointSearch(
            shared, below, template.saves, assignment.element, user=user.acting
        ),
        now=time.time(),
        told=assignment.saved,
    )
    if newest is None:
        return variables
    variables["MUSTER_CHECKPOINT"] = f"{folder}/{newest.path}"
    if newest.step is not None:
        step = f"{newest.step:g}" if newest.step % 1 else str(int(newest.step))
        variables["MUSTER_CHECKPOINT_STEP"] = step
    return variables
