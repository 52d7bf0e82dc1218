"""Words about work that comes back: as it was nothing would start, since a run happens once.

A run is (name, number, digest of what it executes). The same contents under the same name and
number are that run, whatever had the name in between.
"""

from reconciler.model.state import states

#: The state of a run whose record is gone.
OVER = "over"


def is_spent(state: str, *, is_removed: bool) -> bool:
    """Return True if the contents of a run in this state start nothing: it has ended, or its
    document is gone and it is being stopped.
    """
    return is_removed or state in {OVER, *states.FINISHED_JOB_STATES}


def why_not_again(key: str, state: str, highest: int = 0) -> str:
    """Return why contents start nothing, and how to run them again.

    Args:
        key: of the run that they are, ``NAME.RUN.HASH``.
        state: of that run.
        highest: the highest number of a run of the name, whatever it executes: all up to it are
            taken; 0: unknown.
    """
    name, number, _ = key.rsplit(".", 2)
    following = max(int(number), highest) + 1
    return (
        f"nothing would start: run {number} of Job/{name} with the same contents is {state} "
        f"already, and a run happens once. To run it again: spec.run: {following} (--set "
        f"run={following}), or another name"
    )


def again_text(job: str, *, is_removed: bool, then: str = "") -> str:
    """Return how to have an ended job again: ``run it again (muster rerun train)``.

    Args:
        job: its name.
        is_removed: its document is gone, so that no run of it can follow.
        then: a command that goes on with the new run.
    """
    if is_removed:
        return "submit it again, under another name: its YAML was deleted"
    return f"run it again (muster rerun {job}{then and ' && '}{then})"
