"""What tasks say of their own work, as the agent's shell deals with it: metrics and checkpoints.

Two loops look, one at files of attempts on the node's own disk, one at the folder that nodes
share, which may hang; whatever they find goes out with the next report. A third notes when what
tasks print was printed.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agents import state
from agents.job_data import checkpoints, metrics
from agents.logs import timestamps
from reconciler.model.observed import task_reports
from reconciler.model.state.records import AttemptReport


class JobData:
    """Of one agent; ``shared`` is the folder that all nodes share."""

    def __init__(self, root: Path, shared: str) -> None:
        self.shared = shared
        self._listener = metrics.Listener(root)
        self._watcher = checkpoints.CheckpointWatcher()
        self._marks = timestamps.Marks(root / "logs")
        metrics.install(root)

    def loops(
        self, lock: threading.RLock, node: state.AgentState, leaving: threading.Event
    ) -> tuple[Callable[[], None], ...]:
        """What threads do until the agent leaves."""

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
                found = checkpoints.watched(assignment, template, self.shared)
                if found is not None:
                    yield found

    def heard(self, reports: list[AttemptReport]) -> None:
        """The supervisor told of attempts: the last words of those that have ended are read."""
        self._listener.heard(reports)

    def with_saved(self, reports: Iterable[AttemptReport]) -> Iterator[AttemptReport]:
        """Reports with the newest checkpoints that are known."""
        for report in reports:
            yield self._watcher.with_saved(self._listener.with_saved(report))

    def news(self) -> tuple[task_reports.TaskMetrics, ...] | None:
        """Metrics that have changed since the last call."""
        return self._listener.news()

    def newest(self) -> dict[str, task_reports.TaskMetrics]:
        """The newest metrics of every task that has written some, by attempt."""
        return self._listener.newest()

    def again(self, told: tuple[task_reports.TaskMetrics, ...] | None = None) -> None:
        """Those were not delivered, or, None, nobody remembers any."""
        self._listener.again(told)

    def forget(self, attempts: tuple[str, ...]) -> None:
        """Those are over, and known to be."""
        self._listener.forget(attempts)
