"""A search for the items that make an attempt fail, by halving groups."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Budget:
    """A limit on the attempts of one search.

    Args:
        attempts_max: more are never made.
        attempts_min: allowed whatever time they take, so that a search finds one item at least.
        seconds: after which only ``attempts_min`` count.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        attempts_max: int,
        *,
        attempts_min: int = 0,
        seconds: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempts_max = attempts_max
        self._attempts_min = attempts_min
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._attempts = 0

    def spend(self) -> bool:
        """Count one attempt. Return False if it must not be made."""
        is_late = self._clock() - self._began > self._seconds
        if self._attempts >= self._attempts_max or (
            is_late and self._attempts > self._attempts_min
        ):
            return False
        self._attempts += 1
        return True


class Bisection(Generic[T]):
    """Applies as many items as possible, halving each group that fails.

    A search whose budget is used up can go on later.

    Args:
        groups: tried in this order, each as a whole first.
        suspect_of: returns the item that an error names, if any. It is tried alone at once.
        parts_of: returns what a single item that fails can be divided into; empty if nothing.

    Attributes:
        failed: items that fail alone, with their errors.
        divided: items that failed alone and were divided.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[T]] = (),
        *,
        suspect_of: Callable[[Exception], T | None] = lambda _: None,
        parts_of: Callable[[T], Sequence[T]] = lambda _: (),
    ) -> None:
        self._groups = [list(group) for group in reversed(groups) if group]
        self._suspect_of = suspect_of
        self._parts_of = parts_of
        self.failed: list[tuple[T, Exception]] = []
        self.divided: list[T] = []

    @property
    def untried(self) -> list[T]:
        """Items of which it is not known whether they fail, in the order of the search."""
        return [item for group in reversed(self._groups) for item in group]

    def run(self, attempt: Callable[[list[T]], Exception | None], budget: Budget) -> None:
        """Search until nothing is left or the budget is used up.

        Args:
            attempt: applies a group and returns None, or changes nothing and returns the error.
            budget: of this call.
        """
        while self._groups and budget.spend():
            group = self._groups.pop()
            error = attempt(group)
            if error is not None:
                self.split(group, error)

    def split(self, group: Sequence[T], error: Exception) -> None:
        """Search in a group that has failed."""
        if len(group) == 1:
            self._split_item(group[0], error)
            return
        suspect = self._suspect_of(error)
        if suspect is not None and suspect in group:
            self._push([suspect], [item for item in group if item != suspect])
        else:
            self._push(*_halves(group))

    def _split_item(self, item: T, error: Exception) -> None:
        parts = self._parts_of(item)
        if parts:
            self.divided.append(item)
            self._push(*_halves(parts))
        else:
            self.failed.append((item, error))

    def _push(self, *groups: Iterable[T]) -> None:
        self._groups += [list(group) for group in reversed(groups)]


def _halves(items: Sequence[T]) -> tuple[Sequence[T], ...]:
    middle = len(items) // 2
    return tuple(half for half in (items[:middle], items[middle:]) if half)
