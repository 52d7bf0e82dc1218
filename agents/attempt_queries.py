"""Answers questions about this node's attempts under the agent's lock, for its other threads."""

import threading

from agents import state
from agents.supervisor import client
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state import identifiers


class AttemptQueries:
    """The attempts of one node, as known now. All methods take the agent's lock."""

    def __init__(
        self,
        lock: threading.RLock,
        node_state: state.AgentState,
        supervisor: client.SupervisorClient,
    ) -> None:
        self._lock = lock
        self._state = node_state
        self._supervisor = supervisor

    def running(self) -> list[str]:
        """Return the attempts that the supervisor runs."""
        with self._lock:
            return self._state.running()

    def occupants(self) -> list[str]:
        """Return the attempts that have not ended, those included that are about to start."""
        with self._lock:
            return list(self._state.holders())

    def tasks_of(self, attempt: str) -> list[Assignment]:
        """Return what is assigned here of the same try as an attempt."""
        key = identifiers.try_key_of(attempt)
        with self._lock:
            given = self._state.assignments.items()
            return [one for name, one in given if identifiers.try_key_of(name) == key]

    def may_begin(self, attempt: str) -> bool:
        """Return True if an attempt runs here, or may be about to start."""
        with self._lock:
            return self._state.may_begin(attempt)

    def has_ended(self, attempt: str) -> bool:
        """Return True if an attempt has ended."""
        with self._lock:
            return self._state.has_ended(attempt)

    def pids(self) -> dict[str, int]:
        """Return the main processes of running tasks, by attempt."""
        with self._lock:
            pids = self._supervisor.pids
            return {name: pids[name] for name in self._state.running() if name in pids}

    def scratch_limits(self) -> dict[str, int]:
        """Return what files of running tasks may take of the disk, for those with a limit."""
        with self._lock:
            return self._state.scratch_limits()

    def lease_s_min(self) -> float | None:
        """Return the shortest lease of what is assigned here, or None if nothing has a lease."""
        with self._lock:
            return self._state.lease_s_min()
