"""One person's helpers never take all turns, and who is not wanted any more leaves the line."""

import contextlib
import threading

from agents.code import code_turns, pack_cache


def _is_there_one(turns: code_turns.CodeTurns, owner: str) -> bool:
    """Return True if a person gets a turn without waiting."""
    try:
        with turns.held(owner, lambda: False):
            return True
    except pack_cache.CodeUnwantedError:
        return False


def test_one_person_takes_a_part_of_the_turns() -> None:
    turns = code_turns.CodeTurns(4, 2)
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(turns.held("ada", lambda: True))
        assert not _is_there_one(turns, "ada")
        assert _is_there_one(turns, "bob")
        for owner in ("bob", "eve"):
            held.enter_context(turns.held(owner, lambda: True))
        assert not _is_there_one(turns, "bob")
    assert _is_there_one(turns, "ada")


def test_a_turn_that_is_given_back_goes_to_who_waits() -> None:
    turns = code_turns.CodeTurns(1, 1)
    got, looked = threading.Event(), threading.Event()

    def is_wanted() -> bool:
        looked.set()
        return True

    def work() -> None:
        with turns.held("bob", is_wanted):
            got.set()

    thread = threading.Thread(target=work)
    with turns.held("ada", lambda: True):
        thread.start()
        assert looked.wait(60)
        assert not got.is_set()
    assert got.wait(60)
    thread.join()
