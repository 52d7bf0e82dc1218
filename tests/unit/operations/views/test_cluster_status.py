"""Both axes of pools and queues, and the cluster as the worst of each."""

from typing import Any

import pytest

from reconciler.operations.views import cluster_status

SYNCED = {"sync": "Synced", "suspended": {}}
NOW = 1_800_000_000.0


def pool(**states: int) -> dict[str, Any]:
    return {"name": "gpu", "nodes": sum(states.values()), "states": states}


def drift(kind: str, **of: str) -> dict[str, Any]:
    return {"kind": kind, "subject": "", "pool": "", "action": "report"} | of


@pytest.mark.parametrize(
    ("states", "health", "why"),
    [
        ({"Ready": 4}, "Healthy", ""),
        ({}, "Healthy", ""),
        ({"Ready": 3, "Drained": 1}, "Drained", "1 of 4 nodes Drained"),
        ({"Ready": 3, "Draining": 1}, "Progressing", "1 of 4 nodes Draining"),
        ({"Drained": 3, "Missing": 1}, "Missing", "3 of 4 nodes Drained; 1 of 4 nodes Missing"),
        ({"Ready": 3, "Unknown": 1}, "Degraded", "1 of 4 nodes Unknown"),
        (
            {"Missing": 1, "Unhealthy": 1},
            "Degraded",
            "1 of 2 nodes Missing; 1 of 2 nodes Unhealthy",
        ),
        ({"Unknown": 4}, "Unknown", "4 of 4 nodes Unknown"),
    ],
)
def test_a_pool_is_as_its_worst_node(states: dict[str, int], health: str, why: str) -> None:
    found = cluster_status.roll_up(SYNCED, [pool(**states)], [], [], [], now=NOW)
    (one,) = found.objects
    assert (one.sync, one.health, one.why) == ("Synced", health, why)
    assert (found.sync, found.health) == ("Synced", health)


def test_the_axes_are_never_mixed() -> None:
    """A pool that is other than git says and well, a queue that is as git says and suspended."""
    rows = [
        drift("node-undeclared", pool="gpu"),
        drift("task-missing", pool="gpu", action="ignore"),
        drift("queue-over-limit", subject="busy"),
    ]
    sync = SYNCED | {"suspended": {"Queue/idle": "2027-01-15T05:00:00.000Z"}}
    queues = [{"name": "idle"}, {"name": "busy"}]
    found = cluster_status.roll_up(sync, [pool(Ready=2)], queues, [], rows, now=NOW)
    assert [(one.object, one.sync, one.health, one.why) for one in found.objects] == [
        ("NodePool/gpu", "OutOfSync", "Healthy", "drift: node-undeclared"),
        ("Queue/idle", "Synced", "Suspended", "suspended for 3h0m"),
        ("Queue/busy", "OutOfSync", "Healthy", "drift: queue-over-limit"),
    ]
    assert (found.sync, found.health) == ("OutOfSync", "Suspended")


def test_what_cant_be_read_is_unknown_and_no_less_well() -> None:
    sync = {"sync": "Unknown"}
    found = cluster_status.roll_up(sync, [pool(Ready=1)], [{"name": "q"}], [], [], now=NOW)
    assert {one.sync for one in found.objects} == {"Unknown"}
    assert (found.sync, found.health) == ("Unknown", "Healthy")


def test_a_suspended_cluster_is_suspended_without_any_object() -> None:
    sync = {"sync": "Synced", "suspended": {"Cluster": "2027-01-15T08:00:00.000Z"}}
    assert cluster_status.roll_up(sync, [], [], [], [], now=NOW).health == "Suspended"


def test_a_node_of_no_pool_counts_while_tasks_wait_for_it() -> None:
    """It was "Healthy" while tasks waited for a silent node whose pool had gone from git."""

    def node(name: str, state: str, attempts: int, of: str = "") -> dict[str, Any]:
        return {"name": name, "pool": of, "state": state, "attempts": attempts}

    nodes = [
        node("old1", "Unknown", 2),
        node("old2", "Unknown", 0),
        node("old3", "Ready", 1),
        node("left", "Gone", 1, of="removed"),
        node("gpu1", "Unknown", 1, of="gpu"),
    ]
    rows = [drift("node-undeclared", node="old1", subject="old1")]
    found = cluster_status.roll_up(SYNCED, [pool(Ready=1)], [], nodes, rows, now=NOW)
    assert [(one.object, one.sync, one.health, one.why) for one in found.objects[1:]] == [
        (
            "Node/old1",
            "OutOfSync",
            "Degraded",
            "Unknown, in no pool, with 2 tasks; drift: node-undeclared",
        ),
        ("Node/left", "Synced", "Degraded", "Gone, in no pool, with 1 task"),
    ]
    assert (found.sync, found.health) == ("OutOfSync", "Degraded")


def test_no_order_has_a_gap() -> None:
    assert cluster_status.HEALTHS[-1] == cluster_status.SYNCS[-1] == "Unknown"


def test_drift_is_one_line_with_the_worst_of_it() -> None:
    def row(severity: str, subject: str, action: str = "report") -> dict[str, str]:
        kind = {"critical": "node-silent"}.get(severity, "node-labels")
        return {"severity": severity, "kind": kind, "subject": subject, "action": action}

    rows = [row("info", "a"), row("critical", "b"), row("critical", "c")]
    assert cluster_status.drift_line(rows) == (
        "3 differences, the worst: critical node-silent b (`muster drift`)"
    )
    assert (
        cluster_status.drift_line(rows[:1]) == "1 difference: info node-labels a (`muster drift`)"
    )
    assert cluster_status.drift_line([row("critical", "b", "ignore")]) == ""
    commit = cluster_status.drift_line([row("info", "0123456789abcdef" * 2 + "01234567")])
    assert commit == "1 difference: info node-labels 0123456789ab (`muster drift`)"
