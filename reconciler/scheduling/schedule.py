"""One scheduling decision: a snapshot comes in, what starts, what leaves and why go out.

The cycle first keeps room for claims that others were evicted for already, then goes from claim
to claim in the order of ``order``: it starts what fits, keeps room that is coming free for who
can start with it, evicts for those who may, and notes for everyone else what stands in the way.
It never looks at a clock, and the order of what comes in does not matter.
"""

from dataclasses import dataclass, field

from reconciler.model import reasons
from reconciler.scheduling import explain, order, placement, preemption, quota, snapshot
from reconciler.scheduling import stock as stocks
from reconciler.scheduling.decisions import Decisions, Eviction, Placement

#: What claims of a queue have in common when one that fails speaks for the others.
Alike = tuple[int, bool, int]


def schedule(situation: snapshot.Snapshot) -> Decisions:
    """Decide what starts, what has to leave, and why everything else waits."""
    return _Cycle(situation).run()


@dataclass(slots=True)
class _Progress:
    """How far a claim has come in this cycle."""

    claim: snapshot.Claim
    asked: quota.Vector
    started: int = 0
    promised: int = 0
    cause: explain.Cause | None = None
    stopping: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Elements that may still start in this cycle."""
        claim = self.claim
        return min(claim.startable, len(claim.elements)) - self.started - self.promised

    @property
    def alike(self) -> Alike:
        return (self.claim.shape, self.claim.preemptible, self.claim.priority)


class _Cycle:
    """The state of one call."""

    def __init__(self, situation: snapshot.Snapshot) -> None:
        self.situation = situation
        self.ledger = quota.of(situation)
        self.stock = stocks.Stock(situation)
        self.victims = preemption.Victims(situation, self.ledger, self.stock)
        self.tree = order.Tree(self.ledger)
        totals = [shape.total for shape in situation.shapes]
        count = len(situation.queues.names)
        waiting: list[list[snapshot.Claim]] = [[] for _ in range(count)]
        for claim in situation.claims:
            waiting[claim.queue].append(claim)
        self.lines = [
            [_Progress(claim, totals[claim.shape]) for claim in order.in_queue(claims)]
            for claims in waiting
        ]
        self.positions = [0] * count
        self.blocked: list[dict[Alike, explain.Cause]] = [{} for _ in range(count)]
        self.placements: list[Placement] = []
        self.evictions: list[Eviction] = []
        self.takers: list[tuple[str, tuple[int, ...]]] = []

    def run(self) -> Decisions:
        """Go through all claims once."""
        self._suspend()
        self._keep_promises()
        for queue, line in enumerate(self.lines):
            if line:
                self.tree.put(queue, self._next(queue))
        turns_max = 2 * sum(p.left + 2 for line in self.lines for p in line)
        for _ in range(turns_max):
            turn = self.tree.first()
            if turn is None:
                break
            self._turn(*turn)
        return self._decisions()

    def _suspend(self) -> None:
        flags = self.situation.queues.suspended
        for queue, line in enumerate(self.lines):
            by = explain.suspended_by(self.ledger, flags, queue)
            if by >= 0:
                for progress in line:
                    progress.cause = explain.Cause("suspended", queue=by)
                self.positions[queue] = len(line)

    # What was promised in earlier cycles

    def _keep_promises(self) -> None:
        """Claims that others were evicted for get their room before anyone else."""
        leaving: dict[str, list[snapshot.Holding]] = {}
        for holding in sorted(self.situation.holdings, key=lambda h: (h.job, h.element)):
            if holding.leaving:
                self.stock.add(self.stock.coming, holding.tasks)
                leaving.setdefault(holding.leaving_for, []).append(holding)
        awaiting = [
            progress
            for queue, line in enumerate(self.lines)
            for progress in line[self.positions[queue] :]
            if progress.claim.promised or progress.claim.job in leaving
        ]
        awaiting.sort(key=self._promise_order)
        for progress in awaiting:
            for holding in leaving.get(progress.claim.job, ()):
                self.stock.add(self.stock.reserved, holding.tasks)
        for progress in awaiting:
            own = leaving.get(progress.claim.job, [])
            for node, amounts, _ in (task for holding in own for task in holding.tasks):
                if self.stock.accepts[node]:
                    self.stock.reserved[node] -= amounts
            progress.stopping = [f"{h.job}[{h.element}]" for h in own]
            due = progress.claim.promised or len(own)
            for _ in range(min(due, progress.left)):
                if not (self._start(progress, 1) or self._promise(progress, to_all=True)):
                    break

    def _promise_order(self, progress: _Progress) -> tuple[bool, int, int, str]:
        claim = progress.claim
        covered = self.ledger.covers(claim.queue, progress.asked, (0, 0, 0))
        return (not covered, -claim.priority, claim.order, claim.job)

    # One turn

    def _next(self, queue: int) -> order.Head | None:
        """Pass over claims that can't start nor evict; the next one that might."""
        line, blocked = self.lines[queue], self.blocked[queue]
        while self.positions[queue] < len(line):
            progress = line[self.positions[queue]]
            if progress.left > 0:
                cause = blocked.get(progress.alike)
                if cause is None:
                    cause = self._hopeless(progress)
                    if cause is None:
                        return (progress.claim, progress.asked)
                    blocked[progress.alike] = cause
                progress.cause = cause
            self.positions[queue] += 1
        return None

    def _gate(self, progress: _Progress, *, settled: bool = False) -> explain.Cause | None:
        """A limit, or for firm work a guarantee, that forbids one more element."""
        claim = progress.claim
        excess = self.ledger.over_limit(claim.queue, progress.asked, settled=settled)
        if excess is not None:
            return explain.Cause("limit", excess)
        if not claim.preemptible:
            excess = self.ledger.over_guarantee(claim.queue, progress.asked)
            if excess is not None:
                return explain.Cause("quota", excess)
        return None

    def _hopeless(self, progress: _Progress) -> explain.Cause | None:
        """Why one more element can neither start nor get room by evictions; None if it may."""
        cause = self._gate(progress)
        if cause is None and self.stock.fits(progress.claim.shape):
            return None
        if self._later_plan(progress) is not None:
            return None
        if self.victims.could_help(self._asking(progress)):
            return None
        return cause or explain.Cause("room", ahead=len(self.takers))

    def _turn(self, queue: int, rivals: list[tuple[int, order.Key]]) -> None:
        progress = self.lines[queue][self.positions[queue]]
        head = (progress.claim, progress.asked)
        if self.tree.key(queue, head) != self.tree.own[queue]:
            self.tree.put(queue, head)
            return
        most = self.tree.turns(queue, head, rivals, self._allowed(progress))
        if not (self._start(progress, most) or self._promise(progress) or self._evict(progress)):
            self.blocked[queue][progress.alike] = (
                self._hopeless(progress)
                or self._gate(progress)
                or explain.Cause("room", ahead=len(self.takers))
            )
        self.tree.put(queue, self._next(queue))

    def _allowed(self, progress: _Progress) -> int:
        claim = progress.claim
        allowed = self.ledger.startable(claim.queue, progress.asked, firm=not claim.preemptible)
        return max(1, min(progress.left, allowed))

    def _start(self, progress: _Progress, most: int) -> bool:
        """Start up to ``most`` elements; whether any did."""
        claim = progress.claim
        if self._gate(progress) is not None:
            return False
        started = self.stock.start(claim.shape, most)
        waiting = claim.elements[progress.started : progress.started + len(started)]
        for element, tasks in zip(waiting, started, strict=True):
            self.placements.append(Placement(claim.job, element, tasks))
        progress.started += len(started)
        self.ledger.charge(claim.queue, progress.asked, len(started), firm=not claim.preemptible)
        if started:
            nodes = {task.node for tasks in started for task in tasks}
            self.takers.append((claim.job, tuple(sorted(nodes))))
        return bool(started)

    def _asking(self, progress: _Progress) -> preemption.Asking:
        claim = progress.claim
        shape = self.situation.shapes[claim.shape]
        return preemption.Asking(claim, shape, progress.asked, self.stock.usable(claim.shape))

    def _later_plan(
        self, progress: _Progress, *, everything: bool = False
    ) -> placement.Plan | None:
        """Where an element would go once all that is leaving already has left."""
        if self._gate(progress, settled=True) is not None:
            return None
        index = progress.claim.shape
        shape, usable = self.situation.shapes[index], self.stock.usable(index)
        room = self.stock.later(everything=everything)
        # Where something is leaving first: what is free elsewhere can be used at once.
        there = usable & self.stock.coming.any(axis=1)
        return placement.plan_element(room, shape, there) or placement.plan_element(
            room, shape, usable
        )

    def _promise(self, progress: _Progress, *, to_all: bool = False) -> bool:
        """Keep room for one element in what is free and coming free; whether it is enough."""
        plan = self._later_plan(progress)
        if plan is None and to_all:
            plan = self._later_plan(progress, everything=True)
        if plan is None:
            return False
        self.stock.promise(progress.claim.shape, plan)
        claim = progress.claim
        self.ledger.charge(claim.queue, progress.asked, firm=not claim.preemptible)
        progress.promised += 1
        self.takers.append((progress.claim.job, tuple(sorted({part.node for part in plan}))))
        return True

    def _evict(self, progress: _Progress) -> bool:
        """Find victims for one element and keep the room that they leave."""
        claim = progress.claim
        victims = self.victims.find(self._asking(progress))
        if not victims:
            return False
        self.victims.remove(victims)
        names = self.situation.queues.names
        for victim in victims:
            holding = victim.holding
            if holding.queue == claim.queue:
                why = f"{claim.job} of priority {claim.priority} goes before {holding.priority}"
            else:
                why = f"queue {names[claim.queue]} takes back what it is guaranteed"
            self.evictions.append(Eviction(holding.job, holding.element, claim.job, why))
            progress.stopping.append(f"{holding.job}[{holding.element}]")
        return self._promise(progress)

    # The outcome

    def _decisions(self) -> Decisions:
        explainer = explain.Explainer(self.situation, self.ledger, self.stock, self.takers)
        found: dict[str, tuple[reasons.Reason, ...]] = {}
        reason_of: dict[str, str] = {}
        keys: dict[tuple[int, int, bool, explain.Cause], str] = {}
        for line in self.lines:
            for progress in line:
                claim = progress.claim
                if progress.started == len(claim.elements):
                    continue
                cause = self._cause(progress)
                alike = (claim.queue, claim.shape, claim.preemptible, cause)
                key = keys.get(alike)
                if key is None:
                    key = keys[alike] = explainer.key(claim, cause)
                    if key not in found:
                        found[key] = explainer.told(claim, cause)
                reason_of[claim.job] = key
        promised = {
            p.claim.job: p.promised
            for p in sorted((p for line in self.lines for p in line), key=lambda p: p.claim.job)
            if p.promised
        }
        return Decisions(tuple(self.placements), tuple(self.evictions), found, reason_of, promised)

    def _cause(self, progress: _Progress) -> explain.Cause:
        """What the elements of a claim that are left wait for."""
        if progress.promised:
            stopping = tuple(sorted(set(progress.stopping)))
            return explain.Cause("evictions", subject=progress.claim.job, stopping=stopping)
        if progress.left <= 0:
            return explain.Cause("array")
        if progress.cause is None:
            return explain.Cause("room", ahead=len(self.takers))
        if progress.started and progress.cause.kind == "room":
            return explain.Cause("room")
        return progress.cause
