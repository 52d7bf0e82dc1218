"""Drawn trees of queues, with limits and lenders at any level, come to rest with everyone served.

A small cluster is filled without regard of shares, and the cycles run until nothing moves. Then no
limit is passed, nobody waits who is owed, nor beside idle room that no limit and no lender forbids.
What is owed and forbidden is reckoned here from the queues as they were drawn.
"""

import random
from dataclasses import dataclass, field

import pytest

from reconciler.scheduling.inputs.snapshots import WHOLE
from tests.unit.scheduling.situations import Situation

#: Far more than any of them takes.
CYCLES_MAX = 40
UNLIMITED = 10**9


@dataclass
class Tree:
    """What was drawn, in GPUs: guarantees, limits and lent amounts of queues, and who is above."""

    capacity: int
    guaranteed: dict[str, int] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)
    above: dict[str, str | None] = field(default_factory=dict)

    def path(self, queue: str) -> list[str]:
        """A queue and all above it."""
        found = [queue]
        while (parent := self.above[found[-1]]) is not None:
            found.append(parent)
        return found

    def leaves(self) -> list[str]:
        """Queues that have none below."""
        return [name for name in self.above if name not in self.above.values()]

    def draw(
        self, s: Situation, chance: random.Random, name: str, parent: str | None, owed: int
    ) -> None:
        """Add one queue to a situation."""
        limit = chance.choice([None, max(owed, 1), chance.randint(max(owed, 1), self.capacity)])
        lent = chance.choice([None, None, chance.randint(0, owed)])
        weight, priority = chance.choice([0, 1, 1, 2]), chance.choice([0, 0, 1])
        s.queue(
            name,
            parent,
            guaranteed=owed,
            limit=limit,
            weight=weight,
            priority=priority,
            lending=lent,
        )
        self.above[name], self.guaranteed[name] = parent, owed
        self.limit[name] = UNLIMITED if limit is None else limit
        self.lent[name] = owed if lent is None else lent


def parts(chance: random.Random, total: int, count: int) -> list[int]:
    """A total in so many parts."""
    cuts = sorted(chance.randint(0, total) for _ in range(count - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def drawn(seed: int) -> tuple[Situation, Tree]:
    """A tree of two levels on one node, work that runs within the limits, and work that waits."""
    chance = random.Random(seed)
    tree, s = Tree(chance.randint(4, 12)), Situation()
    s.node("n", gpu=tree.capacity)
    owed = chance.randint(tree.capacity // 2, tree.capacity)
    for number, part in enumerate(parts(chance, owed, chance.randint(1, 3))):
        tree.draw(s, chance, f"d{number}", None, part)
        for child, own in enumerate(parts(chance, part, chance.randint(1, 3))):
            tree.draw(s, chance, f"d{number}q{child}", f"d{number}", own)
    used, sizes = dict.fromkeys(tree.above, 0), chance.choice([(1,), (1, 1, 2, 3)])
    for number in range(3 * tree.capacity):
        queue, size = chance.choice(tree.leaves()), chance.choice(sizes)
        path = tree.path(queue)
        fits = sum(used[q] for q in tree.leaves()) + size <= tree.capacity
        if fits and all(used[q] + size <= tree.limit[q] for q in path):
            used |= {q: used[q] + size for q in path}
            place = ("n",) * size
            s.job(f"r{number}", queue, gpu=1, tasks=size, least=1, on=place)
    for number in range(2 * len(tree.leaves())):
        queue, size = chance.choice(tree.leaves()), chance.choice(sizes)
        s.job(f"w{number}", queue, gpu=size, priority=chance.choice([40, 50, 60]))
    return s, tree


def at_rest(s: Situation) -> None:
    """Let cycles pass until nothing moves."""
    for _ in range(CYCLES_MAX):
        decisions = s.decide()
        if not decisions.placements and not decisions.evictions:
            return
        s.apply(decisions).left()
    raise AssertionError(f"no rest within {CYCLES_MAX} cycles")


def used_in(s: Situation, tree: Tree) -> dict[str, int]:
    """GPUs that each queue and all below it have."""
    used = dict.fromkeys(tree.above, 0)
    for held in s.held:
        for queue in tree.path(s.jobs[held.job].queue):
            used[queue] += sum(task.amounts[2] for task in held.tasks) // WHOLE
    return used


def kept_from(tree: Tree, used: dict[str, int], queue: str) -> int:
    """GPUs that lie idle and are not lent to a queue by others."""
    own, kept = tree.path(queue), 0
    for name in tree.above:
        siblings = [q for q in tree.above if tree.above[q] == name]
        idle = max(0, tree.guaranteed[name] - tree.lent[name] - used[name])
        if name in own or any(q in own for q in siblings):
            continue
        if tree.above[name] is None or tree.above[name] in own:
            below = sum(max(0, tree.guaranteed[q] - tree.lent[q] - used[q]) for q in siblings)
            kept += max(idle, below)
    return kept


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_of_queues_comes_to_rest_with_everyone_served(seed: int) -> None:
    s, tree = drawn(seed)
    at_rest(s)
    used = used_in(s, tree)
    assert all(used[queue] <= tree.limit[queue] for queue in tree.above)
    idle = tree.capacity - sum(used[queue] for queue in tree.leaves())
    running = {held.job for held in s.held}
    for job in s.jobs.values():
        if job.name in running:
            continue
        path, asked = tree.path(job.queue), job.groups[0][2][2] // WHOLE
        owed = [used[q] + asked <= tree.guaranteed[q] for q in path]
        assert not all(owed), f"{job.name} is owed"
        beside = [q for q in tree.leaves() if q != path[0] and tree.above[q] == path[1]]
        surplus = sum(max(0, used[q] - tree.guaranteed[q]) for q in beside)
        assert not owed[0] or used[path[0]] + asked > tree.limit[path[0]] or asked > surplus, (
            f"{job.name} is owed what {beside} have above their guarantees"
        )
        allowed = all(used[q] + asked <= tree.limit[q] for q in path)
        free = idle - kept_from(tree, used, job.queue)
        assert not allowed or asked > free, f"{job.name} waits beside {idle} idle GPUs"
