"""Each field of what queues and quotas have by pool makes a difference in what starts where.

``test_fields_of_scheduling`` holds that no field is forgotten here.
"""

from pathlib import Path

import pytest

from tests.unit import test_fields_honoured
from tests.unit.test_fields_honoured import Case, Document, Json, counted, job, pool, queue

#: What one element of an array asks for, by the resource that is meant.
ASKED: dict[str, Json] = {
    "cpu": {"cpu": 1},
    "memory": {"cpu": "10m", "memory": "1Gi"},
    "gpu": {"cpu": "10m", "gpu": 1},
}


def there(**flavor: Json) -> Document:
    """The queue of the jobs, with amounts in pool p."""
    return queue("q", flavors=[{"pool": "p"} | flavor])


def eight(resource: str, **more: Json) -> Document:
    return job("j", queue="q", array={"count": 8}, resources=ASKED[resource], **more)


def limited(resource: str) -> tuple[Document, ...]:
    return (there(), pool(count=2), eight(resource))


def owed(resource: str) -> tuple[Document, ...]:
    """What is not preemptible runs only where its queue is guaranteed as much."""
    return (there(), pool(count=2), eight(resource, preemptible=False))


def lent(resource: str, whole: Json) -> tuple[Document, ...]:
    owner = queue("own", flavors=[{"pool": "p", "guaranteed": {resource: whole}}])
    asked = {"cpu": "10m", "memory": "2Gi"} if resource == "memory" else ASKED[resource]
    return (
        owner,
        queue("q"),
        pool(count=1),
        job("j", queue="q", array={"count": 8}, resources=asked),
    )


def shared() -> tuple[Document, ...]:
    return (
        there(guaranteed={"gpu": 0}),
        queue("r"),
        pool(count=1),
        job("j", queue="q", array={"count": 4}, resources=ASKED["gpu"]),
        job("k", queue="r", array={"count": 4}, resources=ASKED["gpu"]),
    )


def other_pool() -> Document:
    nodes = {"cpu": 4, "memory": "8Gi"}
    return test_fields_honoured.document(
        "NodePool", "x", {"provisioner": "virtual", "count": 1, "nodes": nodes}
    )


TABLE: dict[str, Case] = {
    "Queue.spec.flavors[].pool": Case(
        ("p", "x"),
        counted("j"),
        ([1], [8]),
        (
            queue("q", flavors=[{"limit": {"cpu": 1}}]),
            pool(count=2),
            other_pool(),
            eight("cpu", pools=["p"]),
        ),
    ),
    "Queue.spec.flavors[].guaranteed.cpu": Case((1, 3), counted("j"), ([1], [3]), owed("cpu")),
    "Queue.spec.flavors[].guaranteed.memory": Case(
        ("1Gi", "3Gi"), counted("j"), ([1], [3]), owed("memory")
    ),
    "Queue.spec.flavors[].guaranteed.gpu": Case((1, 3), counted("j"), ([1], [3]), owed("gpu")),
    "Queue.spec.flavors[].limit.cpu": Case((1, 3), counted("j"), ([1], [3]), limited("cpu")),
    "Queue.spec.flavors[].limit.memory": Case(
        ("1Gi", "3Gi"), counted("j"), ([1], [3]), limited("memory")
    ),
    "Queue.spec.flavors[].limit.gpu": Case((1, 3), counted("j"), ([1], [3]), limited("gpu")),
    "Queue.spec.flavors[].lendingLimit.cpu": Case((0, 2), counted("j"), ([0], [2]), lent("cpu", 4)),
    "Queue.spec.flavors[].lendingLimit.memory": Case(
        (0, "4Gi"), counted("j"), ([0], [2]), lent("memory", "8Gi")
    ),
    "Queue.spec.flavors[].lendingLimit.gpu": Case((0, 2), counted("j"), ([0], [2]), lent("gpu", 4)),
    "Queue.spec.flavors[].weight": Case((1, 3), counted("j", "k"), ([2, 2], [3, 1]), shared()),
    "Quota.spec.subject.pool": Case(
        ("p", "x"),
        counted("j"),
        ([1], [8]),
        (
            test_fields_honoured.document("Quota", "a", {"resources": {"cpu": 1}}),
            queue("q"),
            pool(count=2),
            other_pool(),
            eight("cpu", pools=["p"]),
        ),
    ),
}


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("which", [0, 1])
def test_two_values_make_a_difference(field: str, which: int, tmp_path: Path) -> None:
    test_fields_honoured.check_difference(field, TABLE[field], which, tmp_path)
