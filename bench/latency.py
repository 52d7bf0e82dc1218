"""From a commit to a running process, and from its exit to the durable record, beside Slurm.

Single jobs, one commit each, at seeded random gaps on an idle cluster. The clock starts just
before ``git commit`` and ends with the time that the job itself writes as its first act; git's
own share, commit and push, is told besides. Slurm's clock starts just before ``sbatch``, and the
job is the same. Ours are measured three times: with a push to a bare repository, as a team has
it; with commits in the watched repository itself, which is what compares with ``sbatch`` on the
machine of ``slurmctld``; and with a push and tasks in process groups alone, as Slurm holds them
there, where nodes by default take control groups.
"""

import argparse
import random
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import cluster
from bench.peers import slurm
from bench.throughput import CPUS, NODES, QUEUE

GAP_S_MAX = 3.0
_LOOK_S = 0.005
_TIMEOUT_S = 60.0

_JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec:
  queue: bench
  owner: bench@localhost
  resources: {{cpu: 1, memory: 16Mi}}
  command: [/bin/sh, -c, "{command}"]
"""


def first_act(path: Path) -> str:
    """A shell's line that writes the time, whole or not at all, and the time of its end."""
    return f"date +%s.%N > {path}.new && mv {path}.new {path}; sleep 0.2; date +%s.%N > {path}.end"


def _ended(path: Path) -> float:
    """The time that a job wrote as its last act."""
    return float(Path(f"{path}.end").read_text())


class Recorder(threading.Thread):
    """Notes when the store holds the end of each job, to a few milliseconds."""

    def __init__(self, database: Path) -> None:
        super().__init__(daemon=True)
        self._database = database
        self.leaving = threading.Event()
        self.recorded: dict[str, float] = {}

    def run(self) -> None:
        """Look whenever the store has changed, until told to leave."""
        connection = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=10)
        version = None
        while not self.leaving.wait(_LOOK_S):
            now = time.time()
            found = connection.execute("PRAGMA data_version").fetchone()
            if found == version:
                continue
            version = found
            for (job,) in connection.execute("SELECT job FROM attempts WHERE state = 'Ended'"):
                self.recorded.setdefault(job, now)
        connection.close()


def _one_by_one(
    count: int, seed: int, submit: Callable[[int], tuple[float, Path]]
) -> list[tuple[float, float]]:
    """Submit at random moments; when each was begun to be submitted, and when it ran."""
    gaps = random.Random(seed)
    begun = []
    for number in range(count):
        time.sleep(gaps.uniform(0.0, GAP_S_MAX))
        begun.append(submit(number))
    cluster.wait_until(lambda: all(path.exists() for _, path in begun), _TIMEOUT_S)
    return [(began, float(path.read_text())) for began, path in begun]


def _ours(
    count: int, seed: int, *, isolation: str = "auto", in_place: bool = False
) -> dict[str, list[float]]:
    """Milliseconds by what was measured."""
    with cluster.running(nodes=NODES, cpus=CPUS, isolation=isolation, in_place=in_place) as bed:
        bed.commit({"queue.yaml": QUEUE}, "a queue")
        recorder = Recorder(bed.cluster.state / "store.db")
        recorder.start()
        by_git = []

        def submit(number: int) -> tuple[float, Path]:
            path = bed.folder / f"ran-{number}"
            text = _JOB.format(name=f"one-{number}", command=first_act(path))
            bed.stage({f"one-{number}.yaml": text})
            began = time.time()
            bed.publish(f"job {number}")
            by_git.append(1e3 * (time.time() - began))
            return began, path

        times = _one_by_one(count, seed, submit)
        cluster.wait_until(lambda: len(recorder.recorded) == count, _TIMEOUT_S)
        recorder.leaving.set()
        recorder.join()
        recorded = [
            1e3 * (recorder.recorded[f"one-{number}"] - _ended(bed.folder / f"ran-{number}"))
            for number in range(count)
        ]
    return {
        "commit_to_running": [1e3 * (ran - begun) for begun, ran in times],
        "exit_to_recorded": recorded,
        "git_alone": by_git,
    }


def _slurm(count: int, seed: int) -> tuple[str, list[float]]:
    """Slurm's version, and its milliseconds from ``sbatch`` to running."""
    with slurm.running(nodes=NODES, cpus=CPUS) as peer:

        def submit(number: int) -> tuple[float, Path]:
            path = peer.folder / f"ran-{number}"
            began = time.time()
            peer.ask("sbatch", "-o/dev/null", "-n1", f"--wrap={first_act(path)}")
            return began, path

        times = _one_by_one(count, seed, submit)
        return peer.version, [1e3 * (ran - begun) for begun, ran in times]


def percentile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def _row(name: str, value: float, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 1), "unit": "ms"}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench latency", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="jobs, one commit each")
    parser.add_argument("--seed", type=int, default=1, help="seed of the gaps")
    parser.add_argument("--no-slurm", action="store_true", help="leave Slurm out")
    options = parser.parse_args(arguments)
    ways: dict[str, dict[str, Any]] = {
        "": {}, "_in_place": {"in_place": True}, "_process_groups": {"isolation": "process-group"},
    }  # fmt: skip
    measured = {
        f"{what}{way}": values
        for way, how in ways.items()
        for what, values in _ours(options.jobs, options.seed, **how).items()
    }
    rows = []
    problem = "left out by --no-slurm" if options.no_slurm else slurm.missing()
    peer: dict[str, list[float]] = {}
    name = None
    if problem:
        rows.append({"not_measured": f"Slurm beside us: {problem}"})
    else:
        version, taken = _slurm(options.jobs, options.seed)
        peer = dict.fromkeys((f"commit_to_running{way}" for way in ways), taken)
        name = f"Slurm {version}, sbatch to running"
    for what, values in measured.items():
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            value = statistics.median(values) if label == "p50" else percentile(values, share)
            more: dict[str, Any] = {}
            if what in peer:
                theirs = percentile(peer[what], share)
                more = {"peer": name, "peer_value": round(theirs, 1)}
                more["ratio"] = round(value / theirs, 3)
                if label == "p50":
                    more |= {"goal": "ratio < 0.1", "met": value / theirs < 0.1}
            rows.append(_row(f"{what}_{label}_ms", value, **more))
    return rows
