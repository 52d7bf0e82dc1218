"""How often Python looks for garbage in circles, in a process that holds a whole cluster.

Records are freed when nobody refers to them any more; circles among them are rare. Python's
collector goes through what is young after every 700 objects, and through everything when a quarter
more has come, while a cycle over thousands of jobs makes hundreds of thousands of objects that all
stay. So what was loaded is left out of its walks, and these are made less often.
"""

import gc

#: New objects after which the young ones are looked at; so many such looks are one at older ones.
COLLECT_EVERY, OLDER_EVERY, OLDEST_EVERY = 200_000, 20, 50


def settle() -> None:
    """What there is now stays, as far as the collector is concerned."""
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, OLDER_EVERY, OLDEST_EVERY)
