"""The searches of the present cycle, for the engine: who leaves or moves so that a job can start.

The engine asks for a blocked job. Accounts and nodes of the cycle are brought to the state of the
engine first; what a search changes there goes back to the engine.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import msgspec

from reconciler.scheduling.backfill import limit_holds, node_reservation
from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.cycle import engine_starts, scheduling_cycle
from reconciler.scheduling.engine import node_resources, searches
from reconciler.scheduling.engine.calendar import reservations
from reconciler.scheduling.engine.turns import loop
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.nodes.free_resources import FreeResources
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.queues import job_order


class _Twin:
    """One state of the nodes, as the engine and as the present cycle have it."""

    def __init__(
        self, state: node_resources.NodeResources, room: Capacity, at: int | None = None
    ) -> None:
        """``at``: from where on the log of the room is not known to the engine; None: its end."""
        self.state, self.room = state, room
        self._at = len(room.stock.log) if at is None else at

    def push(self, *, turns: bool = True) -> None:
        """Bring the present cycle to the state of the engine.

        ``turns``: also how often nodes have changed.
        """
        state, rows = self.state, self.room.stock.rows
        changed = {}
        for node in sorted(state.touched):
            row = rows[node]._replace(
                cpu=state.cpu[node],
                memory=state.memory[node],
                devices=state.devices[node],
                occupied=state.occupied[node],
            )
            if row != rows[node] and state.accepts[node]:
                changed[node] = row
        if changed:
            self.room.put_rows(changed)
        if turns:
            self.room.turn_to(state.before + state.changes)
        state.touched.clear()
        self._at = len(self.room.stock.log)

    def pull(self, *, turns: bool = True) -> None:
        """Bring the engine to the state of the present cycle."""
        stock = self.room.stock
        nodes = dict.fromkeys(node for node, _ in stock.log[self._at :] if node >= 0)
        turned = self.room.turned if turns else self.state.before + self.state.changes
        self.state.put({node: stock.rows[node] for node in nodes}, turned)
        self.state.touched.clear()
        self._at = len(stock.log)


class CycleSearches:
    """The searches of one cycle."""

    def __init__(self, cycle: scheduling_cycle.SchedulingCycle) -> None:
        self._cycle = cycle
        self._turns: loop.Turns | None = None
        self._noted: engine_starts.Starts | None = None
        self._twins: dict[int, _Twin] = {}
        #: Reservations of the engine, and the same in the calendar of the cycle.
        self._there: list[
            tuple[reservations.EngineReservation, node_reservation.NodeReservation]
        ] = []

    # At the beginning

    def beginning(self) -> searches.CycleStart:
        """Return what was decided before the turns."""
        cycle, now, later = self._cycle, self._cycle.now, self._cycle.later
        return searches.CycleStart(
            now=_changed(now),
            later=None if later is now else _changed(later),
            left={
                (index, position): (progress.left, progress.started)
                for queue in cycle.queues
                for (index, position), progress in queue.progress.items()
            },
            ends=cycle.calendar.started_so_far(),
            charged=cycle.accruing.started_so_far(),
            taken=bool(cycle.takers),
            look_at=cycle.look_at - len(cycle.placements),
            look_every=cycle.look_every,
        )

    def attach(self, to: loop.Turns, noted: engine_starts.Starts) -> None:
        """Work for the turns of an engine from now on."""
        self._turns, self._noted = to, noted

    # The questions

    def may_search(self, job: searches.TriedJob) -> bool:
        """Return True if it is looked who could leave for a job."""
        return self._cycle.evictor.may_find(self._ask(job))

    def asked(self, job: searches.TriedJob) -> None:
        """Note that a job would make others leave if it could ever start."""
        self._cycle.evictor.has_failed(self._ask(job))

    def could_leave(self, job: searches.TriedJob) -> bool:
        """Return True if somebody might leave for a job; False is certain."""
        evictor, ask = self._cycle.evictor, self._ask(job)
        return evictor.could_find(ask)

    def taking(
        self,
        job: searches.TriedJob,
        element: reservations.BlockedElement,
        until: float,
        *,
        renewed: bool,
    ) -> reservations.Taking | None:
        """Return what a job may take from others once their minimum run time is over.

        Args:
            job: the job.
            element: of it.
            until: up to when.
            renewed: whether nodes were reserved for it already.
        """
        protected, ask = self._cycle.calendar.protected, self._begun(job)
        if protected is None or self._turns is None:
            return None
        self._push()
        found = protected.earliest(ask, until, renewed=renewed)
        if found is None:
            return None
        state, rows = self._turns.reservations.now.state.copy(), found.room.stock.rows
        state.put(dict(enumerate(rows)), state.before)
        gone = {id(theirs) for theirs in found.gives_way}
        places = [
            node_resources.TaskPlaces(node, [task.devices for task in some])
            for node, some in itertools.groupby(found.tasks, key=lambda task: task.node)
        ]
        ends_at = found.at + element.duration_s
        return reservations.Taking(
            reservations.EngineReservation(
                element, found.at, ends_at, places, state, found.grace_s
            ),
            [one for one, theirs in self._there if id(theirs) in gone],
        )

    def again(self) -> None:
        """Make searches again that failed."""
        self._cycle.evictor.failures.clear()

    def ahead(
        self, left: Callable[[tuple[int, int]], int]
    ) -> tuple[snapshots.Snapshot, FreeResources] | None:
        """Return the snapshot with a mix of what is ahead, and what is free; None: little is."""
        self._push_nodes()
        cycle = self._cycle
        mix = cycle.backlog.mix(left, int(cycle.now.amounts[:, 2].sum()))
        if not mix:
            return None
        cycle.now.expect(mix)
        return dataclasses.replace(cycle.situation, mix=mix), cycle.now.stock

    # What changes something

    def promise(self, job: searches.TriedJob) -> bool:
        """Keep nodes that are coming free for a job that has no room. Return True if there are."""
        ask = self._begun(job)
        self._push()
        return self._done(found=self._cycle.promise(ask))

    def make_room(self, job: searches.TriedJob) -> bool:
        """Let others leave or move for a job that has no room. Return True if that helps."""
        ask = self._begun(job)
        self._push()
        return self._done(found=self._cycle.make_room(ask))

    def relieve(self, job: searches.TriedJob) -> bool:
        """Let others leave for a job that a limit forbids. Return True if that helps."""
        ask = self._begun(job)
        self._push()
        return self._done(found=self._cycle.relieved(ask, BlockReason(BlockKind.LIMIT)))

    def outranks(self, job: searches.TriedJob) -> bool:
        """Let reservations give way to a job that they keep out. Return True if any did."""
        ask = self._begun(job)
        self._push()
        return self._done(found=self._cycle.outranks(ask))

    def let(
        self,
        job: searches.TriedJob,
        kept_out: Sequence[searches.TriedJob],
        *,
        again: bool,
        looks: searches.Looks,
    ) -> tuple[searches.StartedFirst | None, tuple[int, int]]:
        """Start who would evict a job as soon as that ran; None: nobody would."""
        cycle, ask = self._cycle, self._begun(job)
        self._push()
        self._table.note_begun()
        self._push_limits()
        cycle.kept_out = [(self._ask(one), 0) for one in kept_out]
        cycle.preceding.count_from(*looks)
        other = cycle.preceding.let(ask, had_reservation=again)
        cycle.kept_out = []
        self._done(found=other is not None)
        if other is None:
            return None, cycle.preceding.counted
        progress = other.progress
        claims = cycle.situation.lines[progress.line].claims
        started = searches.TriedJob(progress.line, claims.index(progress.claim), other.shape)
        tasks = cycle.placements[-1].tasks
        first = searches.StartedFirst(started, other.line.duration_s, tasks)
        return first, cycle.preceding.counted

    def settle(self) -> None:
        """Bring the cycle to the state of the engine, whose turns are over.

        Who comes later than this knows reservations by jobs and times alone.
        """
        self._settle_accounts()
        self._push_nodes()
        if self._turns is not None:
            made, room = self._turns.reservations.made, self._cycle.now
            self._cycle.calendar.replaced([self._table.reservation(one, room) for one in made])

    def _settle_accounts(self) -> None:
        if self._noted is not None and self._turns is not None:
            self._noted.note(self._turns.state.result.starts)

    def _ask(self, job: searches.TriedJob) -> request.PlacementRequest:
        """Return a request for a job, as accounts are now."""
        self._settle_accounts()
        claim = self._cycle.situation.lines[job.group].claims[job.position]
        progress = self._cycle.queues[self._cycle.situation.lines[job.group].queue].progress.get(
            (job.group, job.position)
        )
        return self._asked_by(job, progress or job_order.PendingJobProgress(job.group, claim))

    def _begun(self, job: searches.TriedJob) -> request.PlacementRequest:
        """Return the same, whose progress counts."""
        self._settle_accounts()
        progress = engine_starts.progress_of(self._cycle, job.group, job.position)
        return self._asked_by(job, progress)

    def _asked_by(
        self, job: searches.TriedJob, progress: job_order.PendingJobProgress
    ) -> request.PlacementRequest:
        situation = self._cycle.situation
        line, shape = situation.lines[job.group], situation.shapes[job.shape]
        amounts = flavors.charge(shape.least, shape.pool, self._cycle.ledger.width)
        ask = request.PlacementRequest(progress, line, line.shape, amounts)
        return ask if job.shape == line.shape else msgspec.structs.replace(ask, shape=job.shape)

    # Nodes

    def _push(self) -> None:
        """Bring nodes and reservations of the cycle to the state of the engine."""
        self._push_nodes()
        if self._turns is not None:
            made = self._turns.reservations.made
            self._there = [(one, self._reservation(one)) for one in made]
            self._cycle.calendar.replaced([theirs for _, theirs in self._there])

    def _push_limits(self) -> None:
        """Bring what is kept under limits in the cycle to the state of the engine."""
        if self._turns is not None:
            self._cycle.accruing.waits = {
                queue: limit_holds.LimitWait(
                    self._table.progress(one.row).claim.job, one.priority, one.at, dict(one.spare)
                )
                for queue, one in self._turns.held.held.items()
            }

    def _push_nodes(self) -> None:
        if self._turns is None:
            return
        cycle, made = self._cycle, self._turns.reservations
        self._twin(made.now.state, cycle.now).push()
        if made.later is not made.now:
            self._twin(made.later.state, cycle.later).push()

    def _twin(self, state: node_resources.NodeResources, room: Capacity) -> _Twin:
        found = self._twins.get(id(state))
        if found is None or found.room is not room:
            found = self._twins[id(state)] = _Twin(state, room)
        return found

    def _reservation(self, one: reservations.EngineReservation) -> node_reservation.NodeReservation:
        """Return the same for the calendar of the cycle."""
        twin = self._twins.get(id(one.state))
        if twin is None:
            room = self._cycle.now.copy()
            one.state.touched.update(range(len(one.state.cpu)))
            twin = self._twins[id(one.state)] = _Twin(one.state, room)
        twin.push(turns=False)
        return self._table.reservation(one, twin.room)

    @property
    def _table(self) -> engine_starts.Starts:
        if self._noted is None:
            raise AssertionError("no engine is attached")
        return self._noted

    def _done(self, *, found: bool) -> bool:
        """Bring the engine to the state of the cycle if a search changed something."""
        if self._turns is None:
            return found
        cycle, made = self._cycle, self._turns.reservations
        if cycle.later is not cycle.now and made.later is made.now:
            made.split()
            self._twins[id(made.later.state)] = _Twin(made.later.state, cycle.later, at=0)
        calendar = cycle.calendar
        kept = {id(theirs) for theirs in calendar.reservations}
        gone = [one for one, theirs in self._there if id(theirs) not in kept]
        if not found and not gone:
            return False
        given_up = {id(theirs) for theirs in calendar.lost}
        lost = [one for one, theirs in self._there if id(theirs) in given_up]
        calendar.lost = []
        made.changed(gone, lost)
        self._twin(made.now.state, cycle.now).pull()
        if made.later is not made.now:
            self._twin(made.later.state, cycle.later).pull()
        for one in made.made:
            self._twins[id(one.state)].pull(turns=False)
        return found


def _changed(room: Capacity) -> searches.NodeChanges:
    """Return the rows of a room that differ from those of the snapshot."""
    nodes = dict.fromkeys(node for node, _ in room.stock.log if node >= 0)
    return searches.NodeChanges({node: room.stock.rows[node] for node in nodes}, room.turned)
