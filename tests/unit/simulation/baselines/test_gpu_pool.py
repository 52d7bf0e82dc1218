"""The textbook policies against schedules worked out by hand, and against each other."""

import itertools
import random

import pytest

from reconciler.simulation.baselines import gpu_pool
from reconciler.simulation.traces.workloads import TraceJob, Workload

#: (submit, runs, size, limit) of jobs a, b, c ...
Jobs = list[tuple[float, float, int, int]]


def workload(jobs: Jobs) -> Workload:
    rows = [
        TraceJob(chr(ord("a") + number), submit, runs, size, "q", limit_s=limit)
        for number, (submit, runs, size, limit) in enumerate(jobs)
    ]
    return Workload(tuple(rows))


def starts(policy: str, jobs: Jobs, units: int) -> dict[str, float | None]:
    return {job.name: job.start_s for job in gpu_pool.run(policy, workload(jobs), units).jobs}


#: On 10 units: a runs short of its limit; b needs all; c and d could go beside a.
CROSSING: Jobs = [
    (0, 50, 6, 100),  # a
    (1, 20, 10, 20),  # b waits for a
    (2, 30, 4, 98),  # c just fits before b by its limit
    (3, 30, 4, 97),  # d would, but c has the room; and after b it is next
    (4, 5, 1, 500),  # e
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # b blocks the others until it has run
        ("fifo", {"a": 0, "b": 50, "c": 70, "d": 70, "e": 70}),
        # b is promised second 100: c may go, it is over by then; at 32 d and e would not be
        ("easy", {"a": 0, "b": 50, "c": 2, "d": 70, "e": 70}),
        ("conservative", {"a": 0, "b": 50, "c": 2, "d": 70, "e": 70}),
        # at 32 d (97) goes before e (500), which fits at 50; b never has room before both
        ("shortest", {"a": 0, "b": 62, "c": 2, "d": 32, "e": 50}),
    ],
)
def test_by_hand(policy: str, expected: dict[str, float]) -> None:
    assert starts(policy, CROSSING, 10) == expected


def test_easy_uses_what_the_head_leaves_over_and_conservative_guards_the_second() -> None:
    """The difference between the two: c would delay b's successor, not b itself."""
    jobs: Jobs = [
        (0, 100, 6, 100),  # a
        (1, 100, 8, 100),  # b: at 100, leaves 2 over
        (2, 100, 10, 100),  # c: after b, at 200
        (3, 300, 2, 300),  # d: within what b leaves over, but into c's time
    ]
    easy, conservative = starts("easy", jobs, 10), starts("conservative", jobs, 10)
    assert easy == {"a": 0, "b": 100, "c": 303, "d": 3}
    assert conservative == {"a": 0, "b": 100, "c": 200, "d": 300}


#: One 16-core node (facts of flux-sched's t1003-qmanager-policy.t): sizes, and limits in seconds.
SIXTEEN_CORES = [
    (8, 3600), (10, 3600), (12, 3600), (14, 3600), (16, 3600), (6, 7260), (4, 10740),
    (4, 14340), (2, 14340), (2, 17940), (2, 3540),
]  # fmt: skip


def test_what_starts_at_once_on_sixteen_cores() -> None:
    jobs: Jobs = [(0, limit, size, limit) for size, limit in SIXTEEN_CORES]
    at_once = [name for name, at in starts("easy", jobs, 16).items() if at == 0]
    assert at_once == ["a", "f", "k"]


def test_a_short_job_fills_the_hole_before_one_that_needs_everything() -> None:
    """Facts of Slurm's backfill unit test."""
    jobs: Jobs = [(0, 600, 1, 600), (0, 600, 32, 600), (0, 300, 31, 300)]
    for policy in ("easy", "conservative"):
        assert starts(policy, jobs, 32) == {"a": 0, "b": 600, "c": 0}


def test_a_job_without_a_limit_counts_as_endless() -> None:
    rows = (
        TraceJob("a", 0, 10, 1, "q"),
        TraceJob("b", 1, 10, 2, "q", limit_s=10),
        TraceJob("c", 2, 50, 1, "q", limit_s=50),
    )
    found = {j.name: j.start_s for j in gpu_pool.run("easy", Workload(rows), 2).jobs}
    assert found == {"a": 0, "b": 52, "c": 2}
    found = {j.name: j.start_s for j in gpu_pool.run("conservative", Workload(rows), 2).jobs}
    assert found == {"a": 0, "b": 52, "c": 2}


def test_a_job_that_is_too_large_never_starts_and_one_over_its_limit_is_ended() -> None:
    jobs: Jobs = [(0, 10, 11, 10), (0, 100, 10, 30), (1, 10, 1, 10)]
    for policy in gpu_pool.POLICIES:
        run = gpu_pool.run(policy, workload(jobs), 10)
        assert [job.start_s for job in run.jobs] == [None, 0, 30]
        assert run.jobs[1].end_s == 30


def drawn(seed: int) -> Jobs:
    chance = random.Random(seed)
    at, jobs = 0.0, []
    for _ in range(60):
        at += chance.choice([0, 0, 1, 5, 20])
        runs = chance.randint(1, 60)
        jobs.append(
            (at, float(runs), chance.choice([1, 1, 2, 3, 5, 8]), runs + chance.randint(0, 60))
        )
    return jobs


@pytest.mark.parametrize(("policy", "seed"), list(itertools.product(gpu_pool.POLICIES, range(8))))
def test_capacity_holds_and_every_job_runs_once(policy: str, seed: int) -> None:
    jobs = drawn(seed)
    run = gpu_pool.run(policy, workload(jobs), 8)
    assert sorted(s.job for s in run.stretches) == sorted(job.name for job in run.jobs)
    for job in run.jobs:
        assert job.start_s is not None
        assert job.start_s >= job.submit_s
        assert job.end_s == job.start_s + job.runs_s
    moments = sorted({s.begin_s for s in run.stretches})
    for at in moments:
        assert sum(s.units for s in run.stretches if s.begin_s <= at < s.end_s) <= 8


def slow_conservative(jobs: Jobs, units: int) -> list[float]:
    """Without profiles: at every event each waiting job in turn gets the first moment that fits."""
    waiting: list[int] = []
    begun: dict[int, float] = {}
    events = sorted({submit for submit, *_ in jobs})
    while events:
        now = events.pop(0)
        waiting += [n for n, job in enumerate(jobs) if job[0] == now]
        held = [
            (now, at + jobs[n][3], jobs[n][2]) for n, at in begun.items() if at + jobs[n][1] > now
        ]
        for number in list(waiting):
            _, runs, size, limit = jobs[number]
            begin = next(
                at
                for at in sorted({now, *(end for _, end, _ in held)})
                if all(
                    sum(u for b, e, u in held if b <= moment < e) + size <= units
                    for moment in {at, *(b for b, _, _ in held if at <= b < at + limit)}
                )
            )
            held.append((begin, begin + limit, size))
            if begin == now:
                begun[number] = now
                waiting.remove(number)
                events = sorted({*events, now + runs})
    return [begun[n] for n in range(len(jobs))]


@pytest.mark.parametrize("seed", range(6))
def test_conservative_against_an_obvious_one(seed: int) -> None:
    jobs = drawn(seed)[:26]
    found = [job.start_s for job in gpu_pool.run("conservative", workload(jobs), 8).jobs]
    assert found == slow_conservative(jobs, 8)


@pytest.mark.parametrize("seed", range(6))
def test_easy_never_delays_the_head_beyond_what_limits_promise(seed: int) -> None:
    """The first job that waits starts no later than in a FIFO in which all run to their limits."""
    jobs = drawn(seed)[:26]
    slow = [(submit, float(limit), size, limit) for submit, _, size, limit in jobs]
    found, bound = starts("easy", slow, 8), starts("fifo", slow, 8)
    waited = [name for name, at in bound.items() if at is not None and at > slow[ord(name) - 97][0]]
    head = waited[0]
    assert (found[head] or 0.0) <= (bound[head] or 0.0)
