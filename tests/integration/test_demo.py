"""The demo as people run it: all its steps, and nothing left behind, also after Ctrl-C."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest


def _processes_of(folder: Path) -> list[list[str]]:
    """Command lines of processes that name a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words):
            found.append(words)
    return found


def _demo(folder: Path, path: str | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "reconciler.cli.main", "demo", "--folder", str(folder)]
    return subprocess.Popen(
        command,
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | ({"PATH": path} if path else {}),
    )


@pytest.mark.slow
def test_the_demo_does_all_that_it_tells_of(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with _demo(folder) as running:
        told, _ = running.communicate(timeout=300)
    result = json.loads((folder / "result.json").read_text())
    assert running.returncode == 0, told
    assert result["ok"], told
    assert [step["ok"] for step in result["steps"]] == [True] * 11
    assert "resumes from step" in told
    assert re.search(r"next starts \S+ later: in", told), told
    assert "Drain virtual-0: a loud fan, by Demo" in " ".join(told.split())
    assert "next was Pending." in told
    assert max(map(len, told.splitlines())) <= 80
    assert "queues.yaml:6:16: error: Queue/research: spec.limit.gpu:" in told
    assert _processes_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


@pytest.mark.slow
def test_the_demo_cleans_up_when_it_is_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with _demo(folder) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "the ranks have met" in line:
                break
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 130
    assert not json.loads((folder / "result.json").read_text())["ok"]
    assert _processes_of(tmp_path) == []


def test_ctrl_c_that_ends_git_is_no_failure(tmp_path: Path) -> None:
    """It reaches every process of the terminal: git may be gone before the demo has heard of it."""
    tools, git = tmp_path / "bin", shutil.which("git")
    tools.mkdir()
    (tools / "git").write_text(
        f'#!/bin/sh\n[ "$1" = commit ] || exec {git} "$@"\nkill -INT $PPID\nkill -INT $$\n'
    )
    (tools / "git").chmod(0o755)
    folder = tmp_path / "demo"
    with _demo(folder, f"{tools}:{os.environ['PATH']}") as running:
        told, _ = running.communicate(timeout=120)
    assert "interrupted" in told
    assert running.returncode == 130
    assert _processes_of(tmp_path) == []


def test_a_folder_that_no_demo_made_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "result.json").write_text("mine")
    with _demo(folder) as running:
        told, _ = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "is there and no demo made it" in " ".join(told.split())
    assert [path.name for path in folder.iterdir()] == ["result.json"]
    assert (folder / "result.json").read_text() == "mine"


def test_a_demo_that_is_up_is_not_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    (folder / ".muster").mkdir(parents=True)
    (folder / ".muster-demo").touch()
    lock = os.open(folder / ".muster" / "up.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with _demo(folder) as running:
        told, _ = running.communicate(timeout=120)
    os.close(lock)
    assert running.returncode == 1
    assert "a cluster is up in" in " ".join(told.split())
    assert sorted(path.name for path in folder.iterdir()) == [".muster", ".muster-demo"]
