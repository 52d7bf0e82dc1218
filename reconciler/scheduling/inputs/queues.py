"""The queues as the scheduler reads them: the tree with its amounts, in the cluster and by pool.

``core`` makes the columns of the structure and of what runs; ``flavors`` puts those of pools beside
those of the cluster for a cycle, and from then on nobody tells them apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs.arrays import Amounts, Mask


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """``q`` queues, parents before children; where all else is equal the earlier row comes first.

    Attributes:
        names: q names.
        parent: (q,) index of the parent, -1 for a root.
        guaranteed: (q, 3) amounts; 0 where nothing is guaranteed, ``UNLIMITED`` for no bound. A
            parent that names nothing has the sum of its children here.
        firm_limit: (q, 3) what work that is not preemptible may hold: what is guaranteed, and
            ``UNLIMITED`` for a resource in which nothing is guaranteed to anyone.
        rationed: (q, 3) whether the queue's share of a resource is measured.
        limit: (q, 3) amounts; ``UNLIMITED`` where not limited.
        lending: (q, 3) of what is guaranteed and idle, how much others may borrow;
            ``UNLIMITED``: all.
        weight: (q,) share of the surplus among siblings of one priority; 0: none.
        priority: (q,) siblings of higher priority get surplus first.
        allocated: (q, 3) amounts taken by the queue and all below it.
        firm: (q, 3) of them by work that is not preemptible.
        usage: (q,) decayed use in the fairness window as a share of what the cluster could have
            given, 0 where usage does not count.
        suspended: (q,) whether nothing new starts from it; holds for all below it too.
        strict: (q,) whether all of its own lines wait behind the first that can't start.
        min_runtime_s: (q,) for how long what has started is not evicted.
        suspended_by: of queues that people suspended behind git who, until when, and why.
        pool_weight: (q, k) instead of ``weight`` in each of ``Snapshot.pools``; None: the same.

    Inside the scheduler rows of amounts have three more entries for each of these pools.
    """

    names: tuple[str, ...]
    parent: NDArray[np.int64]
    guaranteed: Amounts
    firm_limit: Amounts
    rationed: Mask
    limit: Amounts
    lending: Amounts
    weight: NDArray[np.float64]
    priority: NDArray[np.int64]
    allocated: Amounts
    firm: Amounts
    usage: NDArray[np.float64]
    suspended: Mask
    strict: Mask
    min_runtime_s: NDArray[np.float64]
    pool_weight: NDArray[np.float64] | None = None
    suspended_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolColumns:
    """``k`` pools of which somebody has amounts of its own.

    Attributes:
        names: k names.
        of_node: (n,) index of a node's pool, -1 for all pools without such amounts.
        guaranteed, firm_limit, rationed, limit, lending: (k, q, 3) as in ``QueueColumns``, there.
        weight: (q, k) share of the surplus there.
        cap: (k, 3) what all work together may have there; ``UNLIMITED`` where nothing caps it.
        capped_by: k names of the quotas that say so, empty for none.
        order: for each queue indexes of the pools that it names itself, as it does, or else of the
            nearest queue above it that names any.
    """

    names: tuple[str, ...]
    of_node: NDArray[np.int64]
    guaranteed: Amounts
    firm_limit: Amounts
    rationed: Mask
    limit: Amounts
    lending: Amounts
    weight: NDArray[np.float64]
    cap: Amounts
    capped_by: tuple[str, ...]
    order: tuple[tuple[int, ...], ...]
