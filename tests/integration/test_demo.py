"""The demo as people run it: all six steps, and nothing left behind, also after Ctrl-C."""

import json
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


def _demo(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "reconciler.cli.main", "demo", "--folder", str(folder)]
    return subprocess.Popen(
        command, cwd=folder.parent, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_the_demo_does_all_six_things(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with _demo(folder) as running:
        told, _ = running.communicate(timeout=300)
    result = json.loads((folder / "result.json").read_text())
    assert running.returncode == 0, told
    assert result["ok"], told
    assert [step["ok"] for step in result["steps"]] == [True] * 8
    assert "resumes from step" in told
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
