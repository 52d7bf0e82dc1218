"""In which order work that came at the same moment fills devices best, and what it is a mix of.

Age says nothing among claims of one queue and priority that were submitted at the same moment
(an array of experiments in one commit, a backlog that is handed over). With the order ``fit`` of
``SchedulingPolicy`` they share out the turns that they have together: elements with whole devices
or several tasks go first, the biggest ahead, since they find no room once shares have broken into
every node. Then shares, by patterns that fill a device: the fullest pattern that the supply allows,
as often as it lasts, then the next; what fills no device well comes last and gets the room that
remains. Elements without GPUs take what no GPU needs. Among those of one size much CPU, then
memory, goes first.

To repeat the fullest pattern while the supply lasts is the sequential heuristic of cutting stock
(Haessler and Sweeney, "Cutting stock problems and solution procedures", European Journal of
Operational Research 54, 1991).

Of a backlog that more than fills what is free, the mix of arrivals is known: it is the work ahead
in this order, up to the GPUs that are free (``ArrivalBatches.mix``).
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE

#: A backlog of fewer elements is placed by the mix of the snapshot.
AHEAD_MIN = 300
#: What is ahead is looked at anew after so many starts, and so often at the most.
LOOK_EVERY, LOOKS_MAX = 300, 32

#: Claims of one queue and priority that are put in order; more of them go by age.
CLAIMS_MAX = 20_000

#: (line, position in it): a claim.
Entry = tuple[int, int]
#: Milli-GPUs, milli-CPUs, bytes.
Size = tuple[int, int, int]

_ages = operator.attrgetter("ages")


@dataclass(frozen=True, slots=True)
class ArrivalBatches:
    """Claims that came together.

    Attributes:
        ranks: of each such claim, what stands for its ``PendingJob.order``.
        queues: such claims of each queue that has any, in turn.
    """

    situation: snapshots.Snapshot
    ranks: dict[Entry, int] = field(default_factory=dict)
    queues: tuple[tuple[Entry, ...], ...] = ()

    @property
    def elements(self) -> int:
        """Return how many may start."""
        lines = self.situation.lines
        return sum(
            _startable(lines[line].claims[position])
            for entries in self.queues
            for line, position in entries
        )

    def mix(self, left: Callable[[Entry], int], free: int) -> tuple[snapshots.ArrivalShare, ...]:
        """Return what is ahead, up to the GPUs that are free; queues get parts by what they ask.

        Args:
            left: elements of a claim that may still start.
            free: milli-GPUs.

        Returns:
            Nothing when less is ahead than is free.
        """
        lines, each = self.situation.lines, [one.least[2] for one in self.situation.shapes]
        asked = [
            [
                (entry, number, each[lines[entry[0]].shape])
                for entry in entries
                if (number := left(entry)) > 0
            ]
            for entries in self.queues
        ]
        totals = [sum(number * gpu for _, number, gpu in entries) for entries in asked]
        if sum(totals) <= free or not free:
            return ()
        counts: Counter[int] = Counter()
        for entries, total in zip(asked, totals, strict=True):
            part = free * total / sum(totals)
            for (line, _), number, gpu in entries:
                if part <= 0:
                    break
                if gpu:
                    taken = min(number, math.ceil(part / gpu))
                    counts[self.situation.lines[line].shape] += taken
                    part -= taken * gpu
        return self._entries(counts)

    def _entries(self, counts: Counter[int]) -> tuple[snapshots.ArrivalShare, ...]:
        shapes = self.situation.shapes
        tasks = [
            (group, shapes[shape].eligible, count * group.least)
            for shape, count in sorted(counts.items())
            for group in shapes[shape].groups
            if group.least
        ]
        total = sum(count for *_, count in tasks)
        return tuple(
            snapshots.ArrivalShare(group, eligible, count / total)
            for group, eligible, count in tasks
        )


def gather(situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> ArrivalBatches:
    """Return the claims that the policy's order lets share out their turns.

    ``columns``: of the lines.
    """
    if situation.policy.order != "fit":
        return ArrivalBatches(situation)
    ranks: dict[Entry, int] = {}
    queues: dict[int, list[Entry]] = {}
    for together in _moments(situation, columns):
        ordered = _ordered(situation, together)
        turns = (situation.lines[line].claims[at].order for line, at in together)
        ranks.update(zip(ordered, turns, strict=True))
        queues.setdefault(situation.lines[together[0][0]].queue, []).extend(ordered)
    return ArrivalBatches(situation, ranks, tuple(map(tuple, queues.values())))


def _moments(situation: snapshots.Snapshot, columns: snapshots.PendingColumns) -> list[list[Entry]]:
    """Claims of one queue and priority that follow each other by age and came at one moment.

    Only those of several lines: by whole columns, since most claims of a long queue are none of
    them. Queues come in turn, in each the higher priority first.
    """
    lines = situation.lines
    waits = np.flatnonzero((columns.claims > 0) & ~columns.grows)
    if not waits.size:
        return []
    counts = columns.claims[waits]
    some = lines if len(waits) == len(lines) else [lines[index] for index in waits.tolist()]
    ages = b"".join(map(_ages, some))
    known = np.frombuffer(ages, dtype=snapshots.AGE)
    age, moment = np.ascontiguousarray(known["order"]), np.ascontiguousarray(known["moment"])
    of = np.repeat(waits, counts)
    position = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = _together(age, moment)
    of, age, moment, position = of[chosen], age[chosen], moment[chosen], position[chosen]
    if not of.size:
        return []
    queue, priority = columns.queue[of], columns.priority[of]
    name = np.zeros(len(of), dtype=np.int64)
    if len(np.unique(age)) < len(age):  # jobs of one age go by their names
        names = [
            lines[line].claims[at].job
            for line, at in zip(of.tolist(), position.tolist(), strict=True)
        ]
        name = np.unique(names, return_inverse=True)[1]
    ranked = np.lexsort((name, age, -priority, queue))
    queue, priority, moment, of = queue[ranked], priority[ranked], moment[ranked], of[ranked]
    other = (np.diff(queue) != 0) | (np.diff(priority) != 0)
    run = np.concatenate([[0], np.cumsum(other | (np.diff(moment) != 0))])
    begins = np.flatnonzero(np.concatenate([[True], np.diff(run) != 0]))
    several = np.minimum.reduceat(of, begins) < np.maximum.reduceat(of, begins)
    few = _peers(columns, waits, queue[begins], priority[begins]) <= CLAIMS_MAX
    ends = np.append(begins[1:], len(ranked))
    picked = np.flatnonzero(several & few & (moment[begins] != 0))
    return [
        [(int(of[at]), int(position[ranked[at]])) for at in range(begins[one], ends[one])]
        for one in picked.tolist()
    ]


def _together(age: NDArray[np.int64], moment: NDArray[np.float64]) -> NDArray[np.intp]:
    """Claims that may have come at one moment with others; all where ages and moments disagree."""
    ranked = np.argsort(age)
    steps = np.diff(moment[ranked])
    if (steps < 0).any() or (steps[np.diff(age[ranked]) == 0] != 0).any():
        return np.arange(len(age))
    same = steps == 0
    shared = np.zeros(len(age), dtype=np.bool_)
    shared[1:] |= same
    shared[:-1] |= same
    found: NDArray[np.intp] = np.sort(ranked[shared])
    return found


def _peers(
    columns: snapshots.PendingColumns,
    waits: NDArray[np.intp],
    queue: NDArray[np.int64],
    priority: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return how many claims of lines that wait are of some queues, each with a priority."""
    kinds = np.unique(priority)
    kind = np.searchsorted(kinds, columns.priority[waits])
    known = kinds[np.minimum(kind, len(kinds) - 1)] == columns.priority[waits]
    waits, kind = waits[known], kind[known]
    counts = np.bincount(columns.queue[waits] * len(kinds) + kind, columns.claims[waits])
    found: NDArray[np.float64] = counts[queue * len(kinds) + np.searchsorted(kinds, priority)]
    return found


def _ordered(situation: snapshots.Snapshot, together: Sequence[Entry]) -> list[Entry]:
    """These claims, given by age, in the order that fits best."""
    members: dict[int, list[Entry]] = {}
    for entry in together:
        members.setdefault(situation.lines[entry[0]].shape, []).append(entry)
    shapes = list(members)
    pending = [
        (_size(situation.shapes[at]), _share(situation.shapes[at]), len(members[at]))
        for at in shapes
    ]
    waiting = [iter(members[at]) for at in shapes]
    return [entry for at, count in order(pending) for entry in itertools.islice(waiting[at], count)]


def order(pending: Sequence[tuple[Size, int, int]]) -> list[tuple[int, int]]:
    """In which order a backlog fills devices best: (index of the kind, how many of it) in turn.

    Args:
        pending: (size of one, the share of one device that it is, or 0 where it is no such
            share, how many wait) of each kind.
    """
    turns = sorted(range(len(pending)), key=lambda at: pending[at][0], reverse=True)
    shared: dict[int, list[int]] = {}
    runs: list[tuple[int, int]] = []
    for at in turns:
        size, share, count = pending[at]
        if share:
            shared.setdefault(share, []).extend([at] * count)
        elif size[0]:
            runs.append((at, count))
    for waiting in shared.values():
        waiting.reverse()
    while pattern := _fullest({share: len(waiting) for share, waiting in shared.items()}):
        times = min(len(shared[share]) // many for share, many in pattern.items())
        for _ in range(times):
            for share, many in pattern.items():
                runs.extend((shared[share].pop(), 1) for _ in range(many))
    runs.extend((at, pending[at][2]) for at in turns if not pending[at][0][0])
    return [
        (at, sum(count for _, count in run))
        for at, run in itertools.groupby(runs, key=lambda run: run[0])
    ]


def _fullest(supply: dict[int, int]) -> Counter[int]:
    """Shares of one device that come closest to a whole one, bigger shares rather than smaller."""
    shares = sorted((share for share, count in supply.items() if count), reverse=True)
    # Bit b of reach[i]: shares from the i-th on can come to b milli-GPUs.
    reach = [1]
    for share in reversed(shares):
        sums = reach[-1]
        for _ in range(min(supply[share], WHOLE // share)):
            sums |= sums << share
        reach.append(sums & ((1 << (WHOLE + 1)) - 1))
    reach.reverse()
    wanted = reach[0].bit_length() - 1
    pattern: Counter[int] = Counter()
    for share, rest in zip(shares, reach[1:], strict=True):
        many = min(supply[share], wanted // share)
        while not rest >> (wanted - many * share) & 1:
            many -= 1
        if many:
            pattern[share] = many
            wanted -= many * share
    return pattern


def _size(shape: snapshots.Shape) -> Size:
    cpu, memory, gpu = shape.least
    return (gpu, cpu, memory)


def _share(shape: snapshots.Shape) -> int:
    """The share of one device that an element is, by what it costs at the most, else 0."""
    if not shape.is_single or shape.groups[0].devices != 1 or shape.groups[0].profile >= 0:
        return 0
    gpu = shape.groups[0].amounts[2]
    return gpu if 0 < gpu < WHOLE else 0


def _startable(claim: snapshots.PendingJob) -> int:
    return min(claim.startable, len(claim.elements))
