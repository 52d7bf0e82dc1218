"""A short one of ``make soak``: what thousands of awkward tasks leave behind, in a hundred."""

from pathlib import Path

import pytest

from tests.soak import churn


@pytest.mark.slow
def test_awkward_tasks_and_killed_agents_leave_nothing(tmp_path: Path) -> None:
    account = churn.Churn(tmp_path, seed=3, count=100, kills=3, contained=False).run()
    assert account.wrong == []
    assert sum(account.ends.values()) == sum(account.tasks.values()) == 100
