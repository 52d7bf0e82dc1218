"""Guarantees of queues as they are written, and the most that others could ever leave a queue.

Queues come in as rows, parents before their children; rows of amounts go out. The scheduler uses
this with the amounts in use, the checks of documents with nothing in use: both give one answer.
"""

from collections.abc import Mapping, Sequence

from reconciler.model import desired
from reconciler.model.rules import lenders

#: Of each queue the amounts of each resource; -1 is what is above the roots.
Rows = Sequence[Sequence[int]]


def parents(tree: Mapping[str, desired.Queue]) -> list[int]:
    """Return the row of each queue's parent; -1 if it has none."""
    index = {name: row for row, name in enumerate(tree)}
    return [-1 if q.parent is None else index.get(q.parent, -1) for q in tree.values()]


def paths(above: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the rows from each queue up to its root, by the rows of parents."""
    found: list[tuple[int, ...]] = []
    for row, parent in enumerate(above):
        found.append((row,) if parent < 0 else (row, *found[parent]))
    return found


def guaranteed(tree: Mapping[str, desired.Queue], above: Sequence[int]) -> list[list[int]]:
    """Return the guarantees; a queue without one has the sum of its pools, or of its children."""
    rows = [list(q.guaranteed_by_pool()) for q in tree.values()]
    below = [[0, 0, 0] for _ in rows]
    for row, queue in reversed(list(enumerate(tree.values()))):
        said = queue.guaranteed.as_vector()
        for resource in range(3):
            own = said[resource]
            rows[row][resource] = (
                max(rows[row][resource], below[row][resource]) if own is None else own
            )
            if above[row] >= 0:
                below[above[row]][resource] += rows[row][resource]
    return rows


def rationed(tree: Mapping[str, desired.Queue]) -> list[tuple[bool, bool, bool]]:
    """Return the resources by which a queue's share is measured: GPUs, and those that it names.

    A queue that names no amount owns nothing: every resource that any queue names is rationed
    there.
    """
    named = [_named(q) for q in tree.values()]
    somebody = [any(row[resource] for row in named) for resource in range(3)]
    return [
        (
            row[0] or (not any(row) and somebody[0]),
            row[1] or (not any(row) and somebody[1]),
            True,
        )
        for row in named
    ]


def _named(queue: desired.Queue) -> tuple[bool, ...]:
    said, by_pool = queue.guaranteed.as_vector(), queue.guaranteed_by_pool()
    lent = queue.lending_limit.as_vector()
    return tuple(
        own is not None or bool(of_pools) or most is not None
        for own, of_pools, most in zip(said, by_pool, lent, strict=True)
    )


class Most:
    """The most that each queue could ever have on an idle cluster.

    Guarantees in use are not lent. Idle ones are kept back only as far as they are not lent. So no
    use by others can raise this amount.
    """

    def __init__(
        self,
        of_queue: Sequence[tuple[int, ...]],
        *,
        owed: Rows,
        lent: Rows,
        measured: Sequence[Sequence[bool]],
        whole: Sequence[int],
    ) -> None:
        """Take the tree; rows of parents come first.

        Args:
            of_queue: path of each queue.
            owed: guarantees.
            lent: amounts of guarantees that others may use.
            measured: resources by which each queue's share is measured.
            whole: capacity of the cluster.
        """
        self._paths, self._owed, self._lent = of_queue, owed, lent
        self._measured, self._whole = measured, whole
        self._idle: dict[int, lenders.Lenders] = {}

    def of(self, queue: int, resource: int) -> int | None:
        """Return the most of one resource; None: nobody keeps any of it back, only nodes are a
        bound.
        """
        lent = self._lenders(resource).of(queue)
        return max(0, lent.most) if lent.kept else None

    def _lenders(self, resource: int) -> lenders.Lenders:
        """Return what is kept back of a resource while nobody uses any of it."""
        found = self._idle.get(resource)
        if found is None:
            guaranteed = [row[resource] for row in self._owed]
            lent = [row[resource] for row in self._lent]
            found = self._idle[resource] = lenders.Lenders(
                self._paths,
                used=[0] * len(self._paths),
                guaranteed=guaranteed,
                withheld=[own - most for own, most in zip(guaranteed, lent, strict=True)],
                measured=[row[resource] for row in self._measured],
                capacity=self._whole[resource],
            )
        return found
