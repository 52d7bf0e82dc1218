"""A field that is accepted is honoured, for all that the scheduler goes by.

The cases are of the form of ``test_fields_honoured``; here are those of shares, sizes, topology,
company, queues' policies, quotas, reservations and volumes, and the test that none is forgotten.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import (
    test_fields_by_pool,
    test_fields_honoured,
    test_fields_of_data,
    test_fields_of_policy,
    test_fields_of_provisioning,
    test_fields_of_safety,
)
from tests.unit.test_fields_honoured import Case, Document, Json, Run, counted, job, pool, queue

NOW = "1970-01-12T13:46:40Z"  # Monday; the second at which the world of the tests begins
EIGHT: dict[str, Json] = {"array": {"count": 8}, "resources": {"cpu": 1}}
MIG: Json = {"count": 4, "mig": [{"devices": [1], "instances": {"1g.10gb": 2}}]}


def racks(count: int) -> Document:
    """Nodes of which every other one stands in the same rack."""
    hosts = [(f"p-{i}", f"r{i % 2 + 1}") for i in range(count)]
    return pool(
        count=count,
        topology={
            "levels": ["block", "rack"],
            "domains": [{"hosts": host, "path": ["b", rack]} for host, rack in hosts],
        },
    )


def gpus(**more: Json) -> Document:
    """Two virtual nodes with such GPUs."""
    return pool(nodes={"cpu": 4, "memory": "8Gi", "gpus": {"count": 4} | more})


#: Three GPUs at one NUMA node, and no three that NVLink joins.
NEAR: dict[str, Json] = {"numa": [[0, 1, 2], [3]], "nvlink": [[0, 1], [2, 3]]}
#: NUMA nodes of which numbers do not follow each other.
FAR = gpus(numa=[[0, 3], [1, 2]], nvlink=[[0, 1], [2, 3]])


def near_job(level: Json) -> Document:
    return job(resources={"gpu": 3}, topology={"gpus": {"required": level}})


def empty_pool(name: str) -> Document:
    nodes = {"cpu": 4, "memory": "8Gi"}
    return test_fields_honoured.document(
        "NodePool", name, {"provisioner": "virtual", "count": 0, "nodes": nodes}
    )


def cluster(**scheduling: Json) -> Document:
    return test_fields_honoured.document("Cluster", "c", {"scheduling": scheduling})


def quota(**spec: Json) -> Document:
    return test_fields_honoured.document("Quota", "a", {"subject": {"queue": "default"}} | spec)


def reservation(**spec: Json) -> Document:
    """All nodes, today."""
    whole = {"start": "1970-01-12T00:00:00Z", "end": "1970-01-13T00:00:00Z"}
    if "schedule" in spec or "duration" in spec:
        whole = {}
    return test_fields_honoured.document("Reservation", "r", {"hosts": "p-[0-1]"} | whole | spec)


def volume(**spec: Json) -> Document:
    return test_fields_honoured.document("Volume", "v", {"mountPath": "/data"} | spec)


def nodes_of(name: str) -> Callable[[Run, Path], Json]:
    """Where a job's tasks run."""
    return lambda run, _: sorted({attempt.node for attempt in run.live(name)})


def devices_of(name: str) -> Callable[[Run, Path], Json]:
    """Numbers of the GPUs that a job's tasks have."""
    return lambda run, _: sorted(d for attempt in run.live(name) for d in attempt.devices)


def number_of_nodes(name: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: len({attempt.node for attempt in run.live(name)})


def said(run: Run, _: Path) -> Json:
    """The first words of the reason of a job."""
    record = run.memory.jobs["j"]
    return run.memory.reasons[record.reason_key][0].message.split(" ")[:2]


def taken_over(run: Run, _: Path) -> Json:
    """Whether nodes are told that they may undo what others made."""
    nodes = [node for node in run.nodes.values() if isinstance(node, test_fields_honoured.Node)]
    assert nodes[0].wanted.mig is not None
    return nodes[0].wanted.mig.take_over


def late_after(seconds: float, late: Document) -> Callable[[Run, Path], Json]:
    """What runs of ``j`` and ``late``, which comes after a time."""

    def look(run: Run, folder: Path) -> Json:
        run.advance(seconds)
        return test_fields_honoured.then(late)(run, folder)

    return look


def after_use(run: Run, _: Path) -> Json:
    """How two queues share GPUs that one of them has had alone, a minute after it left them."""
    run.advance(3600)
    run.end("h")
    run.advance(60)
    asked: dict[str, Json] = {"array": {"count": 4}, "resources": {"gpu": 1, "cpu": "10m"}}
    run.add(job("j", queue="old", **asked), job("k", queue="new", **asked))
    run.settle()
    return [run.count("j"), run.count("k")]


HEAVY = (
    pool(count=1),
    queue("old"),
    queue("new"),
    job("h", queue="old", resources={"gpu": 4}),
)


def overdue(run: Run, _: Path) -> Json:
    """Whether ten minutes of work that came last, and waited an hour, go before a day of work."""
    run.add(job("first", resources={"cpu": 4}, timeLimit="2h"))
    run.settle()
    run.add(
        job("long", resources={"cpu": 4}, timeLimit="1d"),
        job("short", resources={"cpu": 4}, timeLimit="10m"),
    )
    run.settle()
    run.advance(3600)
    run.end("first")
    run.settle()
    return run.count("short")


def learned(run: Run, _: Path) -> Json:
    """Whether work of known run times is let pass by a reservation in an hour."""
    for number, ran_s in enumerate((60, 60, 5000)):
        run.add(job(f"x-{number}", timeLimit="2h"))
        run.now += ran_s
        run.end(f"x-{number}")
    run.add(
        job("a", resources={"cpu": 3}, timeLimit="1h", priority=90),
        job("b", resources={"cpu": 4}, timeLimit="1h", priority=80),
        job("x-9", timeLimit="2h"),
    )
    run.settle()
    return run.count("x-9")


def one_fails(run: Run, _: Path) -> Json:
    """What is left of a job of which one task fails."""
    run.end("j", index=1, exit_code=1)
    run.settle()
    return run.count("j")


def spent(run: Run, _: Path) -> Json:
    """Whether the same starts again some hours after it ran."""
    run.advance(1800)
    run.end("j")
    run.advance(3 * 3600)
    run.add(job("late", timeLimit="30m", resources={"gpu": 1}))
    run.settle()
    return run.reason("late") or run.state("late").value


BLOCKED = (
    pool(count=1),
    job("a", resources={"cpu": 3}, timeLimit="1h", priority=90),
    job("b", resources={"cpu": 4}, timeLimit="1h", priority=80),
    job("k", timeLimit="2h"),
)


def packed(name: str) -> Document:
    return job(name, resources={"gpu": 2}, placement="pack", checkpoint={})


def after_a_gap(run: Run, _: Path) -> Json:
    """Whether work of four GPUs starts where each of two nodes has two left."""
    run.end("b")
    run.add(job("late", resources={"gpu": 4}))
    run.settle()
    return run.count("late")


SHARING = (
    queue("q"),
    queue("r"),
    pool(count=1),
    job("j", queue="q", array={"count": 4}, resources={"cpu": "10m", "gpu": 1}),
    job("k", queue="r", array={"count": 4}, resources={"cpu": "10m", "gpu": 1}),
)
LENT: dict[str, tuple[Document, ...]] = {
    resource: (
        queue("own", guaranteed={resource: have}),
        queue("q"),
        pool(count=1),
        job("j", queue="q", array={"count": 8}, resources={"cpu": "10m"} | asked),
    )
    for resource, have, asked in (
        ("cpu", 4, {"cpu": 1}),
        ("memory", "8Gi", {"memory": "2Gi"}),
        ("gpu", 4, {"gpu": 1}),
    )
}
TAINTED = pool(taints=[{"key": "x", "value": "1"}])
TOLERANT = job(tolerations=[{"key": "x", "value": "1"}])
GROUP_OF_TWO = job(groups=[{"name": "a", "count": 2, "resources": {"cpu": 3}}])
GROUP_OF_FOUR = job(groups=[{"name": "a", "count": 4, "resources": {"cpu": 3}}])


def labelled(name: str, app: str, node: str, cpu: int = 1) -> Document:
    return test_fields_honoured.document(
        "Job",
        name,
        {"command": ["true"], "resources": {"cpu": cpu}, "nodeSelector": {"node": node}},
        labels={"app": app},
    )


COMPANY = (labelled("a", "x", "p-0"), labelled("b", "y", "p-1"), racks(2))
FULL = (labelled("a", "x", "p-0", 4), racks(2))
#: Nodes of the first block are in use, of different racks; those of the second are idle, of one.
TWO_BLOCKS: Json = {
    "levels": ["block", "rack"],
    "domains": [
        {"hosts": "p-0", "path": ["b1", "r1"]},
        {"hosts": "p-1", "path": ["b1", "r2"]},
        {"hosts": "p-[2-3]", "path": ["b2", "r3"]},
    ],
}
BEGUN = (pool(count=4, topology=TWO_BLOCKS), labelled("a", "x", "p-0"), labelled("b", "y", "p-1"))
RESERVED = (pool(), job(timeLimit="1h", **EIGHT))

TABLE: dict[str, Case] = {
    # Cluster
    "Cluster.spec.scheduling.backfill": Case(
        ("none", "easy"), counted("k"), ([1], [0]), (cluster(), *BLOCKED)
    ),
    "Cluster.spec.scheduling.depth": Case((0, 8), counted("k"), ([1], [0]), (cluster(), *BLOCKED)),
    "Cluster.spec.scheduling.consolidation": Case(
        (True, False),
        after_a_gap,
        (1, 0),
        (cluster(), pool(), packed("a"), packed("b"), packed("d")),
    ),
    "Cluster.spec.scheduling.fairness.strength": Case(
        (0, 1), after_use, ([2, 2], [0, 4]), (cluster(), *HEAVY)
    ),
    "Cluster.spec.scheduling.fairness.halfLife": Case(
        ("1s", "30d"), after_use, ([2, 2], [0, 4]), (cluster(fairness={"strength": 1}), *HEAVY)
    ),
    "Cluster.spec.scheduling.fairness.window": Case(
        ("30s", "30d"), after_use, ([2, 2], [0, 4]), (cluster(fairness={"strength": 1}), *HEAVY)
    ),
    "Cluster.spec.scheduling.placement": Case(
        ("pack", "spread"),
        number_of_nodes("j"),
        (1, 2),
        (cluster(), pool(), job(array={"count": 2})),
    ),
    "Cluster.spec.scheduling.order": Case(
        ("arrival", "fit"),
        counted("a", "b"),
        ([1, 0], [0, 1]),
        (
            cluster(),
            pool(count=1),
            job("a", resources={"gpu": 1}),
            job("b", resources={"gpu": 4}),
        ),
    ),
    "Cluster.spec.scheduling.learnedRunTimes.quantile": Case(
        (0.5, 1.0), learned, (1, 0), (cluster(), pool(count=1))
    ),
    "Cluster.spec.scheduling.overdueAfter": Case(
        (0, 4), overdue, (0, 1), (cluster(backfill="none"), pool(count=1))
    ),
    "Cluster.spec.scheduling.minRuntime": Case(
        ("1s", "1h"),
        late_after(60, job("late", priority=90, resources={"cpu": 4})),
        ([0, 1], [1, 0]),
        (cluster(), pool(count=1), job(resources={"cpu": 4})),
    ),
    "Cluster.spec.scheduling.graceMax": Case(
        ("1m", "2h"),
        test_fields_honoured.held_grace,
        (60, 3600),
        (cluster(), pool(count=1), job(terminationGrace="1h")),
    ),
    "Cluster.spec.scheduling.staleGangGrace": Case(
        ("0s", "1h"),
        one_fails,
        (0, 2),
        (cluster(), pool(), job(min=2, max=3, resources={"cpu": 3}, retries={"limit": 1})),
    ),
    # NodePool
    "NodePool.spec.nodes.gpus.mig[].devices": Case(
        ([1], [1, 2]),
        counted("j"),
        ([4], [8]),
        (gpus(**MIG), job(array={"count": 8}, resources={"mig": {"profile": "1g.10gb"}})),
    ),
    "NodePool.spec.nodes.gpus.mig[].instances": Case(
        ({"1g.10gb": 1}, {"1g.10gb": 3}),
        counted("j"),
        ([2], [6]),
        (gpus(**MIG), job(array={"count": 8}, resources={"mig": {"profile": "1g.10gb"}})),
    ),
    "NodePool.spec.nodes.gpus.migTakeOver": Case(
        (False, True), taken_over, (False, True), (gpus(**MIG), job())
    ),
    "NodePool.spec.nodes.gpus.numa": Case(
        ([[0, 1, 2, 3]], [[0, 1], [2, 3]]), counted("j"), ([1], [0]), (gpus(), near_job("numa"))
    ),
    "NodePool.spec.nodes.gpus.nvlink": Case(
        ([[0, 1, 2, 3]], [[0, 1], [2, 3]]), counted("j"), ([1], [0]), (gpus(), near_job("nvlink"))
    ),
    "NodePool.spec.taints[].key": Case(
        ("x", "y"), test_fields_honoured.reason(), ("Running", "NeverFits"), (TAINTED, TOLERANT)
    ),
    "NodePool.spec.taints[].value": Case(
        ("1", "2"), test_fields_honoured.reason(), ("Running", "NeverFits"), (TAINTED, TOLERANT)
    ),
    "NodePool.spec.taints[].effect": Case(
        ("NoSchedule", "PreferNoSchedule"),
        test_fields_honoured.reason(),
        ("NeverFits", "Running"),
        (TAINTED, job()),
    ),
    "NodePool.spec.topology.domains[].hosts": Case(
        ("p-[0-1]", "p-0"),
        counted("j"),
        ([2], [0]),
        (
            pool(topology={"levels": ["rack"], "domains": [{"path": ["r"]}]}),
            job(count=2, resources={"cpu": 3}, topology={"required": "rack"}),
        ),
    ),
    "NodePool.spec.topology.domains[].path": Case(
        (["r"], ["s"]),
        counted("j"),
        ([2], [0]),
        (
            pool(
                topology={
                    "levels": ["rack"],
                    "domains": [{"hosts": "p-0"}, {"hosts": "p-1", "path": ["r"]}],
                }
            ),
            job(count=2, resources={"cpu": 3}, topology={"required": "rack"}),
        ),
    ),
    "NodePool.spec.sharing": Case(
        ("time-slice", "none"),
        test_fields_honoured.reason(),
        ("Running", "NeverFits"),
        (pool(), job(resources={"gpu": 0.5})),
    ),
    "NodePool.spec.overcommit.cpu": Case(
        (1, 2), counted("j"), ([8], [16]), (pool(), job(array={"count": 20}))
    ),
    "NodePool.spec.overcommit.memory": Case(
        (1, 2.0),
        counted("j"),
        ([4], [8]),
        (pool(), job(array={"count": 20}, resources={"cpu": "10m", "memory": "4Gi"})),
    ),
    # Volume
    "Volume.spec.mountPath": Case(
        ("/a", "/b"),
        test_fields_honoured.variable("MUSTER_VOLUME_V"),
        (["/a"], ["/b"]),
        (volume(), pool(), job(volumes=["v"])),
    ),
    "Volume.spec.pools": Case(
        (["p"], ["q"]),
        test_fields_honoured.reason(),
        ("Running", "NeverFits"),
        (volume(), pool(), empty_pool("q"), job(volumes=["v"])),
    ),
    # Queue
    "Queue.spec.lendingLimit.cpu": Case((0, 2), counted("j"), ([0], [2]), LENT["cpu"]),
    "Queue.spec.lendingLimit.memory": Case((0, "4Gi"), counted("j"), ([0], [2]), LENT["memory"]),
    "Queue.spec.lendingLimit.gpu": Case((0, 2), counted("j"), ([0], [2]), LENT["gpu"]),
    "Queue.spec.weight": Case((1, 3), counted("j", "k"), ([2, 2], [3, 1]), SHARING),
    "Queue.spec.priority": Case((0, 9), counted("j", "k"), ([2, 2], [4, 0]), SHARING),
    "Queue.spec.preemption.minRuntime": Case(
        ("1s", "1h"),
        late_after(60, job("late", queue="q", priority=90, resources={"cpu": 4})),
        ([0, 1], [1, 0]),
        (queue("q"), pool(count=1), job(queue="q", resources={"cpu": 4})),
    ),
    "Queue.spec.ordering": Case(
        ("best-effort", "strict"),
        counted("k"),
        ([1], [0]),
        (
            queue("q"),
            pool(count=1),
            job("j", queue="q", priority=90, resources={"cpu": 64}),
            job("k", queue="q", resources={"cpu": 1}),
        ),
    ),
    "Queue.spec.defaults.timeLimit": Case(
        ("1m", "1h"),
        test_fields_honoured.after(600),
        ("TimedOut", "Running"),
        (queue("q"), pool(), job(queue="q")),
    ),
    # Quota
    "Quota.metadata.name": Case(
        ("a", "b"),
        said,
        (["Quota", "a"], ["Quota", "b"]),
        (quota(resources={"cpu": 0}), pool(), job()),
    ),
    "Quota.spec.subject.user": Case(
        ("ada@example.org", "bob@example.org"),
        counted("j"),
        ([1], [8]),
        (
            test_fields_honoured.document("Quota", "a", {"resources": {"cpu": 1}}),
            pool(),
            job(owner="ada@example.org", **EIGHT),
        ),
    ),
    "Quota.spec.subject.queue": Case(
        ("q", "r"),
        counted("j"),
        ([1], [8]),
        (quota(resources={"cpu": 1}), pool(), queue("q"), queue("r"), job(queue="q", **EIGHT)),
    ),
    "Quota.spec.subject.group": Case(
        ("interns", "staff"),
        counted("j"),
        ([1], [8]),
        (
            test_fields_honoured.document("Quota", "a", {"resources": {"cpu": 1}}),
            pool(),
            test_fields_honoured.document(
                "Access",
                "people",
                {
                    "identities": [
                        {"email": "ada@example.org", "groups": ["interns"]},
                        {"email": "bob@example.org", "groups": ["staff"]},
                    ]
                },
            ),
            job(owner="ada@example.org", **EIGHT),
        ),
    ),
    "Quota.spec.resources.cpu": Case(
        (1, 3), counted("j"), ([1], [3]), (quota(), pool(), job(**EIGHT))
    ),
    "Quota.spec.resources.memory": Case(
        ("1Gi", "3Gi"),
        counted("j"),
        ([1], [3]),
        (quota(), pool(), job(array={"count": 8}, resources={"memory": "1Gi"})),
    ),
    "Quota.spec.resources.gpu": Case(
        (1, 3),
        counted("j"),
        ([1], [3]),
        (quota(), pool(), job(array={"count": 8}, resources={"gpu": 1})),
    ),
    "Quota.spec.jobs.running": Case(
        (1, 2), counted("j", "k"), ([1, 0], [1, 1]), (quota(), pool(), job(), job("k"))
    ),
    "Quota.spec.jobs.pending": Case(
        (1, 2),
        lambda run, _: [run.reason("k")],
        (["OverLimit"], ["InsufficientResources"]),
        (
            quota(),
            pool(),
            job("a", array={"count": 2}, resources={"cpu": 4}),
            job("j", resources={"cpu": 4}),
            job("k", resources={"cpu": 3}),
        ),
    ),
    "Quota.spec.budget.gpuHours": Case(
        (1, 4.0),
        counted("j"),
        ([1], [4]),
        (
            quota(),
            pool(),
            job(array={"count": 8}, timeLimit="1h", resources={"gpu": 1, "cpu": "10m"}),
        ),
    ),
    "Quota.spec.budget.window": Case(
        ("1h", "30d"),
        spent,
        ("Running", "OverBudget"),
        (
            quota(budget={"gpuHours": 0.6}),
            pool(),
            job(timeLimit="40m", resources={"gpu": 0.75}),
        ),
    ),
    "Quota.spec.budget.onExhausted": Case(
        ("wait", "end"),
        lambda run, folder: [test_fields_honoured.after(7200)(run, folder), run.reason("j")],
        (["Running", ""], ["Pending", "OverBudget"]),
        (
            quota(budget={"gpuHours": 1, "window": "1h"}),
            pool(),
            job(resources={"gpu": 1}),
        ),
    ),
    # Reservation
    "Reservation.spec.hosts": Case(
        ("p-0", "p-[0-1]"), counted("j"), ([4], [0]), (reservation(), *RESERVED)
    ),
    "Reservation.spec.pools": Case(
        (["p"], ["q"]),
        counted("j"),
        ([0], [4]),
        (reservation(hosts="p-0"), *RESERVED, empty_pool("q")),
    ),
    "Reservation.spec.amounts.cpu": Case(
        (3, 5), counted("j"), ([4], [0]), (reservation(), *RESERVED)
    ),
    "Reservation.spec.amounts.memory": Case(
        ("1Gi", "1Ti"), counted("j"), ([4], [0]), (reservation(), *RESERVED)
    ),
    "Reservation.spec.amounts.gpu": Case(
        (0, 1), counted("j"), ([8], [4]), (reservation(), *RESERVED)
    ),
    "Reservation.spec.start": Case(
        ("1970-01-12T00:00:00Z", "1970-01-12T20:00:00Z"),
        counted("j"),
        ([0], [8]),
        (reservation(), *RESERVED),
    ),
    "Reservation.spec.end": Case(
        ("1970-01-12T13:00:00Z", "1970-01-13T00:00:00Z"),
        counted("j"),
        ([8], [0]),
        (reservation(), *RESERVED),
    ),
    "Reservation.spec.schedule": Case(
        ("0 13 * * 1", "0 13 * * 2"),
        counted("j"),
        ([0], [8]),
        (reservation(duration="2h"), *RESERVED),
    ),
    "Reservation.spec.duration": Case(
        ("30m", "2h"), counted("j"), ([8], [0]), (reservation(schedule="0 13 * * 1"), *RESERVED)
    ),
    "Reservation.spec.users": Case(
        (["ada@example.org"], ["bob@example.org"]),
        counted("j"),
        ([8], [0]),
        (reservation(), pool(), job(owner="ada@example.org", **EIGHT)),
    ),
    "Reservation.spec.queues": Case(
        (["q"], ["r"]),
        counted("j"),
        ([8], [0]),
        (reservation(), pool(), queue("q"), queue("r"), job(queue="q", **EIGHT)),
    ),
    "Reservation.spec.maintenance": Case(
        (False, True),
        counted("j"),
        ([8], [0]),
        (reservation(), pool(), job(reservation="r", **EIGHT)),
    ),
    # Job
    "Job.spec.min": Case(
        (2, 3), counted("j"), ([2], [0]), (job(max=4, resources={"cpu": 3}), pool())
    ),
    "Job.spec.max": Case((1, 3), counted("j"), ([1], [3]), (job(min=1), pool())),
    "Job.spec.resources.gpuMemory": Case(
        ("4Gi", "8Gi"),
        test_fields_honoured.variable("MUSTER_GPU_SHARE"),
        (["0.25"], ["0.5"]),
        (job(), gpus(memory="16Gi")),
    ),
    "Job.spec.resources.mig.profile": Case(
        ("1g.10gb", "2g.20gb"),
        test_fields_honoured.reason(),
        ("Running", "NeverFits"),
        (job(), gpus(**MIG)),
    ),
    "Job.spec.resources.mig.count": Case(
        (1, 2),
        test_fields_honoured.variable("MUSTER_MIG_INSTANCES"),
        (["0"], ["0,1"]),
        (job(resources={"mig": {"profile": "1g.10gb"}}), gpus(**MIG)),
    ),
    "Job.spec.groups[].min": Case(
        (2, 3),
        counted("j"),
        ([2], [0]),
        (job(groups=[{"name": "a", "max": 4, "resources": {"cpu": 3}}]), pool()),
    ),
    "Job.spec.groups[].max": Case(
        (1, 3), counted("j"), ([1], [3]), (job(groups=[{"name": "a", "min": 1}]), pool())
    ),
    "Job.spec.groups[].resources.gpuMemory": Case(
        ("4Gi", "8Gi"),
        test_fields_honoured.variable("MUSTER_GPU_SHARE"),
        (["0.25"], ["0.5"]),
        (test_fields_honoured.GROUP, gpus(memory="16Gi")),
    ),
    "Job.spec.groups[].resources.mig.profile": Case(
        ("1g.10gb", "2g.20gb"),
        test_fields_honoured.reason(),
        ("Running", "NeverFits"),
        (test_fields_honoured.GROUP, gpus(**MIG)),
    ),
    "Job.spec.groups[].resources.mig.count": Case(
        (1, 2),
        test_fields_honoured.variable("MUSTER_MIG_INSTANCES"),
        (["0"], ["0,1"]),
        (job(groups=[{"name": "a", "resources": {"mig": {"profile": "1g.10gb"}}}]), gpus(**MIG)),
    ),
    "Job.spec.groups[].topology.gpus.required": Case(
        ("numa", "nvlink"),
        counted("j"),
        ([1], [0]),
        (
            test_fields_honoured.put(test_fields_honoured.GROUP, "spec.groups[].resources.gpu", 3),
            gpus(**NEAR),
        ),
    ),
    "Job.spec.groups[].topology.gpus.preferred": Case(
        ("numa", "nvlink"),
        devices_of("j"),
        ([0, 3], [0, 1]),
        (
            test_fields_honoured.put(test_fields_honoured.GROUP, "spec.groups[].resources.gpu", 2),
            FAR,
        ),
    ),
    "Job.spec.groups[].tasksPerNode": Case(
        (1, 2), number_of_nodes("j"), (2, 0), (GROUP_OF_TWO, pool())
    ),
    "Job.spec.groups[].topology.required": Case(
        ("block", "rack"), counted("j"), ([2], [0]), (GROUP_OF_TWO, racks(2))
    ),
    "Job.spec.groups[].topology.preferred": Case(
        ("block", "rack"),
        nodes_of("j"),
        (["p-0", "p-1"], ["p-2", "p-3"]),
        (test_fields_honoured.put(GROUP_OF_TWO, "spec.placement", "pack"), *BEGUN),
    ),
    "Job.spec.groups[].topology.slices.size": Case(
        (2, 4),
        counted("j"),
        ([4], [0]),
        (
            test_fields_honoured.put(GROUP_OF_FOUR, "spec.groups[].topology.slices.level", "rack"),
            racks(4),
        ),
    ),
    "Job.spec.groups[].topology.slices.level": Case(
        ("block", "rack"),
        counted("j"),
        ([4], [0]),
        (
            test_fields_honoured.put(GROUP_OF_FOUR, "spec.groups[].topology.slices.size", 4),
            racks(4),
        ),
    ),
    "Job.spec.tolerations[].key": Case(
        ("x", "y"), test_fields_honoured.reason(), ("Running", "NeverFits"), (TOLERANT, TAINTED)
    ),
    "Job.spec.tolerations[].value": Case(
        ("1", "2"), test_fields_honoured.reason(), ("Running", "NeverFits"), (TOLERANT, TAINTED)
    ),
    "Job.spec.affinity.nodes[].labels": Case(
        ({"node": "p-0"}, {"node": "p-1"}), nodes_of("j"), (["p-0"], ["p-1"]), (job(), pool())
    ),
    "Job.spec.affinity.nodes[].weight": Case(
        (1, 9),
        nodes_of("j"),
        (["p-1"], ["p-0"]),
        (
            job(
                affinity={
                    "nodes": [{"labels": {"node": "p-0"}}, {"labels": {"node": "p-1"}, "weight": 5}]
                }
            ),
            pool(),
        ),
    ),
    "Job.spec.affinity.near[].jobs": Case(
        ({"app": "x"}, {"app": "y"}), nodes_of("j"), (["p-0"], ["p-1"]), (job(), *COMPANY)
    ),
    "Job.spec.affinity.near[].level": Case(
        ("block", "rack"),
        counted("j"),
        ([1], [0]),
        (job(affinity={"near": [{"jobs": {"app": "x"}}]}), *FULL),
    ),
    "Job.spec.affinity.near[].weight": Case(
        (1, 9),
        nodes_of("j"),
        (["p-1"], ["p-0"]),
        (
            job(affinity={"near": [{"jobs": {"app": "x"}}, {"jobs": {"app": "y"}, "weight": 5}]}),
            *COMPANY,
        ),
    ),
    "Job.spec.affinity.apart[].jobs": Case(
        ({"app": "x"}, {"app": "y"}), nodes_of("j"), (["p-1"], ["p-0"]), (job(), *COMPANY)
    ),
    "Job.spec.affinity.apart[].level": Case(
        ("rack", "block"),
        counted("j"),
        ([1], [0]),
        (job(affinity={"apart": [{"jobs": {"app": "x"}}]}), *FULL),
    ),
    "Job.spec.affinity.apart[].weight": Case(
        (1, 9),
        nodes_of("j"),
        (["p-0"], ["p-1"]),
        (
            job(affinity={"apart": [{"jobs": {"app": "x"}}, {"jobs": {"app": "y"}, "weight": 5}]}),
            *COMPANY,
        ),
    ),
    "Job.spec.topology.gpus.required": Case(
        ("numa", "nvlink"), counted("j"), ([1], [0]), (job(resources={"gpu": 3}), gpus(**NEAR))
    ),
    "Job.spec.topology.gpus.preferred": Case(
        ("numa", "nvlink"), devices_of("j"), ([0, 3], [0, 1]), (job(resources={"gpu": 2}), FAR)
    ),
    "Job.spec.topology.required": Case(
        ("block", "rack"),
        counted("j"),
        ([2], [0]),
        (job(count=2, resources={"cpu": 3}), racks(2)),
    ),
    "Job.spec.topology.preferred": Case(
        ("block", "rack"),
        nodes_of("j"),
        (["p-0", "p-1"], ["p-2", "p-3"]),
        (job(count=2, resources={"cpu": 3}, placement="pack"), *BEGUN),
    ),
    "Job.spec.topology.slices.size": Case(
        (2, 4),
        counted("j"),
        ([4], [0]),
        (
            job(count=4, resources={"cpu": 3}, topology={"slices": {"level": "rack"}}),
            racks(4),
        ),
    ),
    "Job.spec.topology.slices.level": Case(
        ("block", "rack"),
        counted("j"),
        ([4], [0]),
        (job(count=4, resources={"cpu": 3}, topology={"slices": {"size": 4}}), racks(4)),
    ),
    "Job.spec.placement": Case(
        ("pack", "spread"), number_of_nodes("j"), (1, 2), (job(array={"count": 2}), pool())
    ),
    "Job.spec.tasksPerNode": Case((1, 2), number_of_nodes("j"), (2, 1), (job(count=2), pool())),
    "Job.spec.exclusive": Case(
        (False, True), counted("j", "k"), ([1, 1], [1, 0]), (job(), job("k"), pool(count=1))
    ),
    "Job.spec.volumes": Case(
        (["v"], ["w"]),
        test_fields_honoured.reason(),
        ("Running", "NeverFits"),
        (
            job(),
            pool(),
            empty_pool("q"),
            volume(),
            test_fields_honoured.document("Volume", "w", {"mountPath": "/w", "pools": ["q"]}),
        ),
    ),
    "Job.spec.reservation": Case(
        ("r", "s"),
        counted("j"),
        ([8], [0]),
        (
            job(timeLimit="1h", **EIGHT),
            pool(),
            reservation(),
            test_fields_honoured.document(
                "Reservation", "s", {"pools": ["p"], "schedule": "0 3 * * *", "duration": "1h"}
            ),
        ),
    ),
}

#: Fields of which one value is refused beside the rest of its document, or that only name it.
TABLE_OF_PROBLEMS: dict[str, tuple[tuple[Json, Json], tuple[Json, Json], tuple[Document, ...]]] = {
    "NodePool.spec.topology.levels": (
        (["rack"], ["block"]),
        ([], [("unknown-level", "Job/j")]),
        (
            pool(topology={"domains": [{"hosts": "p-0", "path": ["r"]}]}),
            job(topology={"required": "rack"}),
        ),
    ),
    "Volume.metadata.name": (
        ("v", "w"),
        ([], [("unknown-volume", "Job/j")]),
        (volume(), pool(), job(volumes=["v"])),
    ),
    "Reservation.metadata.name": (
        ("r", "s"),
        ([], [("unknown-reservation", "Job/j")]),
        (reservation(), pool(), job(reservation="r")),
    ),
    "Queue.spec.maxima.timeLimit": (
        ("1h", "1m"),
        ([], [("beyond-queue", "Job/j")]),
        (queue("q"), pool(), job(queue="q", timeLimit="30m")),
    ),
    "Queue.spec.maxima.gpu": (
        (2, 1),
        ([], [("beyond-queue", "Job/j")]),
        (queue("q"), pool(), job(queue="q", resources={"gpu": 2})),
    ),
}


def test_every_field_has_an_entry() -> None:
    known = (
        test_fields_honoured.TABLE.keys()
        | test_fields_honoured.TABLE_OF_PROBLEMS.keys()
        | test_fields_honoured.NOT_READ.keys()
    )
    known |= TABLE.keys() | TABLE_OF_PROBLEMS.keys() | test_fields_of_safety.TABLE.keys()
    known |= test_fields_of_policy.KNOWN | test_fields_by_pool.TABLE.keys()
    known |= test_fields_of_safety.TABLE_OF_PROBLEMS.keys()
    known |= test_fields_of_provisioning.TABLE.keys()
    known |= test_fields_of_data.TABLE.keys() | test_fields_of_data.TABLE_OF_PROBLEMS.keys()
    known |= test_fields_of_provisioning.TABLE_OF_PROBLEMS.keys()
    found = {
        field
        for field in test_fields_honoured.fields()
        if not field.endswith(".metadata.annotations")
    }
    assert found == known - {"*.metadata.annotations"}


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("which", [0, 1])
def test_two_values_make_a_difference(field: str, which: int, tmp_path: Path) -> None:
    test_fields_honoured.check_difference(field, TABLE[field], which, tmp_path)


@pytest.mark.parametrize("field", TABLE_OF_PROBLEMS)
def test_two_values_are_judged_differently(field: str) -> None:
    values, seen, (target, *others) = TABLE_OF_PROBLEMS[field]
    for value, expected in zip(values, seen, strict=True):
        chosen = test_fields_honoured.put(target, field.split(".", 1)[1], value)
        assert test_fields_honoured.problems((chosen, *others)) == expected
