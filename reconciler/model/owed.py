"""What queues are guaranteed as they are written, and the most that others could ever leave them.

Queues come in as rows, parents before their children; rows of amounts go out. The scheduler asks of
what it has in hand, and whoever judges documents asks of these alone: both say the same.
"""

from collections.abc import Mapping, Sequence

from reconciler.model import desired

#: Of each queue the amounts of each resource; -1 is what is above the roots.
Rows = Sequence[Sequence[int]]


def parents(tree: Mapping[str, desired.Queue]) -> list[int]:
    """The row of each queue's parent; -1 where it has none."""
    index = {name: row for row, name in enumerate(tree)}
    return [-1 if q.parent is None else index.get(q.parent, -1) for q in tree.values()]


def paths(above: Sequence[int]) -> list[tuple[int, ...]]:
    """The rows from each queue up to its root, by the rows of parents."""
    found: list[tuple[int, ...]] = []
    for row, parent in enumerate(above):
        found.append((row,) if parent < 0 else (row, *found[parent]))
    return found


def guaranteed(tree: Mapping[str, desired.Queue], above: Sequence[int]) -> list[list[int]]:
    """What is guaranteed; who does not say has what it has by pool, or the sum of its children."""
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
    """In which resources a queue's share is measured: in GPUs always, else where it names them.

    A queue that names nothing at all owns nothing: whatever anyone names is rationed there.
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
    """The most that each queue could ever have, were the whole cluster idle.

    What others use of their guarantees they lend to nobody, and what they leave idle is kept back
    only as far as it is not lent, so that no use of theirs makes it more.
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
        """``of_queue``: paths. ``owed``, ``lent``: guarantees, and how much of them others may use.

        ``measured``: whose share of what is measured. ``whole``: what there is in all.
        """
        self._paths, self._owed, self._lent = of_queue, owed, lent
        self._measured, self._whole = measured, whole
        #: By resource: what each queue lends to nobody, and the sum of that below each, roots last.
        self._kept: dict[int, tuple[list[int], list[int]]] = {}

    def of(self, queue: int, resource: int) -> int | None:
        """The most of one resource; None: nobody keeps any of it back, only nodes are a bound."""
        most, kept = self._covered(queue, resource)
        return max(most, self._whole[resource] - kept) if kept else None

    def owed(self, queue: int, resource: int) -> int:
        """What of that is guaranteed to a queue, or above it where that leaves more."""
        return self._covered(queue, resource)[0]

    def _covered(self, queue: int, resource: int) -> tuple[int, int]:
        """What guarantees leave a queue at the most, and what others keep back from it in all."""
        alone, below = self._kept_of(resource)
        most = kept = 0
        path = self._paths[queue]
        for member, above in zip(path, (*path[1:], -1), strict=True):
            if self._measured[member][resource]:
                most = max(most, self._owed[member][resource] - kept)
            kept += below[above] - alone[member]
        return most, kept

    def _kept_of(self, resource: int) -> tuple[list[int], list[int]]:
        """What each queue and those below it lend to nobody while they leave it idle."""
        found = self._kept.get(resource)
        if found is None:
            count = len(self._paths)
            alone, below = [0] * count, [0] * (count + 1)
            # longest paths first, so that what is below a queue is known when it is its turn
            for row in sorted(range(count), key=lambda each: -len(self._paths[each])):
                own = self._owed[row][resource] - self._lent[row][resource]
                alone[row] = max(0, min(own, self._whole[resource]), below[row])
                path = self._paths[row]
                below[path[1] if len(path) > 1 else -1] += alone[row]
            found = self._kept[resource] = (alone, below)
        return found
