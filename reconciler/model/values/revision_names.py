"""Names of a commit that cannot mean another one."""

import re

from reconciler.model.values import found_values

#: Fewer characters of an id can be made again by trying.
CHARACTERS_MIN = 16
_REVISION = re.compile(f"[0-9a-f]{{{CHARACTERS_MIN},64}}")


def accepted(text: str) -> str:
    """Return the name of a commit to accept: its id, or a long prefix of it.

    Raises:
        ValueError: it names no commit, or could be made to name another one.
    """
    if _REVISION.fullmatch(text) is None:
        raise ValueError(
            f"{found_values.quote(text)} is no commit's id, nor the first {CHARACTERS_MIN} "
            "characters or more of "
            "one; `git rev-parse NAME` prints it"
        )
    return text
