"""Words about work that comes back as it was: a run happens once, so nothing would start.

A run is (name, number, digest of what it executes). The same contents under the same name and
number are that run, whatever had the name in between.
"""


def why_not_again(key: str, state: str, newest: int = 0) -> str:
    """Return why contents start nothing, and how to run them again.

    Args:
        key: of the run that they are, ``NAME.RUN.HASH``.
        state: of that run.
        newest: number of the newest run of the name, if it is known.
    """
    name, number, _ = key.rsplit(".", 2)
    following = max(int(number), newest) + 1
    return (
        f"nothing would start: run {number} of Job/{name} with the same contents is {state} "
        f"already, and a run happens once. To run it again: spec.run: {following} (--set "
        f"run={following}), or another name"
    )
