"""What is told of a controller that has ended."""

import time
from pathlib import Path

import pytest

from reconciler.operations.local import local_controller


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--killed"],
            "killed by signal 9; its last line was: 2026-11-22T14:24:46 INFO loop: all is well",
        ),
        ([], "status 1: no room is left"),
        (["--silent"], "status 3: see {log}"),
        (["--stopped"], "something asked it to stop (status 0); its log is {log}"),
    ],
)
def test_a_warning_of_long_ago_is_no_cause(tmp_path: Path, options: list[str], told: str) -> None:
    process = local_controller.ControllerProcess(tmp_path, options, "tests.unit.operations.dying")
    process.start({})
    ends_at = time.monotonic() + 60
    while process.is_alive and time.monotonic() < ends_at:
        time.sleep(0.02)
    assert process.last_words() == told.format(log=tmp_path / "controller.log")
