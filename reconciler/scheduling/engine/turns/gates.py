"""Limits and guarantees that forbid a start, and shapes that no node could ever hold."""

import numpy as np

from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.engine.calendar.held_limits import HeldLimits
from reconciler.scheduling.engine.coverage import CoverageGuard
from reconciler.scheduling.engine.queue_accounts import QueueAccounts
from reconciler.scheduling.engine.shape_table import ShapeTable
from reconciler.scheduling.engine.turns.turn_state import TurnState
from reconciler.scheduling.inputs.arrays import Mask


class Gates:
    """The gates of one cycle.

    Attributes:
        firm, bounded: by pending group, whether it may not borrow; by queue, whether limits bind.
        is_never: (s,) shapes that would have no room if every node was idle.
    """

    def __init__(
        self,
        state: TurnState,
        accounts: QueueAccounts,
        guard: CoverageGuard,
        held: HeldLimits,
        table: ShapeTable,
    ) -> None:
        situation = state.situation
        self._state, self._accounts, self._guard, self._held = state, accounts, guard, held
        self._shapes = table.shapes
        self.firm = [not line.preemptible for line in situation.lines]
        self.bounded = [accounts.is_bounded(queue) for queue in range(len(accounts.paths))]
        self.is_never: Mask = table.never(situation.nodes, np.unique(state.shape_of))

    def forbids(self, queue: int, row: int, shape: int = -1) -> BlockReason | None:
        """Return the limit, or the guarantee of work that may not borrow, that forbids a start.

        ``shape``: in the pool that is tried; -1: that of the pending group.
        """
        line = self._state.line[row]
        firm = self.firm[line]
        if not firm and not self.bounded[queue]:
            return None
        asked = self._shapes[self._state.shape_of[line] if shape < 0 else shape].charged
        excess = self._accounts.over_limit(queue, asked)
        if excess is not None:
            return BlockReason(BlockKind.LIMIT, excess)
        excess = self._accounts.over_guarantee(queue, asked) if firm else None
        return None if excess is None else BlockReason(BlockKind.QUOTA, excess)

    def forbidden(self, row: int, cause: BlockReason | None) -> None:
        """Keep what comes free for a job that a limit forbids; None: it could never start."""
        line = self._state.lines[self._state.line[row]]
        job = self._state.tried(row, line.shape)
        if cause is None:
            self._guard.hopeless(line, job)
            return
        if not self.is_never[line.shape]:
            self._held.wait(row, line, self._shapes[line.shape].charged)

    def looks(self, row: int) -> bool:
        """Return True if others may leave for a job that a limit forbids: it has its turn."""
        line = self._state.lines[self._state.line[row]]
        return self._guard.looks(line, self._state.tried(row, line.shape))
