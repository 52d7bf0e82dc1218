"""What is written of queues, as the ledger reads it: their tree, guarantees and limits.

The queues of a snapshot come in; rows of plain integers go out, made anew only where something of
it is another than the last time.
"""

from typing import NamedTuple

from reconciler.model.rules import guarantees
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import UNLIMITED, Charge
from reconciler.scheduling.quota import fair_share


class QueueSpecs(NamedTuple):
    """What is written of queues, as the ledger reads it; nobody changes it.

    Attributes:
        children: queues directly below each; those without a parent are below -1.
        limited: of each path the queues that have a limit at all.
        lends: whether anybody keeps some of a guarantee back.
    """

    parents: list[int]
    paths: list[tuple[int, ...]]
    children: dict[int, list[int]]
    guaranteed: list[Charge]
    limit: list[Charge]
    limited: list[tuple[int, ...]]
    firm_limit: list[Charge]
    rationed: list[tuple[bool, ...]]
    lends: bool
    lending: list[Charge]


#: What was made last, and of what: the same queues are asked for from cycle to cycle.
_last: tuple[tuple[bytes, ...], QueueSpecs] | None = None


def of(queues: snapshots.QueueColumns) -> QueueSpecs:
    """What is written of queues; made anew only where it is another than the last time."""
    global _last  # noqa: PLW0603 - replaced as a whole, so that threads don't disturb each other
    arrays = (queues.parent, queues.guaranteed, queues.limit, queues.firm_limit)
    key = tuple([a.tobytes() for a in (*arrays, queues.rationed, queues.lending)])
    last = _last
    if last is not None and last[0] == key:
        return last[1]
    parents = [int(parent) for parent in queues.parent]
    paths, limit = guarantees.paths(parents), vectors(queues.limit)
    found = QueueSpecs(
        parents=parents,
        paths=paths,
        children=fair_share.children_of(parents),
        guaranteed=vectors(queues.guaranteed),
        limit=limit,
        limited=[
            tuple([member for member in path if min(limit[member]) < UNLIMITED]) for path in paths
        ],
        firm_limit=vectors(queues.firm_limit),
        rationed=[tuple(row) for row in queues.rationed.tolist()],
        lends=bool((queues.lending < UNLIMITED).any()),
        lending=vectors(queues.lending),
    )
    _last = (key, found)
    return found


def vectors(rows: snapshots.Amounts) -> list[Charge]:
    """Rows of plain integers."""
    return [tuple(row) for row in rows.tolist()]
