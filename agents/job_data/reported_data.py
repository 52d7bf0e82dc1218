"""Metrics, checkpoints and output times of tasks, for the agent's reports.

One loop reads files of attempts on the node's disk, another the shared folder, which may hang. A
third notes when tasks wrote their output.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agents import state
from agents.job_data import checkpoints, last_looks, metrics
from agents.logs import timestamps
from reconciler.model.observed import task_reports
from reconciler.model.state.records import AttemptReport


class JobData:
    """The reported data of one agent's tasks.

    Args:
        shared: the folder shared by all nodes.
        as_root: True if tasks run as the users of their jobs.
    """

    def __init__(self, root: Path, shared: str, *, as_root: bool) -> None:
        self.shared = shared
        self._as_root = as_root
        self._listener = metrics.MetricsReader(root)
        self._watcher = checkpoints.CheckpointWatcher()
        self._last_looks: last_looks.LastLooks | None = None
        self._marks = timestamps.LogMarks(root / "logs")
        metrics.install(root)

    def loops(
        self, lock: threading.RLock, node: state.AgentState, leaving: threading.Event
    ) -> tuple[Callable[[], None], ...]:
        """Return what threads call again and again until the agent stops."""

        def read_metrics() -> None:
            while not leaving.wait(metrics.EVERY_S):
                with lock:
                    running = node.running()
                self._listener.look(running)

        def find_checkpoints() -> None:
            while not leaving.wait(checkpoints.EVERY_S):
                with lock:
                    chosen = list(self._watched(node))
                self._watcher.look(chosen)

        def mark_output() -> None:
            while not leaving.wait(timestamps.EVERY_S):
                with lock:
                    running = node.running()
                self._marks.look(running)

        return read_metrics, find_checkpoints, mark_output

    def _watched(self, node: state.AgentState) -> Iterator[checkpoints.Watched]:
        for name in node.running():
            assignment = node.assignments.get(name)
            if assignment is not None:
                template = node.templates.get(assignment.template)
                found = checkpoints.watched(
                    assignment, template, self.shared, as_root=self._as_root
                )
                if found is not None and found.rule.pattern:
                    yield found

    def heard(self, reports: list[AttemptReport]) -> None:
        """Read the last metrics of attempts that have ended."""
        self._listener.heard(reports)

    def hold(
        self, reports: Iterable[AttemptReport], node: state.AgentState, told: last_looks.Told
    ) -> list[AttemptReport]:
        """Return reports, with ends held back until their last checkpoint was looked for.

        ``told`` is then called with those ends, from another thread.
        """
        if self._last_looks is None:
            self._last_looks = last_looks.LastLooks(
                lambda assignment: checkpoints.watched(
                    assignment,
                    node.templates.get(assignment.template),
                    self.shared,
                    as_root=self._as_root,
                ),
                self._listener.with_saved,
            )
        return self._last_looks.hold(reports, node.assignments, told)

    def with_saved(self, reports: Iterable[AttemptReport]) -> Iterator[AttemptReport]:
        """Return reports with the newest known checkpoints."""
        for report in reports:
            yield self._watcher.with_saved(self._listener.with_saved(report))

    def news(self) -> tuple[task_reports.TaskMetrics, ...] | None:
        """Return metrics that have changed since the last call."""
        return self._listener.news()

    def newest(self) -> dict[str, task_reports.TaskMetrics]:
        """Return the newest metrics of every task that has written some, by attempt."""
        return self._listener.newest()

    def again(self, told: tuple[task_reports.TaskMetrics, ...] | None = None) -> None:
        """Report these metrics again, or all, because they were not delivered."""
        self._listener.again(told)

    def forget(self, attempts: tuple[str, ...]) -> None:
        """Forget attempts whose end the controller knows."""
        self._listener.forget(attempts)
        if self._last_looks is not None:
            self._last_looks.forget(attempts)
