"""Output of a job's tasks for `muster run`: as it is written, and after the end what is left of it.

Pieces go to stdout and stderr. Output that can't be had is told on stderr and counted, as the exit
code of a command must not say that all went well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from reconciler.cli import lazy_import, retries, stream_position, terminal
from reconciler.cli.logs import task_output
from reconciler.model.values.text_lines import split_lines

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

#: How long in all a place among the readers of logs is waited for, and how often it is asked for.
PLACE_S_MAX, AGAIN_S = 60.0, 2.0
#: Status of a controller that has no place for another reader.
_TOO_MANY = 429


class RunOutput:
    """The output of one job.

    Args:
        api: the connection.
        name: of the job.
        place_s: how long a place is waited for.

    Attributes:
        missing: streams and tasks of which not all was shown.
    """

    def __init__(self, api: retries.Patient, name: str, place_s: float = PLACE_S_MAX) -> None:
        self._api = api
        self._name = name
        self._place_s = place_s
        self._until: float | None = None
        #: True if following began and broke off, so that the rest can't be told from the beginning.
        self._is_begun = False
        self._is_whole = False
        #: What a node says that has no output; it goes without saying if the task never started.
        self._none = b""
        self.missing: list[str] = []

    def follow(self, task: str) -> None:
        """Show standard output of the first task as it is written, until the job is over."""
        query = {"stream": "stdout", "follow": "true", **_of(task)}
        try:
            task_output.TaskOutput(sys.stdout).copy(self._follow(query))
            self._is_whole = True
        except api_client.ApiError as error:
            after = "" if self._is_begun else "; trying again once the job has ended"
            terminal.note(f"stdout can't be read: {error}{after}")

    def _follow(self, query: dict[str, str]) -> Iterator[bytes]:
        for piece in self._api.follow(self._name, query):
            if stream_position.is_none(piece):
                self._none = piece
                continue
            self._is_begun = True
            yield piece

    def finish(self, task: str) -> None:
        """Show what is left of the first task, which has started, once the job is over."""
        if self._none:
            task_output.TaskOutput(sys.stdout).copy([self._none])
        if not self._is_whole and self._is_begun:
            self.missing.append("stdout")
        elif not self._is_whole:
            self._copy_stored("stdout", task, sys.stdout)
        self._copy_stored("stderr", task, sys.stderr)

    def print_rest(self, task: str) -> None:
        """Print the output of another task, each line after its name."""
        for stream, sink in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            try:
                text = b"".join(self._stored({"stream": stream, "task": task}))
            except api_client.ApiError as error:
                self._tell_missing(f"{stream} of {task}", error)
                continue
            output = task_output.TaskOutput(sink)
            for line in split_lines(text):
                output.write_line(f"{task}: ", line)

    def code(self, status: int) -> int:
        """Return the exit code of the command for that of the job."""
        if not self.missing:
            return status
        terminal.note(
            f"not all output was shown ({', '.join(self.missing)}): see muster logs {self._name}"
        )
        return status or retries.FAILED

    def _copy_stored(self, stream: str, task: str, sink: TextIO) -> None:
        query = {"stream": stream, "follow": "false", **_of(task)}
        try:
            task_output.TaskOutput(sink).copy(self._stored(query))
        except api_client.ApiError as error:
            self._tell_missing(stream, error)

    def _stored(self, query: dict[str, str]) -> Iterator[bytes]:
        """Yield the output that a node keeps, after a wait for a place.

        Raises:
            ApiError: anything but success.
        """
        while True:
            try:
                yield from self._api.stream(f"/v1/jobs/{self._name}/logs", query)
            except api_client.ApiError as error:
                now = time.monotonic()
                self._until = self._until or now + self._place_s
                if error.status != _TOO_MANY or now >= self._until:
                    raise
                time.sleep(AGAIN_S)
            else:
                return

    def _tell_missing(self, what: str, error: api_client.ApiError) -> None:
        terminal.note(f"{what} can't be read: {error}")
        self.missing.append(what)


def _of(task: str) -> dict[str, str]:
    return {"task": task} if task else {}
