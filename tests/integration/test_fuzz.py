"""About a minute of inputs that atheris makes up, for each reader of what strangers send.

The seed is fixed and the inputs are counted, so that a run finds what the one before found: this
test holds what is known to be good. Other inputs are looked for by longer runs (CONTRIBUTING).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import targets

SECONDS = 60
#: Inputs that take about a minute.
RUNS = {
    "attempt_paths": 1_000_000,
    "documents": 60_000,
    "host_lists": 20_000,
    "metric_texts": 60_000,
    "sync_requests": 600_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(targets.TARGETS))
def test_a_minute_finds_nothing(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", target]
    command += [f"--seconds={SECONDS}", f"--runs={RUNS[target]}", "--seed=1"]
    command += [f"--corpus={tmp_path}"]
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
