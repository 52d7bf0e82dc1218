"""Commands that wait for long outlive a controller that starts again: they ask once more.

Requests go through as they are. Where a controller that has answered before is away, it is said
once on stderr and asked again for a minute; what is read along is taken up where it broke off.
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

#: For how long a controller that is away is asked again, and how often.
AWAY_S_MAX, AGAIN_S = 60.0, 1.0
#: Of a proxy whose controller is away, and of a controller that isn't ready.
_AWAY = frozenset({502, 503, 504})
#: What changes with the moment at which it is asked for can't be taken up where it broke off.
_MOVING = ("widely", "tail")
#: Of these all tries are shown, each under a heading.
_ALL_TRIES = ("every", "since", "until")
#: Of how many attempts the newest try is looked for.
_ATTEMPTS_MAX = 1000

#: As of ``run``: Muster itself failed, and what it looked at goes on.
FAILED = 125

Json = Any


class GoneError(Exception):
    """A controller that was there is away for too long."""


class Patient:
    """A connection whose questions are asked again while the controller is away.

    Args:
        api: the connection. answered: whether it has been there, so that it is worth waiting for.
        ends_at: when nobody waits any more, by the monotonic clock; None: never.
    """

    def __init__(
        self, api: api_client.ApiClient, *, answered: bool = False, ends_at: float | None = None
    ) -> None:
        self._api = api
        self._ends_at = ends_at
        self._answered = answered
        self._away_until: float | None = None
        #: How often it has come back.
        self._returned = 0

    def get(self, path: str, **query: str | float | None) -> Json:
        """The JSON of a GET.

        Raises:
            ApiError: anything but success. GoneError: the controller does not come back.
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
        """The JSON of a POST, which is sent once."""
        return self._api.post(path)

    def stream(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """The body of a GET, piece by piece, which is not asked for again."""
        return self._api.stream(path, query)

    def follow(self, name: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """The output of a job's task as it is written, until the job is over.

        Raises:
            ApiError: anything but success. GoneError: the controller does not come back.
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
            # a controller that is stopped ends what it sends as if nothing more would come
            now, over = self._newest(name, query)
            if over and not is_cut and returned == self._returned:
                return
            if shown.begin(None if _has_headings(query) else now) and not _has_headings(query):
                terminal.note(f"muster: from here on try {now} of it, from its beginning")
            time.sleep(AGAIN_S)

    def _begun_with(self, name: str, query: Mapping[str, str]) -> int | None:
        """The try of which output is that has no heading; None where all have one."""
        return None if _has_headings(query) else self._newest(name, query)[0] or 1

    def _newest(self, name: str, query: Mapping[str, str]) -> tuple[int | None, bool]:
        """The newest try of the task, or that which is asked for; whether no other can come."""
        asked = {key: query[key] for key in ("run", "element") if key in query}
        found = self.get(f"/v1/jobs/{name}", attempts=_ATTEMPTS_MAX, **asked)["job"]
        made = found["attempts"]
        tries = [one for one in made if one["task"] == query.get("task")] or made
        over = found["state"] in states.FINISHED_JOB_STATES or bool(found.get("array"))
        if "attempt" in query:
            number = int(query["attempt"])
            ended = [one.get("state") == "Ended" for one in tries if one["attempt"] == number]
            return number, over or all(ended)
        return max((one["attempt"] for one in tries), default=None), over

    def _wait(self, error: api_client.ApiError) -> None:
        """Give the controller a moment.

        Raises:
            ApiError: it is there, and says no, or was never there.
            GoneError: it has been away for too long.
        """
        if not (error.unreachable or error.status in _AWAY) or not self._answered:
            raise error
        now = time.monotonic()
        if self._away_until is None:
            self._away_until = now + AWAY_S_MAX
            terminal.note(f"{error}; asking again for {AWAY_S_MAX:.0f}s")
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
    """Whether each try is shown under a heading, the first one as well."""
    return any(key in query for key in _ALL_TRIES)
