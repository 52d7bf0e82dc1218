"""Moving running work together so that a claim fits that lacks room only because of gaps.

An ask goes in; elements that move, with the places they move to, come out, or nothing, and then
nothing has changed. Only work that may be moved is, only as much as is needed, and only if all of
it fits elsewhere at once.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.preemption import victims
from reconciler.scheduling.quota import quota_ledger

#: Starts of the search, each from another node, for one ask.
STARTS_MAX = 12
#: Sets of moves that turn out to have no other place, for one start.
REFUSALS_MAX = 4
#: Asks for which a search is made in one cycle.
SEARCHES_MAX = 256


@dataclass(frozen=True, slots=True)
class Move:
    """One element that leaves and starts again where its tasks are placed."""

    index: int
    holding: snapshots.Allocation
    tasks: tuple[TaskPlacement, ...]


#: Places of an ask, and the moves that make them.
Placed = tuple[tuple[TaskPlacement, ...], list[Move]]


class Consolidation:
    """The searches of one cycle."""

    def __init__(self, situation: snapshots.Snapshot, later: Capacity) -> None:
        self.situation = situation
        self.later = later
        self.searches = SEARCHES_MAX
        #: Rows of holdings that leave already, whoever told them to.
        self.moved: set[int] = set()
        #: (s,) shapes for which a search found nothing: none will in this cycle.
        self.failed = np.zeros(len(situation.shapes), dtype=np.bool_)

    @functools.cached_property
    def _by_node(self) -> dict[int, list[int]]:
        """Rows of the holdings that may move, by node, those that are cheapest to move first."""
        running, holdings = self.situation.running, self.situation.holdings
        may = running.free_to_go(self.situation.now) & running.preemptible
        may &= (running.shape >= 0) & (running.spares == 0)
        if not self.situation.policy.any_movable:
            may &= running.movable
        rows = np.flatnonzero(may)
        costs_s = victims.costs_s(running, rows, self.situation.now).tolist()
        ranked = sorted(
            (len(h.tasks), cost_s, -h.order, h.job, -h.element, row)
            for row, cost_s in zip(rows.tolist(), costs_s, strict=True)
            for h in (holdings[row],)
        )
        found: dict[int, list[int]] = {}
        for *_, row in ranked:
            for node in {task.node for task in holdings[row].tasks}:
                found.setdefault(node, []).append(row)
        return found

    def may_move(self) -> bool:
        """Return True if anything could be moved for anybody; ``False`` is certain."""
        policy = self.situation.policy
        return policy.consolidate and self.searches > 0 and bool(self._by_node)

    def may_find(self, ask: request.PlacementRequest) -> bool:
        """Return True if a search makes sense; ``False`` is certain."""
        return self.searches > 0 and not self.failed[ask.shape] and bool(self._by_node)

    def find(self, ask: request.PlacementRequest) -> Placed | None:
        """Places for an ask and the moves that make them; both are taken in the room."""
        policy = self.situation.policy
        if not policy.consolidate or self.searches <= 0 or self.failed[ask.shape]:
            return None
        if ask.missing or not self.has_enough(ask):
            # What is free does not grow within a cycle but by evictions, which are for others.
            self.failed[ask.shape] = True
            return None
        found = self._search(ask)
        self.failed[ask.shape] = found is None
        return found

    def find_beside(self, ask: request.PlacementRequest, leaving: set[int]) -> Placed | None:
        """The same where holdings, by row, have been released in the room: they move nowhere.

        That it fails tells nothing of what can be found while they are there.
        """
        if not self.may_move() or ask.missing or not self.has_enough(ask):
            return None
        others = self.moved
        self.moved = others | leaving
        found = self._search(ask)
        if found is None:
            self.moved = others
        return found

    def _search(self, ask: request.PlacementRequest) -> Placed | None:
        self.searches -= 1
        ranked = self._ranked(ask)
        for start in range(min(STARTS_MAX, len(ranked))):
            found = self._attempt(ask, ranked[start:] + ranked[:start])
            if found is not None:
                for move in found[1]:
                    self.moved.add(move.index)
                return found
            if not self.situation.shapes[ask.shape].is_single:
                break
        return None

    def has_enough(self, ask: request.PlacementRequest) -> bool:
        """Return True if all gaps together would do."""
        shape, room = self.situation.shapes[ask.shape], self.later
        usable = shape.eligible & self.situation.nodes.accepts
        free = room.amounts[usable].sum(axis=0)
        asked = shape.least
        return all(int(free[r]) >= asked[r] for r in quota_ledger.RESOURCES)

    def _ranked(self, ask: request.PlacementRequest) -> list[int]:
        """Nodes with something to move, those first that lack the least for one more task."""
        shape = self.situation.shapes[ask.shape]
        group = max(shape.groups, key=lambda g: (g.amounts[2], g.amounts[0], g.amounts[1]))
        amounts = self.later.amounts
        counted = self.later.counts(ask.shape, shape.groups.index(group))
        ranked = []
        for node, members in self._by_node.items():
            if not shape.eligible[node] or counted[node] > 0:
                continue
            lacks = tuple(max(0, group.amounts[r] - int(amounts[node, r])) for r in (2, 0, 1))
            ranked.append((lacks, self._newest(members), node))
        ranked.sort()
        return [node for *_, node in ranked]

    def _newest(self, members: list[int]) -> int:
        return -max(self.situation.holdings[index].order for index in members)

    def _attempt(self, ask: request.PlacementRequest, nodes: list[int]) -> Placed | None:
        later, mark = self.later, self.later.mark()
        out: list[int] = []
        refused = 0
        for node in nodes:
            for index in self._by_node[node]:
                if index in self.moved or index in out:
                    continue
                out.append(index)
                if len(out) > self.situation.policy.moves_max:
                    later.rollback(mark)
                    return None
                self._release((index,))
                placed = ask.place(later)
                if placed is not None:
                    placed, needed = self._fewest(ask, placed, out, mark)
                    moves = self._settle(placed, needed)
                    if moves is not None:
                        return placed, moves
                    # It fits nowhere else: it stays, and the next one may do in its place.
                    later.rollback(mark)
                    out.pop()
                    self._release(out)
                    refused += 1
                    if refused == REFUSALS_MAX:
                        later.rollback(mark)
                        return None
                    continue
                if later.counts(ask.shape, 0)[node] > 0:
                    break
        later.rollback(mark)
        return None

    def _release(self, rows: Iterable[int]) -> None:
        for index in rows:
            h = self.situation.holdings[index]
            self.later.release(h.tasks, exclusive=h.exclusive, matches=h.matches)

    def _fewest(
        self,
        ask: request.PlacementRequest,
        placed: tuple[TaskPlacement, ...],
        out: Sequence[int],
        mark: int,
    ) -> tuple[tuple[TaskPlacement, ...], list[int]]:
        """Return places of an ask and who leaves for them, without whom it fits as well.

        The newest that left was needed, and whoever left a node alone. Of the others those that are
        cheap to move left first, and may have been too small to help.
        """
        later, needed = self.later, list(out)
        for index in out[:-1]:
            if not self._shares_node(index, needed):
                continue
            fewer = [one for one in needed if one != index]
            later.rollback(mark)
            self._release(fewer)
            found = ask.place(later)
            if found is not None:
                placed, needed = found, fewer
                continue
            later.rollback(mark)
            self._release(needed)
            placed = ask.place(later) or placed  # as it was before
        return placed, needed

    def _shares_node(self, index: int, others: Iterable[int]) -> bool:
        """Return True if another of some holdings has tasks on a node of one."""
        holdings = self.situation.holdings
        nodes = {task.node for task in holdings[index].tasks}
        return any(
            task.node in nodes for one in others if one != index for task in holdings[one].tasks
        )

    def _settle(self, placed: tuple[TaskPlacement, ...], out: list[int]) -> list[Move] | None:
        """Leave alone who can stay after all, place the others anew."""
        later, moves = self.later, []
        taken = {task.node for task in placed}
        moving = []
        for index in out:
            h = self.situation.holdings[index]
            if any(task.node in taken for task in h.tasks):
                moving.append(index)
            else:
                later.hold(h.tasks, exclusive=h.exclusive, matches=h.matches)
        holdings = self.situation.holdings
        for index in sorted(moving, key=lambda i: (-len(holdings[i].tasks), i)):
            plan = later.plan(holdings[index].shape)
            if plan is None:
                return None
            moves.append(Move(index, holdings[index], later.take(holdings[index].shape, plan)))
        return moves
