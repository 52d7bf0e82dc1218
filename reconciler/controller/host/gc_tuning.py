"""Tunes Python's garbage collector for a process that holds a whole cluster.

Records are freed by reference counts; cycles among them are rare. By default the collector walks
over everything whenever a quarter more objects exist, and a cycle over thousands of jobs makes
hundreds of thousands that stay. So loaded objects are left out, and walks are rarer.
"""

import gc

#: New objects after which the youngest are collected, and collections until the next older
#: generation is collected too.
COLLECT_EVERY, OLDER_EVERY, OLDEST_EVERY = 200_000, 20, 50


def settle() -> None:
    """Leave out all objects that exist now, and collect more rarely from now on."""
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, OLDER_EVERY, OLDEST_EVERY)
