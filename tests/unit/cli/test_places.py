"""Where a folder can't be had, one line says which and why, and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "words",
    [
        ["init", "plain/new"],
        ["agent", "--server", "http://127.0.0.1:1", "--name", "n", "--root", "plain/new"],
        ["simulate", "--jobs", "2", "--nodes", "1", "--html", "plain/new"],
    ],
)
def test_a_folder_that_can_not_be_had_is_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "plain").write_text("a file, and no folder\n")
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last.endswith(": Not a directory")
    assert "plain/new" in last
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr
