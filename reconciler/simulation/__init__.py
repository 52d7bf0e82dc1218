"""Virtual time over the one decision function: the same ``reconcile`` that runs a real cluster.

``cluster`` drives it event by event against virtual nodes (``machines``), with faults where asked
(``faults``). ``situations`` and ``scenarios`` build and judge situations of a few jobs;
``workloads`` and ``replay`` run streams of thousands, ``peers`` run the same streams under the
textbook policies, ``results`` turns either into figures. Nothing here reads a file or a clock.
"""
