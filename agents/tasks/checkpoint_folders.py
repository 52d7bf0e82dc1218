"""The folder for a job's checkpoints on the shared storage, and the checkpoint to resume from.

The shared storage may be slow or hang, so nothing here may be called under the agent's lock. The
folder is created one component at a time, so that no symbolic link leads out of the shared folder.
"""

import os
import time

from agents.job_data import checkpoints
from agents.tasks.node_context import UnstartableError
from agents.tasks.task_users import TaskUser
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate


def checkpoint_variables(
    assignment: Assignment, template: TaskTemplate, shared: str, user: TaskUser
) -> dict[str, str]:
    """Create the checkpoint folder and return the variables that name it and its newest checkpoint.

    Raises:
        UnstartableError: the folder cannot be created.
    """
    if template.checkpoint_path is None:
        return {}
    folder = make_folder(shared, template.checkpoint_path, user)
    variables = {"MUSTER_CHECKPOINT_DIR": folder}
    newest = checkpoints.newest(
        shared,
        template.checkpoint_path,
        template.saves,
        assignment.element,
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


def make_folder(shared: str, relative: str, user: TaskUser) -> str:
    """Create a folder below the shared folder and return its path. No symbolic link is followed.

    The last component belongs to the user if it is new.

    Raises:
        UnstartableError: the path leaves the shared folder, or cannot be created.
    """
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if relative.startswith("/") or ".." in parts or not parts:
        raise UnstartableError(
            f"checkpoint path {relative!r} must be relative to the shared folder {shared} and "
            "stay in it"
        )
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    path = shared
    try:
        handle = os.open(shared, flags)
        try:
            for part in parts:
                path = f"{path}/{part}"
                is_new = _make_component(handle, part)
                child = os.open(part, flags | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = child
            if is_new and user.switch:
                os.fchown(handle, user.uid, user.gid)
        finally:
            os.close(handle)
    except OSError as problem:
        raise UnstartableError(
            f"checkpoint folder {path}: {os.strerror(problem.errno or 0)}; symbolic links are not "
            "followed"
        ) from None
    return path


def _make_component(handle: int, part: str) -> bool:
    """Create one folder in an open folder. Return False if it existed."""
    try:
        os.mkdir(part, 0o755, dir_fd=handle)
    except FileExistsError:
        return False
    return True
