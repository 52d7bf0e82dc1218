"""How many jobs there are is counted by the server, and a list shows as many as one reads."""

import json
import pathlib
import subprocess
from collections.abc import Iterator

import msgspec
import pytest

from reconciler.cli import terminal
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import JobState
from tests.integration.server import parts
from tests.unit.store import samples

COUNTS = {"Running": 3, "Succeeded": 40, "Pending": 20, "Invalid": 2}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("counts")
    made = parts.Served(folder)
    jobs = list[records.JobRecord]()
    for state, count in COUNTS.items():
        for number in range(count):
            known = JobState.PENDING if state == "Invalid" else JobState(state)
            job = samples.job(f"{state.lower()}-{number}", state=known, order=len(jobs) + 1)
            jobs.append(msgspec.structs.replace(job, reason_key=f"of-{state}"))
    reasons = {
        "of-Invalid": (Reason(ReasonCode.INVALID, "it can't run"),),
        "of-Pending": (Reason(ReasonCode.INSUFFICIENT_RESOURCES, "8 GPUs asked"),),
    }
    made.commit(jobs=tuple(jobs), reasons=reasons)
    try:
        yield made.ready()
    finally:
        made.close()


def test_jobs_are_counted_as_their_list_shows_them(served: parts.Served) -> None:
    assert served.client.get("/v1/job-counts").json()["states"] == COUNTS
    shown = parts.muster(served, "status")
    assert "Jobs   2 Invalid, 20 Pending, 3 Running, 40 Succeeded\n" in shown.stdout


def test_a_table_shows_the_newest_and_says_how_to_see_more(served: parts.Served) -> None:
    shown = parts.muster(served, "jobs")
    rows = [line for line in shown.stdout.splitlines() if line[:1].islower()]
    assert len(rows) == 50
    assert rows[0].startswith("invalid-1")
    assert "the newest 50 are shown: --all shows all" in shown.stderr
    few = parts.muster(served, "jobs", "-n", "3")
    assert len([line for line in few.stdout.splitlines() if line[:1].islower()]) == 3
    assert few.stderr == ""
    for words in (["--all"], ["--state", "Succeeded"]):
        assert "are shown" not in parts.muster(served, "jobs", *words).stderr


def test_data_is_whole_unless_so_many_are_asked_for(served: parts.Served) -> None:
    whole = json.loads(parts.muster(served, "jobs", "-o", "json").stdout)
    assert len(whole["items"]) == sum(COUNTS.values())
    some = json.loads(parts.muster(served, "jobs", "-o", "json", "-n", "7").stdout)
    assert len(some["items"]) == 7


def test_a_name_is_found_however_old_it_is(served: parts.Served) -> None:
    assert parts.muster(served, "jobs", "running-0").stdout.splitlines()[1].startswith("running-0")


def names(shown: subprocess.CompletedProcess[str]) -> list[str]:
    assert shown.returncode == 0, shown.stderr
    return [line.split()[0] for line in shown.stdout.splitlines()[1:] if line[:1].islower()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("running-?",), ["running-2", "running-1", "running-0"]),
        (("*-19", "succeeded-2?"), ["pending-19"] + [f"succeeded-{n}" for n in range(29, 18, -1)]),
        (("invalid-*", "--sort", "name"), ["invalid-0", "invalid-1"]),
        (("running-?", "--sort", "name", "-n", "2"), ["running-0", "running-1"]),
        (("--label", "no=such"), []),
    ],
)
def test_jobs_are_chosen_by_name_label_and_owner(
    served: parts.Served, words: tuple[str, ...], expected: list[str]
) -> None:
    found = names(parts.muster(served, "jobs", *words))
    assert sorted(found) == sorted(expected)
    if "--sort" in words or len(expected) == 3:
        assert found == expected


def test_a_pattern_that_fits_nothing_and_an_order_that_is_none_are_said(
    served: parts.Served,
) -> None:
    shown = parts.muster(served, "jobs", "nothing-*", "running-0")
    assert (shown.returncode, "running-0" in shown.stdout) == (1, True)
    assert 'no job has a name like "nothing-*"' in shown.stderr
    shown = parts.muster(served, "jobs", "--sort", "nam")
    assert shown.returncode == terminal.USAGE
    assert 'found "nam", expected one of submitted, name' in shown.stderr
    assert "did you mean name?" in shown.stderr
    shown = parts.muster(served, "jobs", "--mine")
    assert shown.returncode == 1
    assert "the token of local stands for no person with an address" in shown.stderr


def test_an_empty_table_says_what_it_leaves_out(served: parts.Served) -> None:
    shown = parts.muster(served, "jobs", "--label", "no=such")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert shown.stderr == "no job is alive or ended in the last day\n"
    assert parts.muster(served, "jobs", "--label", "no=such", "--all").stderr == "no jobs\n"
    sorted_ = parts.muster(served, "jobs", "--sort", "name")
    assert "the first 50 are shown: --all shows all" in sorted_.stderr
    both = parts.muster(served, "jobs", "--mine", "--owner", "alice@example.org")
    assert (both.returncode, "can't be combined" in both.stderr) == (terminal.USAGE, True)
