"""Exchanges messages with the controller: one loop holds a long poll, another reports changes.

Neither loop knows the contents: the agent makes requests and acts on answers.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agents.host import clock_skew, processes
from agents.link.http_client import (
    Connection,
    ControllerTarget,
    LinkError,
    RejectedError,
    packed,
    understand,
)
from reconciler.model.protocol.agent_messages import SyncRequest, SyncResponse
from reconciler.model.state.records import AttemptReport

#: Changes within this time are one report.
BATCH_S = 0.012
#: After this time without a report the first change is reported at once.
QUIET_S = 0.05
BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 10.0
#: How much longer than requested the controller may take to answer.
ANSWER_SLACK_S = 15.0
#: Shortest time between polls of a controller that answers at once with nothing new.
POLL_GAP_S = 0.05


def relative(report: AttemptReport, root: str) -> AttemptReport:
    """Return a report whose message names paths relative to the node's folder.

    Its readers know the attempt, but not where this node keeps it.
    """
    if f"{root}/" not in report.message:
        return report
    return msgspec.structs.replace(report, message=report.message.replace(f"{root}/", ""))


class SyncHandlers(NamedTuple):
    """The agent's side of the dialogue with its controller; called without the agent's lock.

    Attributes:
        request: returns the node's report, given how many seconds the controller may wait before
            it answers, and True if the report must be complete.
        undelivered: called with a request that did not arrive, to be reported again.
        answered: called with a request, its answer and when it was sent, on the boot clock.
        unreached: called with the error if the controller did not answer as expected.
        lease_s_min: returns the shortest lease of the node's assignments; None without leases.
    """

    request: Callable[[float, bool], SyncRequest]
    undelivered: Callable[[SyncRequest], None]
    answered: Callable[[SyncRequest, SyncResponse, float], None]
    unreached: Callable[[Exception], None]
    lease_s_min: Callable[[], float | None]


class ControllerSync:
    """The dialogue of one agent with its controller.

    Args:
        changed: set if there is something to report.
        skew: learns the difference of the clocks.
        is_guarded: True if orders may only come from a controller that asks for credentials. An
            agent of root needs it: a task could otherwise order work as root.
    """

    def __init__(
        self,
        handlers: SyncHandlers,
        name: str,
        target: ControllerTarget,
        changed: threading.Event,
        leaving: threading.Event,
        *,
        skew: clock_skew.ClockSkew,
        is_guarded: bool = False,
    ) -> None:
        self._handlers = handlers
        self._name = name
        self._target = target
        self._changed = changed
        self._leaving = leaving
        self._skew = skew
        self._must_check = is_guarded

    def poll(self) -> None:
        """Hold the long poll, which answers at once when the controller wants something else."""
        connection = Connection(self._target)
        wait_s, failures, idle = 0.0, 0, 0
        while not self._leaving.is_set():
            request = self._handlers.request(wait_s, True)
            began = time.monotonic()
            try:
                response = self.exchange(connection, request, wait_s + ANSWER_SLACK_S)
            except (LinkError, RejectedError) as problem:
                failures += 1
                wait_s = 0.0
                self._handlers.unreached(problem)
                self._back_off(failures)
                continue
            failures = 0
            at_once = time.monotonic() - began < POLL_GAP_S
            idle = idle + 1 if at_once and response.set is None else 0
            if idle > 3:
                self._leaving.wait(POLL_GAP_S)
            lease_s = self._handlers.lease_s_min()
            # Leases count from when a request was sent, so the answer must come early enough.
            wait_s = max(0.0, response.poll_s)
            if lease_s is not None:
                wait_s = min(wait_s, lease_s / 4)

    def report(self) -> None:
        """Report changes at once; a burst of changes is one request."""
        connection = Connection(self._target)
        failures, told_at = 0, 0.0
        while not self._leaving.is_set():
            self._changed.wait()
            if time.monotonic() - told_at < QUIET_S:
                self._leaving.wait(BATCH_S)
            self._changed.clear()
            if self._leaving.is_set():
                return
            request = self._handlers.request(0.0, False)
            try:
                self.exchange(connection, request, ANSWER_SLACK_S)
                failures = 0
            except (LinkError, RejectedError) as problem:
                failures += 1
                self._handlers.unreached(problem)
                self._changed.set()
                self._back_off(failures)
            told_at = time.monotonic()

    def report_once(self, timeout_s: float) -> None:
        """Report once, if the controller listens.

        Raises:
            LinkError: it does not answer.
            RejectedError: it does not understand the report.
        """
        connection = Connection(self._target)
        try:
            self.exchange(connection, self._handlers.request(0.0, True), timeout_s)
        finally:
            connection.close()

    def exchange(
        self, connection: Connection, request: SyncRequest, timeout_s: float
    ) -> SyncResponse:
        """Send a request and act on its answer."""
        sent_at, wall_at = processes.boottime(), time.time()
        try:
            body = packed(request)
            path = f"/v1/nodes/{self._name}/sync"
            self._require_guard(path, timeout_s)
            response = understand(
                self._target.url, self._name, *connection.post(path, body, timeout_s)
            )
        except Exception:  # whatever it is, the state that the request took must be reported again
            self._handlers.undelivered(request)
            raise
        came_at = time.time()
        self._skew.heard(connection.date, wall_at, came_at, processes.boottime() - sent_at)
        self._handlers.answered(request, response, sent_at)
        return response

    def _require_guard(self, path: str, timeout_s: float) -> None:
        """Make sure, once, that the controller refuses calls without a token.

        Raises:
            LinkError: it does not answer.
            RejectedError: it does not refuse them.
        """
        if not self._must_check:
            return
        stranger = Connection(ControllerTarget(self._target.url, ca_file=self._target.ca_file))
        try:
            status, _ = stranger.post(path, b"", timeout_s)
        finally:
            stranger.close()
        if status not in {401, 403}:
            raise RejectedError(
                f"{self._target.url} answered {status} to a call without a token, so any task "
                "could give orders there, and this agent runs as root. To fix: give the "
                "controller tokens, or run the agent as another user"
            )
        self._must_check = False

    def _back_off(self, failures: int) -> None:
        longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(failures - 1, 16))
        # Spread, so that the agents of a fleet do not return all at once.
        self._leaving.wait(longest * (0.5 + os.urandom(1)[0] / 512))
