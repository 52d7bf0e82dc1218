"""Makes the node's requests to its controller and acts on the answers, under the agent's lock."""

import threading

from agents import attempt_queries, reports, state, step_executor
from agents.host import processes
from agents.link import leader_epochs, sync
from agents.logs import event_log
from reconciler.model.protocol.agent_messages import SyncRequest, SyncResponse


class ControllerDialogue:
    """The agent's side of the dialogue between one node and its controller.

    Attributes:
        reports: what the node reports.
    """

    def __init__(
        self,
        lock: threading.RLock,
        node_state: state.AgentState,
        node_reports: reports.Reports,
        *,
        steps: step_executor.StepExecutor,
        epoch: leader_epochs.LeaderEpoch,
        events: event_log.EventLog,
        attempts: attempt_queries.AttemptQueries,
    ) -> None:
        self.reports = node_reports
        self._lock = lock
        self._state = node_state
        self._steps = steps
        self._epoch = epoch
        self._events = events
        self._attempts = attempts

    def handlers(self) -> sync.SyncHandlers:
        """Return the callbacks of this dialogue."""
        return sync.SyncHandlers(
            request=lambda wait_s, complete: self.request(wait_s, complete=complete),
            undelivered=self.undelivered,
            answered=self.answered,
            unreached=self.unreached,
            lease_s_min=self._attempts.lease_s_min,
        )

    def request(self, wait_s: float, *, complete: bool) -> SyncRequest:
        """Return what the node reports now."""
        with self._lock:
            return self.reports.request(wait_s, complete=complete)

    def undelivered(self, request: SyncRequest) -> None:
        """Report again what a request said that did not arrive."""
        with self._lock:
            self._state.not_delivered(request.attempts)
            self.reports.undelivered(request)

    def answered(self, request: SyncRequest, response: SyncResponse, sent_at: float) -> None:
        """Do what the controller's answer asks for. ``sent_at`` is on the boot clock."""
        self._events.reached(response.epoch)
        with self._lock:
            self.reports.answered(request, response)
            waited_s = processes.boottime() - sent_at
            self._epoch.retry()
            self._steps.carry_out(self._state.answered(response, sent_at, waited_s))

    def unreached(self, problem: Exception) -> None:
        """Note that the controller did not answer as expected."""
        self._events.unreached(problem, len(self._attempts.running()))

    def snapshot(self) -> reports.NodeSnapshot | None:
        """Return what the node's metrics page shows now."""
        with self._lock:
            return self.reports.snapshot()
