"""Room that is kept until those who have it may be told to leave, or have gone who are stayed from.

Stories in time of what documents of scenarios can't say: minimum run times, labels and affinities.
"""

import random
from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.simulation.scenarios import builder, runner, schema
from tests.scenarios.dense import Document

MINIMUM_S = 300


def document(
    nodes: dict[str, Document], queues: dict[str, int], jobs: list[Document], **more: Any
) -> Document:
    """A scenario; ``queues``: GPUs that each is guaranteed."""
    return {
        "scenario": "a story",
        "source": "own",
        "nodes": nodes,
        "queues": [{"name": name, "guaranteed": {"gpu": gpu}} for name, gpu in queues.items()],
        "jobs": jobs,
        "until": 1.0,
        "expect": {},
        **more,
    }


def task(name: str, queue: str, at: float, runs_s: float | None, gpu: int = 1) -> Document:
    """A job of one task that runs for as long as its limit says; None: for ever."""
    time = {} if runs_s is None else {"duration": runs_s, "timeLimit": int(runs_s)}
    return {"name": name, "queue": queue, "submit": at, "tasks": [{"gpu": gpu}], **time}


def starts(
    written: Document,
    until: float,
    *,
    minimum_s: int = 0,
    changes: dict[str, dict[str, Any]] | None = None,
) -> dict[str, float]:
    """When each job started first, in seconds of the story.

    ``changes``: of jobs by name, to what documents don't say.
    """
    situation = builder.build(schema.parse(written))
    settings = situation.structure.settings
    scheduling = msgspec.structs.replace(settings.scheduling, min_runtime_s=minimum_s)
    settings = msgspec.structs.replace(settings, scheduling=scheduling)
    situation.structure = msgspec.structs.replace(situation.structure, settings=settings)

    def changed(spec: desired.Job) -> desired.Job:
        return msgspec.structs.replace(spec, **(changes or {}).get(spec.name, {}))

    situation.later = [(at, changed(spec)) for at, spec in situation.later]
    cluster = runner.begun(situation)
    cluster.run(builder.BEGIN + until)
    return {
        name: record.started_at - builder.BEGIN
        for name, record in cluster.memory.jobs.items()
        if record.started_at is not None
    }


def borrowed(high: str, priorities: tuple[int, int]) -> Document:
    """A node whose devices never come free together, and who waits for all of them."""
    others, own = priorities
    jobs = [
        task("long", "a", 1, None),
        task("first", "a", 10, 290),
        task("second", "a", 160, 290),
        task("own", high, 170, 100, gpu=3),
        *[task(f"next{number}", "a", 180 + number, 290) for number in range(8)],
        task("short", "a", 190, 100),
    ]
    written = [{**job, "priority": own if job["name"] == "own" else others} for job in jobs]
    return document({"n0": {"gpu": 3}}, {"a": 0, "b": 3} if high == "b" else {"a": 3}, written)


@pytest.mark.parametrize(("high", "priorities"), [("b", (50, 50)), ("a", (10, 90))])
def test_nobody_starts_who_would_be_protected_anew_where_others_may_be_told_to_leave(
    high: str, priorities: tuple[int, int]
) -> None:
    """For a guarantee, and for priority within a queue; who ends before that may start."""
    found = starts(borrowed(high, priorities), 2000, minimum_s=MINIMUM_S)
    assert found["own"] == 450  # the second ends by itself, the long one has had its minimum
    assert found["short"] == 300
    assert min(found[f"next{number}"] for number in range(8)) == 550


def drawn(seed: int) -> tuple[Document, float]:
    """Others that come and go where a queue is guaranteed all, and when that asks for some."""
    rng = random.Random(seed)
    sizes = [rng.choice([2, 3, 4]) for _ in range(rng.randint(1, 3))]
    at = float(rng.randint(100, 900))
    jobs = [task("own", "own", at, 100, gpu=rng.randint(2, max(sizes)))]
    for number in range(rng.randint(8, 30)):
        runs_s = rng.choice([None, *[float(rng.randint(20, 700)) for _ in range(9)]])
        gpu = rng.choice([1, 1, 1, 2])
        queue = rng.choice(["a", "b"])
        jobs.append(task(f"j{number}", queue, float(rng.randint(1, 1500)), runs_s, gpu))
    policy = rng.choice([{}, {"backfill": "conservative"}])
    nodes = {f"n{number}": {"gpu": size} for number, size in enumerate(sizes)}
    queues = {"own": sum(sizes), "a": 0, "b": 0}
    return document(nodes, queues, jobs, policy=policy), at


def late(seed: int) -> float:
    """By how much longer who is owed its room waits than the minimum run time."""
    written, at = drawn(seed)
    return starts(written, 3000, minimum_s=MINIMUM_S).get("own", 3000.0) - at - MINIMUM_S


def test_who_is_owed_room_waits_for_no_longer_than_the_minimum_run_time() -> None:
    """Nobody who runs when it asks is protected beyond that, nor moves to where it will start."""
    told = {seed: late(seed) for seed in [*range(16), 33]}
    assert [seed for seed, more in told.items() if more > 0] == [], told


SERVER, OTHER = (("app", "server"),), (("app", "other"),)
BUSY = (("app", "busy"),)


def apart(*labels: tuple[tuple[str, str], ...]) -> tuple[desired.JobAffinity, ...]:
    """On no node with work of these labels."""
    return tuple(desired.JobAffinity(one, apart=True) for one in labels)


@pytest.mark.parametrize("own", [True, False])
def test_nobody_starts_where_somebody_has_room_reserved_who_must_be_apart(own: bool) -> None:
    """Whichever of the two it is that has to be apart from the other.

    ``own``: the one who has room reserved.
    """
    there, later = ["s1", "s2"], ["s3", "s4", "s5", "s6"]
    jobs = [
        task("s1", "a", 1, 100),
        task("s2", "a", 50, 100),
        task("big", "a", 60, 10),
        *[task(name, "a", 70 + at, 100) for at, name in enumerate(later)],
        task("short", "a", 80, 40),
        task("others", "a", 81, 100),
    ]
    changes: dict[str, dict[str, Any]] = {name: {"labels": dict(BUSY)} for name in there}
    if own:
        changes["big"] = {"affinities": apart(BUSY, SERVER)}
        changes |= {name: {"labels": dict(SERVER)} for name in later}
    else:
        changes["big"] = {"affinities": apart(BUSY), "labels": dict(OTHER)}
        changes |= {name: {"affinities": apart(OTHER)} for name in later}
    changes["short"] = changes["s3"]
    policy = {"consolidation": False}
    jobs = [{**job, "tasks": [{"cpu": 1}]} for job in jobs]
    written = document({"n0": {"cpu": 2}}, {"a": 0}, jobs, policy=policy)
    found = starts(written, 400, changes=changes)
    assert (found["big"], found["short"]) == (150, 101), found
    assert min(found[name] for name in later) >= 150, found
    assert found["others"] == 141, found  # what the short one had is not kept for it
