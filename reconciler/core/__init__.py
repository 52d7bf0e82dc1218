"""The pure core: ``reconcile(desired_state, observed, now) -> Outcome``, without I/O.

``reconcile`` runs the phases in order. Each phase is a module that reads records and writes renewed
ones into a ``CycleContext``, which is dropped once the outcome is built.
"""
