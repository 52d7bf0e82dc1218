"""Prepares what each attempt needs on this node, and turns it into commands to the supervisor.

:meth:`Launcher._prepare` names the steps of a start in their order. All methods are called under
the agent's lock; what may hang is waited for without it (see ``preparation``).
"""

import os
import threading
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agents import state
from agents.code import task_code
from agents.data import data_cache, secret_store, staging
from agents.deletion import trash
from agents.gpus import mig_manager, mps
from agents.health import volume_checks
from agents.host import host_info, short_paths, unix_users
from agents.isolation import cpu_pinning, kernel_tables, task_limits, user_commands
from agents.job_commands import command_runner, job_tries
from agents.logs import output_copies
from agents.settings import AgentSettings
from agents.supervisor import task_isolation
from agents.supervisor.commands import AttemptCommand
from agents.tasks import (
    gates,
    held_starts,
    images,
    preparation,
    start_commands,
    task_data,
    task_users,
)
from agents.tasks.node_context import NodeContext, UnstartableError
from agents.tasks.preparation import Wait
from agents.tasks.start_commands import refusal
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import AttemptReport, Isolation
from reconciler.model.state.states import AttemptState, EndReason

#: How long a start waits for a user lookup.
USER_LOOKUP_TIMEOUT_S = 60.0


class Launcher:
    """Starts and stops attempts of one node.

    Attributes:
        node: facts about the node; replaced when they change.
        users: runs commands as the users of tasks.
        images: container images that are pulled.
        stager: copies of data in and out.
        short_paths: short names of the tasks' temporary folders.
        job_tries: runs commands around jobs; None before :meth:`run_around_jobs`.
        output_copies: copies output to files of users.

    Args:
        spares: spare folders, which make starts cheaper.
        volumes: checks volumes before tasks start.
        mig: hands out MIG instances.
        gate: makes checks before tasks start.
    """

    def __init__(
        self,
        settings: AgentSettings,
        node: NodeContext,
        spares: trash.Trash,
        lock: threading.RLock,
        *,
        volumes: volume_checks.VolumeChecker | None = None,
        mig: mig_manager.MigManager | None = None,
        gate: gates.StartGate | None = None,
    ) -> None:
        self.short_paths = short_paths.ShortPaths(Path(node.root))
        mps_folder = mps.folder_of(node.root, self.short_paths)
        self.node = msgspec.structs.replace(node, mps=mps_folder)
        self.users = user_commands.UserCommands(
            lambda: task_isolation.remembered(node.root), lambda: self.node.gpus
        )
        self.images = images.Images(settings.image_timeout_s, node.root, self.users)
        secrets = secret_store.SecretStore(settings.secrets, settings.secret_command)
        self._secrets = secrets
        self.job_tries: job_tries.JobTries | None = None
        cache = data_cache.DataCache(settings.root, spares.deleter, settings.cache_bytes_max)
        self.stager = staging.Stager(node.root, cache, secrets, self.users)
        self._code = task_code.TaskCode(settings.root, settings, self.users, spares.deleter)
        self._data = task_data.TaskData(self.stager, secrets, volumes, lock, self.users)
        self.output_copies = output_copies.OutputCopies(Path(node.root) / "logs")
        self._settings = settings
        self._spares = spares
        self._mig = mig
        self._gate = gate
        self._user_lookups = unix_users.UserLookups(lock, USER_LOOKUP_TIMEOUT_S, unix_users.SYSTEM)
        self._mps_daemons = mps.MpsDaemons(Path(mps_folder), self.users)
        self._preparations = preparation.Preparations(lock)
        self._supervisor_takes_spares = False
        self._cores: cpu_pinning.CorePool | None = None
        self._held_starts = held_starts.HeldStarts()

    def run_around_jobs(
        self, facts: job_tries.NodeFacts, lock: threading.RLock
    ) -> job_tries.JobTries:
        """Have the site's commands run around jobs that start from now on. Return what does so."""
        runner = command_runner.CommandRunner(self.users, self._secrets)
        self.job_tries = job_tries.JobTries(Path(self.node.root), runner, facts, lock)
        return self.job_tries

    # What the supervisor reports -------------------------------------------------------------

    def supervisor_connected(self, hello: Mapping[str, Any]) -> Isolation:
        """Adopt a supervisor's attempts. Return how it isolates tasks."""
        facts = hello.get("isolation", {})
        capabilities = _capabilities(facts, self._settings)
        self.node = msgspec.structs.replace(self.node, isolation=capabilities)
        records = hello.get("records", ())
        live = [record for record in records if record["state"] != AttemptState.ENDED]
        live_ids = {record["id"] for record in live}
        self._mps_daemons.keep(live_ids)
        self.stager.cache.keep({record["id"] for record in records})
        if self._mig is not None:
            self._mig.keep(live_ids)
        self._supervisor_takes_spares = bool(hello.get("spares"))
        self._code.is_taken = bool(hello.get("code"))
        self._cores = None
        if self._settings.pin_cpus and "cpuset" in capabilities.enforces:
            cpu_lists = [node.cpus for node in host_info.read().numa]
            self._cores = cpu_pinning.of_machine(cpu_lists, os.sched_getaffinity(0))
            for record in live:
                self._cores.restore(record["id"], record.get("cpus", ""))
        return Isolation(
            kind=capabilities.kind,
            enforces=capabilities.enforces,
            views=capabilities.views,
            restricts=capabilities.restricts,
            problems=tuple(facts.get("problems", ())),
        )

    def attempts_reported(self, reports: Iterable[AttemptReport]) -> None:
        """Release cores, MIG instances and MPS daemons of attempts that have ended."""
        for report in reports:
            if report.state is not AttemptState.ENDED:
                continue
            self._release_cores(report.id)
            self._code.discard(report.id)
            self._mps_daemons.leave(report.id)
            if self._mig is not None:
                self._mig.leave(report.id)
            if self._gate is not None and report.started_at is not None:
                self._gate.leave()

    # Starting --------------------------------------------------------------------------------

    def start(self, step: state.Start, send: preparation.Send) -> list[AttemptCommand]:
        """Return the command that starts an attempt, or nothing if the attempt must wait first.

        In that case ``send`` is called with the command later, from another thread.
        """
        attempt = step.assignment.attempt
        # Before any wait, because the gang may be released while this attempt waits, and that must
        # not be forgotten: the controller does not release it again.
        self._held_starts.forget(attempt)
        return self._preparations.start(attempt, self._prepare(step), send)

    def _prepare(self, step: state.Start) -> preparation.Steps:
        """Prepare an attempt step by step: user, isolation, GPUs, data, command."""
        assignment, template = step.assignment, step.template
        start_commands.check(assignment, template)
        yield from self._check_node(assignment)
        yield from self._await_devices(assignment)
        user = yield from self._find_user(assignment, template)
        image = start_commands.image_request(template, self.node, user)
        cpus = self._pin_cpus(assignment, template)
        try:
            instances, share = yield from self._assign_gpus(assignment, template, user)
            data, secrets = yield from self._data.fetch(
                assignment, template, self.node.shared, user
            )
            surroundings = yield from self._data.find_surroundings(template, self.node.shared, user)
            if image is not None:
                yield _image_wait(self.images, assignment.attempt, image)
            if template.code:
                yield self._code.wait(assignment.attempt, template, user)
            found = (user, surroundings.place.folder)
            yield from self._data.files(assignment, template, self.node, found, self.output_copies)
        except UnstartableError:
            # the next start gets its cores at once, and not when the supervisor reports the end
            self._release_cores(assignment.attempt)
            raise
        resources = start_commands.StartResources(
            user,
            image,
            cpus=cpus,
            instances=instances,
            shared_gpu=share,
            data=data,
            secrets=secrets,
            surroundings=surroundings,
        )
        command = start_commands.start_command(assignment, template, self.node, resources)
        if image is None:  # a container does not see the short name
            _shorten(command["env"], self.node.attempt_folder(assignment.attempt), self.short_paths)
        try:
            yield from self._run_commands(assignment, template, resources)
        except UnstartableError:
            self._release_cores(assignment.attempt)
            raise
        if (image is not None or template.stage.ins or template.code) and assignment.hold:
            # only these take so long that some of a gang would wait, running, for others
            command["hold"] = True
        if command["user"] is None and self._supervisor_takes_spares:
            # its inner folders belong to the supervisor's user already
            command["spare"] = self._spares.take()
        return command

    def _check_node(self, assignment: Assignment) -> Generator[Wait, Any, None]:
        """Wait for the checks that the pool asks for before tasks start."""
        gate, attempt = self._gate, assignment.attempt
        if gate is not None:
            yield Wait(
                lambda resume: gate.enter(attempt, resume),
                "stopped while its node was checked",
                reason=EndReason.CHECK_FAILED,
                cancel=gate.give_up,
            )

    def _await_devices(self, assignment: Assignment) -> Generator[Wait, Any, None]:
        """Wait until the commands after the jobs that had its GPUs before have ended."""
        tries, attempt = self.job_tries, assignment.attempt
        if tries is not None:
            yield Wait(
                lambda resume: tries.await_devices(attempt, assignment.devices, resume),
                "stopped while commands after another job ran on its GPUs",
                reason=EndReason.CHECK_FAILED,
                cancel=tries.give_up,
            )

    def _run_commands(
        self,
        assignment: Assignment,
        template: TaskTemplate,
        resources: start_commands.StartResources,
    ) -> Generator[Wait, Any, None]:
        """Wait for the commands that the pool runs before a job."""
        tries = self.job_tries
        if tries is not None and tries.are_any(assignment.attempt):
            tasks = tries.tasks_of(assignment.attempt)
            task = start_commands.commands_task(assignment, template, self.node, resources, tasks)
            try:
                yield Wait(
                    lambda resume: tries.enter(task, resume),
                    "stopped while commands before its job ran",
                    reason=EndReason.CHECK_FAILED,
                    cancel=tries.give_up,
                )
            except job_tries.JobFaultError as problem:
                raise UnstartableError(str(problem)) from None

    def _find_user(
        self, assignment: Assignment, template: TaskTemplate
    ) -> Generator[Wait, Any, task_users.TaskUser]:
        """Return the user of a task; a directory service may be slow to name it."""
        name = task_users.user_to_look_up(template, self.node)
        if name is not None:
            yield Wait(
                lambda resume: self._user_lookups.wait(assignment.attempt, name, resume),
                "stopped before its user was known",
                reason=EndReason.CHECK_FAILED,
                cancel=self._user_lookups.give_up,
            )
        return task_users.find_user(template, self.node)

    def _pin_cpus(self, assignment: Assignment, template: TaskTemplate) -> str:
        """Return the cores that a task is pinned to, near its GPUs; empty if it may use all."""
        if self._cores is None or not template.cpu_milli:
            return ""
        near = {gpu.numa_node for gpu in self.node.gpus if gpu.index in assignment.devices}
        return self._cores.take(
            assignment.attempt, template.cpu_milli, {node for node in near if node is not None}
        )

    def _release_cores(self, attempt: str) -> None:
        if self._cores is not None:
            self._cores.give_back(attempt)

    def _assign_gpus(
        self, assignment: Assignment, template: TaskTemplate, user: task_users.TaskUser
    ) -> Generator[Wait, Any, tuple[tuple[MigInstance, ...], mps.MpsShare | None]]:
        """Return MIG instances for a task and the device that it shares by MPS, if any."""
        instances: tuple[MigInstance, ...] = ()
        try:
            if self._mig is not None:
                instances = self._mig.allot(assignment)
        except mig_manager.NotReadyError as problem:
            raise UnstartableError(str(problem), EndReason.CHECK_FAILED) from None
        share = start_commands.mps_share(assignment, template, self.node.gpus, user)
        if share is not None:
            attempt = assignment.attempt
            yield task_data.background(
                lambda: self._mps_daemons.want(attempt, share),
                undo=lambda: self._mps_daemons.leave(attempt),
            )
        return instances, share

    # Gangs, stages and stops -----------------------------------------------------------------

    def pass_or_hold(self, command: AttemptCommand) -> list[AttemptCommand]:
        """Return a prepared command, or hold it until all of its gang are prepared."""
        return self._held_starts.pass_or_hold(command)

    def release(self, attempt: str) -> list[AttemptCommand]:
        """Return the held command of an attempt whose gang is ready, or remember that it is."""
        return self._held_starts.release(attempt)

    def stages(self) -> dict[str, tuple[AttemptState, str]]:
        """Return state and note of attempts that have not started, by attempt."""
        notes = {name: f"fetching image {image}" for name, image in self.images.waiting().items()}
        if self._gate is not None:
            notes |= self._gate.waiting()
        if self.job_tries is not None:
            notes |= self.job_tries.waiting()
        notes |= self._user_lookups.waiting() | self._preparations.notes() | self.stager.waiting()
        stages = {name: (AttemptState.FETCHING, note) for name, note in notes.items()}
        ready = (AttemptState.READY, "ready; waiting for the rest of its gang")
        return stages | dict.fromkeys(self._held_starts.held(), ready)

    def stop_command(self, step: state.EndAttempt) -> AttemptCommand:
        """Return the command to stop an attempt, or to record that it never starts."""
        attempt = step.attempt
        was_held = self._held_starts.forget(attempt)
        message = self._preparations.stop(attempt)
        self.stager.stop(attempt, step.reason, step.grace_s)
        if message is None and was_held:
            message = "stopped while it waited for its gang"
        if message is not None:
            return refusal(attempt, step.reason, message)
        return {
            "op": "stop", "id": attempt, "reason": step.reason.value, "to": step.to,
            "signal": step.signal, "grace_s": step.grace_s, "message": step.message,
        }  # fmt: skip


def _image_wait(
    pulled: images.Images, attempt: str, image: images.ImageRequest
) -> preparation.Wait:
    """Return the wait until the image of a container is on this node."""
    return Wait(
        lambda resume: pulled.want(attempt, image, resume),
        task_data.STOPPED_MESSAGE,
        cancel=pulled.give_up,
    )


def _capabilities(
    facts: Mapping[str, Any], settings: AgentSettings
) -> task_limits.IsolationCapabilities:
    """Return how a supervisor isolates tasks, from what it says of itself."""
    return task_limits.IsolationCapabilities(
        kind=facts.get("kind", "process-group"),
        enforces=tuple(facts.get("enforces", ())),
        views=bool(facts.get("views")),
        restricts=tuple(facts.get("restricts", ())),
        pids_max=kernel_tables.pids_max(settings.task_pids_max),
        path=facts.get("path", ""),
    )


def _shorten(environment: dict[str, str], attempt: str, short: short_paths.ShortPaths) -> None:
    """Give a task's temporary folder a name that leaves room for sockets."""
    own = f"{attempt}/tmp"  # noqa: S108 - nobody else's folder
    if environment["TMPDIR"] == own:
        environment["TMPDIR"] = short.link(own)
