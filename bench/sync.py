"""How long desired state takes to load: everything at first, then a commit that touches one file.

It makes a repository of 20,000 jobs in 2,000 files and one of 1,000 jobs in 100 files. The peer
is PyYAML's own time for the same bytes, C loader, nothing but values: a floor that no program
that uses it can go below. Runs of the two alternate, and medians are told.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from bench import options
from reconciler.desired.apply import loader
from reconciler.desired.git import source

_JOBS, _SMALL_JOBS, _JOBS_A_FILE = 20_000, 1_000, 10
_RATIO_GOAL, _COMMIT_GOAL_S, _FLAT_GOAL = 0.8, 0.050, 2.0
_IDENTITY = {
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@example.org",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
}

_STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: h200}
spec:
  hosts: gpu[001-128]
  nodes: {cpu: 64, memory: 1Ti, gpus: {count: 8, model: NVIDIA H200, memory: 141Gi}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
spec:
  guaranteed: {gpu: 512}
"""

_JOB = """\
apiVersion: muster/v1
kind: Job
metadata:
  name: train-{number:05d}
  labels:
    team: vision
spec:
  queue: research
  owner: alice@example.org
  count: {count}
  resources:
    cpu: 8
    memory: 64Gi
    gpu: 1
  command: [python3, train.py, --seed, "{number}", --edition, "{edition}"]
  environment:
    OMP_NUM_THREADS: "8"
  timeLimit: 12h
  retries:
    limit: 3
"""


def job_file(index: int, edition: int = 0) -> bytes:
    """One file of ten jobs."""
    first = index * _JOBS_A_FILE
    return "---\n".join(
        _JOB.format(number=number, edition=edition, count=1 + number % 8)
        for number in range(first, first + _JOBS_A_FILE)
    ).encode()


def _import(repository: Path, files: Iterator[tuple[str, bytes]], *, parent: bool) -> None:
    """One commit made of files, without a work tree."""
    parts = [b"commit refs/heads/main\ncommitter bench <bench@example.org> 0 +0000\ndata 4\nload\n"]
    if parent:
        parts.append(b"from refs/heads/main^0\n")
    for path, data in files:
        parts.append(f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n")
    subprocess.run(
        ["git", "-C", str(repository), "fast-import", "--quiet", "--date-format=raw"],
        input=b"".join(parts),
        check=True,
        env={**os.environ, **_IDENTITY},
    )


def make_repository(folder: Path, jobs: int) -> Path:
    """A bare repository with ``jobs`` jobs."""
    repository = folder / f"jobs-{jobs}.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(repository)], check=True)
    count = jobs // _JOBS_A_FILE

    def files() -> Iterator[tuple[str, bytes]]:
        yield "structure.yaml", _STRUCTURE.encode()
        for index in range(count):
            yield f"teams/t{index % 20:02d}/jobs-{index:04d}.yaml", job_file(index)

    _import(repository, files(), parent=False)
    return repository


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _load(repository: Path) -> loader.Loader:
    made = loader.Loader(source.GitSource(str(repository)))
    value = made.load()
    if value.status.sync != "Synced":
        raise RuntimeError(f"{repository} did not load: {value.status.message}")
    return made


def _first_load(repository: Path, jobs: int, repeats: int) -> tuple[float, float]:
    """Median seconds of our first load and of the floor, paired."""
    blobs = [_STRUCTURE.encode(), *(job_file(index) for index in range(jobs // _JOBS_A_FILE))]
    ours, floor = [], []

    def load_floor() -> list[Any]:
        return [list(yaml.load_all(data, Loader=yaml.CSafeLoader)) for data in blobs]

    for _ in range(repeats):
        floor.append(_timed(load_floor))
        ours.append(_timed(lambda: _load(repository).close()))
    return statistics.median(ours), statistics.median(floor)


def _one_file_commit(repository: Path, jobs: int, commits: int) -> float:
    """Median seconds from a commit that is there to a value that has it."""
    made = _load(repository)
    taken = []
    count = jobs // _JOBS_A_FILE
    for edition in range(1, commits + 1):
        index = (edition * 37) % count
        path = f"teams/t{index % 20:02d}/jobs-{index:04d}.yaml"
        _import(repository, iter([(path, job_file(index, edition))]), parent=True)
        before = made.last.generation
        taken.append(_timed(made.load))
        if made.last.generation != before + 1:
            raise RuntimeError("a commit changed nothing")
    made.close()
    return statistics.median(taken)


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": value, "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench sync", description=__doc__)
    parser.add_argument("--repeats", type=options.count, default=5, help="paired runs of each")
    repeats: int = parser.parse_args(arguments).repeats
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        folder = Path(name)
        large = make_repository(folder, _JOBS)
        small = make_repository(folder, _SMALL_JOBS)
        ours, floor = _first_load(large, _JOBS, repeats)
        commit_small = _one_file_commit(small, _SMALL_JOBS, 4 * repeats)
        commit_large = _one_file_commit(large, _JOBS, 4 * repeats)
    ratio = ours / floor
    flat = commit_large / commit_small
    return [
        _row(
            "first_load_20000_jobs_s",
            ours,
            "s",
            peer="PyYAML CSafeLoader, same bytes",
            peer_value=floor,
            ratio=ratio,
            goal=f"ratio <= {_RATIO_GOAL}",
            met=ratio <= _RATIO_GOAL,
        ),
        _row(
            "one_file_commit_1000_jobs_s",
            commit_small,
            "s",
            goal=f"value <= {_COMMIT_GOAL_S}",
            met=commit_small <= _COMMIT_GOAL_S,
        ),
        _row(
            "one_file_commit_20000_jobs_s",
            commit_large,
            "s",
            goal=f"value <= {_COMMIT_GOAL_S}",
            met=commit_large <= _COMMIT_GOAL_S,
        ),
        _row(
            "one_file_commit_growth",
            flat,
            "x",
            goal=f"value <= {_FLAT_GOAL}",
            met=flat <= _FLAT_GOAL,
        ),
    ]
