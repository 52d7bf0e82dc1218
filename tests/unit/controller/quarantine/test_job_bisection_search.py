"""If jobs or the input are to blame, and the order in which jobs come back, without a loop."""

import itertools
from typing import Any

import pytest

from reconciler.controller.quarantine import job_bisection
from reconciler.core.jobs import quarantined_jobs
from reconciler.model import desired
from tests.unit.core.world import job


def passes_without(*guilty: str, with_input: bool) -> job_bisection.CycleProbe:
    """Return a probe of cycles that raise for these jobs, or for the input if there are
    any jobs.
    """
    names = [f"j{number}" for number in range(20)]

    def probe(without: Any, *, whole: bool) -> bool:
        left = [name for name in names if name not in without]
        if with_input:
            return not (whole and left)
        return not (whole and set(left) & set(guilty))

    return probe


@pytest.mark.parametrize(
    ("guilty", "with_input", "is_doubted", "blamed"),
    [
        (["j3"], False, False, False),
        (["j3", "j4", "j19"], False, False, False),
        (["j1", "j3", "j4", "j19"], False, False, True),
        (["j1", "j3", "j4", "j19"], False, True, False),
        ([], True, False, True),
        ([], True, True, False),
    ],
)
def test_what_came_in_is_the_cause_where_no_few_jobs_are(
    guilty: list[str], *, with_input: bool, is_doubted: bool, blamed: bool
) -> None:
    names = [f"j{number}" for number in range(20)]
    probe = passes_without(*guilty, with_input=with_input)
    found = job_bisection.blames_input(probe, names, is_doubted=is_doubted, clock=lambda: 0.0)
    assert found is blamed


def test_time_ends_the_question_too() -> None:
    clock = itertools.count(0.0, job_bisection.SEARCH_S)
    probe = passes_without("j3", with_input=False)
    names = [f"j{number}" for number in range(20)]
    assert job_bisection.blames_input(
        probe, names, is_doubted=False, clock=lambda: next(clock)
    ) in {
        True,
        False,
    }


def test_names_come_behind_those_that_they_wait_for() -> None:
    def after(name: str, *others: str) -> desired.Job:
        return job(name, depends_on=tuple(desired.Dependency(one) for one in others))

    jobs = {one.name: one for one in (after("c", "b"), after("b", "a"), job("a"), after("x", "y"))}
    jobs |= {one.name: one for one in (after("y", "x"), after("z", "elsewhere"))}
    found = quarantined_jobs.dependencies_first(["c", "z", "x", "y", "b", "a"], jobs)
    assert found == ["a", "b", "c", "z", "y", "x"]


def test_a_long_line_of_dependencies_is_no_long_search() -> None:
    def chain(number: int) -> desired.Job:
        above = (desired.Dependency(f"j{number - 1}"),) if number else ()
        return job(f"j{number}", depends_on=above)

    jobs = {f"j{number}": chain(number) for number in range(5000)}
    asked = [0]

    class Counted(dict[str, desired.Job]):
        def get(self, name: str, default: Any = None) -> Any:
            asked[0] += 1
            return super().get(name, default)

    names = sorted(jobs, key=lambda name: -int(name[1:]))
    found = quarantined_jobs.dependencies_first(names, Counted(jobs))
    assert found == list(jobs)
    assert asked[0] == len(jobs), "each is asked once for what it waits for"
