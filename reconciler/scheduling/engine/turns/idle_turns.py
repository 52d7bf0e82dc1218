"""Turns that are known to find nothing but that there is no room."""

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.causes import BlockReason
from reconciler.scheduling.engine.turns.attempts import Attempts


class IdleTurns:
    """The idle turns of one cycle."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts, self._state = attempts, attempts.state
        self._shape_column = np.array(attempts.state.shape_of, dtype=np.intp)

    def cause(self, queue: int, row: int) -> BlockReason | None:
        """Return that a job has no room if it is known that its turn would find nothing else."""
        index, reservations = self._state.line[row], self._attempts.reservations
        line, shape = self._state.lines[index], self._state.shape_of[index]
        if not reservations.now.is_full(shape) or line.others or self._attempts.gates.firm[index]:
            return None
        if self._attempts.gates.bounded[queue] or self._state.situation.queues.strict[queue]:
            return None
        if reservations.may_reserve(queue) or reservations.has(row):
            return None
        if reservations.later is not reservations.now:
            shortest_s = self._attempts.none_coming.get(shape)
            stale = self._attempts.coming_at != len(reservations.dropped)
            if stale or shortest_s is None or line.duration_s < shortest_s:
                return None
        if self._attempts.guard.may_make_room(line, shape):
            return None
        reservations.tried(queue)
        return self._state.no_capacity(row)

    def rest(self) -> list[int] | None:
        """Return the queues that have turns left if all of these are idle; None: some may not be.

        An idle turn changes nothing that others go by, so that it makes no difference who is next.
        """
        state, reservations = self._state, self._attempts.reservations
        blocked = np.array(state.result.blocked)
        queues = [queue for queue, at in enumerate(state.at) if at < state.ends[queue]]
        strict = state.situation.queues.strict
        if any(
            strict[queue] or self._attempts.gates.bounded[queue] or reservations.may_reserve(queue)
            for queue in queues
        ):
            return None
        rows = [np.arange(state.at[queue], state.ends[queue]) for queue in queues]
        groups = np.unique(state.jobs.line[np.concatenate(rows)]) if rows else np.zeros(0, np.intp)
        groups = groups[blocked[groups] < 0]
        if not self._attempts.guard.are_idle(groups) or not self._has_no_room(groups):
            return None
        if any(one.job.row not in state.passed for one in reservations.made):
            return None
        return queues

    def _has_no_room(self, groups: NDArray[np.int64]) -> bool:
        """Return True if it is known that groups have no room, and get none that comes free."""
        reservations = self._attempts.reservations
        shapes = set(self._shape_column[groups].tolist())
        if not all(reservations.now.is_full(shape) for shape in shapes):
            return False
        if reservations.later is reservations.now:
            return True
        if self._attempts.coming_at != len(reservations.dropped):
            return False
        return all(self._attempts.none_coming.get(shape) == 0.0 for shape in shapes)
