"""Commands whose exit code is their answer give it also where nobody reads what they print."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.desired.repositories import ENVIRONMENT, Repository, documents, git, job, queue


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A clone whose newest commit adds a job; beside it a folder with what is no YAML."""
    repository = Repository(tmp_path / "state.git")
    repository.commit({"q.yaml": documents(queue("q"))})
    repository.commit({"a.yaml": job("a", queue="q")})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "b.yaml").write_text("a: [")
    return tmp_path / "work"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["plan", "--base", "HEAD~1"], 2),
        (["plan", "--base", "HEAD~1", "-o", "markdown"], 2),
        (["plan", "--base", "HEAD~1", "-o", "json"], 2),
        (["plan", "--base", "HEAD"], 0),
        (["validate", "../broken"], 1),
        (["validate", "../broken", "-o", "sarif"], 1),
        (["validate", "."], 0),
    ],
)
def test_the_answer_of_a_command_that_nobody_reads(
    work: Path, words: list[str], status: int
) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli.entry", *words],
            cwd=work,
            env={**known, **ENVIRONMENT},
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writes)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
