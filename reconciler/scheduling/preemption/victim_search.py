"""The victims of one ask: gathered unit by unit until it would start, then none to be spared.

Units come in, in the order in which they may be taken; room and ledger follow as each is added, and
go back as they were where too few can be found. ``VictimRules`` says who may be taken.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from reconciler.scheduling.placement import request
from reconciler.scheduling.preemption import victim_rules, victims
from reconciler.scheduling.quota import quota_ledger


class VictimSearch:
    """The gathering of one ask's victims; room and ledger follow as they are added."""

    def __init__(self, evictor: victim_rules.VictimRules, ask: request.PlacementRequest) -> None:
        self.evictor = evictor
        self.ask = ask
        self.chosen: dict[tuple[int, int], victims.Victim] = {}
        self.losing: Counter[int] = Counter()
        self._version = evictor.ledger.version
        self._mark = evictor.later.mark()
        #: Whether it has no room for certain where nobody leaves.
        self._needs_some = not ask.missing and evictor.later.is_full_for(ask.shape)
        #: What units of the ask's own queue had.
        self.freed = evictor.ledger.nothing

    def gather(self, units: Iterator[victims.Victim]) -> bool:
        """Add units until the ask could start; False when there are too few."""
        evictor, since_test, step = self.evictor, 0, 1
        for unit in units:
            if evictor.budget <= 0:
                return False
            evictor.budget -= 1
            if not self._takes(unit):
                continue
            since_test += 1
            if since_test >= step:
                if self._would_start():
                    self._spare()
                    return True
                since_test, step = 0, max(1, len(self.chosen) // 4)
        if since_test and self._would_start():
            self._spare()
            return True
        return False

    def free(self, units: Iterator[victims.Victim], enough: Callable[[], bool]) -> bool:
        """Add units until shares let the ask start and all gaps together are ``enough`` for it.

        Whoever is not needed for that is let go again, dearest first.
        """
        evictor = self.evictor

        def would() -> bool:
            return enough() and evictor.may_start(self.ask, +self.losing)

        for unit in units:
            if evictor.budget <= 0:
                return False
            evictor.budget -= 1
            if not self._takes(unit):
                continue
            if would():
                self._let_go(would)
                return True
        return False

    def _takes(self, unit: victims.Victim) -> bool:
        """Add a unit where it may be taken, after all that can't stay without it."""
        if unit.key in self.chosen or not self.evictor.allowed(self.ask, unit):
            return False
        units = self.evictor.pool.units(unit.holding.queue)
        spare = [one for one in units.beside(unit) if one.key not in self.chosen]
        for one in spare:
            self._add(one)
        if spare and not self.evictor.allowed(self.ask, unit):
            for one in reversed(spare):
                self._drop(one)
            return False
        self._add(unit)
        return True

    def again(self, units: Iterable[victims.Victim]) -> None:
        """Take units that were let go."""
        for unit in units:
            self._add(unit)

    def _add(self, unit: victims.Victim) -> None:
        holding = unit.holding
        self.chosen[unit.key] = unit
        self.losing[holding.queue] += 1
        if holding.queue == self.ask.queue:
            self.freed = quota_ledger.added(self.freed, unit.total)
        self.evictor.ledger.release(holding.queue, unit.total)
        self.evictor.later.release(
            unit.tasks,
            exclusive=holding.exclusive and not unit.spare,
            matches=holding.matches,
            partly=unit.spare,
        )

    def _drop(self, unit: victims.Victim) -> None:
        holding = unit.holding
        del self.chosen[unit.key]
        self.losing[holding.queue] -= 1
        if holding.queue == self.ask.queue:
            self.freed = quota_ledger.added(self.freed, unit.total, -1)
        self.evictor.ledger.release(holding.queue, unit.total, -1)
        self.evictor.later.hold(
            unit.tasks,
            exclusive=holding.exclusive and not unit.spare,
            matches=holding.matches,
            partly=unit.spare,
        )

    def _would_start(self) -> bool:
        if not self.chosen and self._needs_some:
            return False
        losing = +self.losing
        own = set(losing) == {self.ask.queue}
        freed = self.freed if own else self.evictor.ledger.nothing
        if not self.evictor.may_start(self.ask, losing, freed):
            return False
        return self.ask.fits(self.evictor.later) and self.evictor.lasts(
            self.ask, self.chosen.values()
        )

    def _spare(self) -> None:
        """Let go whoever is not needed: first all beside the plan at once, then one by one."""
        if len(self.chosen) == 1:  # there is nobody beside it
            self._let_go(self._would_start)
            return
        later = self.evictor.later
        mark = later.mark()
        placed = self.ask.place(later)
        later.rollback(mark)
        nodes = {task.node for task in placed or ()}
        beside = [
            unit
            for unit in self.chosen.values()
            if not any(task.node in nodes for task in unit.tasks) and self._is_loose(unit)
        ]
        for unit in beside:
            self._drop(unit)
        if beside and not self._would_start():
            for unit in reversed(beside):
                self._add(unit)
        self._let_go(self._would_start)

    def _let_go(self, would: Callable[[], bool]) -> None:
        """Spare one by one, the last taken first, whom the ask needs not."""
        for unit in reversed(list(self.chosen.values())):
            if not self._is_loose(unit):
                continue
            self._drop(unit)
            if not would():
                self._add(unit)
        if not self.chosen:
            self.undo()

    def _is_loose(self, unit: victims.Victim) -> bool:
        """Spare tasks of an element can't stay when the element leaves."""
        if not unit.spare:
            return True
        return (unit.row, 0) not in self.chosen or not any(
            other.row == unit.row and not other.spare for other in self.chosen.values()
        )

    def settled(self) -> list[victims.Victim]:
        """The victims; what they hold is coming free from now on."""
        return sorted(self.chosen.values(), key=lambda unit: unit.rank)

    def undo(self) -> None:
        """Let everyone go."""
        ledger = self.evictor.ledger
        for unit in self.chosen.values():
            ledger.release(unit.holding.queue, unit.total, -1)
        self.chosen.clear()
        self.losing.clear()
        self.freed = ledger.nothing
        ledger.undone(self._version)
        self.evictor.later.rollback(self._mark)
