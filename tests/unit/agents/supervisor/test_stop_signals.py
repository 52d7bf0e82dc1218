"""Which processes of a task get the signal that asks it to save."""

import os
import signal

import pytest

from agents.supervisor import stop_signals
from agents.supervisor.stop_signals import SignalFacts

MAIN = 10


def process(
    parent: int = 1, group: int = MAIN, *, handles: bool = False, stack: int = 0
) -> SignalFacts:
    return SignalFacts(parent, group, handles, stack)


SHELL = {MAIN: process()}
TRAINS = {11: process(MAIN, handles=True, stack=7)}
#: A fork of it, another program that it runs, and one that reads what it prints.
HELPERS = {12: process(11, handles=True, stack=7), 13: process(11, stack=8), 14: process(MAIN)}
RANK = {15: process(11, handles=True, stack=9)}
#: A launcher with and without a handler, and its workers in sessions of their own.
DEAF, HEARS = {MAIN: process()}, {MAIN: process(handles=True, stack=1)}
BELOW_DEAF = {16: process(MAIN), 20: process(16, 20, handles=True)}
WORKERS = {20: process(MAIN, 20, handles=True, stack=2), 21: process(20, 20, handles=True, stack=2)}


@pytest.mark.parametrize(
    ("task", "main", "everywhere"),
    [
        (SHELL, [10], [10]),
        (SHELL | {14: process(MAIN, 14)}, [10, 14], [10, 14]),
        (SHELL | TRAINS, [10, 11], [10, 11]),
        (SHELL | TRAINS | HELPERS, [10, 11], [10, 11, 12]),
        (SHELL | TRAINS | RANK, [10, 11, 15], [10, 11, 15]),
        (DEAF | WORKERS, [10, 20], [10, 20, 21]),
        # whoever is above comes first, whatever the ids are
        ({MAIN: process(), 5: process(9), 9: process(MAIN)}, [10, 9, 5], [10, 9, 5]),
        (DEAF | BELOW_DEAF, [10, 16, 20], [10, 16, 20]),
        (HEARS | WORKERS, [10], [10, 20, 21]),
        # nothing is known of stacks: rather twice than not at all
        ({MAIN: process(handles=True), 11: process(MAIN, handles=True)}, [10, 11], [10, 11]),
        # it has just ended
        (TRAINS, [10, 11], [10, 11]),
    ],
)
def test_who_is_told(task: dict[int, SignalFacts], main: list[int], everywhere: list[int]) -> None:
    assert stop_signals.receivers(MAIN, task, stop_signals.MAIN) == main
    assert stop_signals.receivers(MAIN, task, stop_signals.ALL) == everywhere


def test_facts_of_processes_tell_handlers_and_forks() -> None:
    own = os.getpid()
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    read, write = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        facts = stop_signals.facts_of([own, child, 2**22 + 1], signal.SIGUSR2)
        assert facts.keys() == {own, child}
        assert facts[child] == facts[own]._replace(parent=own)
        assert facts[own].handles
        assert facts[own].stack != 0
        assert facts[own].group == os.getpgrp()
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not stop_signals.facts_of([own], signal.SIGUSR2)[own].handles
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        assert not stop_signals.facts_of([own], signal.SIGUSR2)[own].handles
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR2, before)
        os.close(read)
        os.close(write)
        os.waitpid(child, 0)
    assert stop_signals.facts_of([child], signal.SIGUSR2) == {}


def test_a_signal_that_this_system_lacks_is_sigterm() -> None:
    assert stop_signals.number_of("SIGUSR1") == signal.SIGUSR1
    assert stop_signals.number_of("SIGNONE") == signal.SIGTERM
