"""Who starts only to be told to leave, on clusters drawn in time."""

from collections.abc import Sequence

import pytest

from tests.scenarios import timed


@pytest.mark.parametrize("seeds", [range(100), [166, 539, 605, 722, 839, 1150, 1387, 1457]])
def test_nobody_starts_only_to_leave_at_once(seeds: Sequence[int]) -> None:
    """Those named did while who is owed something was not asked before who borrows."""
    told = {seed: timed.run(timed.drawn(seed))[0] for seed in seeds}
    assert [seed for seed, found in told.items() if found] == [], told


def test_the_draws_hold_evictions() -> None:
    assert sum(timed.run(timed.drawn(seed))[1] for seed in range(10)) > 1
