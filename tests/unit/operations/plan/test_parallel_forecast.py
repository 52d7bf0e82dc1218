"""Two processes decide what one does."""

import os
from typing import Any

import pytest

from reconciler.desired.checks import policy_process
from reconciler.operations.plan import parallel_forecast
from reconciler.simulation.engine.event_queue import SimulationError
from reconciler.simulation.forecast import cluster_forecast, forecast_diff
from tests.unit.operations.plan.test_planner import BASE, HEAD, live


def test_two_processes_come_to_the_same_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live().live
    here = forecast_diff.forecast(BASE, HEAD, found.observed, found.at)
    monkeypatch.setattr(parallel_forecast, "_is_worth_it", lambda _observed: True)
    forks = []
    fork = os.fork

    def counted() -> int:
        forks.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", counted)
    there = parallel_forecast.forecast(BASE, HEAD, found.observed, found.at)
    assert forks == [1]
    assert there == here
    assert there.evictions, "it is about something"


def test_a_child_that_fails_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live().live
    here = forecast_diff.forecast(BASE, HEAD, found.observed, found.at)
    parent = os.getpid()
    future = cluster_forecast.future

    def fails(*given: Any, **more: Any) -> cluster_forecast.Future:
        if os.getpid() != parent:
            raise SimulationError("no end")
        return future(*given, **more)

    monkeypatch.setattr(parallel_forecast, "_is_worth_it", lambda _observed: True)
    monkeypatch.setattr(cluster_forecast, "future", fails)
    assert parallel_forecast.forecast(BASE, HEAD, found.observed, found.at) == here


def test_a_child_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    policy_process.SHARED.close()  # other tests have started it
    found = live().live
    parent = os.getpid()
    future = cluster_forecast.future

    def fails(*given: Any, **more: Any) -> cluster_forecast.Future:
        if os.getpid() == parent:
            raise SimulationError("no end")
        return future(*given, **more)

    monkeypatch.setattr(parallel_forecast, "_is_worth_it", lambda _observed: True)
    monkeypatch.setattr(cluster_forecast, "future", fails)
    with pytest.raises(SimulationError):
        parallel_forecast.forecast(BASE, HEAD, found.observed, found.at)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
