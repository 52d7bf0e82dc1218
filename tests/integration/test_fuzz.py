"""A minute of inputs that atheris makes up, for each reader of what strangers send."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import targets

SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(targets.TARGETS))
def test_a_minute_finds_nothing(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", target]
    command += [f"--seconds={SECONDS}", f"--corpus={tmp_path}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        timeout=SECONDS + 240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "stat::number_of_executed_units" in done.stderr


@pytest.mark.parametrize("target", sorted(targets.TARGETS))
def test_the_seeds_of_the_corpus_pass(target: str) -> None:
    seeds = sorted((Path(targets.__file__).parent / "corpus" / target).iterdir())
    assert seeds
    for seed in seeds:
        targets.TARGETS[target](seed.read_bytes())
