"""Every series that Muster exports, in one table, and the two pages that are made of them.

The loop renders the cluster's page after a cycle from plain values, and counts in a ``Counters``
of its own; a node's page is rendered from its record. Nothing here takes a lock or keeps a
global, so a scrape never waits for a decision. Series without a bound (jobs, users) are not
exported; quota and use are separate series, so that any sum over labels means something.
"""

from reconciler.metrics.counting import ClusterState, Counters, Histogram
from reconciler.metrics.pages import render_cluster, render_node
from reconciler.metrics.table import TABLE, Series

__all__ = [
    "TABLE",
    "ClusterState",
    "Counters",
    "Histogram",
    "Series",
    "render_cluster",
    "render_node",
]
