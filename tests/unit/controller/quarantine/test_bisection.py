"""The search for items that fail, and jobs that the core names, which need no search."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from reconciler.controller.quarantine import job_bisection
from reconciler.controller.quarantine.bisection import Bisection, Budget
from reconciler.core import job_errors
from reconciler.core.jobs import admission, lifecycle
from tests.unit.controller.quarantine.test_containment import POISON, Contained
from tests.unit.core.world import World, job


class Recorder:
    """Applies numbers, except for bad ones, and can name one that is bad."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.applied: list[int] = []
        self.attempts = 0

    def __call__(self, group: list[int]) -> Exception | None:
        self.attempts += 1
        wrong = [item for item in group if item in self.bad]
        if wrong:
            return job_errors.JobError(str(wrong[0]))
        self.applied += group
        return None


def named(error: Exception) -> int | None:
    job = job_errors.job_of_error(error)
    return int(job) if job is not None else None


@pytest.mark.parametrize("bad", [(), (0,), (9,), (3, 4), tuple(range(10))])
@pytest.mark.parametrize("suspect_of", [named, lambda _: None])
def test_everything_is_applied_in_order_except_what_fails(
    bad: tuple[int, ...], suspect_of: Any
) -> None:
    recorder = Recorder(*bad)
    search = Bisection([range(5), range(5, 10)], suspect_of=suspect_of)
    search.run(recorder, Budget(1000))
    assert recorder.applied == [item for item in range(10) if item not in bad]
    assert [item for item, _ in search.failed] == list(bad)
    assert search.untried == []


def test_a_suspect_is_tried_alone_at_once() -> None:
    recorder = Recorder(700)
    search = Bisection([range(1000)], suspect_of=named)
    search.run(recorder, Budget(1000))
    assert recorder.attempts == 3, "all, the suspect, the others"
    assert len(recorder.applied) == 999


def test_a_search_goes_on_after_its_budget_is_used_up() -> None:
    recorder = Recorder(3)
    search = Bisection([range(8)])
    search.run(recorder, Budget(2))
    assert recorder.attempts == 2
    assert search.untried == list(range(8))
    search.run(recorder, Budget(100))
    assert recorder.applied == [0, 1, 2, 4, 5, 6, 7]


def test_time_ends_a_search_only_after_its_least_attempts() -> None:
    clock = itertools.count()
    budget = Budget(100, attempts_min=3, seconds=0.5, clock=lambda: next(clock))
    assert [budget.spend() for _ in range(5)] == [True, True, True, True, False]


def test_an_item_that_fails_is_divided_into_its_parts() -> None:
    recorder = Recorder(6, 62)
    search = Bisection[int](parts_of=lambda item: [60, 61, 62] if item == 6 else [])
    search.split([5, 6, 7], ValueError())
    search.run(recorder, Budget(100))
    assert recorder.applied == [5, 60, 61, 7]
    assert search.divided == [6]
    assert [item for item, _ in search.failed] == [62]


def test_a_job_that_a_phase_names_is_set_aside_without_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(nodes=4)
    leader = Contained(tmp_path, world)
    leader.revision(*[job(f"j{number}") for number in range(50)])
    leader.hear(*world.nodes)
    leader.cycle()
    settle = lifecycle.settle

    def raising(context: Any, draft: Any) -> None:
        if draft.spec.name == "j7":
            raise KeyError("a secret of somebody's")
        settle(context, draft)

    monkeypatch.setattr(lifecycle, "settle", raising)
    leader.core.calls = 0
    leader.now += 1
    leader.hear("n0")
    leader.cycle()
    assert leader.loop._state.quarantined.keys() == {"j7"}
    assert leader.core.calls <= 4
    assert leader.counts == {"job": 1}
    assert leader.loop._state.nodes["n0"].last_report_at == leader.now
    (problem,) = leader.sync().problems
    assert problem.object == "Job/j7"
    assert "KeyError in tests/" not in problem.message
    assert "KeyError in reconciler/core/jobs/lifecycle.py" in problem.message
    assert "secret" not in problem.message
    leader.close()


def test_an_error_with_every_job_is_found_in_bounded_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_bisection, "TRIES_MAX", 5)
    world = World(nodes=4)
    leader = Contained(tmp_path, world)
    names = [f"j{number:02d}" for number in range(30)]
    leader.revision(*[job(name) for name in names])
    leader.hear(*world.nodes)
    leader.cycle()
    settle = lifecycle.settle

    def raising(context: Any, draft: Any) -> None:
        if not is_fixed:
            raise KeyError
        settle(context, draft)

    is_fixed = False
    monkeypatch.setattr(lifecycle, "settle", raising)
    for _ in range(30):
        leader.core.calls = 0
        leader.now += 1
        leader.hear("n0")
        leader.cycle()
        assert leader.core.calls <= 30
    assert leader.loop._state.nodes["n0"].last_report_at == leader.now
    is_fixed = True
    leader.revision(*[job(name) for name in names], job("new"))
    for _ in range(3):
        leader.now += 1
        leader.hear(*world.nodes)
        leader.cycle()
    assert not leader.loop._state.quarantined
    leader.close()


def test_a_job_of_a_revision_that_a_phase_names_is_left_out_without_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(nodes=4)
    leader = Contained(tmp_path, world)
    leader.revision(job("fine"))
    leader.hear(*world.nodes)
    leader.cycle()
    admit_job = admission.admit_job

    def raising(context: Any, spec: Any, desired_state: Any) -> None:
        if spec.name == POISON:
            raise KeyError("a secret of somebody's")
        admit_job(context, spec, desired_state)

    monkeypatch.setattr(admission, "admit_job", raising)
    leader.core.calls = 0
    leader.now += 1
    leader.revision(job("fine"), *[job(f"j{number}") for number in range(200)], job(POISON))
    leader.cycle()
    assert leader.loop._state.jobs.keys() == {"fine", *[f"j{number}" for number in range(200)]}
    assert [one.name for one in leader.refusals[0].jobs] == [POISON]
    assert leader.core.calls <= 7
    assert leader.counts == {"job": 1}
    leader.close()
