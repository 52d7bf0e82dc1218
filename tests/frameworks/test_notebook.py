"""`muster notebook`: Jupyter in a job, opened in Chromium as a person would."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks import chromium, install
from tests.integration import beds
from tests.integration.interactive import people

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium: `make packages`")
NAME = "lab"
CELL = {
    "cells": [
        {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [],
         "source": "print(6*7)"}
    ],
    "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python",
                                "name": "python3"}},
    "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip
OUTPUT = "[...document.querySelectorAll('.jp-OutputArea-output')].map(o => o.innerText).join()"
SHIFT, ENTER = 8, 13
#: JupyterLab asks nobody on the internet.
QUIET = (
    "--LabApp.news_url=",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)


@pytest.fixture
def at_home(bed: beds.Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> beds.Bed:
    """A folder with a notebook, and Jupyter's environment active, as where a person types."""
    (tmp_path / "answer.ipynb").write_text(json.dumps(CELL))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{install.FOLDER}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(install.FOLDER))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PWD", str(tmp_path))
    return bed


@contextlib.contextmanager
def notebook(bed: beds.Bed, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A notebook that is open, and where."""
    process = subprocess.Popen(
        [*people.MUSTER, "notebook", *words], env=bed.environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = process.stdout.readline().strip()
        assert address, process.stderr.read()
        yield process, address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(people.DEADLINE_S)
        process.stdout.close()
        process.stderr.close()


def _token(page: str) -> str:
    """The token in the page that a notebook shows where there is no terminal."""
    path = Path(page.removeprefix("file://"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    found = re.search(r"token=([0-9a-f]{64})", path.read_text())
    assert found is not None
    return found[1]


def test_a_cell_is_run_in_the_browser(at_home: beds.Bed, tmp_path: Path) -> None:
    bed = at_home
    with notebook(bed, "--name", NAME, "--", *QUIET) as (process, page):
        token = _token(page)
        with chromium.browsing(tmp_path) as browser:
            browser.open(page)  # which goes on to Jupyter, with its token
            browser.until("location.port && !!document.querySelector('#jp-main-dock-panel')")
            assert token not in browser.value("location.href")
            origin = browser.value("location.origin")
            browser.open(f"{origin}/lab/tree/answer.ipynb")
            browser.until("document.body.innerText.includes('(ipykernel) | Idle')")
            browser.value("document.querySelector('.jp-CodeCell .cm-content').focus()")
            browser.press("Enter", ENTER, SHIFT)
            assert browser.until(OUTPUT).strip() == "42"
        _keeps_its_secret(bed, token)
        process.send_signal(signal.SIGINT)
        assert process.wait(people.DEADLINE_S) == 130
    assert not Path(page.removeprefix("file://")).exists()
    bed.until_state(NAME, "Cancelled")
    assert token not in bed.output(NAME)


def _keeps_its_secret(bed: beds.Bed, token: str) -> None:
    """The token is in no command line, no document, no log, and no table of the controller."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                assert token.encode() not in (entry / "cmdline").read_bytes()
    known = subprocess.run(
        ["grep", "-rlF", token, str(bed.folder)], capture_output=True, text=True, check=False
    ).stdout.split()
    names = {Path(path).name.partition("-")[0].partition(".")[0] for path in known}
    assert names <= {"token", "jpserver"}, known
    for path in map(Path, known):
        assert path.parent.stat().st_mode & 0o077 == 0, path


def test_a_notebook_that_is_kept_is_opened_again(at_home: beds.Bed) -> None:
    bed = at_home
    with people.Person(bed, "notebook", "--name", "kept", "--keep") as person:
        shown = person.sees("token=")
        assert "http://127.0.0.1:" in shown
        os.kill(person.pid, signal.SIGINT)
        assert person.leaves() == 130
    assert bed.job("kept")["state"] == "Running"
    with people.Person(bed, "notebook", "kept") as person:
        person.sees("token=")
        os.kill(person.pid, signal.SIGHUP)
        assert person.leaves() == 129
    assert bed.job("kept")["state"] == "Running"
    with people.Person(bed, "notebook", "kept") as person:
        person.sees("token=")
        people.muster(bed, "cancel", "kept")
        assert person.leaves() == 128 + signal.SIGTERM


def test_what_to_install_is_said_where_there_is_no_jupyter(at_home: beds.Bed) -> None:
    done = people.muster(at_home, "notebook", "--name", "none", "--env", "PATH=/usr/bin:/bin")
    assert done.returncode == 127
    assert b"pip install jupyterlab" in done.stderr
    assert not done.stdout


def test_what_can_t_be_a_notebook_is_refused(at_home: beds.Bed) -> None:
    bed = at_home
    secret = people.muster(bed, "notebook", "--", "--IdentityProvider.token=x")
    assert secret.returncode == 64
    assert b"in git for good" in secret.stderr
    assert b"token=x" not in secret.stderr
    assert people.muster(bed, "submit", "--name", "other", "--", "sleep", "600").returncode == 0
    bed.until_state("other", "Running")
    changed = people.muster(bed, "notebook", "other", "--gpus", "1")
    assert changed.returncode == 64
    assert b"--gpus: a notebook that runs can't be changed" in changed.stderr
    other = people.muster(bed, "notebook", "other")
    assert other.returncode == 125
    assert b"was not started by muster notebook" in other.stderr
    assert bed.job("other")["state"] == "Running"
