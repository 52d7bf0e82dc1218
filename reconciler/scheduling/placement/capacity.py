"""What nodes have to give, and where the next element goes: the scheduler's one view of space.

A ``Capacity`` starts from a snapshot. Elements are planned and taken; what others have is held and
released; every change can be undone to a mark, at a cost that grows with what is undone. Answers
depend on the snapshot and on the changes alone: the same calls give the same nodes anywhere.
"""

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reconciler.model.state.pending_reasons import FunnelStep
from reconciler.scheduling.decisions import TaskPlacement
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE, Amounts, Mask, Snapshot
from reconciler.scheduling.nodes import node_classes, quick_fit, scoring
from reconciler.scheduling.nodes.free_resources import FreeResources, Task, all_idle, free_now
from reconciler.scheduling.nodes.gang_capacity import GangCapacity
from reconciler.scheduling.placement import affinity, diagnosis, elastic, gang, shape_facts
from reconciler.scheduling.placement.gang import GangPart, GangPlacement

__all__ = ["Capacity", "GangPart", "GangPlacement"]

#: So many nodes are looked at one by one; of more, columns tell first which are worth it.
FEW_NODES = 8
#: Changes are looked at one by one up to such a part of the number of nodes.
RECENT_PART = 4


class _Marked(NamedTuple):
    """What was known of a capacity when a mark was made."""

    version: int
    unfit: dict[int, int]
    too_much: dict[int, list[tuple[int, shape_facts.Demand]]]


class Capacity:
    """Free devices and amounts of the nodes; mutable, with an undo log.

    Attributes:
        situation: the snapshot that it started from.
        idle: whether it is that of an idle cluster (``empty``).
        stock: what each node has left.
        version: another number for each content; a rollback to a mark returns to the mark's.
    """

    def __init__(
        self,
        situation: Snapshot,
        *,
        stock: FreeResources | None = None,
        like: "Capacity | None" = None,
        idle: bool = False,
    ) -> None:
        """What is free now on nodes that accept work.

        Args:
            situation: the snapshot.
            stock: something else to give than what is free now.
            like: a room of the same snapshot, to share what does not change.
            idle: whether ``stock`` is that of an idle cluster.
        """
        self.situation = situation
        self.stock = free_now(situation) if stock is None else stock
        self.idle = idle
        self.version = 0
        self._version_max = 0
        #: By length of the log of a mark: what was known when it was made.
        self._marked: dict[int, _Marked] = {}
        self._mix: tuple[snapshots.ArrivalShare, ...] = situation.mix
        if like is not None:
            self._mix = like._mix  # noqa: SLF001
        self._fixed: shape_facts.StaticFacts = (
            shape_facts.StaticFacts.of(situation) if like is None else like._fixed  # noqa: SLF001
        )
        self._before = 0
        self._index_made: node_classes.NodeClassIndex | None = None
        self._planner_made: gang.GangPlanner | None = None
        self._rankings: dict[int, scoring.NodeScores] = {}
        self._unfit: dict[int, int] = {}
        #: By the nodes that they may go to: what had no room, none of it more than another, with
        #: the length of the log then. Whatever is no smaller has none either.
        self._too_much: dict[int, list[tuple[int, shape_facts.Demand]]] = {}
        #: Length of the log at which no node had room for one task of a shape.
        self._none_before: dict[int, int] = {}
        #: States of another room of the snapshot, to begin with rather than count anew.
        self._index_like: node_classes.NodeClassIndex | None = None
        self._amounts: tuple[int, Amounts] | None = None
        self._plans: dict[int, tuple[int, GangPlacement]] = {}
        #: How many tasks of plain gangs nodes have room for.
        self._tallies: dict[int, GangCapacity] = {}
        #: Nodes that may be used and had so many idle devices at a version; none has more since.
        self._wide: dict[tuple[int, int], tuple[int, NDArray[np.intp]]] = {}
        #: The node that had room last for so many idle devices; it is looked at first.
        self._wide_hint: dict[tuple[int, int], int] = {}
        self._ladder: tuple[int, diagnosis.Ladder] | None = None
        #: Who comes to be on which nodes, as shape and nodes, and what that leaves to shapes.
        self._company: list[tuple[int, tuple[int, ...]]] = []
        self._apart: dict[int, Mask | None] = {}

    @classmethod
    def empty(cls, situation: Snapshot, like: "Capacity | None" = None) -> "Capacity":
        """The room as if every node was idle and accepted work; ``like``: as of a new one."""
        return cls(situation, stock=all_idle(situation), like=like, idle=True)

    @property
    def _index(self) -> node_classes.NodeClassIndex:
        like, self._index_like = self._index_like, None
        if self._index_made is None and like is not None and like.mix is self._mix:
            self._index_made = like.copy(self.stock)
        elif self._index_made is None:
            classes = self._fixed.classes
            self._index_made = node_classes.NodeClassIndex(
                self.situation, classes, self.stock, self._mix
            )
        return self._index_made

    @property
    def _planner(self) -> gang.GangPlanner:
        if self._planner_made is None:
            self._planner_made = gang.GangPlanner(
                self.situation,
                self.stock,
                self._index,
                self._fixed.asks,
                self._fixed.network,
                idle=self.idle,
            )
        return self._planner_made

    def expect(self, mix: tuple[snapshots.ArrivalShare, ...]) -> None:
        """From now on place for this mix; its kinds go where shapes of the snapshot go."""
        self._mix = mix
        self._index_like = None
        self._marked.clear()  # a rollback does not undo this
        self._renew_version()
        if self._index_made is not None:
            self._index_made.expect(mix)

    def copy(self, *, logged: bool = False) -> "Capacity":
        """A room of its own with the same contents; marks of this one mean nothing to it.

        ``logged``: as if all that this one went through since it was made had happened to it.
        """
        stock = self.stock.copy(logged=logged)
        at, changes = len(stock.log), len(self.stock.log)
        twin = Capacity(self.situation, stock=stock, like=self, idle=self.idle)
        twin.version = twin._version_max = self.version
        twin._before = self._before + changes - at
        twin._unfit = dict.fromkeys(self._unfit, at)
        twin._too_much = {
            nodes: [(at, demand) for _, demand in known] for nodes, known in self._too_much.items()
        }
        twin._none_before = {s: at for s, known in self._none_before.items() if known == changes}
        for shape, tally in self._tallies.items():
            if tally.at == changes:
                twin._tallies[shape] = tally.copy()
                twin._tallies[shape].at = at
        twin._index_like = self._index_made or self._index_like
        twin._company = self._company.copy()
        return twin

    def mark(self) -> int:
        """A point to roll back to."""
        at = len(self.stock.log)
        self._marked[at] = _Marked(self.version, self._unfit, self._too_much)
        return at

    def _renew_version(self) -> None:
        """Note that the contents are others than at any version before."""
        self._version_max += 1
        self.version = self._version_max

    def rollback(self, mark: int) -> None:
        """Undo all changes since a mark."""
        if not self.stock.rollback(mark):
            return
        marked = self._marked.get(mark)
        self._marked = {at: known for at, known in self._marked.items() if at <= mark}
        if marked is None:
            self._renew_version()
            unfit, too_much = self._unfit, self._too_much
        else:
            self.version, unfit, too_much = marked
        self._wide.clear()
        self._unfit = {shape: at for shape, at in unfit.items() if at <= mark}
        self._too_much = {
            nodes: [one for one in known if one[0] <= mark] for nodes, known in too_much.items()
        }
        self._none_before = {s: at for s, at in self._none_before.items() if at <= mark}
        self._tallies = {s: tally for s, tally in self._tallies.items() if tally.at <= mark}

    def _turned(self) -> int:
        """Turns the choice among equal nodes; along the network they stay in order."""
        turn = self.situation.turn
        return turn if self._fixed.network.depth else turn + self._before + len(self.stock.log)

    def plan(self, shape: int, *, within: Mask | None = None) -> GangPlacement | None:
        """Where the minimum of each group of one element goes; None: no room.

        Args:
            shape: index into ``Snapshot.shapes``.
            within: (n,) nodes that may be used; None: all.
        """
        if self.is_full_for(shape):
            return None
        within = self._apart_from_company(shape, within)
        if self._fixed.singly[shape]:
            plan = self._plan_single(shape, within)
        else:
            known = self._plans.get(shape)
            if within is None and known is not None and known[0] == self.version:
                return known[1]
            # where no tally is kept, the plan counts as much
            is_full = shape in self._tallies and not self._has_all(shape, within)
            plan = None if is_full else self._planner.element(shape, within)
            if plan is not None and within is None:
                self._plans[shape] = (self.version, plan)
        if plan is None and within is None and not self.needs_company(shape):
            self._has_none(shape)
        return plan

    def is_full_for(self, shape: int) -> bool:
        """Whether it is known already that one element has no room; False tells nothing."""
        return shape in self._unfit or self._is_too_much(shape)

    def _is_too_much(self, shape: int) -> bool:
        """Whether something had no room that takes no more than this."""
        demand = self._fixed.demands[shape]
        if demand is None:
            return False
        _, cpu, memory, devices, share, tasks, _ = demand
        for at, less in self._too_much.get(demand[0], ()):
            if (
                cpu >= less[1]
                and memory >= less[2]
                and devices >= less[3]
                and share >= less[4]
                and tasks >= less[5]
            ):
                self._unfit[shape] = at
                return True
        return False

    def no_less(self, shape: int) -> Mask:
        """(s,) shapes that have no room for certain where this one has none, itself included."""
        return self._fixed.no_less(shape)

    def plain(self) -> Mask:
        """Return (s,) plain shapes for which there is room: ``fits`` of all of them at once.

        Those of one task for which some node has room, and gangs by what all nodes have together.
        """
        stock, columns = self.stock, self.stock.columns()
        opened = stock.opened_mask & (columns.exclusive == 0)

        def rows_of(number: int) -> NDArray[np.intp]:
            return np.flatnonzero(opened & self._fixed.masks[number])

        def nodes(number: int) -> Amounts:
            rows = rows_of(number)
            most = columns.devices[rows].max(axis=1, initial=0)
            gpu_milli = np.where(columns.idle[rows], columns.idle[rows] * WHOLE, most)
            return np.column_stack([columns.cpu[rows], columns.memory[rows], gpu_milli])

        def counted(number: int) -> tuple[Amounts, Amounts]:
            rows = rows_of(number)
            amounts = (columns.cpu[rows], columns.memory[rows], columns.idle[rows] * WHOLE)
            return np.column_stack(amounts), np.ones(len(rows), dtype=np.int64)

        return quick_fit.fitting(self._fixed.sizes, nodes) | quick_fit.fitting_gangs(
            self._fixed.demanded, counted
        )

    @property
    def sizes(self) -> Amounts:
        """(s, 4) what shapes of one plain task take (``shape_facts.StaticFacts``)."""
        return self._fixed.sizes

    @property
    def demanded(self) -> Amounts:
        """(s, 7) what elements of plain tasks take (``shape_facts.StaticFacts``)."""
        return self._fixed.demanded

    @property
    def masks(self) -> tuple[Mask, ...]:
        """Nodes of each number that ``sizes`` and ``demanded`` have."""
        return self._fixed.masks

    def _has_none(self, shape: int) -> None:
        """Note that no node has room for a shape, until something is released."""
        at = self._unfit[shape] = len(self.stock.log)
        demand = self._fixed.demands[shape]
        if demand is not None:
            self._too_much.setdefault(demand[0], []).append((at, demand))

    def _plan_single(self, shape: int, within: Mask | None) -> GangPlacement | None:
        demand = self._fixed.demands[shape]
        if within is not None and demand is not None and not 0 < demand[4] < WHOLE:
            nodes = np.flatnonzero(within).tolist()
            if len(nodes) <= 1:  # of whole devices of one node nothing is left to choose
                there = self._is_among(nodes, shape)
                return GangPlacement((GangPart(0, 0, 1, nodes[0], ()),)) if there else None
        if self._is_looked_up(shape, within) and not self._has_node(shape, within):
            return None
        index = self._index
        index.sync()
        ranking = self._rankings.get(shape)
        if ranking is None:
            ranking = self._rankings[shape] = index.ranking(shape, 0, self._fixed.asks[shape][0])
        node = index.best(ranking, self._turned(), within)
        if node < 0:
            return None
        values = ranking.values.get(index.of_node[node], ())
        return GangPlacement((GangPart(0, 0, 1, node, values),))

    def needs_company(self, shape: int) -> bool:
        """Whether a start of other work may make room for it."""
        return any(not a.apart and not a.weight for a in self.situation.shapes[shape].affinities)

    def fits(self, shape: int, *, within: Mask | None = None) -> bool:
        """Whether one element has room; takes nothing.

        Where no states were counted yet, looking at nodes is cheaper than counting them.
        """
        within = self._apart_from_company(shape, within)
        if self._fixed.singly[shape] and (
            self._index_made is None or self._is_looked_up(shape, within)
        ):
            return self._has_node(shape, within)
        if self._fixed.gangs[shape] and shape not in self._unfit and self._has_all(shape, within):
            return True
        return self.plan(shape, within=within) is not None

    def _has_all(self, shape: int, within: Mask | None) -> bool:
        """Whether there is room for as many tasks as start together; True where a search tells."""
        if not self._fixed.gangs[shape]:
            return True
        tally, ask = self._tallies.get(shape), self._fixed.asks[shape][0]
        if tally is not None and tally.within is within and self._is_recent(tally.at):
            tally.renew(self.stock, ask)
        else:
            asked = self.situation.shapes[shape]
            need = asked.groups[0].least
            tally = GangCapacity.of(self.stock, ask, need, asked.eligible, within)
            self._tallies[shape] = tally
        return tally.total >= tally.need

    def _is_recent(self, since: int) -> bool:
        """Return True if few nodes changed since the log had a length."""
        return len(self.stock.log) - since <= len(self.stock.rows) // RECENT_PART

    def _is_looked_up(self, shape: int, within: Mask | None) -> bool:
        """Whether it is cheaper to look whether a node has room than to rank states.

        It is where they are ranked by a mix, or by each way to choose devices to share.
        """
        if within is not None:
            return False
        demand = self._fixed.demands[shape]
        return demand is not None and (0 < demand[4] < WHOLE or bool(self._mix))

    def _has_node(self, shape: int, within: Mask | None) -> bool:
        """Whether a node has room for one task; of nodes that had none only changed ones count."""
        if self.is_full_for(shape):
            return False
        stock = self.stock
        nodes: Iterable[int] = range(len(stock.rows))
        since = self._none_before.get(shape)
        if within is not None:
            nodes = np.flatnonzero(within).tolist()
        elif since is not None and self._is_recent(since):
            nodes = stock.touched(since)
        elif (size := self._fixed.plain[shape]) is not None:
            nodes = self._spacious(shape, size)
        if self._is_among(nodes, shape):
            return True
        if within is None:
            self._none_before[shape] = len(stock.log)
        return False

    def _is_among(self, nodes: Iterable[int], shape: int) -> bool:
        """Whether one of these nodes has room for one task."""
        stock, ask = self.stock, self._fixed.asks[shape][0]
        eligible = self.situation.shapes[shape].eligible
        nodes = list(nodes)
        if len(nodes) > FEW_NODES:
            rows = np.array(nodes, dtype=np.intp)
            nodes = stock.roomy(ask, rows[eligible[rows]]).tolist()
        for node in nodes:
            row = stock.rows[node]
            if row.exclusive or not eligible[node] or not stock.opened[node]:
                continue
            if ask.closed is not None and ask.closed[node]:
                continue
            if scoring.has_room(row, ask, node):
                return True
        return False

    def _spacious(self, shape: int, size: shape_facts.Size) -> list[int]:
        """A node that has room for a task of this size; none: no node has."""
        nodes, cpu, memory, gpu_milli = size
        hint = self._wide_hint.get((nodes, gpu_milli))
        if hint is not None:
            row = self.stock.rows[hint]
            wide = not row.exclusive and row.cpu >= cpu and row.memory >= memory
            if wide and scoring.has_room(row, self._fixed.asks[shape][0], hint):
                return [hint]
        columns = self.stock.columns()
        at, rows = self._wide.get((nodes, gpu_milli), (-1, None))
        if rows is None:
            rows = np.flatnonzero(self._fixed.masks[nodes] & self.stock.opened_mask)
        if at != self.version:  # since then there has only been less
            rows = rows[columns.exclusive[rows] == 0]
            if gpu_milli >= WHOLE:
                rows = rows[columns.idle[rows] * WHOLE >= gpu_milli]
            elif gpu_milli:
                rows = rows[(columns.devices[rows] >= gpu_milli).any(axis=1)]
        self._wide[nodes, gpu_milli] = (self.version, rows)
        if cpu:
            rows = rows[columns.cpu[rows] >= cpu]
        if memory:
            rows = rows[columns.memory[rows] >= memory]
        if not rows.size:
            return []
        emptiest = int(rows[int(columns.idle[rows].argmax())])
        self._wide_hint[nodes, gpu_milli] = emptiest
        return [emptiest]

    def is_certain(self, shape: int) -> bool:
        """Whether no element of a shape has room for certain, not as far as was searched."""
        if len(self.situation.shapes[shape].groups) == 1:
            return self.plan(shape) is None
        return self._planner.element(shape, None) is None and not self._planner.cut

    def take(self, shape: int, plan: GangPlacement) -> tuple[TaskPlacement, ...]:
        """Charge what a plan takes; the tasks by group and index, with their devices.

        Raises:
            ValueError: there is no such room; nothing was taken then.
        """
        mark = len(self.stock.log)
        try:
            placed = self._charge(shape, plan.parts)
        except ValueError:
            self.stock.rollback(mark)
            raise
        self._renew_version()
        return placed

    def _charge(
        self, shape: int, parts: Sequence[GangPart], present: Container[int] = ()
    ) -> tuple[TaskPlacement, ...]:
        """``present``: nodes on which the element is already."""
        stock, asks = self.stock, self._fixed.asks[shape]
        asked = self.situation.shapes[shape]
        matches, exclusive = asked.matches, asked.exclusive
        placed = []
        joined: set[int] = set()
        for group, first, tasks, node, values in parts:
            ask = asks[group]
            share = ask.share_on(node) if ask.devices else WHOLE
            amounts = ask.charged(node)
            joins = node not in joined and node not in present
            joined.add(node)
            for index in range(first, first + tasks):
                given = stock.charge(ask, node, values, joins, joins and exclusive)
                joins = False
                placed.append(
                    TaskPlacement(
                        group, index, node, amounts, given, share, ask.profile, ask.instances
                    )
                )
            if matches:
                stock.appear(matches, node, tasks)
        if len(placed) > 1:
            placed.sort(key=lambda task: (task.group, task.index))
        return tuple(placed)

    def extra(
        self,
        shape: int,
        present: Sequence[Task],
        missing: Sequence[tuple[int, int]],
        most: int,
    ) -> tuple[TaskPlacement, ...]:
        """Take up to ``most`` of the missing tasks of an element that is there, as far as fit.

        Args:
            shape: its shape.
            present: tasks that it has; those beyond stay in the domains where these are.
            missing: (group, index) of the tasks that it could still have.
            most: how many to add at the most.
        """
        placed: list[TaskPlacement] = []
        there: list[Task] = list(present)
        for bound in elastic.runs(self.situation.shapes[shape], missing):
            parts = elastic.parts(self._planner, shape, there, bound[: most - len(placed)])
            for part in parts:
                placed += self._charge(shape, (part,), {task.node for task in there})
                there.append(placed[-1])
        if placed:
            self._renew_version()
        return tuple(sorted(placed, key=lambda task: (task.group, task.index)))

    @property
    def amounts(self) -> Amounts:
        """(n, 3) CPU, memory and GPU that each node has left; changes do not show in it."""
        if self._amounts is None or self._amounts[0] != self.version:
            columns = self.stock.columns()
            found = np.column_stack([columns.cpu, columns.memory, columns.gpu])
            self._amounts = (self.version, found)
        return self._amounts[1]

    def hold(
        self,
        tasks: Iterable[Task],
        *,
        exclusive: bool = False,
        matches: Iterable[int] = (),
        partly: bool = False,
    ) -> None:
        """Charge what someone else has, or is promised, as one element.

        Args:
            tasks: what it has. Devices may end up with nothing, never with less.
            exclusive: whether it has its nodes to itself.
            matches: selectors in ``Snapshot.presence`` that match it.
            partly: other tasks of the element are on the same nodes already.
        """
        tasks = tuple(tasks)
        self.stock.shift(tasks, -1)
        if not partly:
            self.stock.occupy(dict.fromkeys(t.node for t in tasks), exclusive=exclusive)
        for task in tasks:
            self.stock.appear(matches, task.node, 1)
        self._renew_version()

    def release(
        self,
        tasks: Iterable[Task],
        *,
        exclusive: bool = False,
        matches: Iterable[int] = (),
        partly: bool = False,
    ) -> None:
        """What one element has comes free; nodes that do not accept work give nothing.

        ``partly``: other tasks of the element stay on the same nodes.
        """
        tasks = tuple(tasks)
        if len(tasks) == 1 and not partly:
            self.stock.give_back(tasks[0], exclusive=exclusive)
        else:
            self.stock.shift(tasks, 1)
            if not partly:
                self.stock.leave(dict.fromkeys(t.node for t in tasks), exclusive=exclusive)
        for task in tasks:
            self.stock.appear(matches, task.node, -1)
        self._renew_version()
        self._wide.clear()
        # new ones: a rollback to a mark returns to those that were there
        self._unfit = {}
        self._too_much = {}

    def clamp(self, other: "Capacity", nodes: Iterable[int] | None = None) -> None:
        """Keep of each node, or of some, the lesser of what this room and another have free."""
        self.stock.clamp(other.stock, nodes)
        self._renew_version()

    def expect_company(self, shape: int, nodes: tuple[int, ...]) -> None:
        """Whoever goes here now is beside work of a shape later, on nodes where that will be.

        What has to be apart from the other, whichever of the two it is, has no room there.
        """
        self._company.append((shape, nodes))
        self._apart.clear()
        self._marked.clear()  # a rollback does not undo this
        self._renew_version()

    def _apart_from_company(self, shape: int, within: Mask | None) -> Mask | None:
        """(n,) nodes of some, None: all, on which a shape may be beside who comes there."""
        if not self._company:
            return within
        if shape not in self._apart:
            shapes, network = self.situation.shapes, self._fixed.network
            found = [
                affinity.away_from(shapes[shape], shapes[other], nodes, network)
                for other, nodes in self._company
            ]
            away = [mask for mask in found if mask is not None]
            self._apart[shape] = ~np.logical_or.reduce(away) if away else None
        apart = self._apart[shape]
        if apart is None:
            return within
        return apart if within is None else apart & within

    def counts(self, shape: int, group: int) -> NDArray[np.int64]:
        """Return (n,) tasks of the group that each node has room for, 2**31 at the most."""
        return self._planner.counts(shape, group, None)[0]

    def funnel(self, shape: int) -> tuple[FunnelStep, ...]:
        """How nodes drop out for a task of the scarcest group; the counts add up to all nodes."""
        ladder = self._ladder_of(shape)
        return diagnosis.funnel(self._planner, shape) if ladder is None else ladder.steps(shape)

    def held(self, shape: int) -> int:
        """Return how many tasks of a shape's only group have room, of those that start together."""
        ladder = self._ladder_of(shape)
        if ladder is not None:
            return ladder.held(shape)
        return min(int(self.counts(shape, 0).sum()), self.situation.shapes[shape].groups[0].least)

    def _ladder_of(self, shape: int) -> diagnosis.Ladder | None:
        """Return the steps that shapes share, as the room is now; None: not for this shape."""
        demand = self._fixed.demands[shape]
        if demand is None or (demand[3] > 1 and demand[4] < WHOLE):
            return None
        if self._ladder is None or self._ladder[0] != self.version:
            ladder = diagnosis.Ladder(self.situation, self.stock, self._fixed.asks, idle=self.idle)
            self._ladder = (self.version, ladder)
        return self._ladder[1]

    def why(self, shape: int, plan: GangPlacement) -> str:
        """Why an element goes to the nodes of this plan, in words."""
        return diagnosis.why(self.situation, shape, plan)
