"""Explains why jobs are pending: true, counted, and in the same words for the same cause.

During the cycle a ``BlockReason`` is noted for each group, or job, that is passed over. This module
turns these into reasons at the end, when it is known what else started. Texts hold nothing that
changes while nothing happens.
"""

from dataclasses import replace

import msgspec
import numpy as np

from reconciler.model.observed.devices import INNER_LEVELS
from reconciler.model.state import pending_reasons
from reconciler.model.values import times
from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import quick_fit
from reconciler.scheduling.nodes.requirements import needs_inner
from reconciler.scheduling.placement.capacity import Capacity
from reconciler.scheduling.quota import quota_ledger
from reconciler.scheduling.reasons import amount_text, reason_text, room_reasons, window_text

__all__ = ["BlockReason", "ReasonExplainer"]

#: What is of no interest where it could not help: room, and evictions.
_MOOT = frozenset(
    {
        pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES,
        pending_reasons.ReasonCode.FRAGMENTED,
        pending_reasons.ReasonCode.NO_TOPOLOGY_DOMAIN,
        pending_reasons.ReasonCode.BEHIND,
        pending_reasons.ReasonCode.WAITING_FOR_QUOTA,
    }
)


class ReasonExplainer:
    """An explainer of block reasons, once for all jobs of one queue, shape and cause."""

    def __init__(
        self,
        situation: snapshots.Snapshot,
        ledger: quota_ledger.QuotaLedger,
        now: Capacity,
        takers: list[tuple[str, tuple[int, ...]]],
        first: Capacity,
    ) -> None:
        """Take the end of a cycle.

        Args:
            situation: the snapshot.
            ledger: quota at the end.
            now: free capacity at the end.
            takers: jobs that got capacity in this cycle, and its nodes.
            first: free capacity when the cycle began.
        """
        self.situation = situation
        self.ledger = ledger
        self.bounds = amount_text.QuotaReasons(situation, ledger)
        self.now = now
        self.takers = takers
        self._rooms = room_reasons.RoomReasons(situation, now)
        self._first = first
        #: Who got room first on nodes of a mask, by the mask's identity.
        self._takers_on: dict[int, tuple[str, ...]] = {}
        #: (s,) plain shapes that fit on idle nodes, and that had room when the cycle began.
        self._alone: snapshots.Mask | None = None
        self._plain: snapshots.Mask | None = None
        self._never: dict[int, pending_reasons.Reason | None] = {}
        self._room: dict[tuple[int, bool], pending_reasons.Reason] = {}

    def reasons_for(
        self, line: snapshots.PendingGroup, cause: BlockReason
    ) -> tuple[pending_reasons.Reason, ...]:
        """Return the reasons of a job in order of precedence."""
        if cause.shape >= 0:
            return self._of_pools(line, cause)
        if cause.kind == BlockKind.NEVER:
            return self._of_never(line)
        main, waits = (
            self._main(line, cause),
            cause.kind in {BlockKind.NO_CAPACITY, BlockKind.HAS_RESERVATION},
        )
        found = [self.bounds.as_shrunk(line, main) if waits else main]
        lasting = [] if cause.kind == BlockKind.ARRAY else self._lasting(line, cause)
        if lasting:
            found = [reason for reason in found if reason.code not in _MOOT]
        return tuple(
            sorted([*found, *lasting], key=lambda reason: pending_reasons.PRECEDENCE[reason.code])
        )

    def _of_never(self, line: snapshots.PendingGroup) -> tuple[pending_reasons.Reason, ...]:
        """Return why an untried job could never start; () if it could."""
        by_pool = []
        for number in (line.shape, *line.others):
            in_pool = msgspec.structs.replace(line, shape=number, others=())
            excess = self.bounds.beyond_limits(line, self.situation.shapes[number])
            found = self._lasting(in_pool, BlockReason(BlockKind.NEVER))
            found += [] if excess is None else [self.bounds.over_limit(excess)]
            if not found:
                return ()
            by_pool.append(found)
        flags = self.situation.queues.suspended
        held = [self._suspended(queue) for queue in self.ledger.paths[line.queue] if flags[queue]]
        open_pools = pending_reasons.of_open_pools(pending_reasons.of_fitting_pools(by_pool))
        ways = (reason for reasons in open_pools for reason in reasons)
        return tuple(
            sorted(
                dict.fromkeys([*held[:1], *ways]),
                key=lambda reason: pending_reasons.PRECEDENCE[reason.code],
            )
        )

    def _lasting(
        self, line: snapshots.PendingGroup, cause: BlockReason
    ) -> list[pending_reasons.Reason]:
        """Return why a job could never start as things are; of several pools only if in all."""
        by_pool = []
        for number in (line.shape, *line.others):
            shape = self.situation.shapes[number]
            alone = (
                None if cause.kind == BlockKind.QUOTA else self.bounds.too_much_alone(line, shape)
            )
            lent = self.bounds.beyond_lending(line, shape)
            found = [reason for reason in (self.never(number), alone, lent) if reason is not None]
            if not found:
                return []
            by_pool.append(found)
        return list(pending_reasons.of_fitting_pools(by_pool)[0])

    def _of_pools(
        self, line: snapshots.PendingGroup, cause: BlockReason
    ) -> tuple[pending_reasons.Reason, ...]:
        """Return the reasons in each pool that a job may use; those of pools that never fit only if
        all do not.

        That it can never start is said once, as for a job that was tried nowhere. If a limit bars
        one pool for good, the reasons in the others are given, and that limit.
        """
        first = replace(cause, shape=-1, elsewhere=())
        parts = [
            (msgspec.structs.replace(line, shape=shape, others=()), one)
            for shape, one in ((cause.shape, first), *cause.elsewhere)
        ]
        by_pool = [self.reasons_for(*part) for part in parts]
        return reason_text.of_pools(self.situation, [part.shape for part, _ in parts], by_pool)

    def _suspended(self, queue: int) -> pending_reasons.Reason:
        queues = self.situation.queues
        name = queues.names[queue]
        by = queues.suspended_by.get(name)
        if by is None:
            message = f"queue {name} is suspended"
            unblocks = (
                f"run `muster resume queue/{name}`, or set spec.suspend: false in Queue {name}"
            )
        else:
            message = f"queue {name} is suspended {by}"
            unblocks = f"run `muster resume queue/{name} --override`, or wait until that ends"
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.HELD,
            message,
            unblocks=unblocks,
            waits_for=pending_reasons.WaitsFor.RESUME,
        )

    def _main(self, line: snapshots.PendingGroup, cause: BlockReason) -> pending_reasons.Reason:
        if cause.kind == BlockKind.SUSPENDED:
            return self._suspended(cause.queue)
        if cause.kind == BlockKind.STRICT:
            name = self.situation.queues.names[cause.queue]
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.BEHIND,
                f"{cause.subject} goes first, and nobody passes it in queue {name}, "
                "which is strict",
                unblocks=f"wait for the start of {cause.subject}, or set spec.ordering: "
                f"best-effort in Queue {name}",
                waits_for=pending_reasons.WaitsFor.FIRST_IN_QUEUE,
            )
        if cause.kind == BlockKind.ARRAY and cause.held_back is not None:
            return cause.held_back
        if cause.kind == BlockKind.ARRAY:
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.ARRAY_LIMIT,
                "as many of its elements run as its parallelism allows",
                unblocks="wait for the end of a running element, or raise spec.array.parallelism",
            )
        if cause.kind == BlockKind.EVICTIONS:
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.WAITING_FOR_EVICTIONS,
                f"room is kept for it until {reason_text.leaving(self.situation, cause.stopping)} "
                "stopped",
                unblocks="wait until the stopping work has stopped",
            )
        if cause.kind == BlockKind.WOULD_DELAY and self.now.plan(line.shape) is None:
            return self._no_room(line.shape, behind=True)  # who had it reserved has started
        if cause.kind == BlockKind.WOULD_DELAY:
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.RESERVED,
                f"it would fit now, but it could still run when room is due to {cause.subject} "
                f"at {times.format_time(cause.at)}{reason_text.reserved_from(cause.until)}",
                unblocks=f"wait for the start of {cause.subject}, or set a shorter timeLimit",
            )
        if cause.excess is not None:
            if cause.kind == BlockKind.LIMIT:
                never = self.bounds.beyond_limits(line, self.situation.shapes[line.shape])
                return self.bounds.over_limit(never or cause.excess)
            if cause.kind == BlockKind.LENDING:
                return self.bounds.over_lending(cause.excess)
            return self.bounds.over_guarantee(line, cause.excess)
        reason = self._no_room(line.shape, behind=cause.ahead)
        if cause.kind == BlockKind.HAS_RESERVATION:
            message = f"{reason.message}{reason_text.reserved_from(cause.at)}"
            return msgspec.structs.replace(reason, message=message)
        return reason

    def could_start(self, line: snapshots.PendingGroup) -> bool:
        """Return True if a job could ever start as queues and nodes are: otherwise no start can be
        estimated.
        """
        queues, shape = self.situation.queues, self.situation.shapes[line.shape]
        if line.others and any(
            self.could_start(msgspec.structs.replace(line, shape=other, others=()))
            for other in line.others
        ):
            return True
        if any(queues.suspended[queue] for queue in self.ledger.paths[line.queue]):
            return False
        bounds = self.bounds
        return (
            bounds.beyond_limits(line, shape) is None
            and bounds.too_much_alone(line, shape) is None
            and bounds.beyond_lending(line, shape) is None
            and self.never(line.shape) is None
        )

    def never_starts(self, line: snapshots.PendingGroup, *, had_room: bool) -> bool:
        """Return True if no nodes could ever hold a job, or others never lend enough.

        ``had_room``: its shape fitted when the cycle began, so nodes need no check. Affinity to
        work of its own kind is judged differently on an idle cluster.
        """
        shape = self.situation.shapes[line.shape]
        if self.bounds.beyond_lending(line, shape) is not None:
            return True
        never = None if had_room else self.never(line.shape)
        if never is None:
            return False
        near = never.code is not pending_reasons.ReasonCode.NEVER_FITS and bool(shape.affinities)
        return never.never_fits and not near

    def never(self, index: int) -> pending_reasons.Reason | None:
        """Return why no element of a shape could start on an empty cluster, if so.

        If only windows that begin too soon, or missing volumes, are the cause, the reason is a
        passing one.
        """
        if index not in self._never:
            self._never[index] = self._never_fits(index)
        return self._never[index]

    def _never_fits(self, index: int) -> pending_reasons.Reason | None:
        if not len(self.situation.nodes.names):
            return pending_reasons.Reason(
                pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES,
                pending_reasons.NONE_YET,
                unblocks="wait for agents to report, or start one on a node that a pool declares",
                waits_for=pending_reasons.WaitsFor.NODES,
            )
        if self._fits_alone(index):
            return None
        empty = self._rooms.idle()
        if empty.fits(index):
            return None
        shape = self.situation.shapes[index]
        if shape.unreserved is not None:
            fits, funnel = self._rooms.fits_beside(shape), empty.funnel(index)
            found = self.never(shape.unreserved)
            return found or window_text.reason(self.situation, shape, funnel, fits)
        if shape.mountable is not None and self._fits_on(shape, shape.mountable):
            return self._volume_missing(shape, empty.funnel(index))
        short = None
        for position, group in enumerate(shape.groups):
            there = int(empty.counts(index, position).sum())
            if there < group.least:
                short = (group, there)
                break
        if short is None and not empty.is_certain(index):
            return None  # the search for several groups was cut short: it may fit all the same
        asked = self._rooms.asked(shape)
        code = pending_reasons.ReasonCode.NEVER_FITS
        unblocks = self._mended(shape)
        if short is not None and short[1] == 0:
            task = reason_text.task_text(self.situation, short[0])
            message = f"no node that has joined could ever hold a task of {task}"
            if len(shape.eligible) and not shape.eligible.any():
                why = ", ".join(step.why for step in shape.filtered)
                message = f"it may use no node that has joined: {why}; a task asks for {task}"
        elif short is not None:
            message = (
                f"{asked} asked; were they empty, the nodes would hold {short[1]} of "
                f"{short[0].least} such tasks"
            )
        elif room_reasons.has_domains(shape):
            code = pending_reasons.ReasonCode.NO_TOPOLOGY_DOMAIN
            level = room_reasons.level_of(self.situation, shape)
            message = f"{asked} asked within one {level}; none is large enough"
            unblocks = f"require a wider level than {level}, or add nodes to one {level}"
        else:
            message = f"{asked} do not fit together, were all nodes empty"
        return pending_reasons.Reason(code, message, empty.funnel(index), unblocks, never=True)

    @staticmethod
    def _could_hold(nodes: snapshots.NodeColumns, shape: snapshots.Shape) -> snapshots.Mask:
        """Return (n,) nodes that could hold a task of each group, were they idle."""
        found: snapshots.Mask = np.ones(len(nodes.names), dtype=np.bool_)
        for group in shape.groups:
            found &= (nodes.capacity >= group.amounts).all(axis=1)
        return found

    def _mended(self, shape: snapshots.Shape) -> str:
        """Return what would let a shape start that none of its nodes can hold."""
        able = self._could_hold(self.situation.nodes, shape) if shape.mends else None
        found = [words for words, nodes in shape.mends if able is None or (nodes & able).any()]
        found = found[: pending_reasons.NAMES_MAX] + self._layouts(shape)
        some = bool(shape.eligible.any())
        found.append(f"add nodes that {'can hold it' if some else 'it may use'}")
        found += ["ask for less"] if some else []
        return ", or ".join(found)

    def _layouts(self, shape: snapshots.Shape) -> list[str]:
        """Return the layout of GPUs to declare, if only that is unknown."""
        nodes, found = self.situation.nodes, []
        able = self._could_hold(nodes, shape) & shape.eligible
        for group in shape.groups:
            if not needs_inner(group) or group.inner_preferred:
                continue
            known: snapshots.Mask = np.zeros(len(able), dtype=np.bool_)
            if nodes.inner:
                known = np.logical_or.reduce(nodes.inner[group.inner] >= 0, axis=1)
            if (able & ~known).any():
                words = f"declare nodes.gpus.{INNER_LEVELS[group.inner]} in their pool"
                found += [] if words in found else [words]
        return found

    def _fits_on(self, shape: snapshots.Shape, more: snapshots.Mask) -> bool:
        """Return True if a shape would fit on idle nodes if it could use some more of them."""
        wider = replace(shape, eligible=shape.eligible | more, unreserved=None, form="")
        holdings = tuple(replace(holding, shape=-1) for holding in self.situation.holdings)
        bare = replace(self.situation, shapes=(wider,), lines=(), holdings=holdings, mix=())
        return Capacity.empty(replace(bare, line_columns=None)).fits(0)

    def _volume_missing(
        self, shape: snapshots.Shape, funnel: tuple[pending_reasons.FunnelStep, ...]
    ) -> pending_reasons.Reason:
        names = pending_reasons.names_text(shape.missing)
        several = len(shape.missing) > 1
        problems = [step.why for step in funnel if step.why.startswith("volume ")]
        why = f" ({'; '.join(problems[: pending_reasons.NAMES_MAX])})" if problems else ""
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.INSUFFICIENT_RESOURCES,
            f"volume{'s' if several else ''} {names} {'are' if several else 'is'} not there now "
            f"on the nodes that could hold {self._rooms.asked(shape)}{why}",
            funnel,
            f"mount {names} there as the Volume says",
        )

    def _fits_alone(self, index: int) -> bool:
        """Return True if a plain task, or gang, certainly fits on idle nodes, by amounts alone."""
        if self._alone is None:
            nodes, masks = self.situation.nodes, self.now.masks
            self._alone = quick_fit.fitting(
                self.now.sizes, lambda number: quick_fit.kinds(nodes, masks[number])
            ) | quick_fit.fitting_gangs(
                self.now.demanded, lambda number: quick_fit.counted_kinds(nodes, masks[number])
            )
        return bool(self._alone[index])

    def _no_room(self, index: int, *, behind: bool) -> pending_reasons.Reason:
        key = (index, behind)
        if key not in self._room:
            found = self._behind(index) if behind else None
            self._room[key] = found or self._rooms.insufficient(index)
        return self._room[key]

    def _behind(self, index: int) -> pending_reasons.Reason | None:
        """Return the reason if it fitted when the cycle began and others took the capacity."""
        if self._plain is None:
            self._plain = self._first.plain()
        if not (self._plain[index] or self._first.fits(index)):
            return None
        shape = self.situation.shapes[index]
        names = pending_reasons.names_text(self._ahead(shape.eligible))
        return pending_reasons.Reason(
            pending_reasons.ReasonCode.BEHIND,
            f"it would fit, but others go first: {names}",
            unblocks=f"wait until {self._rooms.asked(shape)} come free and no other job goes first",
        )

    def _ahead(self, eligible: snapshots.Mask) -> tuple[str, ...]:
        """Return the first job that got capacity on nodes of a shape."""
        known = self._takers_on.get(id(eligible))
        if known is None:
            first: dict[str, None] = {}
            for job, nodes in self.takers:
                if any(eligible[node] for node in nodes):
                    first[job] = None
                if len(first) > pending_reasons.NAMES_MAX:
                    break
            known = self._takers_on[id(eligible)] = tuple(first)
        return known
