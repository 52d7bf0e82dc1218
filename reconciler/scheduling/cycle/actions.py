"""The ways in which a claim gets room in a cycle, the least disruptive first.

An ask comes in; it starts where there is room, or room that comes free is promised to it, or others
are moved or evicted for it, or it gets a reservation in time. What was done is charged in the
ledger and the rooms at once and noted for the result. ``SchedulingCycle`` decides whose turn it is.
"""

import msgspec

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.causes import BlockKind
from reconciler.scheduling.cycle import cycle_state, relocation
from reconciler.scheduling.decisions import Action, EvictionDecision, Placement, TaskPlacement
from reconciler.scheduling.inputs import flavors, snapshots
from reconciler.scheduling.placement import request
from reconciler.scheduling.placement.capacity import Capacity, GangPlacement
from reconciler.scheduling.preemption import (
    consolidation,
    displacement,
)
from reconciler.scheduling.reasons import reason_explainer, reason_text


class Actions(cycle_state.CycleState):
    """What can be done for a claim; what was done is noted in the state of the cycle."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        super().__init__(situation)
        self.grows = [
            any(group.count > group.least for group in shape.groups) for shape in situation.shapes
        ]
        self._whys: dict[tuple[int, int, int, bool], str] = {}

    def start(self, ask: request.PlacementRequest, action: Action) -> bool:
        """Start one element, or grow it by a task, if there is room now."""
        room = self.now if action == "promised" else self.calendar.room_for(ask.line.duration_s)
        plan = ask.plan(room)
        why = self._why(ask, room, plan) if plan is not None else ""
        tasks = ask.place(room) if plan is None else room.take(ask.shape, plan)
        if tasks is None:
            return False
        shape = self.situation.shapes[ask.shape]
        self.calendar.started(
            tasks,
            ask.line.duration_s,
            room,
            exclusive=shape.exclusive,
            matches=shape.matches,
        )
        self._began(ask, tasks, self._charge(ask, tasks))
        claim, progress = ask.progress.claim, ask.progress
        if ask.missing:
            element = claim.elements[0]
            self._grew(ask)
            action = "grow"
        else:
            element = claim.elements[progress.started]
            progress.started += 1
            self._may_grow(ask, element)
        self.placements.append(Placement(ask.job, element, tasks, action, why))
        self.takers.append((ask.job, tuple(task.node for task in tasks)))
        return True

    def _why(self, ask: request.PlacementRequest, room: Capacity, plan: GangPlacement) -> str:
        """How the nodes of a plan were chosen: the same words for all alike plans of a shape."""
        parts = plan.parts
        nodes = len({part.node for part in parts}) if len(parts) > 1 else len(parts)
        key = (ask.shape, plan.level, nodes, len(parts) > 1)
        if key not in self._whys:
            self._whys[key] = room.why(ask.shape, plan)
        return self._whys[key]

    def _may_grow(self, ask: request.PlacementRequest, element: int) -> None:
        """An elastic element that starts with its minimum asks for the rest in the same cycle."""
        if not self.grows[ask.shape] or ask.progress.claim.capped:
            return
        groups = self.situation.shapes[ask.shape].groups
        missing = tuple(
            (number, index)
            for number, group in enumerate(groups)
            for index in range(group.least, group.count)
        )
        claim = msgspec.structs.replace(
            ask.progress.claim, elements=(element,), startable=1, promised=0, missing=missing
        )
        self.queues[ask.queue].add(ask.progress.line, claim)

    def _grew(self, ask: request.PlacementRequest) -> None:
        """Missing tasks got room; what they join stays where it is in this cycle."""
        ask.progress.grown += len(ask.missing)
        row = self.rows.get((ask.job, ask.progress.claim.elements[0]))
        if row is not None:
            self.evictor.grew(row)
            self.mover.moved.add(row)

    def _began(
        self,
        ask: request.PlacementRequest,
        tasks: tuple[TaskPlacement, ...],
        charged: snapshots.Charge,
    ) -> None:
        """Note an element that could be evicted as soon as it runs."""
        if ask.firm or ask.missing or self.situation.queues.min_runtime_s[ask.queue] > 0:
            return
        shape = self.situation.shapes[ask.shape]
        ends_at = self.situation.now + ask.line.duration_s
        one = displacement.ReplaceableAllocation(
            ask.line.priority, charged, ends_at, tasks, shape.exclusive, shape.matches, partly=False
        )
        self.begun.setdefault(ask.queue, []).append(one)

    def _charge(
        self, ask: request.PlacementRequest, tasks: tuple[TaskPlacement, ...]
    ) -> snapshots.Charge:
        """Charge a queue for tasks; what it is charged."""
        cpu = memory = gpu = 0
        for task in tasks:
            cpu += task.amounts[0]
            memory += task.amounts[1]
            gpu += task.amounts[2]
        pool = self.situation.shapes[ask.shape].pool
        charged = flavors.charge((cpu, memory, gpu), pool, self.ledger.width)
        self.ledger.charge(ask.queue, charged, firm=ask.firm)
        self.evictor.unmeasured.change(ask.queue, charged, tasks)
        self.accruing.took(ask, charged)
        return charged

    def promise(self, ask: request.PlacementRequest, *, always: bool = False) -> bool:
        """Keep room that is coming free, and what is free beside it, for who can start with it.

        ``always``: also where there is room now, because a limit still stands in the way.
        """
        if self.later is self.now or (not always and ask.fits(self.now)):
            return False  # what fits now waits for a reservation, not for room
        room = self.calendar.coming_for(ask.line.duration_s)
        tasks = self._after(ask, self.situation.shapes[ask.shape].leaving).place(room)
        if tasks is None:
            return False
        if room is not self.later:
            shape = self.situation.shapes[ask.shape]
            self.later.hold(tasks, exclusive=shape.exclusive, matches=shape.matches)
        self._promised(ask, tasks, beside_s=ask.line.duration_s)
        return True

    @staticmethod
    def _after(ask: request.PlacementRequest, shape: int | None) -> request.PlacementRequest:
        """An ask by the shape for those who start once others have left; None: its own."""
        return ask if shape is None else msgspec.structs.replace(ask, shape=shape)

    def _promised(
        self,
        ask: request.PlacementRequest,
        tasks: tuple[TaskPlacement, ...],
        *,
        beside_s: float | None = None,
    ) -> None:
        self.clamp(tasks, beside_s=beside_s)
        self.evictor.promised(ask, tasks)
        self._charge(ask, tasks)
        if ask.missing:
            self._grew(ask)
        else:
            ask.progress.promised += 1
        self.promised[ask.job] = self.promised.get(ask.job, 0) + 1
        self.takers.append((ask.job, tuple(task.node for task in tasks)))
        stopping = tuple(sorted(set(self.stopping.get(ask.job, ()))))
        self.causes[ask.job, bool(ask.missing)] = reason_explainer.BlockReason(
            BlockKind.EVICTIONS, subject=ask.job, stopping=stopping
        )

    def make_room(self, ask: request.PlacementRequest) -> bool:
        """Move others, or evict them, so that an ask can start once they have left."""
        return self._move(ask) or self._evict(ask)

    def _split(self) -> None:
        """From now on what is coming free differs from what is free."""
        if self.later is self.now:
            self.later = self.now.copy()
            self.calendar.later = self.later
            self.evictor.later = self.later
            self.mover.later = self.later

    def _move(self, ask: request.PlacementRequest) -> bool:
        """Move work together so that the ask fits."""
        if not self.situation.policy.consolidate or ask.missing:
            return False
        ask = self._after(ask, self.situation.shapes[ask.shape].evicting)
        if not self.mover.may_find(ask):
            return False
        self._split()
        mark = self.later.mark()
        found = self.mover.find(ask)
        if found is None:
            return False
        if self._keeps_from_taking(ask, found):
            self.later.rollback(mark)
            self.mover.moved.difference_update(move.index for move in found[1])
            return False
        self._promised(ask, self._moved(ask, found))
        return True

    def _keeps_from_taking(
        self, ask: request.PlacementRequest, placed: consolidation.Placed
    ) -> bool:
        """Whether work would move to where somebody takes room soon who does not go after the ask.

        There it would be protected anew.
        """
        tasks, moves = placed
        nodes = {task.node for task in tasks}.union(
            *({task.node for task in move.tasks} for move in moves)
        )
        covered = self.ledger.covered
        return any(
            reservation.grace_s is not None
            and not self._is_below(reservation.ask, ask)
            and (
                reservation.ask.queue == ask.queue
                or not covered(ask.queue, ask.amounts)
                or covered(reservation.ask.queue, reservation.ask.amounts)
            )
            and any(task.node in nodes for task in reservation.tasks)
            for reservation in self.calendar.reservations
        )

    def _moved(
        self, ask: request.PlacementRequest, placed: consolidation.Placed
    ) -> tuple[TaskPlacement, ...]:
        """Return where an ask goes once what moves for it has moved."""
        tasks, moves = placed
        for move in moves:
            self._moves(ask, move.holding, move.tasks)
            self.clamp(move.tasks)
            self.evictor.pool.drop(move.index)
        return tasks

    def _moves(
        self,
        ask: request.PlacementRequest,
        holding: snapshots.Allocation,
        tasks: tuple[TaskPlacement, ...],
    ) -> None:
        """An element leaves for an ask and starts again where its tasks are placed."""
        why = reason_text.moved(self.situation, ask.job, tasks)
        self.evictions.append(
            EvictionDecision(holding.job, holding.element, ask.job, why, "consolidate")
        )
        self.gone.add((holding.job, holding.element))
        self.promised[holding.job] = self.promised.get(holding.job, 0) + 1
        self.takers.append((holding.job, tuple(task.node for task in tasks)))
        self.stopping.setdefault(ask.job, []).append(f"{holding.job}[{holding.element}]")

    def _evict(self, ask: request.PlacementRequest) -> bool:
        """Evict those from whom the ask may take."""
        policy = self.situation.policy
        if not (policy.reclaim or policy.preempt) or not self.evictor.may_find(ask):
            return False
        ask = self._after(ask, self.situation.shapes[ask.shape].evicting)
        self._split()
        found = self.evictor.find(ask, self.mover)
        if found is None or not found.units:
            return False  # without victims it would only take what is reserved for others
        tasks = self._moved(ask, found.placed) if found.placed else ask.place(self.later)
        if tasks is None:  # pragma: no cover - find() has just tried it
            raise AssertionError(f"{ask.job}: no room after its victims were found")
        self.mover.moved.update(unit.row for unit in found.units)
        moved = relocation.resettle(self, ask, found.units)
        whole = {unit.row for unit in found.units if not unit.spare}
        for unit in found.units:
            if unit.spare and unit.row in whole:
                continue
            if unit.row in moved:
                self._moves(ask, unit.holding, moved[unit.row])
                continue
            ground = "shrink" if unit.spare else found.ground
            leaving = tuple((t.group, t.index) for t in unit.tasks) if unit.spare else ()
            if not unit.spare:
                self.gone.add((unit.holding.job, unit.holding.element))
            why = reason_text.evicted(self.situation, self.ledger, ask, unit, found.ground)
            self.evictions.append(
                EvictionDecision(
                    unit.holding.job, unit.holding.element, ask.job, why, ground, leaving
                )
            )
            self.stopping.setdefault(ask.job, []).append(unit.name)
        self._promised(ask, tasks)
        return True

    def outranks(self, ask: request.PlacementRequest) -> bool:
        """A claim within its guarantees voids reservations of other queues that borrow.

        In its own queue who comes first has the guarantee, also where that has to come free for it.
        So does, of what may start now, one that could evict it at once, if that gives it room:
        else work would start only to leave again. What its own queue has reserved for a lower
        priority may be for later: it could be evicted then too, and the room lie idle till then.
        """
        covered = self.ledger.covered
        voided = covered(ask.queue, ask.amounts) and self.calendar.void(
            lambda r: r.ask.queue == ask.queue or covered(r.ask.queue, r.ask.amounts)
        )
        if voided and ask.fits(self.calendar.room_for(ask.line.duration_s)):
            return True
        now, there = self.situation.now, self.calendar.reservations
        loose = [r for r in there if r.starts_at <= now or self._is_below(r.ask, ask)]
        holders = displacement.yielding(self.evictor, ask, [r.ask for r in loose]) if loose else []
        if not holders:
            return voided
        gives_way = [r for r in loose if r.ask in holders]
        if self.calendar.gives_way(ask, gives_way):
            return True
        # who evicts goes before what is reserved for later as well
        due = any(r.starts_at <= now for r in gives_way)
        return due and self.calendar.gives_way(
            ask, gives_way + [r for r in there if r.starts_at > now and r not in gives_way]
        )

    @staticmethod
    def _is_below(holder: request.PlacementRequest, ask: request.PlacementRequest) -> bool:
        """Return True if a holder is of a lower priority in the same queue."""
        return holder.queue == ask.queue and holder.line.priority < ask.line.priority

    def _reserve(
        self, ask: request.PlacementRequest, *, again: bool
    ) -> reason_explainer.BlockReason | None:
        """Keep room in time for a blocked claim, as far as the policy goes.

        ``again``: it had a reservation, which stays with it whoever came since.
        """
        may = self._may_reserve(ask, again=again)
        if self.situation.policy.backfill != "none" and not ask.missing:
            self.reserved_in[ask.queue] = self.reserved_in.get(ask.queue, 0) + 1
        if not may:
            return None
        reservation = self.calendar.reserve(ask)
        if reservation is None:
            return None
        ahead = bool(self.takers) and not ask.progress.started
        return reason_explainer.BlockReason(
            BlockKind.HAS_RESERVATION, subject=ask.job, at=reservation.ready_at, ahead=ahead
        )

    def _may_reserve(self, ask: request.PlacementRequest, *, again: bool) -> bool:
        """Return True if the policy lets a blocked claim keep room in time."""
        policy = self.situation.policy
        if policy.backfill == "none" or ask.missing:
            return False
        many = len(self.calendar.reservations) >= reservation_calendar.most(policy)
        done = self.reserved_in.get(ask.queue, 0)
        if not again and (many or (policy.backfill == "easy" and done)):
            return False
        return len(self.calendar.reservations) < reservation_calendar.RESERVATIONS_MAX

    def _soonest(self, asks: list[request.PlacementRequest], *, again: bool) -> int:
        """In which of several pools a claim has room in time first; 0 where it gets none."""
        if len(asks) == 1 or not self._may_reserve(asks[0], again=again):
            return 0
        return self.calendar.soonest(asks)
