"""What becomes of a gang does not depend on the order in which a document has its tasks."""

import random
from typing import Any

import pytest

from reconciler.simulation.scenarios import builder, runner, schema

SEEDS = 40
ROUNDS = 4


def drawn(seed: int) -> dict[str, Any]:
    """Gangs of tasks of several sizes and priorities, some of them there in part."""
    draw = random.Random(seed)
    free = {f"n{number}": draw.choice([1, 2, 4]) for number in range(draw.choice([1, 2, 3]))}
    nodes = {name: {"gpu": gpus} for name, gpus in free.items()}
    jobs = []
    for number in range(draw.randint(1, 3)):
        tasks: list[dict[str, Any]] = []
        for _ in range(draw.randint(2, 4)):
            task: dict[str, Any] = {"gpu": draw.choice([1, 1, 2, 3])}
            if draw.random() < 0.2:
                task["priority"] = draw.choice([1, 2])
            room = [name for name in nodes if free[name] >= task["gpu"]]
            if room and draw.random() < 0.3:
                free[room[0]] -= task["gpu"]
                task |= {"state": "running", "node": room[0]}
            tasks.append(task)
        gang = {"min": draw.randint(1, len(tasks)), "priority": draw.choice([10, 50, 90])}
        jobs.append({"name": f"j{number}", "queue": draw.choice("ab"), "tasks": tasks} | gang)
    queues = [{"name": "a", "guaranteed": {"gpu": 2}}, {"name": "b", "guaranteed": {"gpu": 1}}]
    rounds = {"settle": ROUNDS}
    return {
        "scenario": "gangs",
        "source": "own",
        "nodes": nodes,
        "queues": queues,
        "jobs": jobs,
        "rounds": rounds,
        "expect": {},
    }


def shuffled(document: dict[str, Any], seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    jobs = [
        job | {"tasks": draw.sample(job["tasks"], len(job["tasks"]))} for job in document["jobs"]
    ]
    return document | {"jobs": jobs}


def found(document: dict[str, Any]) -> list[dict[str, list[tuple[int, int, bool]]]]:
    """After each round of the tasks of each job: GPUs, priority, and whether it runs."""
    cluster = runner.begun(made := builder.build(schema.parse(document)))
    told = []
    for number in range(1, ROUNDS + 1):
        cluster.run(builder.BEGIN + number * runner.ROUND_S, inclusive=False)
        running = {
            (one.job, one.group, one.index)
            for one in cluster.memory.attempts.values()
            if one.state.value == "Running"
        }
        told.append(
            {
                job["name"]: sorted(
                    (task["gpu"], task.get("priority", 0), (job["name"], *place) in running)
                    for task, place in zip(job["tasks"], made.tasks[job["name"]], strict=True)
                )
                for job in document["jobs"]
            }
        )
    return told


@pytest.mark.parametrize("seed", range(SEEDS))
def test_tasks_have_no_order(seed: int) -> None:
    document = drawn(seed)
    assert found(shuffled(document, seed)) == found(document)


@pytest.mark.parametrize(
    ("gpus", "tasks", "least", "runs"),
    [
        pytest.param(1, [{"gpu": 2}, {"gpu": 1}], 1, [1], id="any that have room are enough"),
        pytest.param(
            2,
            [{"gpu": 1}, {"gpu": 2, "state": "running", "node": "n0"}],
            1,
            [2],
            id="what runs already counts first",
        ),
        pytest.param(2, [{"gpu": 1}, {"gpu": 2, "priority": 1}], 1, [2], id="then by priority"),
    ],
)
def test_min_is_of_any_tasks(
    gpus: int, tasks: list[dict[str, Any]], least: int, runs: list[int]
) -> None:
    document = drawn(0) | {
        "nodes": {"n0": {"gpu": gpus}},
        "jobs": [{"name": "gang", "queue": "a", "min": least, "tasks": tasks}],
    }
    for order in (tasks, tasks[::-1]):
        document["jobs"][0]["tasks"] = order
        for after in found(document):
            assert [gpu for gpu, _, is_running in after["gang"] if is_running] == runs
