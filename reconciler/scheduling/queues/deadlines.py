"""Whose turn a claim has: for the sake of deadlines one owner's claims deal out their turns anew.

A claim's turn is the place that its age, or how far it is overdue, gives it. Among claims of one
queue, owner and priority the one with the least slack takes the earliest of their turns. A turn
that was used stays used: who starts with another's, or has room reserved by it, leaves its own to
that one. Else the turn of the oldest would be had by each that comes with a deadline, and they
would keep others out for ever. So who has another's turn is remembered from cycle to cycle
(``Snapshot.turns``). Nobody takes the turn of who has room reserved, since that has used it, nor of
who has waited ``job_order.WAIT_MAX_S``: among those age alone decides.

The situation comes in; the order of queues with deadlines goes out, and, when all have had their
turns, what is to be remembered.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from reconciler.model.state.scheduler_state import Turn
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import arrival_batches, job_order


class _Entry(NamedTuple):
    """A claim with the turn that it has; entries sort as the claims go by those turns.

    Attributes:
        native: the turn that it came with.
    """

    grows: bool
    negated_priority: int
    pressing: float
    arrival: float
    job: str
    line: int
    position: int
    turn: Turn
    native: Turn

    @property
    def where(self) -> arrival_batches.Entry:
        """Its line and its position there."""
        return (self.line, self.position)


class _Dealt(NamedTuple):
    """Claims of one owner, and by the place of each among them whose turn it takes."""

    members: list[_Entry]
    takes: list[int]


class DeadlineOrder:
    """The turns of one cycle.

    Attributes:
        places: of each queue in which anything has a deadline, or another's turn, all its claims.
    """

    def __init__(
        self,
        situation: snapshots.Snapshot,
        columns: snapshots.PendingColumns,
        ranks: Mapping[arrival_batches.Entry, int],
    ) -> None:
        self.places: dict[int, list[job_order.Place]] = {}
        self._situation = situation
        self._ranks = ranks
        self._known = {turn.job: turn for turn in situation.turns}
        #: Owners whose claims don't take each their own.
        self._dealt: list[_Dealt] = []
        #: Those who have room reserved have used their turn, whatever comes.
        self._used = {kept.job for kept in situation.kept}
        if situation.policy.backfill == "none":
            self._used = set()
        for queue in sorted(self._queues(columns)):
            self.places[queue] = self._ranked(columns, queue)

    def _queues(self, columns: snapshots.PendingColumns) -> set[int]:
        lines = self._situation.lines
        found: set[int] = set()
        for index in np.flatnonzero(columns.special).tolist():
            if any(claim.slack_s != math.inf for claim in lines[index].claims):
                found.add(lines[index].queue)
        if self._known:
            found.update(
                line.queue for line in lines if any(c.job in self._known for c in line.claims)
            )
        return found

    def _ranked(self, columns: snapshots.PendingColumns, queue: int) -> list[job_order.Place]:
        """Every claim of a queue with its rank."""
        there = np.flatnonzero((columns.queue == queue) & (columns.claims > 0))
        entries = sorted(
            self._entry(index, position)
            for index in there.tolist()
            for position in range(len(self._situation.lines[index].claims))
        )
        groups: dict[tuple[int, str], list[int]] = {}
        for rank, entry in enumerate(entries):
            if self._lends(entry):
                owner = self._claim(entry).owner
                groups.setdefault((entry.negated_priority, owner), []).append(rank)
        ranked = list(entries)
        for held in groups.values():
            members = [entries[rank] for rank in held]
            # stable: of equals the earlier keeps its turn
            by_slack = sorted(range(len(held)), key=lambda at: self._claim(members[at]).slack_s)
            takes = [0] * len(held)
            for turn, user in enumerate(by_slack):
                ranked[held[turn]] = members[user]
                takes[user] = turn
            if by_slack != sorted(by_slack):
                self._dealt.append(_Dealt(members, takes))
        return [
            (one.grows, one.negated_priority, 0.0, float(rank), one.line, one.position)
            for rank, one in enumerate(ranked)
        ]

    def _claim(self, entry: _Entry) -> snapshots.PendingJob:
        return self._situation.lines[entry.line].claims[entry.position]

    def _entry(self, index: int, position: int) -> _Entry:
        line = self._situation.lines[index]
        claim = line.claims[position]
        native = Turn(
            claim.job,
            claim.order,
            self._ranks.get((index, position), claim.order),
            claim.submitted_at,
            max(line.duration_s, job_order.SHORTEST_S),
        )
        known = None if claim.missing else self._known.get(claim.job)
        turn = native if known is None or known.of != claim.order else known
        pressing = job_order.pressing_of(self._situation, line, claim)
        if turn is not native and pressing > -job_order.WAIT_MAX_S:
            pressing = job_order.pressing_since(self._situation, turn.since, turn.length_s)
        return _Entry(
            grows=job_order.grows(claim),
            negated_priority=-line.priority,
            pressing=pressing,
            arrival=turn.order,
            job=claim.job,
            line=index,
            position=position,
            turn=turn,
            native=native,
        )

    def _lends(self, entry: _Entry) -> bool:
        """Return True if a claim may take another's turn, and have its own taken."""
        beyond = entry.pressing <= -job_order.WAIT_MAX_S
        return not (entry.grows or beyond or entry.job in self._used)

    def remembered(
        self, queues: Iterable[job_order.JobQueue], reserved: Collection[str]
    ) -> tuple[Turn, ...]:
        """Return who has another's turn after the cycle, of what still waits.

        ``queues``: how far their claims have come; ``reserved``: jobs that have room reserved now.
        """
        if not self._dealt and not self._known:
            return ()
        found = dict(self._known)
        progress = {where: one for queue in queues for where, one in queue.progress.items()}
        for dealt in self._dealt:
            self._settle(dealt, progress, reserved, found)
        for where, one in progress.items():
            claim = self._situation.lines[where[0]].claims[where[1]] if where[1] >= 0 else None
            if claim is not None and not claim.missing and one.started == len(claim.elements):
                found.pop(claim.job, None)
        return tuple(found[job] for job in sorted(found))

    @staticmethod
    def _settle(
        dealt: _Dealt,
        progress: Mapping[arrival_batches.Entry, job_order.PendingJobProgress],
        reserved: Collection[str],
        found: dict[str, Turn],
    ) -> None:
        """Note whose turn those have now who used another's, and those whose own was used."""
        members, takes = dealt
        users = [
            at
            for at, one in enumerate(members)
            if one.job in reserved or _has_begun(progress.get(one.where))
        ]
        used = {takes[at] for at in users}
        left = [at for at in users if at not in used]
        bereft = sorted(used.difference(users))
        now_of = {at: takes[at] for at in users} | dict(zip(bereft, left, strict=True))
        for at, turn_of in now_of.items():
            one, turn = members[at], members[turn_of].turn
            if turn.order == one.native.order:
                found.pop(one.job, None)
            else:
                found[one.job] = msgspec.structs.replace(turn, job=one.job, of=one.native.of)


def _has_begun(progress: job_order.PendingJobProgress | None) -> bool:
    """Return True if anything of a claim starts in this cycle, or has room that comes free."""
    return progress is not None and bool(progress.started or progress.promised)
