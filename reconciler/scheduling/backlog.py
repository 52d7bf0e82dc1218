"""In which order work that came at the same moment fills devices best, and what it is a mix of.

Age says nothing among claims of one queue and priority that were submitted at the same moment
(an array of experiments in one commit, a backlog that is handed over). With ``Policy.order`` of
``fit`` they share out the turns that they have together: elements with whole devices or several
tasks go first, the biggest ahead, since they find no room once shares have broken into every
node. Then shares, by patterns that fill a device: the fullest pattern that the supply allows, as
often as it lasts, then the next; what fills no device well comes last and gets the room that
remains. Elements without GPUs take what no GPU needs. Among those of one size much CPU, then
memory, goes first.

To repeat the fullest pattern while the supply lasts is the sequential heuristic of cutting stock
(Haessler and Sweeney, "Cutting stock problems and solution procedures", European Journal of
Operational Research 54, 1991).

Of a backlog that more than fills what is free, the mix of arrivals is known: it is the work ahead
in this order, up to the GPUs that are free (``Backlog.mix``).
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import WHOLE

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


@dataclass(frozen=True, slots=True)
class Backlog:
    """Claims that came together.

    Attributes:
        ranks: of each such claim, what stands for its ``Claim.order``.
        queues: such claims of each queue that has any, in turn.
    """

    situation: snapshots.Snapshot
    ranks: dict[Entry, int] = field(default_factory=dict)
    queues: tuple[tuple[Entry, ...], ...] = ()

    @property
    def elements(self) -> int:
        """How many may start."""
        lines = self.situation.lines
        return sum(
            _startable(lines[line].claims[position])
            for entries in self.queues
            for line, position in entries
        )

    def mix(self, left: Callable[[Entry], int], free: int) -> tuple[snapshots.MixEntry, ...]:
        """What is ahead, up to the GPUs that are free; queues get parts by what they ask.

        Args:
            left: elements of a claim that may still start.
            free: milli-GPUs.

        Returns:
            Nothing when less is ahead than is free.
        """
        asked = [
            [(entry, number, self._gpu(entry)) for entry in entries if (number := left(entry)) > 0]
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

    def _entries(self, counts: Counter[int]) -> tuple[snapshots.MixEntry, ...]:
        shapes = self.situation.shapes
        tasks = [
            (group, shapes[shape].eligible, count * group.least)
            for shape, count in sorted(counts.items())
            for group in shapes[shape].groups
            if group.least
        ]
        total = sum(count for *_, count in tasks)
        return tuple(
            snapshots.MixEntry(group, eligible, count / total) for group, eligible, count in tasks
        )

    def _gpu(self, entry: Entry) -> int:
        return self.situation.shapes[self.situation.lines[entry[0]].shape].least[2]


def gather(situation: snapshots.Snapshot) -> Backlog:
    """The claims that ``Policy.order`` lets share out their turns."""
    if situation.policy.order != "fit":
        return Backlog(situation)
    peers: dict[tuple[int, int], list[int]] = {}
    for index, line in enumerate(situation.lines):
        if line.claims and not line.claims[0].missing:
            peers.setdefault((line.queue, line.priority), []).append(index)
    ranks: dict[Entry, int] = {}
    queues: dict[int, list[Entry]] = {}
    for (queue, _), lines in sorted(peers.items(), key=lambda item: (item[0][0], -item[0][1])):
        if sum(len(situation.lines[index].claims) for index in lines) > CLAIMS_MAX:
            continue
        for together in _moments(situation, lines):
            ordered = _ordered(situation, together)
            turns = (situation.lines[line].claims[at].order for line, at in together)
            ranks.update(zip(ordered, turns, strict=True))
            queues.setdefault(queue, []).extend(ordered)
    return Backlog(situation, ranks, tuple(map(tuple, queues.values())))


def _moments(situation: snapshots.Snapshot, lines: Sequence[int]) -> list[list[Entry]]:
    """Claims that follow each other by age and came at one moment, of several lines."""
    alike: dict[float, set[int]] = {}
    for index in lines:
        for claim in situation.lines[index].claims:
            alike.setdefault(claim.submitted_at, set()).add(index)
    if not any(moment and len(members) > 1 for moment, members in alike.items()):
        return []
    claims = [
        (claim.order, claim.job, claim.submitted_at, (index, position))
        for index in lines
        for position, claim in enumerate(situation.lines[index].claims)
    ]
    claims.sort()
    runs = itertools.groupby(claims, key=lambda claim: claim[2])
    found = [[entry for *_, entry in run] for moment, run in runs if moment]
    return [run for run in found if len({line for line, _ in run}) > 1]


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


def _startable(claim: snapshots.Claim) -> int:
    return min(claim.startable, len(claim.elements))
