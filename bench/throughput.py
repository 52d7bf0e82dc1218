"""How many short tasks a second a cluster of four virtual nodes ends, beside HyperQueue and Slurm.

One array of ``/bin/true``, asked for by a commit; the clock runs from just before ``git commit``
until the store holds the last exit status, fsynced. Every one is counted afterwards. HyperQueue
does as many with as many cores in the same run, Slurm a tenth of them: ours is measured at that
size too, and the ratios are of like sizes. Neither peer holds a task by more than its processes
here, where our agents by default make control groups for each: ours is measured both ways, by
default and with ``--isolation process-group``, as the peers do it. As root it is measured a third
way besides, with the owner of the job mapped to another Unix user, as people's jobs run on a
cluster: the groups of such tasks are kept for the next one. No files are deleted before all is
measured: some file systems make new files dearer for as long as others were deleted a short while
ago.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench import cluster
from bench.options import count
from bench.peers import hq, slurm

NODES, CPUS = 4, 32
_TIMEOUT_S = 1200.0
#: As whom tasks of the third way run: a user that every system has.
OTHER_USER = "nobody"


class Way(NamedTuple):
    """How tasks are held, the agents' option; and the Unix user that runs them, if not ours."""

    isolation: str
    user: str = ""


#: The end of a row's name to the way it was measured.
WAYS = {"": Way("auto"), "_process_groups": Way("process-group")}
if not os.geteuid():
    WAYS["_other_user"] = Way("auto", OTHER_USER)

_JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec:
  queue: bench
  owner: bench@localhost
  array: {{count: {count}}}
  resources: {{cpu: 1, memory: 16Mi}}
  command: [/bin/true]
"""

QUEUE = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: bench}
spec: {}
"""

_ACCESS = """\
apiVersion: muster/v1
kind: Access
metadata: {{name: people}}
spec:
  identities: [{{email: bench@localhost, unixUser: {user}}}]
"""


def array(bed: cluster.Bed, name: str, count: int) -> float:
    """Seconds from before the commit until every exit status of an array is durable.

    Raises:
        RuntimeError: it takes too long, or a task did not end well.
    """
    database = bed.cluster.state / "store.db"
    began = time.monotonic()
    bed.commit({f"{name}.yaml": _JOB.format(name=name, count=count)}, f"run {name}")

    def ended() -> bool:
        state = cluster.one(database, "SELECT state FROM jobs WHERE name = ?", name)
        return state not in {None, "Pending", "Starting", "Running"}

    cluster.wait_until(ended, _TIMEOUT_S)
    taken = time.monotonic() - began
    good = cluster.one(
        database,
        "SELECT count(*) FROM attempts WHERE job = ? AND state = 'Ended' AND exit_code = 0",
        name,
    )
    if good != count:
        raise RuntimeError(f"of {count} tasks {good} ended with status 0 at the first try")
    return taken


def ours(count: int, within: Path, way: Way) -> float:
    """Our tasks per second, on a fresh cluster."""
    with cluster.running(nodes=NODES, cpus=CPUS, within=within, isolation=way.isolation) as bed:
        files = {"queue.yaml": QUEUE}
        if way.user:
            files["access.yaml"] = _ACCESS.format(user=way.user)
        bed.commit(files, "a queue")
        return count / array(bed, "array", count)


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 2), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def _beside(
    count: int,
    peer: str,
    goal: float,
    *,
    repeats: int,
    measure: Callable[[Way], float],
    measure_peer: Callable[[], float],
) -> list[dict[str, Any]]:
    """Runs in turn, peer first; medians of values and of ratios, a row a way of holding tasks."""
    turns = []
    for _ in range(repeats):
        theirs = measure_peer()
        turns.append({"theirs": theirs} | {name: measure(way) for name, way in WAYS.items()})
    rows = []
    for name in WAYS:
        ratio = statistics.median(turn[name] / turn["theirs"] for turn in turns)
        rows.append(
            _row(
                f"tasks_per_s_{count}{name}",
                statistics.median(turn[name] for turn in turns),
                "1/s",
                peer=peer,
                peer_value=round(statistics.median(turn["theirs"] for turn in turns), 2),
                ratio=round(ratio, 3),
                goal=f"ratio >= {goal:g}",
                met=ratio >= goal,
            )
        )
    return rows


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench throughput", description=__doc__)
    parser.add_argument("--tasks", type=count, default=20_000, help="tasks of the array")
    parser.add_argument("--slurm-tasks", type=int, default=2_000, help="tasks beside Slurm")
    parser.add_argument("--no-slurm", action="store_true", help="leave Slurm out")
    parser.add_argument("--no-hyperqueue", action="store_true", help="leave HyperQueue out")
    parser.add_argument("--repeats", type=count, default=1, help="paired runs of each")
    options = parser.parse_args(arguments)
    with cluster.folder_of_its_own("bench-throughput-") as within:
        return _measure(options, within)


def _measure(options: argparse.Namespace, within: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    count = options.tasks
    problem = "left out by --no-hyperqueue" if options.no_hyperqueue else hq.missing()
    if problem:
        rows += [
            _row(f"tasks_per_s_{count}{name}", ours(count, within, way), "1/s")
            for name, way in WAYS.items()
        ]
        rows.append({"not_measured": f"HyperQueue beside us: {problem}"})
    else:
        rows += _beside(
            count,
            f"HyperQueue, {hq.DURABILITY}",
            1.0,
            repeats=options.repeats,
            measure=lambda way: ours(count, within, way),
            measure_peer=lambda: count / hq.array(count, NODES, CPUS, within)["seconds"],
        )
    problem = "left out by --no-slurm" if options.no_slurm else slurm.missing()
    if problem:
        rows.append({"not_measured": f"Slurm beside us: {problem}"})
        return rows
    few = options.slurm_tasks
    with slurm.running(nodes=NODES, cpus=CPUS, within=within) as peer:
        rows += _beside(
            few,
            f"Slurm {peer.version}, {slurm.DURABILITY}",
            10.0,
            repeats=options.repeats,
            measure=lambda way: ours(few, within, way),
            measure_peer=lambda: few / peer.array(few),
        )
    return rows
