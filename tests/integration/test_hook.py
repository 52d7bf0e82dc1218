"""The hook that a team copies looks at what is about to be committed, not at what is on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler import package_data
from tests.unit.desired import repositories

HOOKS = package_data.checkout() / "cluster-state" / "hooks"
GOOD = repositories.job("a", timeLimit="10m")
BAD = repositories.job("a", timeLimit="never")


def environment() -> dict[str, str]:
    """With ``muster`` on the path, and without what a hook around these tests would leave."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **repositories.ENVIRONMENT, "PATH": programs}


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(folder), "-c", f"core.hooksPath={HOOKS}", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("linked", [False, True], ids=["clone", "linked work tree"])
def test_what_is_staged_counts_whatever_the_folder_holds(tmp_path: Path, *, linked: bool) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "init", "--quiet", str(clone))
    (clone / "jobs").mkdir()
    job = clone / "jobs" / "a.yaml"
    job.write_text(GOOD)
    git(clone, "add", "--all")
    assert git(clone, "commit", "-m", "first").returncode == 0
    if linked:
        work = tmp_path / "work"
        assert git(clone, "worktree", "add", "--quiet", str(work)).returncode == 0
        job = work / "jobs" / "a.yaml"

    job.write_text(BAD)
    git(job.parent, "add", "a.yaml")
    job.write_text(GOOD)
    refused = git(job.parent, "commit", "-m", "the folder is fine")
    assert refused.returncode == 1, refused
    assert 'found "never"' in refused.stderr

    job.write_text(GOOD.replace("10m", "11m"))
    git(job.parent, "add", "a.yaml")
    job.write_text(BAD)
    assert git(job.parent, "commit", "-m", "what is staged is fine").returncode == 0
    assert git(job.parent, "show", "HEAD:./a.yaml").stdout == GOOD.replace("10m", "11m")
    refused = git(job.parent, "commit", "-a", "-m", "of an index that git makes for this alone")
    assert 'found "never"' in refused.stderr, refused
