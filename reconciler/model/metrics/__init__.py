"""Every metric that Muster exports, in one table, and the renderer of a node's page.

The controller renders a page for each node from its last report; an agent with a port of its own
renders the same from its current state. Metrics that only the loop knows are in
``reconciler.metrics``.
"""
