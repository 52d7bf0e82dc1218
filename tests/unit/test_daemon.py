"""A controller that may not be started as it was asked to says so at once, and is none."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:7420", "can be reached from elsewhere and there is no --token-file"),
        ("[::]:7420", "can be reached from elsewhere and there is no --token-file"),
        ("127.0.0.1", "expected HOST:PORT"),
    ],
)
def test_an_address_that_anybody_could_call_at_starts_nothing(
    tmp_path: Path, listen: str, said: str
) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "reconciler.daemon", "--repo", str(tmp_path)]
    done = subprocess.run(
        [*command, "--state", str(state), "--listen", listen],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 64
    assert said in done.stderr
    assert not state.exists()
