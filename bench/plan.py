"""What ``muster plan`` takes on a large repository: 10,000 jobs, 1,000 nodes of 8 GPUs, 10 queues.

A repository is made, and a snapshot of a cluster that has decided its first cycles over it: full,
with thousands of jobs waiting. The change lowers a limit, removes jobs and adds urgent gangs. Timed
is the command as a person starts it, without and with looking ahead, and its parts in process.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.options import count
from reconciler.model import desired
from reconciler.operations.plan import cluster_snapshot, planner, revisions
from reconciler.simulation.engine import simulated_cluster, simulated_nodes, world
from reconciler.simulation.forecast import cluster_forecast

_NOW = 1_800_000_000.0
_SIZES = (1, 1, 1, 2, 2, 4, 8, 8, 8, 16, 32)
_LIMITS = ("30m", "1h", "4h", "12h", "24h")
_JOBS_IN_FILE = 10
_QUEUES = 10


def _structure(nodes: int) -> str:
    parts = [
        (
            "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: h200}\n"
            f'spec: {{hosts: "gpu[0001-{nodes:04d}]", allowRoot: true, '
            "nodes: {cpu: 128, memory: 1Ti, gpus: {count: 8, model: H200}}}\n"
        )
    ]
    each = nodes * 8 * 6 // 100
    parts += [
        f"apiVersion: muster/v1\nkind: Queue\nmetadata: {{name: team-{number}}}\n"
        f"spec: {{guaranteed: {{gpu: {each}}}, limit: {{gpu: {nodes * 4}}}}}\n"
        for number in range(_QUEUES)
    ]
    return "---\n".join(parts)


def _job(name: str, size: int, limit: str, queue: int, priority: int) -> str:
    per, count = min(8, size), max(1, size // 8)
    return (
        f"apiVersion: muster/v1\nkind: Job\nmetadata: {{name: {name}, labels: {{bench: plan}}}}\n"
        f"spec:\n  queue: team-{queue}\n  owner: user{queue}@example.org\n"
        f"  priority: {priority}\n  timeLimit: {limit}\n  count: {count}\n"
        f"  resources: {{gpu: {per}, cpu: {per * 4}, memory: {per * 16}Gi}}\n"
        f"  checkpoint: {{grace: 30s}}\n  command: [python3, train.py, --seed, '{name}']\n"
    )


def _jobs(count: int) -> Iterator[tuple[str, str]]:
    chance = random.Random(1)
    for first in range(0, count, _JOBS_IN_FILE):
        texts = [
            _job(
                f"job-{number:05d}",
                chance.choice(_SIZES),
                chance.choice(_LIMITS),
                chance.randrange(_QUEUES),
                chance.choice((50, 50, 50, 60, 70)),
            )
            for number in range(first, min(count, first + _JOBS_IN_FILE))
        ]
        yield f"jobs/{first:05d}.yaml", "---\n".join(texts)


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def _write(folder: Path, files: Iterator[tuple[str, str]]) -> None:
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make(folder: Path, nodes: int, jobs: int) -> None:
    """A repository with ``main``, and ``proposal`` one commit ahead of it."""
    _git(folder, "init", "--quiet", "--initial-branch", "main")
    propose(folder, nodes, jobs)


def propose(folder: Path, nodes: int, jobs: int, below: str = "") -> None:
    """In a repository: jobs and nodes in ``main``, and ``proposal`` one commit ahead of it.

    ``below``: the folder in it in which they stand.
    """
    place = folder / below
    place.mkdir(exist_ok=True)
    (place / "structure.yaml").write_text(_structure(nodes))
    _write(place, _jobs(jobs))
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "base")
    _git(folder, "checkout", "--quiet", "-b", "proposal")
    text = (place / "structure.yaml").read_text()
    (place / "structure.yaml").write_text(
        text.replace(f"limit: {{gpu: {nodes * 4}}}", f"limit: {{gpu: {nodes * 2}}}", 1)
    )
    (place / "jobs" / f"{0:05d}.yaml").unlink()
    (place / "urgent.yaml").write_text(
        "---\n".join(_job(f"urgent-{n}", 256, "4h", 3, 200) for n in range(4))
    )
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "proposal")
    _git(folder, "checkout", "--quiet", "main")


def live(wanted: desired.Desired, revision: str, cycles: int) -> cluster_snapshot.Live:
    """A cluster that has decided so many cycles over what is wanted."""
    runs_s = {name: 0.7 * (job.time_limit_s or 3600) for name, job in wanted.jobs.items()}
    cluster = simulated_cluster.SimulatedCluster(
        wanted.structure,
        now=_NOW,
        jobs=wanted.jobs,
        surroundings=world.World(
            fates=lambda attempt: simulated_nodes.TaskOutcome(runs_s=runs_s[attempt.job]),
            timing=world.Timing(start_report_within_s=60.0, cycle_every_s=60.0),
        ),
    )
    while cluster.cycles < cycles:
        cluster.step()
    observed = cluster.memory.observed((), {})
    pools = tuple(wanted.structure.pools.values())
    return cluster_snapshot.Live("bench", cluster.now, revision, revision, observed, pools)


def timed(folder: Path, *arguments: str) -> tuple[float, float]:
    """Seconds that the command takes, from its start to its end: of the clock, and of the CPU."""
    muster = Path(sys.executable).with_name("muster")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [str(muster), "plan", "proposal", "--base", "main", "-o", "json", *arguments],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    taken = time.perf_counter() - began
    if done.returncode != 2:
        raise RuntimeError(f"muster plan exited with {done.returncode}: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return taken, cpu_s


def _row(name: str, value: float, unit: str = "s", below: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "value": round(value, 3), "unit": unit}
    row |= dict.fromkeys(("peer", "peer_value", "ratio", "goal", "met"))
    if below is not None:
        row |= {"goal": f"below {below:g} s", "met": value < below}
    return row


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench plan", description=__doc__)
    parser.add_argument("--jobs", type=count, default=10_000)
    parser.add_argument("--nodes", type=count, default=1_000)
    parser.add_argument("--times", type=count, default=3)
    parser.add_argument("--cycles", type=int, default=3, help="decided before the snapshot")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        folder = Path(name) / "repository"
        folder.mkdir()
        make(folder, options.nodes, options.jobs)
        began = time.perf_counter()
        found = revisions.compare(folder, "", "main", "proposal")
        reading_s = time.perf_counter() - began
        kept = live(found.base, found.base_commit, options.cycles)
        packed = cluster_snapshot.pack(kept)
        file = Path(name) / "cluster.snapshot"
        file.write_bytes(packed)
        began = time.perf_counter()
        snapshot = cluster_snapshot.unpack(packed, "bench")
        unpacking_s = time.perf_counter() - began
        began = time.perf_counter()
        plan = planner.plan(found, snapshot, kept.at)
        planning_s = time.perf_counter() - began
        without = [timed(folder, "--no-forecast") for _ in range(options.times)]
        ahead = [timed(folder, "--against", str(file)) for _ in range(options.times)]
    forecast = plan.forecast
    if forecast is None:
        raise RuntimeError(f"no forecast: {plan.no_forecast}")
    waiting = sum(job.state.value == "Pending" for job in kept.observed.jobs.values())
    return [
        _row("plan_without_forecast_s", statistics.median(t for t, _ in without), below=3.0),
        _row("plan_with_forecast_s", statistics.median(t for t, _ in ahead), below=15.0),
        _row("plan_without_forecast_cpu_s", statistics.median(c for _, c in without)),
        _row("plan_with_forecast_cpu_s", statistics.median(c for _, c in ahead)),
        _row("reading_both_revisions_s", reading_s),
        _row("unpacking_the_snapshot_s", unpacking_s),
        _row("planning_with_forecast_s", planning_s),
        _row("snapshot_bytes", len(packed), "bytes"),
        _row("jobs_waiting", waiting, "jobs"),
        _row("cycles_of_both_futures", forecast.cycles, "cycles"),
        _row("decided_cycle_by_cycle_s", forecast.decided_s, "s ahead"),
        _row("jobs_told", len(forecast.shifts), "jobs"),
        _row("jobs_preempted", len(forecast.evictions), "jobs"),
        _row("cycles_at_the_least", 2 * cluster_forecast.CYCLES_MIN, "cycles"),
        _row("changes", float(len(msgspec.to_builtins(plan.changes))), "objects"),
    ]
