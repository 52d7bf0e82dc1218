"""Every series that Muster exports, in one table, and what a node's page is made of.

The controller renders each node's page from what it was told last, and an agent with a port of its
own from what it would tell: both by ``node.render``, so that a series means the same wherever it
was scraped. What only the loop knows is in ``reconciler.metrics``.
"""
