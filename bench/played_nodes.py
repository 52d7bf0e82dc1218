"""Nodes that the bench plays: they report tasks over HTTP as agents do, and run nothing."""

import time

import msgspec

from agents.link import http_client
from bench import cluster
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.model.values.resources import Resources

#: How names of jobs begin that never end.
WAITS = "wait-"


class Node:
    """A node that runs jobs named ``wait-…`` for ever, and all others for a moment."""

    def __init__(self, bed: cluster.Bed, name: str) -> None:
        token = bed.cluster.state / "node-token"
        self.name = name
        self._connection = http_client.Connection(
            http_client.ControllerTarget(bed.cluster.url, token)
        )
        self._sequence, self._have = 0, (0, 0)
        self._attempts: dict[str, records.AttemptReport] = {}

    def sync(self, wait_s: float) -> float:
        """One exchange; how many milliseconds it took.

        Raises:
            RuntimeError: it was refused.
        """
        self._sequence += 1
        request = agent_messages.SyncRequest(
            node=self.name,
            boot_id=f"boot-{self.name}",
            incarnation="bench",
            have=self._have,
            wait_s=wait_s,
            sequence=self._sequence,
            attempts=tuple(self._attempts.values()),
            inventory=records.Inventory(
                hostname=self.name, capacity=Resources(256_000, 256 * 2**30, 0)
            )
            if self._sequence == 1
            else None,
            accepts_unrenewed=True,
        )
        body = msgspec.msgpack.encode(request)
        began = time.monotonic()
        status, answer = self._connection.post(f"/v1/nodes/{self.name}/sync", body, 120.0)
        taken_ms = 1e3 * (time.monotonic() - began)
        if status == 503:  # the loop is not there yet
            time.sleep(1.0)
            return taken_ms
        if status != 200:
            raise RuntimeError(f"node {self.name}: {status} {answer[:200]!r}")
        self._obey(msgspec.msgpack.decode(answer, type=agent_messages.SyncResponse))
        return taken_ms

    def _obey(self, told: agent_messages.SyncResponse) -> None:
        for attempt in told.acknowledged:
            self._attempts.pop(attempt, None)
        now = time.time()
        for attempt, report in self._attempts.items():
            if report.state is AttemptState.RUNNING and not attempt.startswith(WAITS):
                self._attempts[attempt] = _ended(report, now)
        if told.set is None:
            return
        self._have = (told.epoch, told.version)
        for one in told.set.assignments:
            found = self._attempts.get(one.attempt)
            if one.stop is not None and (found is None or found.state is not AttemptState.ENDED):
                started = found or records.AttemptReport(one.attempt, AttemptState.RUNNING, now)
                self._attempts[one.attempt] = _ended(started, now)
            elif found is None:
                self._attempts[one.attempt] = records.AttemptReport(
                    one.attempt, AttemptState.RUNNING, started_at=now
                )

    @property
    def is_busy(self) -> bool:
        """True if it has something to tell at once."""
        return any(not one.startswith(WAITS) for one in self._attempts)


def _ended(report: records.AttemptReport, now: float) -> records.AttemptReport:
    return msgspec.structs.replace(
        report,
        state=AttemptState.ENDED,
        ended_at=now,
        exit_code=0,
        end_reason=EndReason.EXITED,
    )
