"""A connection that survives a restart of the controller, for commands that wait for long.

If a controller that has answered before is away, this is reported once on stderr and the request is
repeated for a minute. Streams continue where they broke off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reconciler.cli import lazy_import, stream_position, terminal
from reconciler.model.state import states

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

#: How long a request is repeated while the controller is away, and how often.
AWAY_S_MAX, AGAIN_S = 60.0, 1.0
#: Status of a proxy whose controller is away, and of a controller that isn't ready.
_AWAY = frozenset({502, 503, 504})
#: Options whose result depends on the time of the request: such a stream can't be continued.
_MOVING = ("widely", "tail")
#: Options that show all tries, each under a heading.
_ALL_TRIES = ("every", "since", "until")
#: Attempts to search for the newest try.
_ATTEMPTS_MAX = 1000

#: Exit code, as of `muster run`: Muster itself failed, and the job continues.
FAILED = 125

Json = Any


class GoneError(Exception):
    """Error: a controller that was there is away for too long."""


class Patient:
    """A connection that repeats its requests while the controller is away.

    Args:
        api: the connection.
        answered: True if the controller has answered before, so that waiting is worthwhile.
        ends_at: the end of all waiting, by the monotonic clock; None: never.
    """

    def __init__(
        self, api: api_client.ApiClient, *, answered: bool = False, ends_at: float | None = None
    ) -> None:
        self._api = api
        self._ends_at = ends_at
        self._answered = answered
        self._away_until: float | None = None
        #: Tries that began while the controller was away and were reported, by job and task.
        self._reported: set[tuple[str, str, int | None]] = set()
        #: How often the controller has come back.
        self._returned = 0

    def get(self, path: str, **query: str | float | list[str] | None) -> Json:
        """Return the JSON of a GET.

        Raises:
            ApiError: anything but success.
            GoneError: the controller does not come back.
        """
        while True:
            try:
                found = self._api.get(path, **query)
            except api_client.ApiError as error:
                self._wait(error)
                continue
            self._back()
            return found

    def post(self, path: str) -> Json:
        """Return the JSON of a POST, which is sent once."""
        return self._api.post(path)

    def stream(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the body of a GET piece by piece, without repeating the request."""
        return self._api.stream(path, query)

    def follow(self, name: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the output of a job's task as it is written, until the job is over.

        Raises:
            ApiError: anything but success.
            GoneError: the controller does not come back.
        """
        path = f"/v1/jobs/{name}/logs"
        if any(key in query for key in _MOVING):
            try:
                yield from self._api.stream(path, query)
            except api_client.ApiError as error:
                if not error.unreachable:
                    raise
                raise GoneError(str(error)) from error
            return
        shown = stream_position.Shown(headings="attempt" not in query)
        shown.begin(self._begun_with(name, query))
        while True:
            returned, is_cut = self._returned, False
            try:
                for piece in self._api.stream(path, query):
                    self._back()
                    if left := shown.new(piece):
                        yield left
            except api_client.ApiError as error:
                self._wait(error)
                is_cut = True
            if left := shown.rest():
                yield left
            # a controller that is stopped ends its streams as if they were complete
            now, over = self._newest(name, query)
            if over and not is_cut and returned == self._returned:
                return
            if shown.begin(None if _has_headings(query) else now) and not _has_headings(query):
                begun = (name, query.get("task", ""), now)
                if begun not in self._reported:  # the other stream of the task may have said it
                    self._reported.add(begun)
                    terminal.note(f"muster: try {now} begins here")
            time.sleep(AGAIN_S)

    def _begun_with(self, name: str, query: Mapping[str, str]) -> int | None:
        """Return the try whose output has no heading; None if every try has one."""
        return None if _has_headings(query) else self._newest(name, query)[0] or 1

    def _newest(self, name: str, query: Mapping[str, str]) -> tuple[int | None, bool]:
        """Return the newest or requested try of the task, and True if no other can follow."""
        selection = {key: query[key] for key in ("run", "element") if key in query}
        found = self.get(f"/v1/jobs/{name}", attempts=_ATTEMPTS_MAX, **selection)["job"]
        attempts = found["attempts"]
        tries = [one for one in attempts if one["task"] == query.get("task")] or attempts
        over = found["state"] in states.FINISHED_JOB_STATES or bool(found.get("array"))
        if "attempt" in query:
            number = int(query["attempt"])
            ended = [one.get("state") == "Ended" for one in tries if one["attempt"] == number]
            return number, over or all(ended)
        return max((one["attempt"] for one in tries), default=None), over

    def _wait(self, error: api_client.ApiError) -> None:
        """Wait a moment for the controller.

        Raises:
            ApiError: the controller refuses, or has never answered.
            GoneError: the controller has been away for too long.
        """
        if not (error.unreachable or error.status in _AWAY) or not self._answered:
            raise error
        now = time.monotonic()
        if self._away_until is None:
            self._away_until = now + AWAY_S_MAX
            terminal.note(f"{error}; retrying for {AWAY_S_MAX:.0f}s")
        elif now > self._away_until:
            raise GoneError(f"the controller has been away for {AWAY_S_MAX:.0f}s") from error
        if self._ends_at is not None and now > self._ends_at:
            raise GoneError(f"the controller is away: {error}") from error
        time.sleep(AGAIN_S)

    def _back(self) -> None:
        self._answered = True
        if self._away_until is not None:
            self._away_until = None
            self._returned += 1
            terminal.note("the controller is back")


def _has_headings(query: Mapping[str, str]) -> bool:
    """Return True if each try is shown under a heading, the first one as well."""
    return any(key in query for key in _ALL_TRIES)
