"""The pages that are made of every series that Muster exports: the table is `model.series.table`.

The loop renders the cluster's page after a cycle from plain values, and counts in a ``Counters``
of its own; the server adds what it counted of its own answers, and renders a node's page from its
record. Nothing here takes a lock or keeps a global, so a scrape never waits for a decision. Series
without a bound are not exported; quota and use are separate series, so that any sum over labels
means something.
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
from reconciler.model.metrics.node_series import render as render_node

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
