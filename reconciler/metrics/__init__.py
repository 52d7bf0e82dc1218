"""Pages of metrics: the table of all metrics is ``model.metrics.metric_table``.

The loop renders the cluster's page after a cycle from plain values and a ``Counters`` of its own.
The server adds its own counts and renders a page for each node. Nothing here takes a lock or keeps
a global, so a scrape never waits for a decision. Metrics without a bound are not exported.
"""

from reconciler.metrics.counters import (
    DEFECT_PARTS,
    LOOK_OF,
    ClusterState,
    Counters,
    Histogram,
    RepositoryLook,
)
from reconciler.metrics.exposition import StateDisk, disk_of, render_cluster
from reconciler.metrics.server_metrics import Answers, AuditLook
from reconciler.model.metrics.metric_table import LABELS, TABLE, Series
from reconciler.model.metrics.node_series import render_node

__all__ = [
    "DEFECT_PARTS",
    "LABELS",
    "LOOK_OF",
    "TABLE",
    "Answers",
    "AuditLook",
    "ClusterState",
    "Counters",
    "Histogram",
    "RepositoryLook",
    "Series",
    "StateDisk",
    "disk_of",
    "render_cluster",
    "render_node",
]
