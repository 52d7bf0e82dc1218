"""The scheduler: a pure, deterministic function from a columnar snapshot to decisions.

``snapshot`` holds what it reads, ``decisions`` what it returns, ``schedule`` the way between.
It knows nothing of git, stores, clocks or processes.
"""
