"""Two processes decide what one does."""

import os
from typing import Any

import pytest

from reconciler.operations.plan import parallel_forecast as futures
from reconciler.simulation.engine.event_queue import SimulationError
from reconciler.simulation.forecast import cluster_forecast as forecasts
from reconciler.simulation.forecast import forecast_diff as shifts
from tests.unit.operations.plan.test_planner import BASE, HEAD, live


def test_two_processes_come_to_the_same_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live().live
    here = shifts.forecast(BASE, HEAD, found.observed, found.at)
    monkeypatch.setattr(futures, "_is_worth_it", lambda _observed: True)
    forks = []
    fork = os.fork

    def counted() -> int:
        forks.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", counted)
    there = futures.forecast(BASE, HEAD, found.observed, found.at)
    assert forks == [1]
    assert there == here
    assert there.evictions, "it is about something"


def test_a_child_that_fails_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live().live
    here = shifts.forecast(BASE, HEAD, found.observed, found.at)
    parent = os.getpid()
    future = forecasts.future

    def fails(*given: Any, **more: Any) -> forecasts.Future:
        if os.getpid() != parent:
            raise SimulationError("no end")
        return future(*given, **more)

    monkeypatch.setattr(futures, "_is_worth_it", lambda _observed: True)
    monkeypatch.setattr(forecasts, "future", fails)
    assert futures.forecast(BASE, HEAD, found.observed, found.at) == here


def test_a_child_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live().live
    parent = os.getpid()
    future = forecasts.future

    def fails(*given: Any, **more: Any) -> forecasts.Future:
        if os.getpid() == parent:
            raise SimulationError("no end")
        return future(*given, **more)

    monkeypatch.setattr(futures, "_is_worth_it", lambda _observed: True)
    monkeypatch.setattr(forecasts, "future", fails)
    with pytest.raises(SimulationError):
        futures.forecast(BASE, HEAD, found.observed, found.at)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
