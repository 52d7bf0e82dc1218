"""Fetches what a task needs before its command can run: checkpoint, secrets and copied files, and
the folder, Python environment and modules that it was submitted with.

All of it may be slow or hang, so each part is a wait of the start's preparation.
"""

import os
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from agents.data import secret_store, staging
from agents.gpus import mps
from agents.health import volume_checks
from agents.host import disk_space
from agents.isolation import command_cgroups, user_commands
from agents.logs import output_copies, output_paths
from agents.submitted import environment_modules, submit_folders
from agents.tasks import (
    checkpoint_folders,
    frameworks,
    preparation,
    start_commands,
    task_environment,
)
from agents.tasks.node_context import NodeContext, UnstartableError
from agents.tasks.preparation import Wait
from agents.tasks.task_users import TaskUser
from reconciler import child_process
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.states import EndReason
from reconciler.model.values import folder_identity

#: How long a start waits for a folder: of its checkpoints, or of its submitter.
SEARCH_TIMEOUT_S = 60.0
#: Threads that look at folders at the same time, those that hang included.
SEARCHES_MAX = 1000
STOPPED_MESSAGE = "stopped while what it needs was fetched"


class TaskData:
    """The data of one node's tasks. Methods are called under the agent's lock.

    Args:
        volumes: checks volumes before tasks start; None if nobody does.
        users: runs commands as the users of tasks.
    """

    def __init__(
        self,
        stager: staging.Stager,
        secrets: secret_store.SecretStore,
        volumes: volume_checks.VolumeChecker | None,
        lock: threading.RLock,
        users: user_commands.UserCommands,
    ) -> None:
        self._stager = stager
        self._secrets = secrets
        self._volumes = volumes
        self._lock = lock
        self._users = users
        self._searches = 0

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
        return self._search(
            lambda: checkpoint_folders.checkpoint_variables(assignment, template, shared, user),
            f"checkpoint folder {template.checkpoint_path} below {shared}",
            "looking for its checkpoints",
        )

    def find_surroundings(
        self, template: TaskTemplate, shared: str, user: TaskUser
    ) -> Generator[Wait, Any, task_environment.TaskSurroundings]:
        """Return what this node has of the place where a task was submitted, and its modules."""
        place = template.submitted
        chosen = template.working_directory is not None or bool(template.code)
        found = task_environment.TaskSurroundings()
        if template.runtime != "process":
            shown = (shared, *(path for path, _ in template.mounts))
            hidden = submit_folders.unseen_by_container(place, shown, chosen=chosen)
            found = found._replace(place=hidden)
        elif place != folder_identity.NOWHERE:
            which = " and ".join(one.path for one in (place.folder, place.python) if one)
            found = found._replace(
                place=(
                    yield self._search(
                        lambda: submit_folders.find(
                            place, user.acting, submit_folders.machine_boot_id(), chosen=chosen
                        ),
                        f"the submitter's {which}",
                        "looking for the folder of its submission",
                    )
                )
            )
        if template.modules:
            names = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
            request = environment_modules.ModuleRequest(
                template.modules,
                child_process.ChildUser.of(user.credentials),
                {"PATH": user.path, "LANG": os.environ.get("LANG", "C.UTF-8"), **names},
            )
            found = found._replace(
                modules=(yield background(lambda: environment_modules.load(request, self._users)))
            )
        return found

    def files(
        self,
        assignment: Assignment,
        template: TaskTemplate,
        node: NodeContext,
        found: tuple[TaskUser, str],
        copies: output_copies.OutputCopies,
    ) -> Generator[Wait, Any, None]:
        """Open the files that a task's output is copied to, and begin the copy.

        Args:
            found: its user, and the folder of its submission; empty for none.
        """
        user, folder = found
        files, late_at = template.files, time.monotonic() + SEARCH_TIMEOUT_S

        def begin() -> None:
            base = template.working_directory or folder or _unseen_folder(template, user)
            words = _words(assignment, template, node, user)
            try:
                place = output_copies.FilePlace(
                    user.acting, os.path.realpath(node.root), os.path.realpath(node.shared)
                )
                copy = output_paths.copy_of(files, words, base, place)
                if copy is not None:
                    copies.begin(
                        assignment.attempt, copy, empties=not files.appends, late_at=late_at
                    )
            except output_copies.OutputFileError as problem:
                raise UnstartableError(f"{problem} (on node {node.name})") from None

        which = " and ".join(one for one in (files.output, files.error) if one)
        if which:
            yield self._search(begin, f"output file {which}", "opening the files for its output")

    def _search(self, look: Callable[[], Any], what: str, note: str) -> Wait:
        """Return the wait for a look at folders that may hang, which gives what it returns."""
        if self._searches >= SEARCHES_MAX:
            raise UnstartableError(
                f"{SEARCHES_MAX} looks at folders of jobs have not ended: the storage of this "
                f"node hangs, now at {what}",
                EndReason.CHECK_FAILED,
            )
        self._searches += 1

        def search() -> Any:
            try:
                return look()
            finally:
                with self._lock:
                    self._searches -= 1

        late = (
            f"{what} did not answer in {SEARCH_TIMEOUT_S:g} s; check if the storage of this node "
            "hangs"
        )
        return Wait(
            preparation.in_background(search, limit_s=SEARCH_TIMEOUT_S, late=late),
            "stopped while its folders were looked for",
            note=note,
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


def _words(
    assignment: Assignment, template: TaskTemplate, node: NodeContext, user: TaskUser
) -> dict[str, str]:
    """Return what the words in paths of output files stand for."""
    gang = frameworks.gang_of(assignment, template, node.name)
    job, array = frameworks.job_numbers(gang)
    return {
        "x": template.job, "j": job, "A": array, "a": str(assignment.element),
        "t": str(assignment.rank.rank), "N": node.name, "u": user.name,
    }  # fmt: skip


def _unseen_folder(template: TaskTemplate, user: TaskUser) -> str:
    """Return the folder of its submission for a task that does not start there; empty: none."""
    if template.submitted.folder is None or (template.runtime == "process" and not template.code):
        return ""
    boot_id = submit_folders.machine_boot_id()
    return submit_folders.find(template.submitted, user.acting, boot_id, chosen=False).folder


def background(work: Callable[[], Any], undo: Callable[[], object] = lambda: None) -> Wait:
    """Return the wait for ``work`` in a thread of its own, with its errors as refusals."""

    def run() -> Any:
        try:
            return work()
        except (secret_store.SecretUnavailableError, environment_modules.ModulesError) as problem:
            raise UnstartableError(str(problem)) from None
        except (mps.MpsError, command_cgroups.CommandRefusedError) as problem:
            raise UnstartableError(str(problem), EndReason.CHECK_FAILED) from None
        except OSError as problem:
            if disk_space.is_lack(problem):
                raise disk_space.FullDiskError(f"data: {problem}") from None
            raise UnstartableError(f"data: {problem}", EndReason.STAGE_FAILED) from None

    begin = preparation.in_background(run, undo=undo)
    return Wait(begin, STOPPED_MESSAGE, note="getting what it needs")
