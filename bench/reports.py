"""Reports over a year: a store with the history of 200,000 jobs, and how long each report takes.

The history is written through the store itself, with what the meter makes of each attempt, and the
records of all jobs and attempts beside it, as if nothing had been pruned. Every report is made
over the whole year by each thing that it can tell apart, with a new reader each time, so that
nothing is left of the one before but what the system keeps of the file.
"""

import argparse
import contextlib
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.options import count
from reconciler.model import desired
from reconciler.model.rules import usage_charges
from reconciler.model.state import outcome, records, usage_rollups
from reconciler.model.state.states import AttemptState, EndReason, JobState, NodeState
from reconciler.model.values.resources import Resources
from reconciler.operations.reports import usage_reports
from reconciler.store import CycleExtras, Store, StoreReader

#: Midnight of a day, in UTC: the history is the year before it.
NOW = 1_767_225_600.0
DAYS = 365
USERS, QUEUES, POOLS, NODES = 200, 30, 4, 400
MODELS = ("NVIDIA H200", "NVIDIA H100", "NVIDIA A100", "NVIDIA L40S")
GOAL_S = 5.0
#: Each kind with what it is asked to tell apart.
ASKED: tuple[tuple[usage_reports.What, tuple[usage_reports.By, ...]], ...] = (
    ("usage", ("queue",)),
    ("usage", ("queue", "user", "pool", "model")),
    ("waiting", ("queue",)),
    ("waiting", ("queue", "user", "pool", "model")),
    ("efficiency", ("user",)),
    ("efficiency", ("queue", "user", "pool", "model")),
    ("fairness", ("queue",)),
    ("fairness", ("queue", "pool")),
    ("fairness", ("queue", "user", "pool", "model")),
)


def _nodes() -> list[records.NodeRecord]:
    """Nodes of eight GPUs, in pools of one model each."""
    found = []
    for number in range(NODES):
        model = MODELS[number % POOLS]
        gpus = tuple(records.Gpu(i, f"GPU-{number}-{i}", model, 80 * 2**30) for i in range(8))
        inventory = records.Inventory(capacity=Resources(64_000, 2**38, 8000), gpus=gpus)
        name, pool = f"node{number:03d}", f"pool{number % POOLS}"
        found.append(records.NodeRecord(name, NodeState.READY, pool, inventory=inventory))
    return found


def _job(
    number: int, submitted: float, draw: random.Random, node: records.NodeRecord
) -> tuple[records.JobRecord, records.AttemptRecord]:
    """A job of some minutes to a day that waited, ran on one node and has ended."""
    user = min(int(draw.expovariate(1 / 30)), USERS - 1)
    gpus = draw.choice((1, 1, 1, 2, 4, 8))
    resources = Resources(8000 * gpus, 2**34, 1000 * gpus)
    group = desired.TaskGroup("main", 1, resources, command=("true",))
    spec = desired.Job(
        name=f"job-{number}",
        run=1,
        hash=f"{number:016x}",
        queue=f"queue{(user * 7 + number % 3) % QUEUES:02d}",
        owner=f"user{user:03d}@example.org",
        groups=(group,),
        time_limit_s=86_400,
    )
    started = submitted + draw.lognormvariate(5, 2)
    ended = started + min(86_400.0, draw.lognormvariate(8, 1.5))
    failed = draw.random() < 0.1
    state = JobState.FAILED if failed else JobState.SUCCEEDED
    job = records.JobRecord(
        spec=spec,
        state=state,
        elements=bytes([4 if failed else 3]),
        submitted_at=submitted,
        order=number,
        started_at=started,
        ended_at=ended,
    )
    attempt = records.AttemptRecord(
        id=f"job-{number}.1.{number:08x}.0.main.0.1",
        job=spec.name,
        run=1,
        job_key=job.key,
        element=0,
        group="main",
        index=0,
        try_number=1,
        node=node.name,
        boot_id="boot-1",
        resources=resources,
        state=AttemptState.ENDED,
        assigned_at=started,
        devices=tuple(range(gpus)),
        started_at=started,
        ended_at=ended,
        exit_code=int(failed),
        end_reason=EndReason.EXITED,
        concluded=True,
    )
    return job, attempt


def _shares(
    day: int,
) -> tuple[
    dict[usage_rollups.ShareKey, usage_rollups.Share],
    dict[usage_rollups.PoolShareKey, usage_rollups.PoolShareTotals],
]:
    """What each queue was promised and given in each hour of a day, and in each pool of it."""
    first = int(NOW // 3600) - 24 * (DAYS - day)
    shares: dict[usage_rollups.ShareKey, usage_rollups.Share] = {}
    by_pool: dict[usage_rollups.PoolShareKey, usage_rollups.PoolShareTotals] = {}
    for hour, queue in itertools.product(range(first, first + 24), range(QUEUES)):
        name, had = f"queue{queue:02d}", (60 + queue) * 3600.0
        key = usage_rollups.ShareKey(hour, name)
        shares[key] = usage_rollups.Share(64 * 3600.0, 70 * 3600.0, had, 80 * 3600.0, 100.0 * queue)
        for pool in range(POOLS):
            part = usage_rollups.PoolShareTotals(16 * 3600.0, 17 * 3600.0, had / POOLS, 20 * 3600.0)
            by_pool[usage_rollups.PoolShareKey(hour, name, f"pool{pool}")] = part
    return shares, by_pool


def _days(jobs: int) -> Iterator[tuple[outcome.Outcome, usage_rollups.UsageRollup]]:
    """The history, a day at a time."""
    draw = random.Random(1)
    nodes = _nodes()
    numbers = itertools.count()
    for day in range(DAYS):
        began = NOW - 86_400.0 * (DAYS - day)
        made, tries = [], []
        usage: dict[usage_rollups.UsageKey, usage_rollups.Usage] = {}
        waits: dict[usage_rollups.WaitKey, usage_rollups.WaitTotals] = {}
        for _ in range(jobs * (day + 1) // DAYS - jobs * day // DAYS):
            node = draw.choice(nodes)
            job, attempt = _job(next(numbers), began + draw.uniform(0, 86_400), draw, node)
            made.append(job)
            tries.append(attempt)
            assert attempt.ended_at is not None
            gpu_s = attempt.resources.gpu_milli / 1000 * (attempt.ended_at - attempt.assigned_at)
            measured = (gpu_s, gpu_s * draw.uniform(0.2, 0.95))
            for key, used in usage_charges.usage_of(attempt, job.spec, node, NOW, measured):
                usage[key] = usage.get(key, usage_rollups.Usage()) + used
            assert job.started_at is not None
            wait_s = job.started_at - job.submitted_at
            waited = usage_rollups.WaitKey(
                int(job.started_at // usage_rollups.DAY_S),
                job.spec.queue,
                job.spec.owner,
                node.pool,
                node.inventory.gpus[0].model,
                usage_rollups.bucket_of(wait_s),
            )
            known = waits.get(waited, usage_rollups.WaitTotals())
            waits[waited] = usage_rollups.WaitTotals(known.jobs + 1, known.wait_s + wait_s)
        decided = outcome.Outcome(
            now=began + 86_400,
            desired_generation=1,
            jobs=tuple(made),
            attempts=tuple(tries),
            nodes=tuple(nodes) if day == 0 else (),
        )
        yield decided, usage_rollups.UsageRollup(usage, waits, *_shares(day))


def fill(url: str, jobs: int) -> None:
    """Write the history of a year into a new store."""
    with contextlib.closing(Store.open(url)) as store:
        epoch = store.lead("bench", NOW - 86_400.0 * DAYS)
        for cycle, (decided, rollup) in enumerate(_days(jobs), 1):
            store.commit(epoch, cycle, decided, CycleExtras(rollup=rollup))


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 3), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench reports", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000, help="how many have ended")
    parser.add_argument("--times", type=count, default=5, help="how often each report is made")
    parser.add_argument("--store", type=Path, help="where it is made and left, or was made before")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        path = options.store or Path(folder) / "store.db"
        url = f"sqlite:///{path}"
        if not path.exists():
            fill(url, options.jobs)
        rows = [
            _row("jobs", options.jobs, "jobs"),
            _row("store_mib", path.stat().st_size / 2**20, "MiB"),
        ]
        asked = usage_reports.ReportPeriod(NOW - 86_400.0 * DAYS, NOW, (), NOW)
        for what, by in ASKED:
            took, cpu = [], []
            for _ in range(options.times):
                began, used = time.monotonic(), time.process_time()
                with contextlib.closing(StoreReader.open(url)) as reader:
                    made = usage_reports.make(what, reader, _by(asked, by))
                took.append(time.monotonic() - began)
                cpu.append(time.process_time() - used)
            value = statistics.median(took)
            name = f"{what}_by_{'_'.join(by)}_s"
            rows.append(_row(name, value, "s", goal=f"value < {GOAL_S:g}", met=value < GOAL_S))
            rows.append(_row(f"{name.removesuffix('_s')}_cpu_s", statistics.median(cpu), "s"))
            rows.append(_row(f"{name.removesuffix('_s')}_rows", len(made.rows), "rows"))
    return rows


def _by(
    asked: usage_reports.ReportPeriod, by: tuple[usage_reports.By, ...]
) -> usage_reports.ReportPeriod:
    return usage_reports.ReportPeriod(asked.began, asked.ended, by, asked.now)
