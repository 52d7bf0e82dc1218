"""Users take turns with their copies, and none has all places."""

import contextlib

import pytest

from agents.data import copy_queue
from agents.data.copy_queue import Copy, CopyQueue

ADA, BOB, CY, DAN = 1001, 1002, 1003, 1004


class Turns:
    """A queue in which copies wait, without threads that do."""

    def __init__(self, *waiting: Copy) -> None:
        self.queue = CopyQueue()
        self.queue._waiting = list(waiting)
        self.running: dict[Copy, contextlib.ExitStack] = {}

    def begin(self) -> list[int]:
        """Let those begin that may. Return whose they are, in that order."""
        begun = []
        while (copy := self.queue._next()) is not None:
            others = [other for other in self.queue._waiting if other is not copy]
            self.queue._waiting = []  # who takes a turn waits for none of them
            self.running[copy] = contextlib.ExitStack()
            self.running[copy].enter_context(self.queue.turn(copy))
            self.queue._waiting = others
            begun.append(copy.uid)
        return begun

    def end(self, uid: int) -> None:
        """End a copy of a user."""
        copy = next(copy for copy in self.running if copy.uid == uid)
        self.running.pop(copy).close()


def copy_of(uid: int, home: int | None = None) -> Copy:
    return Copy("", uid, timeout_s=60.0, home=home)


def test_a_user_who_is_alone_never_has_all_places() -> None:
    turns = Turns(*(copy_of(ADA) for _ in range(5)))
    assert turns.begin() == [ADA, ADA]
    turns.queue._waiting.append(copy_of(BOB))
    assert turns.begin() == [BOB]
    assert copy_queue.OF_ONE_USER_MAX < copy_queue.TOGETHER_MAX


def test_users_take_turns_whoever_came_first() -> None:
    waiting = [copy_of(ADA) for _ in range(4)] + [copy_of(BOB), copy_of(CY), copy_of(DAN)]
    turns = Turns(*waiting)
    assert turns.begin() == [ADA, BOB, CY]
    turns.end(ADA)
    assert turns.begin() == [DAN], "who had a turn comes after who had none"
    turns.end(BOB)
    assert turns.begin() == [ADA]
    turns.queue._waiting.append(copy_of(BOB))
    turns.end(CY)
    assert turns.begin() == [BOB], "who has one running comes after who has none"


@pytest.mark.parametrize("home", [ADA, None])
def test_one_copy_in_of_a_user_runs_at_a_time(home: int | None) -> None:
    turns = Turns(copy_of(ADA, home), copy_of(ADA, home), copy_of(BOB, BOB))
    expected = [ADA, BOB] if home else [ADA, BOB, ADA]
    assert turns.begin() == expected
