"""Turns of helpers that get code on a node: so many in all, and fewer of one person."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from agents.code import pack_cache


class CodeTurns:
    """Turns that any thread may take.

    Args:
        most: turns taken at the same time.
        own_most: those of one person, so that whose server hangs does not hold up all.
    """

    def __init__(self, most: int, own_most: int) -> None:
        self._most, self._own_most = most, own_most
        self._given_back = threading.Condition()
        self._taken = Counter[str]()

    @contextlib.contextmanager
    def held(self, owner: str, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn of a person, and give it back at the end.

        Raises:
            CodeUnwantedError: nobody waits for the code any more.
        """
        with self._given_back:
            while self._taken.total() >= self._most or self._taken[owner] >= self._own_most:
                self._given_back.wait(pack_cache.LOOK_S)
                if not is_wanted():
                    raise pack_cache.CodeUnwantedError
            self._taken[owner] += 1
        try:
            yield
        finally:
            self._give_back(owner)

    def _give_back(self, owner: str) -> None:
        with self._given_back:
            self._taken[owner] -= 1
            self._taken += Counter()  # without people who have none
            self._given_back.notify_all()
