"""Handles what the supervisor reports of attempts, and what follows once an attempt is over.

Reports come in from the main loop and from threads that copy results out; the state machine and
the parts that hold something for an attempt are told of them.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agents import state, step_executor
from agents.data import left_files
from agents.deletion import trash
from agents.host import failpoints
from agents.job_commands import job_tries
from agents.job_data import reported_data
from agents.logs import event_log
from agents.node import cleanup, monitor, start_faults
from agents.supervisor import client
from agents.supervisor.commands import AttemptCommand
from agents.tasks import container_cleanup, launcher
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason


class AttemptParts(NamedTuple):
    """The parts of an agent that hold something for an attempt."""

    launcher: launcher.Launcher
    monitor: monitor.NodeMonitor
    job_data: reported_data.JobData
    containers: container_cleanup.ContainerRemover
    job_tries: job_tries.JobTries
    logs: cleanup.LogCleanup
    trash: trash.Trash
    event_log: event_log.EventLog


class AttemptLifecycle:
    """Follows the attempts of one node.

    Args:
        steps: carries out what the state machine decides.
        report_now: called if the controller must hear of a change at once.
        delete_now: called if there is something to delete.
    """

    def __init__(
        self,
        lock: threading.RLock,
        node_state: state.AgentState,
        supervisor: client.SupervisorClient,
        parts: AttemptParts,
        *,
        steps: step_executor.StepExecutor,
        report_now: Callable[[], None],
        delete_now: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._state = node_state
        self._supervisor = supervisor
        self._parts = parts
        self._steps = steps
        self._report_now = report_now
        self._delete_now = delete_now

    def connected(self, reports: list[AttemptReport]) -> None:
        """Adopt the attempts of a supervisor that has just been connected."""
        parts, outdated = self._parts, self._supervisor.outdated
        reports = self._with_left_files(self._with_node_faults(reports))
        with self._lock:
            isolation = parts.launcher.supervisor_connected(self._supervisor.hello)
            reports = parts.job_data.hold(reports, self._state, self._looked)
            reports = parts.launcher.stager.hold(reports, self._copied_out)
            reports = parts.job_tries.hold(reports, self._told)
            parts.monitor.set_isolation(isolation)
            parts.monitor.notice(event_log.OUTDATED if outdated else "", "supervisor")
            parts.event_log.supervised(reports, isolation.kind, outdated=outdated)
            self._steps.carry_out(self._state.supervisor_up(reports))
        parts.launcher.output_copies.resume(self._has_ended)

    def reported(self, reports: list[AttemptReport]) -> None:
        """Note what has become of attempts, and carry out what follows."""
        parts = self._parts
        if any(report.state is AttemptState.ENDED for report in reports):
            failpoints.reach("exited-not-acknowledged")
            parts.logs.ended()
            parts.containers.heard(reports, self._supervisor.cleanups)
        if any(report.end_reason is EndReason.CHECK_FAILED for report in reports):
            parts.monitor.check_soon()  # a node without room must get no other task
        # Without the lock: the last metrics of a task may be a MiB to read.
        parts.job_data.heard(reports)
        reports = self._with_left_files(self._with_node_faults(reports))
        with self._lock:
            # Under the lock: a copy that ends at once must be reported after these reports.
            adjusted = parts.job_data.hold(reports, self._state, self._looked)
            adjusted = parts.launcher.stager.hold(adjusted, self._copied_out)
            adjusted = parts.job_tries.hold(adjusted, self._told)
            parts.launcher.attempts_reported(reports)
            self._changed(adjusted)

    def reported_last(self, reports: list[AttemptReport]) -> None:
        """Note the ends of attempts while the agent stops; no step follows from them."""
        with self._lock:
            self._parts.event_log.heard(reports, self._state)
            self._state.attempts_changed(reports)

    def over_limit(self, attempt: str, message: str) -> None:
        """End a task whose files take more of the disk than they may."""
        with self._lock:
            self._steps.carry_out(self._state.over_limit(attempt, message))

    def lost(self) -> None:
        """Note that the supervisor has gone."""
        self._parts.event_log.left(dismissed=self._supervisor.dismissed)
        with self._lock:
            self._supervisor.dismissed = False
            self._state.supervisor_down()
            self._supervisor.close()

    def prepared(self, command: AttemptCommand) -> None:
        """Send the command of an attempt that had to wait before its start.

        It may have been prepared twice, because a supervisor has died meanwhile. What started
        by the other command, or has ended and is forgotten, must not start again.
        """
        with self._lock:
            if not self._state.awaits(command["id"]):
                return
            commands = self._parts.launcher.pass_or_hold(command)
            if commands:
                self._steps.send(commands)
            else:
                self._report_now()  # the controller waits until the whole gang is ready

    def discard(self, attempts: tuple[str, ...]) -> list[str]:
        """Move the folders of attempts to the trash; another thread deletes them.

        Returns:
            What could not be moved, as messages.
        """
        problems = []
        self._parts.job_data.forget(attempts)
        for attempt in attempts:
            cleanup_command = self._supervisor.cleanups.pop(attempt, None)
            self._parts.containers.ended(attempt, cleanup_command)
            self._parts.launcher.stager.cache.forget(attempt)
            folder = f"{self._supervisor.root}/attempts/{attempt}"
            self._parts.launcher.short_paths.drop(f"{folder}/tmp")  # noqa: S108 - the task's own
            try:
                if self._parts.trash.put(folder):
                    self._delete_now()
            except FileNotFoundError:
                continue
            except OSError as problem:
                problems.append(f"folder {folder} can't be deleted: {problem}")
        return problems

    def _looked(self, report: AttemptReport) -> None:
        """Report the end of an attempt whose last checkpoint was looked for."""
        with self._lock:
            copied = self._parts.launcher.stager.hold([report], self._copied_out)
            self._changed(self._parts.job_tries.hold(copied, self._told))

    def _with_node_faults(self, reports: list[AttemptReport]) -> list[AttemptReport]:
        """Return reports, with the whole reason where this node could not start an attempt.

        The node reports its own fault before, so that it gets no other task.
        """
        told = []
        for report in reports:
            if report.id in self._supervisor.node_faults:
                self._supervisor.node_faults.discard(report.id)
                is_out = self._parts.monitor.start_failed(report.message, report.ended_at or 0.0)
                name = self._parts.launcher.node.name
                message = start_faults.told(report.message, name, is_out=is_out)
                told.append(msgspec.structs.replace(report, message=message))
            else:
                told.append(report)
        return told

    def _with_left_files(self, reports: list[AttemptReport]) -> list[AttemptReport]:
        """Return reports, with the files that ended attempts leave in their messages."""
        cache, root = self._parts.launcher.stager.cache, str(self._supervisor.root)
        told = []
        for report in reports:
            if report.state is AttemptState.ENDED and report.started_at is not None:
                well = report.end_reason is EndReason.EXITED and report.exit_code == 0
                copied = cache.copied_out(report.id, well=well)
                text = left_files.left_text(root, report.id, copied)
                message = "; ".join(filter(None, (report.message, text)))
                told.append(msgspec.structs.replace(report, message=message))
            else:
                told.append(report)
        return told

    def _copied_out(self, report: AttemptReport) -> None:
        """Report the end of an attempt whose results have been copied out, or cannot be."""
        with self._lock:
            self._changed(self._parts.job_tries.hold([report], self._told))

    def _told(self, report: AttemptReport) -> None:
        """Report the end of an attempt after which the commands of its node have run."""
        with self._lock:
            self._changed([report])

    def _has_ended(self, attempt: str) -> bool:
        with self._lock:
            return self._state.has_ended(attempt)

    def _copied(self, report: AttemptReport) -> None:
        """Report the end of an attempt whose output is in its files, or does not get there soon."""
        with self._lock:
            self._passed([report])

    def _changed(self, reports: list[AttemptReport]) -> None:
        self._passed(self._parts.launcher.output_copies.hold(reports, self._copied))

    def _passed(self, reports: list[AttemptReport]) -> None:
        self._parts.event_log.heard(reports, self._state)
        self._steps.carry_out(self._state.attempts_changed(reports))
