"""The agent's log on standard error. The same problem is written once a minute at most."""

import contextlib
import sys
import time

from reconciler.model.values import log_lines

SAY_AGAIN_S = 60.0
#: Texts are distinguished by their beginning; so many are remembered.
BEGINNING_CHARACTERS, REMEMBERED_MAX = 80, 256


class Console:
    """The log of one agent. All its threads write to it."""

    def __init__(self, name: str, form: str = "readable", level: str = "info") -> None:
        self._name, self._form = name, form
        self._least = log_lines.LEVELS.index(level)
        self._said: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Write a problem, unless it was written a moment ago."""
        now, same = time.monotonic(), text[:BEGINNING_CHARACTERS]
        if now < self._said.get(same, -SAY_AGAIN_S) + SAY_AGAIN_S:
            return
        if len(self._said) > REMEMBERED_MAX:
            self._said.clear()
        self._said[same] = now
        self.tell(text, level="ERROR" if text.startswith("internal error") else "WARNING")

    def tell(self, text: str, *, level: str = "INFO", **fields: str) -> None:
        """Write an event with its job and attempt."""
        if log_lines.LEVELS.index(level.lower()) < self._least:
            return
        of = {"node": self._name, **fields}
        line = log_lines.line(self._form, time.time(), "agent", text, level=level, fields=of)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
