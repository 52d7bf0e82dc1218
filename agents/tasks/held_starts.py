"""Holds prepared starts until all attempts of their gang are prepared."""

from collections.abc import Iterable

from agents.supervisor.commands import AttemptCommand, StartCommand


class HeldStarts:
    """Starts of one node that wait for their gang. The controller releases each attempt."""

    def __init__(self) -> None:
        self._held: dict[str, StartCommand] = {}
        #: Attempts whose gang is ready before they are prepared themselves.
        self._released: set[str] = set()

    def pass_or_hold(self, command: AttemptCommand) -> list[AttemptCommand]:
        """Return a command that need not wait, or hold it until its attempt is released."""
        attempt = command["id"]
        holds = command["op"] == "start" and command.pop("hold", False)
        if command["op"] != "start" or not holds or attempt in self._released:
            self._released.discard(attempt)
            return [command]
        self._held[attempt] = command
        return []

    def release(self, attempt: str) -> list[AttemptCommand]:
        """Return the held command of an attempt whose gang is ready, or remember that it is."""
        command = self._held.pop(attempt, None)
        if command is None:
            self._released.add(attempt)
            return []
        return [command]

    def forget(self, attempt: str) -> bool:
        """Forget an attempt. Return True if its start was held."""
        self._released.discard(attempt)
        return self._held.pop(attempt, None) is not None

    def held(self) -> Iterable[str]:
        """Return the attempts whose starts are held."""
        return self._held.keys()
