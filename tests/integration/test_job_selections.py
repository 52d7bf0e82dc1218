"""What is done to several jobs at once, and to elements of arrays."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration import beds

HELD = "  suspend: true\n  command: ['true']"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("selections"), nodes=1) as made:
        yield made


def muster(
    bed: beds.Bed, *arguments: str, code: int = 0, answer: str | None = None
) -> tuple[str, str]:
    """Run the command in the cluster's folder; ``answer`` is typed at its terminal."""
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli.main", *arguments],
            check=False,
            cwd=bed.folder,
            env={key: text for key, text in os.environ.items() if not key.startswith("MUSTER_")},
            stdin=subprocess.DEVNULL if answer is None else terminal,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == code, done
    return done.stdout, " ".join(done.stderr.split())


def _commits(bed: beds.Bed) -> int:
    found = bed.git("--git-dir", str(bed.folder / "repository.git"), "rev-list", "--count", "HEAD")
    return int(found)


def test_a_selection_is_counted_and_asked_for_and_one_commit(bed: beds.Bed) -> None:
    names = [f"sweep-{number}" for number in range(3)]
    files: dict[str, str | None] = {f"jobs/{name}.yaml": beds.job(name, HELD) for name in names}
    files["jobs/other.yaml"] = beds.job("other", HELD)
    bed.commit(files)
    for name in (*names, "other"):
        bed.until_state(name, "Held")
    before = _commits(bed)

    _, told = muster(bed, "cancel", "sweep-*", code=64)
    assert "nobody can be asked whether to cancel 3 jobs" in told
    assert "add --yes" in told
    _, told = muster(bed, "cancel", "sweep-*", code=1, answer="n")
    assert "sweep-2, sweep-1, sweep-0" in told
    assert "Cancel 3 jobs? [y/N]" in told
    assert "nothing was changed" in told
    _, told = muster(bed, "cancel", "sweep-*", "--dry-run")
    assert told.count("would be cancelled") == 3
    assert _commits(bed) == before

    printed, _ = muster(bed, "release", "sweep-*", "--state", "held", "--yes")
    assert sorted(printed.split()) == names
    for name in names:
        bed.until_state(name, "Succeeded")
    assert _commits(bed) == before + 1
    assert bed.job("other")["state"] == "Held"

    _, told = muster(bed, "cancel", "sweep-*", "--yes", code=1)
    assert (
        "no job to cancel: 3 jobs selected; expected jobs that are Submitting, Held, Pending"
        in told
    )
    _, told = muster(bed, "rerun", "sweep-0", "train[", "--yes", code=64)
    assert "train[ is not an array element" in told or "names elements" in told
    printed, _ = muster(bed, "rerun", "sweep-?", "--state", "succeeded", answer="y")
    assert sorted(printed.split()) == names
    bed.until(lambda: all(bed.job(name)["run"] == 2 for name in names))


def test_a_wrong_filter_changes_nothing(bed: beds.Bed) -> None:
    for arguments, code, told in (
        (["hold"], 64, "no job to hold: expected names, or a filter such as --mine"),
        (["hold", "--queue", "nope", "--yes"], 1, "nope"),
        (["hold", "nope-*", "--yes"], 1, 'no job has a name like "nope-*"'),
        (["hold", "nope", "--state", "pending", "--yes"], 1, "there is no Job/nope"),
        (["hold", "--mine", "--owner", "x@example.org", "--yes"], 64, "can't be combined"),
    ):
        assert told in muster(bed, *arguments, code=code)[1]


ARRAY = """  array: {count: 4}
  command: [sh, -c, 'test $MUSTER_ARRAY_INDEX = 1 -a ! -e FLAG && exit 3; sleep SECONDS']
"""


def _elements(bed: beds.Bed, name: str) -> beds.Json:
    return bed.job(name)["elementIndexes"]


def test_elements_of_an_array_are_held_cancelled_and_run_again(bed: beds.Bed) -> None:
    flag = bed.folder / "flag"
    text = ARRAY.replace("FLAG", str(flag)).replace("SECONDS", "600")
    (bed.folder / "array.yaml").write_text(beds.job("array", text))
    muster(bed, "submit", "array.yaml")
    bed.until(lambda: _elements(bed, "array") == {"Running": "0,2,3", "Failed": "1"})

    _, told = muster(bed, "hold", "array[0]", "array[2-3]")
    assert "elements 0,2,3 held" in told
    bed.until(lambda: _elements(bed, "array") == {"Pending": "0,2,3", "Failed": "1"})
    assert bed.job("array")["reasons"][0]["code"] == "Held"
    muster(bed, "release", "array[2,3]")
    bed.until(lambda: _elements(bed, "array").get("Running") == "2,3")
    _, told = muster(bed, "rerun", "array[1]", code=1)
    assert "run 1 of Job/array has not ended" in told
    _, told = muster(bed, "cancel", "array[7]", code=1)
    assert "Job/array has no element 7; it has 0-3" in told
    muster(bed, "cancel", "array[0,2,3]", "--reason", "enough")
    bed.until_state("array", "Failed")
    assert _elements(bed, "array") == {"Cancelled": "0,2,3", "Failed": "1"}
    for verb, said in (("cancel", "nothing of it can be cancelled"), ("hold", "can't be held")):
        _, told = muster(bed, verb, "array[1]", code=1)
        assert "run 1 of Job/array is Failed already" in told
        assert said in told

    flag.touch()
    _, told = muster(bed, "rerun", "array", "--failed")
    assert "element 1 runs again" in told
    bed.until(lambda: _elements(bed, "array") == {"Running": "1"})
    muster(bed, "cancel", "array")
    bed.until_state("array", "Cancelled")


def test_an_array_has_the_indexes_that_were_submitted(bed: beds.Bed) -> None:
    command = ["--", "sh", "-c", "echo $MUSTER_ARRAY_INDEX of $MUSTER_ARRAY_COUNT"]
    muster(bed, "submit", "--name", "some", "--array", "1,3,5-9:2%4", *command)
    bed.until_state("some", "Succeeded")
    assert _elements(bed, "some") == {"Succeeded": "1-9:2"}
    assert bed.job("some")["elements"] == {"Succeeded": 5}
    assert bed.output("some", element="7") == "7 of 5\n"
    assert bed.output("some") == "1 of 5\n"
    _, told = muster(bed, "logs", "some[2]", code=1)
    assert "some has no element 2; it has 1-9:2" in told or "the elements 1-9:2, not 2" in told


def test_an_array_that_was_repaired_is_shown_over_its_runs(bed: beds.Bed) -> None:
    flag = bed.folder / "mended"
    text = (
        "  array: {count: 30}\n"
        f"  command: [sh, -c, 'echo run of $MUSTER_ARRAY_INDEX; "
        f"test $MUSTER_ARRAY_INDEX -lt 27 -o -e {flag}']\n"
    )
    (bed.folder / "mend.yaml").write_text(beds.job("mend", text))
    muster(bed, "submit", "mend.yaml")
    bed.until_state("mend", "Failed", timeout_s=120.0)
    shown, told = muster(bed, "job", "mend")
    assert "Elements  3 Failed (27-29), 27 Succeeded" in shown
    tasks = [line.split()[0] for line in shown.splitlines() if line.startswith("[")]
    assert tasks[:4] == ["[27]", "[28]", "[29]", "[0]"], shown
    assert "and 10 more elements: muster job 'mend[N]' shows one" in told

    flag.touch()
    muster(bed, "rerun", "mend", "--failed")
    bed.until(lambda: (bed.job("mend")["run"], bed.job("mend")["state"]) == (2, "Succeeded"))
    shown, _ = muster(bed, "job", "mend")
    assert "mend (run 2)" in shown
    assert "Elements  3 Succeeded\n" in shown
    assert "All runs  30 Succeeded\n" in shown
    shown, _ = muster(bed, "job", "mend", "--run", "1")
    assert "mend (run 1)" in shown
    assert "Elements  3 Failed (27-29), 27 Succeeded" in shown
    for element, run in ((3, 1), (28, 2)):
        shown, _ = muster(bed, "job", f"mend[{element}]")
        assert f"mend (run {run})" in shown
        assert ("Run 2 does not have it." in shown) is (run == 1)
        shown, told = muster(bed, "logs", f"mend[{element}]")
        assert shown == f"run of {element}\n"
        assert ("run 1 (run 2 does not have element 3)" in told) is (run == 1)
    _, told = muster(bed, "job", "mend[30]", code=1)
    assert "mend has no element 30; it has 27-29" in told
