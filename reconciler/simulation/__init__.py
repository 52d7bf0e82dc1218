"""Simulation: virtual time over the same ``reconcile`` that runs a real cluster.

``engine`` drives it event by event against virtual nodes, with faults on request. ``scenarios``
build and judge situations of a few jobs; ``traces`` replay streams of thousands; ``baselines`` run
the same streams under textbook policies; ``forecast`` compares futures. Nothing here reads a file
or a clock.
"""
