"""The quick start of the README does what it shows."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration import test_up
from tests.integration.test_up import up  # noqa: F401 - a fixture
from tests.unit.docs import pages

#: Times, ids and the folder differ from run to run, and so does whether the controller has read a
#: commit before the command ends.
VARIES = re.compile(
    r"\b(?:\d+[dhm])*\d+(?:\.\d+)?s|\b[0-9a-f]{7}\b|~?\b\d\d:\d\d:\d\d\b"
    r"|(?:; committed locally; this clone has no remote)? \([0-9a-f]{12}(?:, in [^)]*)?\)"
)
#: A line of the README that stands for lines that are left out.
LEFT_OUT = "…"
LONG_S = 60.0


def turns() -> list[tuple[str, str]]:
    """Return the commands of the README for the second terminal, with the output that it shows."""
    readme = pages.ROOT / "README.md"
    blocks = [block.text for block in pages.blocks(readme) if block.language == "text"]
    found = []
    for block in blocks[1:]:
        for turn in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = turn.partition("\n")
            found.append((command, shown.rstrip()))
    return found


def lines(text: str) -> set[str]:
    """Return the lines without what varies and how columns are filled up."""
    return {" ".join(VARIES.sub("…", line).split()) for line in text.splitlines() if line.strip()}


def _until_all_nodes_are_ready(cluster: test_up.Up) -> None:
    """Wait as a person does who types: with one node of two, the smaller job would start first."""
    give_up_at = time.monotonic() + LONG_S
    states: list[str] = []
    while states != ["Ready", "Ready"]:
        assert time.monotonic() < give_up_at, states
        told = json.loads(test_up.muster(cluster.folder, "nodes", "-o", "json").stdout)
        states = [node["state"] for node in told["items"]]
        time.sleep(0.2)


@pytest.mark.slow
def test_the_readme_shows_what_happens(up: test_up.Up) -> None:  # noqa: F811
    _until_all_nodes_are_ready(up)
    for command, shown in turns():
        give_up_at = time.monotonic() + LONG_S
        while True:
            done = subprocess.run(
                ["bash", "-c", f"PATH={Path(sys.executable).parent}:$PATH; {command}"],
                cwd=up.folder,
                env=test_up.environment(),
                capture_output=True,
                text=True,
                timeout=LONG_S,
                check=False,
            )
            printed = done.stdout + done.stderr
            left_out = LEFT_OUT in shown.splitlines()
            missing, more = lines(shown) - lines(printed), lines(printed) - lines(shown)
            if missing <= {LEFT_OUT} and (left_out or not more):
                break
            # Only lists may be asked again: what they show takes a moment to come.
            assert command == "muster jobs", (command, printed)
            assert time.monotonic() < give_up_at, (command, printed)
            time.sleep(0.2)
