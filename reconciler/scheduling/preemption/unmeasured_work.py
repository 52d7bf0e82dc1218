"""Work without any share of its queue's, node by node: whose it is, and how much.

A guarantee of GPUs gets the CPUs, the memory and the node beside them from such work, since no
queue has a share of these that could be compared. It gets them from others only as far as these
hold more there than its own queue: who fills a node with such work itself has nothing to complain
of. What runs comes in with what starts in the cycle; an answer about a victim goes out.
"""

from collections.abc import Collection, Sequence

import numpy as np

from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.queues import eligibility
from reconciler.scheduling.quota import quota_ledger

#: CPUs and memory: of GPUs every queue has a share.
_COUNTED = slice(0, quota_ledger.GPU)
_Tasks = Sequence[TaskPlacement] | Sequence[snapshots.TaskAllocation]


class UnmeasuredWork:
    """The amounts of one cycle, worked out when somebody first asks."""

    def __init__(self, situation: snapshots.Snapshot, ledger: quota_ledger.QuotaLedger) -> None:
        self._situation, self._ledger = situation, ledger
        #: What starts (1), is promised room (1) or leaves (-1) in this cycle.
        self._changes: list[tuple[int, _Tasks, int]] = []
        #: By queue (n, 2) what it and all below it have on each node, and what all others have.
        self._sums: dict[int, tuple[snapshots.Amounts, snapshots.Amounts]] = {}

    def then(self) -> "UnmeasuredWork":
        """The same for a later moment: what changes there changes nothing here."""
        other = UnmeasuredWork(self._situation, self._ledger)
        other._changes = list(self._changes)
        other._sums = {
            queue: (own.copy(), rest.copy()) for queue, (own, rest) in self._sums.items()
        }
        return other

    def change(self, queue: int, charged: snapshots.Charge, tasks: _Tasks, sign: int = 1) -> None:
        """Count tasks that start in this cycle, or are promised room (-1: that leave)."""
        rationed = self._ledger.rationed[queue]
        if any(charged[r] and rationed[r] for r in self._ledger.resources):
            return
        self._changes.append((queue, tasks, sign))
        for taker, sums in self._sums.items():
            _add(sums[taker not in self._ledger.paths[queue]], tasks, sign)

    def has_no_less(self, taker: int, nodes: Collection[int]) -> bool:
        """Whether a queue has such work on nodes, and on each no less than all others together."""
        own, others = self._of(taker)
        return all(bool(own[node].any() and (own[node] >= others[node]).all()) for node in nodes)

    def _of(self, taker: int) -> tuple[snapshots.Amounts, snapshots.Amounts]:
        found = self._sums.get(taker)
        if found is None:
            situation, paths = self._situation, self._ledger.paths
            size = (len(situation.nodes.names), quota_ledger.GPU)
            found = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
            rows = eligibility.unmeasured(situation) & ~situation.running.leaving
            for row in np.flatnonzero(rows).tolist():
                holding = situation.holdings[row]
                _add(found[taker not in paths[holding.queue]], holding.tasks)
            for queue, tasks, sign in self._changes:
                _add(found[taker not in paths[queue]], tasks, sign)
            self._sums[taker] = found
        return found


def in_the_way(
    situation: snapshots.Snapshot,
    free: snapshots.Amounts,
    ask: request.PlacementRequest,
    *,
    frees_gpus: bool,
) -> snapshots.Mask | None:
    """Nodes on which such work may be in the way of an ask; None: any. The others are certain.

    Where CPUs and memory suffice it is not, and where GPUs lack it is not alone.

    Args:
        situation: the snapshot.
        free: (n, 3) what nodes have once all that is leaving has left.
        ask: the ask.
        frees_gpus: whether others may leave for it, who hold GPUs.
    """
    shape = situation.shapes[ask.shape]
    if ask.missing or shape.exclusive or shape.affinities or shape.matches:
        return None
    found: snapshots.Mask = situation.nodes.exclusive.copy()
    for resource in range(quota_ledger.GPU):
        found |= free[:, resource] < ask.amounts[resource]
    if frees_gpus or any(group.share_bytes for group in shape.groups):
        return found
    least = min(group.amounts[quota_ledger.GPU] for group in shape.groups)
    return found & (free[:, quota_ledger.GPU] >= least)


def _add(total: snapshots.Amounts, tasks: _Tasks, sign: int = 1) -> None:
    for task in tasks:
        if task.node >= 0:
            total[task.node] += np.multiply(task.amounts[_COUNTED], sign)
