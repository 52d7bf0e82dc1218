"""Who puts a node back is told if it takes no work nevertheless."""

from reconciler.cli.changes import drain


def test_a_node_that_is_drained_no_more_may_be_unhealthy() -> None:
    items = [
        {"name": "n1", "state": "Unhealthy", "message": "check disk fails"},
        {"name": "n2", "state": "Drained", "message": "fan"},
        {"name": "n3", "state": "Unknown", "message": ""},
        {"name": "n4", "state": "Unhealthy", "message": "another's"},
    ]
    assert list(drain.still_out(items, ["n1", "n2", "n3"])) == [
        "n1 takes no work yet, because it is Unhealthy: check disk fails",
        "n3 takes no work yet, because it is Unknown",
    ]
