"""Who starts only to be told to leave, on clusters drawn in time."""

from tests.scenarios import timed


def test_nobody_starts_only_to_leave_at_once() -> None:
    told = {seed: timed.run(timed.drawn(seed))[0] for seed in range(100)}
    assert {seed: found for seed, found in told.items() if found} == {}


def test_the_draws_hold_evictions() -> None:
    assert sum(timed.run(timed.drawn(seed))[1] for seed in range(10)) > 1
