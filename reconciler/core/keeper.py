"""The scheduler's columns, kept from cycle to cycle by what changed instead of built anew.

Changes come in (a node, an element that starts or ends, a claim that comes, changes or goes), and
a ``Snapshot`` goes out whenever one is wanted. A change costs as much as it touches; a snapshot
costs a copy of the columns and one new tuple for each line that changed, whatever the number of
nodes, elements and claims that did not. Snapshots that went out never change afterwards.
"""

import bisect
import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling import lines as line_columns
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.snapshot import Claim, Holding, Line, NodeColumns, Snapshot

#: Lines without claims are kept for the next of their kind until they are half of all, and so many.
EMPTY_LINES_MIN = 1024
_FIELDS = tuple(field.name for field in dataclasses.fields(snapshots.LineColumns))
_FLAGS = frozenset({"preemptible", "grows", "special"})
_Columns = TypeVar("_Columns", NodeColumns, snapshots.QueueColumns)


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What is alike in the claims of one line: the fields of ``snapshot.Line`` beside them."""

    queue: int
    shape: int
    priority: int
    preemptible: bool
    duration_s: float = snapshots.ENDLESS
    reservations: tuple[int, ...] = ()


class Lines:
    """Pending claims by kind, with their columns."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._index_of: dict[Kind, int] = {}
        self._claims: list[dict[str, Claim]] = []
        self._sorted: list[bool] = []
        self._lines: list[Line] = []
        self._table: NDArray[np.int64] = np.zeros((64, len(_FIELDS)), dtype=np.int64)
        self._where: dict[str, int] = {}
        self._stale: set[int] = set()
        self._empty = 0

    def kind_of(self, job: str) -> Kind | None:
        """The kind of a job's claim, None where it has none."""
        index = self._where.get(job)
        return None if index is None else self._kinds[index]

    def claim_of(self, job: str) -> Claim | None:
        """A job's claim."""
        index = self._where.get(job)
        return None if index is None else self._claims[index][job]

    def put(self, kind: Kind, claim: Claim) -> None:
        """A claim is there, in place of the job's former one."""
        index = self._index(kind)
        before = self._where.get(claim.job)
        if before is not None and before != index:
            self.drop(claim.job)
        claims = self._claims[index]
        if not claims:
            self._empty -= 1
        if claim.job not in claims and claims:
            last = claims[next(reversed(claims))]
            self._sorted[index] &= (last.order, last.job) < (claim.order, claim.job)
        elif claim.job in claims:
            self._sorted[index] &= claims[claim.job].order == claim.order
        claims[claim.job] = claim
        self._where[claim.job] = index
        self._stale.add(index)

    def drop(self, job: str) -> None:
        """A job has no claim any more."""
        index = self._where.pop(job, None)
        if index is None:
            return
        del self._claims[index][job]
        self._stale.add(index)
        if not self._claims[index]:
            self._empty += 1

    def _index(self, kind: Kind) -> int:
        index = self._index_of.get(kind)
        if index is None:
            index = self._index_of[kind] = len(self._kinds)
            self._kinds.append(kind)
            self._claims.append({})
            self._sorted.append(True)
            self._lines.append(_line(kind, ()))
            self._empty += 1
            if index == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        return index

    def _compact(self) -> None:
        """Forget kinds that have no claims."""
        kept = [index for index, claims in enumerate(self._claims) if claims]
        self._kinds = [self._kinds[index] for index in kept]
        self._claims = [self._claims[index] for index in kept]
        self._sorted = [self._sorted[index] for index in kept]
        self._lines = [self._lines[index] for index in kept]
        self._table = np.concatenate([self._table[kept], np.zeros((64, len(_FIELDS)), np.int64)])
        self._index_of = {kind: index for index, kind in enumerate(self._kinds)}
        moved = {old: new for new, old in enumerate(kept)}
        self._where = {job: moved[index] for job, index in self._where.items()}
        self._stale = {moved[index] for index in self._stale if index in moved}
        self._empty = 0

    def take(self) -> tuple[tuple[Line, ...], snapshots.LineColumns]:
        """All lines, and the same as columns."""
        if self._empty >= EMPTY_LINES_MIN and 2 * self._empty > len(self._kinds):
            self._compact()
        for index in self._stale:
            claims = self._claims[index]
            if not self._sorted[index]:
                ordered = sorted(claims.values(), key=lambda claim: (claim.order, claim.job))
                claims = self._claims[index] = {claim.job: claim for claim in ordered}
                self._sorted[index] = True
            line = self._lines[index] = _line(self._kinds[index], tuple(claims.values()))
            self._table[index] = line_columns.row_of(line)
        self._stale.clear()
        table = self._table[: len(self._kinds)].copy()
        columns: dict[str, Any] = {
            name: table[:, at] > 0 if name in _FLAGS else np.ascontiguousarray(table[:, at])
            for at, name in enumerate(_FIELDS)
        }
        return tuple(self._lines), snapshots.LineColumns(**columns)


class Keeper:
    """The columns of nodes, queues, elements and pending work."""

    def __init__(
        self,
        nodes: NodeColumns,
        queues: snapshots.QueueColumns,
        presence: NDArray[np.int64] | None = None,
        holdings: Iterable[Holding] = (),
    ) -> None:
        """What there is at first.

        Args:
            nodes, queues, presence: with everything that ``holdings`` have already taken.
            holdings: elements that hold something.
        """
        self._nodes = _copied(nodes)
        self._queues = _copied(queues)
        self._presence = None if presence is None else presence.copy()
        self._holdings = {(h.job, h.element): h for h in holdings}
        self._parents = [int(parent) for parent in queues.parent]
        self.lines = Lines()
        # What elements took since the last snapshot, and gave back with the other sign: (node,
        # CPU, memory, GPU), (node, device, share), (node, elements), (queue, all, firm).
        self._taken: list[tuple[int, int, int, int]] = []
        self._shared: list[tuple[int, int, int]] = []
        self._occupied: list[tuple[int, int]] = []
        self._charged: list[tuple[int, ...]] = []

    # Nodes

    def row(self, node: str) -> int:
        """The row of a node.

        Raises:
            KeyError: there is no such node.
        """
        row = bisect.bisect_left(self._nodes.names, node)
        if row == len(self._nodes.names) or self._nodes.names[row] != node:
            raise KeyError(node)
        return row

    def node_changed(
        self,
        row: int,
        *,
        accepts: bool | None = None,
        capacity: snapshots.Vector | None = None,
        shareable: bool | None = None,
        device_memory: int | None = None,
    ) -> None:
        """A node takes work or not, or has more or less CPU and memory to give.

        Devices that come or go are other columns: whoever learns of them makes a new keeper.
        """
        nodes = self._nodes
        if accepts is not None:
            nodes.accepts[row] = accepts
        if capacity is not None:
            nodes.free[row] += np.array(capacity, dtype=np.int64) - nodes.capacity[row]
            nodes.capacity[row] = capacity
        if shareable is not None:
            nodes.shareable[row] = shareable
        if device_memory is not None:
            nodes.device_memory[row] = device_memory

    # Elements

    def holding_of(self, job: str, element: int) -> Holding | None:
        """What an element has."""
        return self._holdings.get((job, element))

    def started(self, holding: Holding) -> None:
        """An element takes what it holds, or what it holds has changed."""
        before = self._holdings.pop((holding.job, holding.element), None)
        if before is not None:
            self._take(before, -1)
        self._holdings[holding.job, holding.element] = holding
        self._take(holding, 1)

    def ended(self, job: str, element: int) -> None:
        """An element has given back everything; one that is not known is no matter."""
        holding = self._holdings.pop((job, element), None)
        if holding is not None:
            self._take(holding, -1)

    def told(self, holding: Holding) -> None:
        """Something about an element changed, but not what it has, such as that it is leaving.

        Raises:
            ValueError: it has something else, or is not known.
        """
        before = self._holdings.get((holding.job, holding.element))
        same = before is not None and all(
            getattr(before, name) == getattr(holding, name)
            for name in ("tasks", "queue", "preemptible", "exclusive", "matches")
        )
        if not same:
            raise ValueError(
                f"{holding.job}[{holding.element}] holds something else than is known of it: "
                "say that it started"
            )
        self._holdings[holding.job, holding.element] = holding

    def _take(self, holding: Holding, sign: int) -> None:
        """Note what to add to the columns; ``_settle`` adds all of it at once."""
        cpu = memory = gpu = firm_cpu = firm_memory = firm_gpu = 0
        for task in holding.tasks:
            amounts, node = task.amounts, task.node
            self._taken.append((node, -sign * amounts[0], -sign * amounts[1], -sign * amounts[2]))
            for device in task.devices:
                self._shared.append((node, device, -sign * task.share))
            if task.profile >= 0:
                self._nodes.instances[node, task.profile] -= sign * task.instances
            cpu, memory, gpu = cpu + amounts[0], memory + amounts[1], gpu + amounts[2]
            if not (holding.preemptible or task.spare):
                firm_cpu, firm_memory = firm_cpu + amounts[0], firm_memory + amounts[1]
                firm_gpu += amounts[2]
            if self._presence is not None:
                for selector in holding.matches:
                    self._presence[selector, node] += sign
        there = {task.node for task in holding.tasks}
        self._occupied += [(node, sign) for node in there]
        if holding.exclusive:
            self._nodes.exclusive[list(there)] = sign > 0
        found = (sign * cpu, sign * memory, sign * gpu)
        firm = (sign * firm_cpu, sign * firm_memory, sign * firm_gpu)
        queue = holding.queue
        while queue >= 0:
            self._charged.append((queue, *found, *firm))
            queue = self._parents[queue]

    def _settle(self) -> None:
        """Bring the columns up to date."""
        nodes, queues = self._nodes, self._queues
        if self._taken:
            taken = np.array(self._taken, dtype=np.int64)
            np.add.at(nodes.free, taken[:, 0], taken[:, 1:])
        if self._shared:
            shared = np.array(self._shared, dtype=np.int64)
            np.add.at(nodes.devices, (shared[:, 0], shared[:, 1]), shared[:, 2])
        if self._occupied:
            occupied = np.array(self._occupied, dtype=np.int64)
            np.add.at(nodes.occupied, occupied[:, 0], occupied[:, 1])
        if self._charged:
            charged = np.array(self._charged, dtype=np.int64)
            np.add.at(queues.allocated, charged[:, 0], charged[:, 1:4])
            np.add.at(queues.firm, charged[:, 0], charged[:, 4:])
        for log in (self._taken, self._shared, self._occupied, self._charged):
            log.clear()

    # All together

    def snapshot(self, shapes: Iterable[snapshots.Shape], **more: Any) -> Snapshot:
        """The situation now; ``more`` are the other fields of ``Snapshot``."""
        self._settle()
        lines, columns = self.lines.take()
        return Snapshot(
            nodes=_copied(self._nodes),
            queues=_copied(self._queues),
            shapes=tuple(shapes),
            lines=lines,
            holdings=tuple(self._holdings.values()),
            presence=None if self._presence is None else self._presence.copy(),
            line_columns=columns,
            **more,
        )


def _line(kind: Kind, claims: tuple[Claim, ...]) -> Line:
    return Line(
        kind.queue,
        kind.shape,
        kind.priority,
        kind.preemptible,
        claims,
        kind.duration_s,
        kind.reservations,
    )


def _copied(columns: _Columns) -> _Columns:
    """The same with arrays of its own."""
    arrays: dict[str, Any] = {
        field.name: value.copy()
        for field in dataclasses.fields(columns)
        if isinstance(value := getattr(columns, field.name), np.ndarray)
    }
    return dataclasses.replace(columns, **arrays)
