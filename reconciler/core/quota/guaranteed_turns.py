"""Work that its queue's guarantee covers, which quotas of people let through first.

Such work can start, by taking back what others borrow. Work of the same person that waits for room
elsewhere would else hold the person's cap against it, and leave the guarantee to others.
"""

from collections.abc import Mapping, Sequence

from reconciler.model import desired


class GuaranteedTurns:
    """A count of what is left of the guarantees of queues in this cycle.

    Args:
        structure: has the queues.
        allocated: what runs, by queue, without queues below it.
    """

    def __init__(
        self, structure: desired.Structure, allocated: Mapping[str, Sequence[int]]
    ) -> None:
        self._queues = structure.queues
        self._used: dict[str, list[int]] = {}
        for queue, amounts in allocated.items():
            self.take(queue, amounts, 1)

    def covered(self, queue: str, each: Sequence[int], elements: int) -> int:
        """Return how many of some elements a guarantee on the way to the root covers.

        Args:
            queue: of the job.
            each: what one element takes.
            elements: how many could start.
        """
        above = desired.path_to_root(self._queues, queue)
        return max((self._left(one, each, elements) for one in above), default=0)

    def take(self, queue: str, each: Sequence[int], times: int) -> None:
        """Count elements that were let through."""
        for one in desired.path_to_root(self._queues, queue):
            used = self._used.setdefault(one, [0, 0, 0])
            for index, amount in enumerate(each):
                used[index] += times * amount

    def _left(self, queue: str, each: Sequence[int], elements: int) -> int:
        """Return how many elements fit in what is left of one guarantee; 0 if there is none."""
        used, counts = self._used.get(queue, (0, 0, 0)), []
        given = self._queues[queue].guaranteed.as_vector()
        for amount, has, more in zip(given, used, each, strict=True):
            if amount is not None and more:
                counts.append(max(0, amount - has) // more)
        return min([elements, *counts]) if counts else 0
