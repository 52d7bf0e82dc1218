"""The heap of queues gives the same turns as the tree of the present cycle."""

import random

import pytest

from reconciler.scheduling.engine.queue_accounts import QueueAccounts
from reconciler.scheduling.engine.queue_heap import QueueHeap
from reconciler.scheduling.inputs import pending_groups
from reconciler.scheduling.inputs.arrays import Charge
from reconciler.scheduling.queues.queue_order import QueueTree
from reconciler.scheduling.quota.quota_ledger import QuotaLedger
from tests.unit.scheduling.engine import differing


@pytest.mark.parametrize("seed", range(40))
def test_turns_are_those_of_the_tree(seed: int) -> None:
    snapshot = differing.situation(seed).snapshot()
    if snapshot.pools is not None:
        pytest.skip("amounts by pool: their rows are made when a cycle begins")
    rng = random.Random(seed)
    ledger = QuotaLedger(snapshot, pending_groups.columns_of(snapshot.lines))
    accounts = QueueAccounts(ledger, snapshot.queues.priority.tolist())
    asks: list[list[Charge]] = [
        [(1000 * rng.randint(0, 4), 0, 500 * rng.randint(0, 6)) for _ in range(rng.randint(0, 6))]
        for _ in snapshot.queues.names
    ]
    heap = QueueHeap(accounts, [queue[0] if queue else None for queue in asks])
    tree = QueueTree(snapshot, ledger)
    for queue, asked in enumerate(asks):
        tree.put(queue, asked[0] if asked else None)

    for _ in range(sum(map(len, asks))):
        first = tree.first()
        assert heap.first() == first
        assert first is not None
        amounts = asks[first].pop(0)
        if rng.random() < 0.7:  # it starts
            ledger.charge(first, amounts)
            accounts.charge(first, amounts, firm=False)
        following = asks[first][0] if asks[first] else None
        tree.put(first, following)
        heap.renew(first, following)

    assert heap.first() is tree.first() is None
