"""Thirty kills at named points and at random while jobs run; `make crash` has three hundred."""

from pathlib import Path

import pytest

from tests.crash import storm


@pytest.mark.slow
def test_whatever_is_killed_every_job_ends_once_with_its_own_status(tmp_path: Path) -> None:
    account = storm.run(tmp_path, kills=30, jobs=120, seed=7)
    assert account.wrong == []
    assert account.cuts == 1
    points = storm.points_reached()
    assert all(account.kills[point] >= 3 for point in points), account.kills
    assert sum(account.kills.values()) == 30
