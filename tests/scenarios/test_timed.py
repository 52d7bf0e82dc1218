"""Who starts only to be told to leave, on clusters drawn in time."""

from tests.scenarios import timed


def test_hardly_anybody_starts_only_to_leave_at_once() -> None:
    """Whoever is owed something behind a larger claim of its queue that finds no room may do so."""
    told = {seed: timed.run(timed.drawn(seed))[0] for seed in range(100)}
    assert len([seed for seed, found in told.items() if found]) <= 1, told


def test_the_draws_hold_evictions() -> None:
    assert sum(timed.run(timed.drawn(seed))[1] for seed in range(10)) > 1
