"""Opens Jupyter of a job here: waits until it listens, forwards a port, and shows where it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reconciler.cli import lazy_import, retries, terminal
from reconciler.cli.interactive import (
    local_terminal,
    port_forward,
    remote_command,
)
from reconciler.cli.notebook import notebook_server
from reconciler.cli.waiting import job_wait

if TYPE_CHECKING:
    from reconciler.operations.client import api_client, endpoints, session_connection
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")

#: How often in a row a session may break off before Jupyter was found.
LOOKS_MAX = 5
HOST = "127.0.0.1"
_SIGNALS = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

Json = Any


class WantedPage(NamedTuple):
    """How Jupyter is opened here: at which port (0: any), and whether in a browser at once."""

    port: int = 0
    opens: bool = False


class NotebookVisit:
    """The way to Jupyter in one job, through all tries of the job.

    Args:
        patient, api: connections to the controller. endpoint: where it is.
        name: of the job.
        wanted: how it is opened.
        leave: called with the signal by which this command is to end. It may raise, or have the job
            end.
    """

    def __init__(
        self,
        connections: tuple[retries.Patient, api_client.ApiClient, endpoints.Endpoint],
        name: str,
        wanted: WantedPage,
        leave: Callable[[int], None],
    ) -> None:
        self._patient, self._api, self._endpoint = connections
        self._name = name
        self._wanted = wanted
        self._leave = leave
        self._place = session_connection.SessionPlace(name)
        self._looks = self._left = 0
        #: True if Jupyter has been shown.
        self.shown = False

    def run(self) -> Json:
        """Show Jupyter until the job ends. Return the job.

        Raises:
            ImpossibleError: it can't be reached.
        """
        newer_than: str | None = ""  # of the first look alone: then it is known which job it is
        while True:
            job = job_wait.wait_until(
                self._patient, self._name, _is_ready, give_up=True, newer_than=newer_than
            )
            newer_than = None
            attempts = _running(job)
            if job["state"] in job_wait.FINISHED:
                return job
            server = self._look()
            number = self._left if server is None else self._serve(server, attempts)
            if number:
                self._leave(number)
                return job_wait.wait_until(self._patient, self._name, _is_over)

    def _look(self) -> notebook_server.NotebookServer | None:
        """Return the server once it listens; None if the try or this command is over."""
        said = bytearray()
        self._left = 0

        async def keep(handle: int, data: bytes) -> None:
            if handle == local_terminal.STDOUT and len(said) < notebook_server.INFO_BYTES_MAX:
                said.extend(data)

        look = remote_command.RemoteCommand(self._place, notebook_server.LOOK)
        streams = remote_command.CommandStreams(_nothing, keep)
        try:
            code = remote_command.attend(self._api, self._endpoint, look, streams)
        except session_connection.StartRefusal as refusal:
            raise job_wait.ImpossibleError(str(refusal)) from None
        except api_client.ApiError as error:
            if error.status != 409:  # it does not run any more
                raise job_wait.ImpossibleError(str(error)) from None
            return None
        if code == 0:
            try:
                server = notebook_server.read(bytes(said))
            except notebook_server.NotebookError as error:
                self._try_again(str(error))  # it was being written
                return None
            self._looks = 0
            return server
        if code in _SIGNALS:
            self._left = _SIGNALS[code]
        elif code == notebook_server.LATE:
            raise job_wait.ImpossibleError(
                f"Jupyter has not begun to listen within {notebook_server.LISTEN_S} s; see muster "
                f"logs {self._name}"
            )
        elif code == notebook_server.NOT_ONE:
            raise job_wait.ImpossibleError(
                f"{self._name} was not started by muster notebook. To reach what it serves: muster "
                f"forward {self._name} PORT"
            )
        else:
            self._try_again("the job can't be entered")
        return None

    def _try_again(self, why: str) -> None:
        """Count a look that failed.

        Raises:
            ImpossibleError: it was one of too many.
        """
        self._looks += 1
        if self._looks >= LOOKS_MAX:
            raise job_wait.ImpossibleError(why)

    def _serve(self, server: notebook_server.NotebookServer, attempts: set[str]) -> int:
        """Show the server until its try ends, or a signal comes. Return the signal, or 0."""
        wanted = port_forward.WantedForward(self._place, server.port, HOST, self._wanted.port)
        forward = port_forward.PortForward(self._api, self._endpoint, wanted)
        with contextlib.ExitStack() as kept:

            async def serve() -> int:
                over = asyncio.Event()
                self._watch(attempts, asyncio.get_running_loop(), over)
                return await forward.serve(lambda where: self._show(server, where, kept), over)

            try:
                return asyncio.run(serve())
            except OSError as error:
                raise job_wait.ImpossibleError(
                    f"{port_forward.why_deaf(f'{HOST}:{wanted.local_port}', error)}. To fix: "
                    f"another --port, or none"
                ) from None

    def _watch(
        self, attempts: set[str], loop: asyncio.AbstractEventLoop, over: asyncio.Event
    ) -> None:
        """Have an event set once none of the tries runs any more, from another thread."""

        def watch() -> None:
            with (
                contextlib.suppress(
                    api_client.ApiError,
                    retries.GoneError,
                    job_wait.VanishedError,
                    job_wait.NotAppliedError,
                ),
                api_client.ApiClient(self._endpoint) as api,
            ):
                job_wait.wait_until(
                    retries.Patient(api, answered=True),
                    self._name,
                    lambda job: _is_over(job) or not attempts & _running(job),
                )
            with contextlib.suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(over.set)

        threading.Thread(target=watch, daemon=True).start()

    def _show(
        self, server: notebook_server.NotebookServer, where: str, kept: contextlib.ExitStack
    ) -> None:
        """Say where the server is, and open it if that is wanted.

        The token is shown on a terminal alone. No program gets it as an argument: a browser gets
        the path of a page, which nobody else can read.
        """
        port = int(where.rpartition(":")[2])
        self._wanted = self._wanted._replace(port=port)  # the same after another try
        address = notebook_server.url(server, port)
        is_seen = os.isatty(local_terminal.STDOUT)
        page = "" if is_seen and not self._wanted.opens else kept.enter_context(_page(address))
        self.shown = True
        if not server.token:
            terminal.note("this server has no token: it asks for what its configuration says")
        terminal.note(f"{self._name} runs Jupyter at {HOST}:{port}, until Ctrl-C; open:")
        terminal.write_text(f"{address if is_seen else page}\n")
        sys.stdout.flush()
        if self._wanted.opens:
            threading.Thread(target=_open, args=(page,), daemon=True).start()
            self._wanted = self._wanted._replace(opens=False)  # once is enough


def _open(page: str) -> None:
    if not webbrowser.open(page):
        terminal.note("there is no browser here that could be opened")


@contextlib.contextmanager
def _page(address: str) -> Iterator[str]:
    """Give the address of a page for this user alone, which goes on to another address."""
    with tempfile.TemporaryDirectory(prefix="muster-notebook-") as folder:
        path = Path(folder, "jupyter.html")
        path.touch(mode=0o600)
        path.write_text(notebook_server.page(address), encoding="utf-8")
        yield path.as_uri()


async def _nothing() -> AsyncIterator[bytes]:
    """Yield no input."""
    for _ in ():
        yield b""


def _running(job: Json) -> set[str]:
    """Return the ids of the tries of a job that run."""
    return {one["id"] for one in job["attempts"] if one["state"] == "Running"}


def _is_over(job: Json) -> bool:
    return job["state"] in job_wait.FINISHED


def _is_ready(job: Json) -> bool:
    """Return True if a task of a job runs, or the job has ended."""
    return bool(_running(job)) or _is_over(job)
