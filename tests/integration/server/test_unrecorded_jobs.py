"""Lists of jobs with some that no record has: each job has one row, and a page keeps its limit."""

import json
import pathlib
from collections.abc import Iterator

import pytest

from reconciler.model.state import records
from reconciler.model.state.states import JobState
from tests.integration.server import parts
from tests.unit.store import samples

#: Waits for git, the last submitted first; two of them had a run that ended.
WAITING = ["used", "new-2", "new-1", "sweep", "new-0"]
RECORDS = ["sweep", "other-1", "used", "other-0"]
#: A job without a file in git, which runs while another of its name waits for git.
ALIVE = "alive"


def _override(name: str, made_at: float) -> records.Override:
    text = f"apiVersion: muster/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec: {{command: [x]}}\n"
    return records.Override(
        *("submit", name, "git is away", "ada@example.org"),
        *(made_at, made_at + 1e9),
        submission=records.Submission(f"id-{name}", text),
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("waiting")
    made = parts.Served(folder)
    ended = JobState.SUCCEEDED
    made.commit(
        jobs=(
            samples.job(ALIVE, state=JobState.RUNNING, order=9),
            *(
                samples.job(name, state=ended, order=number)
                for number, name in enumerate(reversed(RECORDS), start=1)
            ),
        ),
        overrides=tuple(
            _override(name, float(at))
            for at, name in enumerate([ALIVE, *reversed(WAITING)], start=1)
        ),
    )
    try:
        yield made.ready()
    finally:
        made.close()


def _pages(served: parts.Served, **query: str | int) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    after: dict[str, str] = {}
    while True:
        page = served.client.get("/v1/jobs", params={**query, **after}).json()
        found.append([(one["name"], one["state"]) for one in page["items"]])
        if not page["next"]:
            return found
        after = {"after": page["next"]}


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 100])
def test_each_job_has_one_row_and_each_page_its_limit(served: parts.Served, limit: int) -> None:
    pages = _pages(served, limit=limit)
    waiting = [(name, "Submitting") for name in WAITING]
    known = [(ALIVE, "Running"), ("other-1", "Succeeded"), ("other-0", "Succeeded")]
    assert [one for page in pages for one in page] == waiting + known
    assert all(len(page) == limit for page in pages[:-1])
    assert len(pages[-1]) <= limit


def test_runs_that_ended_are_found_by_their_state(served: parts.Served) -> None:
    (page,) = _pages(served, state="Succeeded")
    assert page == [(name, "Succeeded") for name in RECORDS]


def test_the_command_lists_each_job_once(served: parts.Served) -> None:
    for words in (["used"], ["us*"], ["--all"], ["-n", "3"], ["--state", "Submitting"]):
        listed = json.loads(parts.muster(served, "jobs", *words, "-o", "json").stdout)["items"]
        names = [one["name"] for one in listed]
        assert len(set(names)) == len(names), words
        assert ("used", "Submitting") in [(one["name"], one["state"]) for one in listed]
    assert len(names) == len(WAITING)


def test_a_place_that_no_page_gave_is_refused(served: parts.Served) -> None:
    answer = served.client.get("/v1/jobs", params={"after": "nowhere"})
    assert answer.status_code == 400
    assert "is no place in a list" in answer.text
