"""Arrays as commands and calls show them: large ones, and such as ran again in part."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from reconciler.model.state import events, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, JobState
from reconciler.model.values import index_ranges
from reconciler.operations.views import job_views
from tests.integration.server import parts
from tests.unit.store import samples

#: An array of 10,000, of which few failed, run or wait, far behind the first ones.
COUNT = 10_000
SOME = {JobState.FAILED: "7000,9999", JobState.RUNNING: "8000-8002", JobState.PENDING: "9000-9400"}


def array(
    run: int, count: int, some: Mapping[JobState, str], *, only: str = "", **more: Any
) -> records.JobRecord:
    """A run of an array; elements of no state in ``some`` have succeeded."""
    made = samples.job("sweep", run=run, order=run, elements=count, state=JobState.FAILED)
    spec = msgspec.structs.replace(made.spec, hash=f"{run:016d}", array_only=only)
    elements = bytearray([ELEMENT_CODE[JobState.SUCCEEDED]] * count)
    for state, text in some.items():
        for element in index_ranges.parse(text):
            elements[element] = ELEMENT_CODE[state]
    return msgspec.structs.replace(made, spec=spec, elements=bytes(elements), **more)


def tries(of: records.JobRecord, element: int, count: int) -> list[records.AttemptRecord]:
    """Tries at an element, of which all but the last have ended."""
    ended = of.elements[element] != ELEMENT_CODE[JobState.RUNNING]
    return [
        samples.attempt(
            of,
            element,
            try_number=number,
            state=AttemptState.ENDED if ended or number < count else AttemptState.RUNNING,
            exit_code=1 if ended or number < count else None,
            concluded=ended or number < count,
        )
        for number in range(1, count + 1)
    ]


@pytest.fixture
def large(served: parts.Served) -> parts.Served:
    """A server with the large array; an element that failed has had many tries."""
    record = array(1, COUNT, SOME)
    waiting = frozenset(index_ranges.parse(SOME[JobState.PENDING]))
    counts = {7000: 30, 9999: 2, 8001: 3}
    found = [
        one
        for element in range(COUNT)
        if element not in waiting
        for one in tries(record, element, counts.get(element, 1))
    ]
    served.commit(jobs=(record,), attempts=tuple(found), new_runs=(record.key,))
    return served


def test_of_a_large_array_the_newest_tries_of_failed_elements_come_first(
    large: parts.Served,
) -> None:
    job = large.client.get("/v1/jobs/sweep", params={"leading": 20}).json()["job"]
    expected = [7000, 9999, 8000, 8001, 8002, *range(15)]
    assert [one["element"] for one in job["attempts"]] == expected
    assert [one["attempt"] for one in job["attempts"]] == [30, 2, 1, 3, 1, *[1] * 15]
    assert job["elements"] == {"Succeeded": 9594, "Failed": 2, "Running": 3, "Pending": 401}
    assert job["elementsLeftOut"] == COUNT - 20
    few = large.client.get("/v1/jobs/sweep", params={"leading": 20, "attempts": 2}).json()["job"]
    assert [one["element"] for one in few["attempts"]] == expected[:2]
    one = large.client.get("/v1/jobs/sweep", params={"leading": 20, "element": 7000}).json()["job"]
    assert (len(one["attempts"]), one["elementsLeftOut"]) == (30, 0)


def test_elements_that_wait_for_a_retry_are_among_the_leading_of_a_run_by_its_key(
    served: parts.Served,
) -> None:
    record = array(1, 30, {JobState.PENDING: "20-29"})
    record = msgspec.structs.replace(
        record,
        state=JobState.PENDING,
        notes={25: records.ElementNote(tries=1, retries_spent=1, not_before=500.0)},
    )
    again = msgspec.structs.replace(tries(record, 25, 1)[0], element=25)
    served.commit(jobs=(record,), attempts=(again,), new_runs=(record.key,))
    for which in ({}, {"key": record.key}, {"run": 1}):
        asked: dict[str, str | int] = {"leading": 3, **which}
        found = served.client.get("/v1/jobs/sweep", params=asked).json()["job"]
        assert [one["element"] for one in found["attempts"]] == [25], which


def test_the_command_shows_them_and_says_how_many_others_there_are(large: parts.Served) -> None:
    shown = parts.muster(large, "job", "sweep")
    assert shown.returncode == 0, shown.stderr
    assert "2 Failed (7000,9999), 3 Running (8000-8002)" in shown.stdout
    rows = [line.split()[:3] for line in shown.stdout.splitlines() if line.startswith("[")]
    assert rows[:3] == [
        ["[7000]", "main-0", "30"],
        ["[9999]", "main-0", "2"],
        ["[8000]", "main-0", "1"],
    ]
    assert "and 9980 more elements: muster job 'sweep[N]' shows one" in shown.stderr
    explained = parts.muster(large, "explain", "sweep[8001]")
    assert "Element 8001: Running on n1 (try 3)." in explained.stdout, explained.stderr
    assert "on n1: 8000-8002" in explained.stdout


@pytest.fixture
def repaired(served: parts.Served) -> parts.Served:
    """A server with an array of which one element has run again, in a run of its own."""
    first = array(1, 6, {JobState.FAILED: "3"}, submitted_at=50.0, started_at=51.0, ended_at=60.0)
    first = msgspec.structs.replace(first, message="task main-0 of element 3 ended with status 1")
    second = array(2, 6, {}, only="3", submitted_at=100.0, started_at=101.0, ended_at=110.0)
    second = msgspec.structs.replace(second, state=JobState.SUCCEEDED)
    found = [one for element in range(6) for one in tries(first, element, 1)]
    found += tries(second, 3, 1)
    for record, at in ((first, 50.0), (second, 100.0)):
        told = events.Event(at, "JobSubmitted", f"as run {record.spec.run}", job="sweep")
        own = tuple(one for one in found if one.job_key == record.key)
        served.commit(now=at, jobs=(record,), attempts=own, new_runs=(record.key,), events=(told,))
    return served


def test_lists_show_the_whole_of_an_array_that_ran_again_in_part(repaired: parts.Served) -> None:
    (item,) = repaired.client.get("/v1/jobs").json()["items"]
    assert (item["run"], item["elements"]) == (2, {"Succeeded": 1})
    assert item["wholeElements"] == {"Succeeded": 6}
    shown = parts.muster(repaired, "jobs", "--all")
    assert " 6/6 " in shown.stdout, shown.stdout + shown.stderr


def test_an_element_is_explained_by_the_newest_run_that_has_it(repaired: parts.Served) -> None:
    newest = parts.muster(repaired, "explain", "sweep[3]")
    assert newest.stdout.startswith("sweep is Succeeded"), newest.stderr
    assert "All runs of this array: 6 Succeeded." in newest.stdout
    older = parts.muster(repaired, "explain", "sweep[2]")
    assert older.stdout.startswith("sweep (run 1) is Failed"), older.stderr
    assert (
        "Element 2: Succeeded; last try (1) ended on n1. The newest run does not have it."
        in older.stdout
    )
    none = parts.muster(repaired, "explain", "sweep[6]")
    assert (none.returncode, none.stdout) == (1, "")


@pytest.mark.parametrize("command", ["explain", "job", "plot", "logs"])
def test_commands_of_one_element_take_the_same_names(repaired: parts.Served, command: str) -> None:
    words = (("sweep[2]",), ("sweep", "--element", "2"), ("sweep[2]", "-e", "2"))
    done = [parts.muster(repaired, command, *one) for one in words]
    assert len({(one.returncode, one.stdout, one.stderr) for one in done}) == 1, done
    assert "No such option" not in done[0].stderr
    other = parts.muster(repaired, command, "sweep[2]", "-e", "3")
    assert (other.returncode, other.stdout) == (64, "")
    assert "sweep[2] and --element 3 name different elements" in " ".join(other.stderr.split())
    whole = parts.muster(repaired, command, "sweep[x]")
    assert (whole.returncode, whole.stdout) == (64, "")


def test_an_earlier_run_is_explained_by_what_happened_then(repaired: parts.Served) -> None:
    done = parts.muster(repaired, "explain", "sweep", "--run", "1")
    assert done.stdout.startswith("sweep (run 1) is Failed"), done.stderr
    assert "task main-0 of element 3 ended with status 1" in done.stdout
    assert "as run 1" in done.stdout
    assert "as run 2" not in done.stdout
    one = repaired.client.get("/v1/jobs/sweep/explain", params={"run": 1, "limit": 1}).json()
    assert [each["message"] for each in one["events"]] == ["as run 1"], "later ones take no place"
    newest = parts.muster(repaired, "explain", "sweep", "--run", "2")
    assert newest.stdout.startswith("sweep is Succeeded"), newest.stderr
    unknown = parts.muster(repaired, "explain", "sweep", "--run", "3")
    assert "there is no run 3 of Job/sweep" in unknown.stderr
    both = parts.muster(repaired, "explain", "sweep", "--run", "1", "--at", "1h")
    assert both.returncode == 64
    asked: dict[str, str | int] = {"run": 1, "at": "2026-01-01T00:00:00Z"}
    assert repaired.client.get("/v1/jobs/sweep/explain", params=asked).status_code == 400


@pytest.mark.parametrize("words", [("sweep[2]",), ("sweep[3]",), ("sweep[3]", "--run", "1")])
def test_metrics_are_looked_for_in_the_run_that_has_the_element(
    repaired: parts.Served, words: tuple[str, ...]
) -> None:
    done = parts.muster(repaired, "plot", *words)
    assert "no metrics: this task of job sweep logged none" in done.stderr
    none = parts.muster(repaired, "plot", "sweep[2]", "--run", "2")
    assert "sweep has no element 2; it has 3" in none.stderr


def test_no_more_attempts_come_than_one_page_has(large: parts.Served) -> None:
    job = large.client.get("/v1/jobs/sweep/explain").json()["job"]
    assert len(job["attempts"]) == job_views.ATTEMPTS_IN_JOB
    alive = [one["element"] for one in job["attempts"] if one["state"] != "Ended"]
    assert alive == [8000, 8001, 8002]


def test_a_plot_of_a_large_array_says_which_elements_it_compares(large: parts.Served) -> None:
    told = " ".join(parts.muster(large, "plot", "sweep").stderr.split())
    assert "sweep has 10000 elements; compared are 0-31." in told
    one = parts.muster(large, "plot", "sweep", "--element", "3")
    assert "compared" not in one.stderr
