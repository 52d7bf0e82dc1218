"""The pure core: ``reconcile(desired_state, observed, now) -> Outcome``, without I/O.

``reconcile`` runs the phases in order. A phase reads records and writes renewed ones into the parts
of a ``CycleContext``, which is dropped once the outcome is built. ``reconcile.PHASES`` says which.
"""
