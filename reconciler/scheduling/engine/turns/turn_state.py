"""How far the pending jobs have come in a cycle: what starts, what is blocked, and why."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.engine.calendar.reservations import (
    EngineReservation,
)
from reconciler.scheduling.engine.job_table import JobTable
from reconciler.scheduling.engine.node_resources import ElementPlaces
from reconciler.scheduling.engine.searches import CycleStart, TriedJob
from reconciler.scheduling.inputs import snapshots

_NO_CAPACITY = BlockReason(BlockKind.NO_CAPACITY)
_NO_CAPACITY_LEFT = BlockReason(BlockKind.NO_CAPACITY, ahead=True)


class ElementStart(NamedTuple):
    """An element that starts.

    Attributes:
        row: of its job in the job table.
        shape: in the pool where it starts.
        places: where its tasks go, by index.
        backfill: whether a reservation was there.
    """

    row: int
    shape: int
    places: ElementPlaces
    backfill: bool


@dataclass(slots=True)
class TurnResult:
    """What the turns of a cycle decided.

    Attributes:
        starts: in order.
        blocked: by pending group, its number in ``causes``; -1: it is not blocked as a whole.
        causes: why pending groups are blocked.
        own: by row, the cause of a job with one of its own: it has a reservation, or had started in
            part when its group was blocked.
        left: by row, elements that could still start.
        held_back: rows of jobs of which none may start in this cycle.
        reservations: by start.
    """

    blocked: list[int]
    left: list[int]
    starts: list[ElementStart] = field(default_factory=list)
    causes: list[BlockReason] = field(default_factory=list)
    own: dict[int, BlockReason] = field(default_factory=dict)
    held_back: list[int] = field(default_factory=list)
    reservations: list[EngineReservation] = field(default_factory=list)


class TurnState:
    """The pending jobs of one cycle.

    Attributes:
        situation, jobs, lines: the snapshot, its jobs by row, and its pending groups.
        line, elements: by row, the pending group, and elements that may start in this cycle.
        shape_of: by pending group, its shape.
        at, ends: by queue, the row that is next, and the one behind its last.
        passed: rows of jobs that were passed over alone.
        kept_out: rows of jobs that would delay reservations, and how many had been given up then.
        taken: whether anybody got nodes.
        begun: rows of jobs of which something started.
        let: how many were started before others.
        stale: queues of these, whose place may have changed.
        result: what was decided.
    """

    def __init__(
        self, situation: snapshots.Snapshot, jobs: JobTable, beginning: CycleStart
    ) -> None:
        """Begin with what was decided before."""
        self.situation, self.jobs, self.lines = situation, jobs, situation.lines
        self.line: list[int] = jobs.line.tolist()
        self.elements: list[int] = jobs.elements.tolist()
        self.shape_of = [line.shape for line in situation.lines]
        self.at: list[int] = jobs.begins[:-1].tolist()
        self.ends: list[int] = jobs.begins[1:].tolist()
        self.passed: set[int] = set()
        self.kept_out: list[tuple[int, int]] = []
        self.taken = beginning.taken
        self.begun: set[int] = set()
        self.let = 0
        self.stale: list[int] = []
        self._numbers: dict[BlockReason, int] = {}
        self.result = TurnResult([-1] * len(situation.lines), self.elements.copy())
        for (line, position), (left, started) in beginning.left.items():
            row = jobs.row(line, position)
            self.result.left[row] = left
            if started:
                self.begun.add(row)

    def left_of(self, job: tuple[int, int]) -> int:
        """Return how many elements of a job may still start, by its group and place."""
        if self.result.blocked[job[0]] >= 0:
            return 0
        return self.result.left[self.rows[job]]

    @functools.cached_property
    def rows(self) -> dict[tuple[int, int], int]:
        """Rows of all jobs, by group and place."""
        pairs = zip(self.line, self.jobs.position.tolist(), strict=True)
        return {pair: row for row, pair in enumerate(pairs)}

    def name(self, row: int) -> str:
        """Return the name of a job."""
        return self.lines[self.line[row]].claims[int(self.jobs.position[row])].job

    def tried(self, row: int, shape: int) -> TriedJob:
        return TriedJob(self.line[row], int(self.jobs.position[row]), shape)

    def no_capacity(self, row: int) -> BlockReason:
        """Return the cause of a job for which there is no room."""
        first = row not in self.begun
        return _NO_CAPACITY_LEFT if self.taken and first else _NO_CAPACITY

    def count_start(self, row: int) -> None:
        self.result.left[row] -= 1
        self.taken = True
        self.begun.add(row)

    def number(self, cause: BlockReason) -> int:
        number = self._numbers.get(cause)
        if number is None:
            number = self._numbers[cause] = len(self.result.causes)
            self.result.causes.append(cause)
        return number

    def block_queue(self, queue: int, cause: BlockReason) -> None:
        """Block all pending groups of a queue that are not blocked."""
        number, blocked = self.number(cause), self.result.blocked
        begin, end = int(self.jobs.begins[queue]), int(self.jobs.begins[queue + 1])
        for index in set(self.line[begin:end]):
            if blocked[index] < 0:
                blocked[index] = number

    def blocked_for(self, kinds: set[BlockKind], where: Callable[[int], bool]) -> set[int]:
        """Return the pending groups of some queues that are blocked for some kinds of causes."""
        chosen = [cause.kind in kinds for cause in self.result.causes]
        return {
            index
            for index, number in enumerate(self.result.blocked)
            if number >= 0 and chosen[number] and where(self.lines[index].queue)
        }

    def restore(self, indexes: set[int]) -> None:
        """Let pending groups be tried again, from their first job."""
        blocked, strict = self.result.blocked, self.situation.queues.strict
        behind = {
            self.lines[index].queue
            for index, number in enumerate(blocked)
            if number >= 0
            and index not in indexes
            and strict[self.lines[index].queue]
            and self.result.causes[number].kind != BlockKind.STRICT
        }
        for index in indexes:
            queue = self.lines[index].queue
            if queue not in behind:
                blocked[index] = -1
                self.at[queue] = int(self.jobs.begins[queue])
        self.passed = {
            row
            for row in self.passed
            if self.line[row] not in indexes or self.lines[self.line[row]].queue in behind
        }
