"""What follows a task's output goes on over all that may happen to the task and to its node."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds

pytestmark = pytest.mark.slow
STRUCTURE = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
---
apiVersion: muster/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 900}
"""
URGENT = """\
  priorityClass: urgent
  count: 2
  resources: {cpu: 1, memory: 16Mi}
  command: [sleep, "3600"]"""
#: Counts, with the try before each number, until a file is there.
COUNTS = """\
  preemptible: true
  checkpoint: {{path: saved, signal: SIGTERM, grace: 2s}}
  resources: {{cpu: 1, memory: 16Mi}}
  script: |
    trap 'echo "leaving $MUSTER_TRY"; exit 0' TERM
    number=0
    while [ ! -e {go} ]; do
      echo "try $MUSTER_TRY number $number"
      echo "error $MUSTER_TRY number $number" >&2
      number=$((number + 1))
      sleep 0.2
    done
    echo "over"
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path, nodes=2, cpus=1) as made:
        made.commit({"structure.yaml": STRUCTURE})
        yield made


@contextlib.contextmanager
def followers(
    bed: beds.Bed, commands: dict[str, list[str]]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Commands that write into files of their names."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, words in commands.items():
            with (
                (bed.folder / name).open("wb") as out,
                (bed.folder / f"{name}.err").open("wb") as err,
            ):
                running[name] = subprocess.Popen(
                    [sys.executable, "-m", "reconciler.cli.main", "logs", *words],
                    cwd=bed.folder,
                    env=bed.environment,
                    stdout=out,
                    stderr=err,
                )
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def numbers(text: str, word: str = "try") -> dict[int, list[int]]:
    """The numbers that each try counted, in the order in which they were shown."""
    found: dict[int, list[int]] = {}
    for made, number in re.findall(rf"^(?:.* )?{word} (\d) number (\d+)$", text, re.MULTILINE):
        found.setdefault(int(made), []).append(int(number))
    return found


def test_a_restart_an_eviction_and_the_death_of_a_node_lose_and_repeat_no_line(
    bed: beds.Bed,
) -> None:
    go = bed.folder / "go"
    nodes = bed.cluster.nodes
    assert nodes is not None
    bed.commit({"train.yaml": beds.job("train", COUNTS.format(go=go))})
    bed.until_state("train", "Running")
    commands = {
        "plain": ["train", "-f"],
        "errors": ["train", "-f", "--stderr"],
        "all": ["train", "-f", "--all-tasks"],
        # what follows of both streams comes as it arrives
        "timed": ["train", "-f", "--stdout", "--since", "1h", "--timestamps"],
    }
    with followers(bed, commands) as running:

        def shown(name: str = "plain") -> str:
            return (bed.folder / name).read_text()

        def counts(made: int, least: int) -> bool:
            """Every follower has shown so many lines of the try."""
            words = {name: "error" if name == "errors" else "try" for name in commands}
            return all(
                len(numbers(shown(name), word).get(made, ())) >= least
                for name, word in words.items()
            )

        bed.until(lambda: counts(1, 3))
        # an agent that starts again
        (attempt,) = bed.job("train")["attempts"]
        nodes.kill_agent(attempt["node"])
        assert not nodes.alive(attempt["node"])
        nodes.restart(attempt["node"])
        before = len(numbers(shown())[1])
        bed.until(lambda: counts(1, before + 5))
        assert "has sent nothing" not in shown()
        # an eviction, and a second try
        bed.commit({"urgent.yaml": beds.job("urgent", URGENT)})
        bed.until_state("urgent", "Running")
        bed.commit({"urgent.yaml": None})
        bed.until(lambda: counts(2, 3))
        # a node that dies, and a third try on the other one
        (attempt,) = [one for one in bed.job("train")["attempts"] if one["state"] != "Ended"]
        nodes.kill_node(attempt["node"])
        bed.until(lambda: counts(3, 3), 120)
        (last,) = [one for one in bed.job("train")["attempts"] if one["state"] != "Ended"]
        assert last["node"] != attempt["node"]
        go.touch()
        bed.until_state("train", "Succeeded")
        assert {name: one.wait(60) for name, one in running.items()} == dict.fromkeys(running, 0)
    for name in commands:
        found = numbers(shown(name), "error" if name == "errors" else "try")
        assert set(found) == {1, 2, 3}, name
        for made, counted in found.items():
            assert counted == list(range(len(counted))), (name, made)
    plain = shown().splitlines()
    assert "leaving 1" in plain
    assert plain[-1] == "over"
    headings = [line for line in plain if line.startswith("muster: try ")]
    assert [line.split(" on ")[0] for line in headings] == ["muster: try 2", "muster: try 3"]
    assert plain.index("leaving 1") < plain.index(headings[0])
    timed = [line for line in shown("timed").splitlines() if not line.startswith("muster: ")]
    assert [line.split()[0] for line in timed] == sorted(line.split()[0] for line in timed)
