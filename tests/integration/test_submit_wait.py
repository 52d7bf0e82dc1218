"""`muster submit --wait`: the end of what is submitted, however late git takes it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds
from tests.integration.test_overrides import muster
from tests.integration.test_waiting_submissions import git_away


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("wait"), nodes=1, url=True) as made:
        yield made


def started(bed: beds.Bed, *words: str) -> "subprocess.Popen[str]":
    """Start a command whose first line on stdout says that something is submitted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reconciler.cli.main", *words],
        cwd=bed.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{words[2]}\n", process.communicate(timeout=120)
    return process


def file_of(folder: Path, name: str, status: int) -> str:
    spec = f"  retries: {{limit: 0}}\n  command: [sh, -c, 'exit {status}']"
    (folder / f"{name}.yaml").write_text(beds.job(name, spec))
    return f"{name}.yaml"


def test_the_exit_code_is_that_of_the_job_and_of_several_the_highest(bed: beds.Bed) -> None:
    printed, told = muster(bed, "submit", "--wait", "--name", "well", "--", "true")
    assert printed == "well\n"
    assert told.splitlines()[-1] == "well Succeeded"
    fails = ("--retries", "0", "--", "sh", "-c", "exit 7")
    _, told = muster(bed, "submit", "-W", "--name", "ill", *fails, code=7)
    assert told.splitlines()[-1].startswith("ill Failed: ")
    files = [file_of(bed.folder, f"each-{status}", status) for status in (0, 5, 3)]
    printed, _ = muster(bed, "submit", "--wait", *files, code=5)
    assert printed.split() == ["each-0", "each-5", "each-3"]
    _, told = muster(bed, "submit", "--wait", "each-3.yaml", code=1)
    assert "nothing starts" in told


def test_what_can_not_be_waited_for_is_not_submitted(bed: beds.Bed) -> None:
    nowhere = ("--clone", str(bed.clone), "--server", "http://127.0.0.1:9")
    words = ("submit", "--wait", "--name", "unseen", *nowhere, "--", "true")
    _, told = muster(bed, *words, code=125)
    assert "can't be reached" in told
    assert not (bed.clone / "jobs" / "unseen.yaml").exists()


def test_a_rehearsal_waits_for_nothing(bed: beds.Bed) -> None:
    words = ("submit", "--wait", "--dry-run", "--name", "rehearsed", "--", "false")
    assert "name: rehearsed" in muster(bed, *words)[0]


def test_ctrl_c_leaves_the_job_running(bed: beds.Bed) -> None:
    process = started(bed, "submit", "--name", "stays", "--wait", "--", "sleep", "600")
    bed.until_state("stays", "Running", timeout_s=120)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert told.splitlines()[-1] == "stays continues without this command: muster wait stays"
    assert bed.job("stays")["state"] == "Running"
    muster(bed, "cancel", "stays")


def test_a_job_that_waits_for_git_is_waited_for_and_no_run_before_it_counts(bed: beds.Bed) -> None:
    """The name was used before: the run that ended well is none of the submission's."""
    muster(bed, "submit", "--wait", "--name", "again", "--", "true")
    bed.until(lambda: "again" in muster(bed, "prune", "--older-than", "1s")[0])
    pushed = bed.git("rev-parse", "main", folder=bed.folder / "repository.git").strip()
    bed.until(lambda: bed.get("/v1/sync")["sync"]["attemptedRevision"] == pushed)
    with git_away(bed):
        fails = ("--retries", "0", "--", "sh", "-c", "exit 9")
        submitted = started(bed, "submit", "--name", "again", "--wait", *fails)
        rows, _ = muster(bed, "jobs", "again")
        assert "Submitting" in rows
        waiting = subprocess.Popen(
            [sys.executable, "-m", "reconciler.cli.main", "wait", "again"],
            cwd=bed.folder,
            env={k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("again waits for git: ")
    _, told = submitted.communicate(timeout=120)
    assert submitted.returncode == 9, told
    assert "again waits for git: " in told
    assert "again Failed: " in told
    printed, told = waiting.communicate(timeout=120)
    assert (waiting.returncode, printed) == (1, "again: Failed\n"), told
