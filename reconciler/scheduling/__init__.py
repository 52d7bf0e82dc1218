"""The scheduler: a pure, deterministic function from a columnar snapshot to decisions.

``inputs.snapshots`` holds what it reads, ``decisions`` what it returns, ``cycle`` the way between.
It knows nothing of git, stores, clocks or processes.
"""
