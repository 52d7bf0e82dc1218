"""The control loop's mind: ``reconcile(desired, observed, now) -> Outcome``, without I/O.

``reconcile`` runs the phases in order; each phase is a module that reads records and writes
renewed ones into a ``work.Work``, which is thrown away when the outcome has been read from it.
"""
