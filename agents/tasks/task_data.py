"""Fetches what a task needs before its command can run: checkpoint, secrets and copied files.

All of it may be slow or hang, so each part is a wait of the start's preparation.
"""

import threading
from collections.abc import Callable, Generator
from typing import Any

from agents.data import secret_store, staging
from agents.gpus import mps
from agents.health import volume_checks
from agents.host import disk_space
from agents.tasks import checkpoint_folders, preparation, start_commands, task_environment
from agents.tasks.node_context import UnstartableError
from agents.tasks.preparation import Wait
from agents.tasks.task_users import TaskUser
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.states import EndReason

#: How long a start waits for the folder of its checkpoints.
CHECKPOINT_TIMEOUT_S = 60.0
#: Threads that look for checkpoints at the same time, those that hang included.
CHECKPOINT_SEARCHES_MAX = 1000
STOPPED_MESSAGE = "stopped while what it needs was fetched"


class TaskData:
    """The data of one node's tasks. Methods are called under the agent's lock.

    Args:
        volumes: checks volumes before tasks start; None if nobody does.
    """

    def __init__(
        self,
        stager: staging.Stager,
        secrets: secret_store.SecretStore,
        volumes: volume_checks.VolumeChecker | None,
        lock: threading.RLock,
    ) -> None:
        self._stager = stager
        self._secrets = secrets
        self._volumes = volumes
        self._lock = lock
        self._checkpoint_searches = 0

    def fetch(
        self, assignment: Assignment, template: TaskTemplate, shared: str, user: TaskUser
    ) -> Generator[Wait, Any, tuple[dict[str, str], dict[str, str] | None]]:
        """Return variables that name the task's data, and its secrets; None if it uses none.

        The data is its checkpoint and what is copied for it. Its volumes are checked, too.
        """
        attempt = assignment.attempt
        data: dict[str, str] = {}
        if template.checkpoint_path is not None:
            data |= yield self._checkpoint_search(assignment, template, shared, user)
        request = start_commands.staging_request(assignment, template, user)
        secrets: dict[str, str] | None = None
        if request is not None or template.secrets or template.volumes:
            secrets = yield background(lambda: self._get_ready(attempt, template, user, request))
        if request is not None and request.plan.ins:
            paths = yield Wait(
                lambda resume: self._stager.want(attempt, request, resume),
                STOPPED_MESSAGE,
                reason=EndReason.STAGE_FAILED,
                cancel=self._stager.give_up,
            )
            data |= {task_environment.staged_variable(name): path for name, path in paths.items()}
        return data, secrets

    def _checkpoint_search(
        self, assignment: Assignment, template: TaskTemplate, shared: str, user: TaskUser
    ) -> Wait:
        """Return the wait for the checkpoint to resume from; it gives the variables that name it.

        The storage may hang, so only this start waits, and only for a limited time.
        """
        if self._checkpoint_searches >= CHECKPOINT_SEARCHES_MAX:
            raise UnstartableError(
                f"{CHECKPOINT_SEARCHES_MAX} searches for checkpoints have not ended: the shared "
                f"folder {shared} of this node hangs"
            )
        self._checkpoint_searches += 1

        def search() -> dict[str, str]:
            try:
                return checkpoint_folders.checkpoint_variables(assignment, template, shared, user)
            finally:
                with self._lock:
                    self._checkpoint_searches -= 1

        late = (
            f"checkpoint folder {template.checkpoint_path} below {shared} did not answer in "
            f"{CHECKPOINT_TIMEOUT_S:g} s; check if the shared folder of this node hangs"
        )
        return Wait(
            preparation.in_background(search, limit_s=CHECKPOINT_TIMEOUT_S, late=late),
            "stopped while its checkpoints were looked for",
            note="looking for its checkpoints",
        )

    def _get_ready(
        self,
        attempt: str,
        template: TaskTemplate,
        user: TaskUser,
        request: staging.StagingRequest | None,
    ) -> dict[str, str] | None:
        """Check the volumes of a task, note what is copied for it, and return its secrets."""
        if template.volumes and self._volumes is not None:
            problem = self._volumes.problem(template.volumes)
            if problem:
                raise UnstartableError(problem, EndReason.CHECK_FAILED)
        secrets = None
        if template.secrets:
            names = [name for name, _ in template.secrets]
            secrets = self._secrets.fetch(user.name, user.uid, names)
        if request is not None:
            self._stager.prepare(attempt, request)
        return secrets


def background(work: Callable[[], Any], undo: Callable[[], object] = lambda: None) -> Wait:
    """Return the wait for ``work`` in a thread of its own, with its errors as refusals."""

    def run() -> Any:
        try:
            return work()
        except (secret_store.SecretUnavailableError, mps.MpsError) as problem:
            raise UnstartableError(str(problem)) from None
        except OSError as problem:
            if disk_space.is_lack(problem):
                raise disk_space.FullDiskError(f"data: {problem}") from None
            raise UnstartableError(f"data: {problem}", EndReason.STAGE_FAILED) from None

    begin = preparation.in_background(run, undo=undo)
    return Wait(begin, STOPPED_MESSAGE, note="getting what it needs")
