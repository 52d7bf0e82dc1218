"""Listens here, and joins each connection with one to a port of a task, in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reconciler.cli import lazy_import, terminal
from reconciler.cli.interactive import local_terminal
from reconciler.model.protocol import session_messages
from reconciler.model.rules import past_runs
from reconciler.model.state import states

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from reconciler.operations.client import api_client, endpoints, session_connection
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")

#: Connections at a time.
CONNECTIONS_MAX = 128
#: Status of an answer that nothing of the job runs.
CONFLICT = 409
#: Exit code if this command can't listen, or its job has ended.
FAILED = terminal.MUSTER_FAILED


class WantedForward(NamedTuple):
    """A port of a task, and where it is to be reached here: an address, or a Unix socket."""

    place: session_connection.SessionPlace
    port: int
    address: str = "127.0.0.1"
    local_port: int = 0
    socket: Path | None = None


def run(
    api: api_client.ApiClient,
    endpoint: endpoints.Endpoint,
    wanted: WantedForward,
) -> int:
    """Serve connections until a signal comes. Return the exit code.

    Args:
        api: of the controller.
        endpoint: where the controller is.
        wanted: what is reached where.
    """
    if why := why_over(api, wanted.place):
        terminal.note(f"muster: {why}")
        return FAILED
    forward = PortForward(api, endpoint, wanted)

    def tell(where: str) -> None:
        terminal.note(f"{where} reaches port {wanted.port} of {wanted.place.job}; Ctrl-C ends this")

    try:
        asyncio.run(forward.serve(tell))
    except OSError as error:
        hint = ""
        if error.errno == errno.EADDRINUSE and wanted.socket is None:
            hint = f". To fix: any free port here, by muster forward JOB 0:{wanted.port}"
        where = str(wanted.socket or f"{wanted.address}:{wanted.local_port}")
        terminal.note(f"muster: {why_deaf(where, error)}{hint}")
        return FAILED
    return FAILED if forward.is_over else 0


def why_over(api: api_client.ApiClient, place: session_connection.SessionPlace) -> str:
    """Return a sentence if nothing of a job can ever be reached, because it has ended.

    Raises:
        ApiError: there is no such job, or the controller refuses to tell of it.
    """
    job = api.get(f"/v1/jobs/{place.job}")["job"]
    if job["state"] not in states.FINISHED_JOB_STATES:
        return ""
    again = past_runs.again_text(place.job, is_removed=job["removed"])
    return (
        f"job {place.job} has ended ({job['state']}): nothing of it listens any more. To fix: see "
        f"what it wrote (muster logs {place.job}), or {again}"
    )


def why_deaf(where: str, error: OSError) -> str:
    """Return a sentence about a place at which this command can't listen."""
    return f"can't listen on {where}: {os.strerror(error.errno or 0)}"


class PortForward:
    """The connections to one port of a task.

    Attributes:
        is_over: True once a connection has failed because the job has ended.
    """

    def __init__(
        self, api: api_client.ApiClient, endpoint: endpoints.Endpoint, wanted: WantedForward
    ) -> None:
        self._api = api
        self._endpoint = endpoint
        self._wanted = wanted
        self._context: ssl.SSLContext | None = None
        self.is_over = False
        self._over = asyncio.Event()
        self._open = 0
        self._told = ""

    async def serve(self, begun: Callable[[str], None], over: asyncio.Event | None = None) -> int:
        """Serve until SIGINT, SIGTERM or SIGHUP, until it is over, or a connection finds that the
        job has ended. Return the signal, or 0.

        Args:
            begun: called once with where this listens.
            over: set by somebody else when it is over.

        Raises:
            OSError: it can't listen there.
        """
        self._context = session_connection.context_of(self._endpoint)
        over = self._over = over or self._over
        came: list[int] = []

        def leave(number: int) -> None:
            came.append(number)
            over.set()

        wanted = self._wanted
        limit = session_messages.PIECE_BYTES
        if wanted.socket is not None:
            before = os.umask(0o177)
            try:
                server = await asyncio.start_unix_server(self._join, wanted.socket, limit=limit)
            finally:
                os.umask(before)
            where = str(wanted.socket)
        else:
            server = await asyncio.start_server(
                self._join, wanted.address, wanted.local_port, limit=limit
            )
            where = f"{wanted.address}:{server.sockets[0].getsockname()[1]}"
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        try:
            with local_terminal.heard({one: functools.partial(leave, one) for one in numbers}):
                begun(where)
                await over.wait()
        finally:
            server.close()
            if wanted.socket is not None:
                with contextlib.suppress(OSError):
                    wanted.socket.unlink()
        return came[0] if came else 0

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join one connection with the task's."""
        if self._open >= CONNECTIONS_MAX:
            writer.close()
            return
        self._open += 1
        try:
            granted = await asyncio.to_thread(
                session_connection.ticket,
                *(self._api, self._wanted.place),
                kind="forward",
                port=self._wanted.port,
            )
            async with session_connection.dialled(self._endpoint, granted, self._context) as relay:
                await _exchange(relay, reader, writer)
            self._told = ""
        except (
            api_client.ApiError,
            session_connection.SessionLostError,
            session_connection.StartRefusal,
        ) as error:
            self._tell(await asyncio.to_thread(self._why, error))
        except asyncio.CancelledError:
            return  # the forward ends; what asyncio would say of that is nobody's news
        finally:
            self._open -= 1
            writer.close()
            if self.is_over:
                self._over.set()

    def _why(self, error: Exception) -> str:
        """Return why a connection failed, and end all of it if no other can succeed."""
        ended = ""
        if isinstance(error, api_client.ApiError) and error.status == CONFLICT:
            with contextlib.suppress(api_client.ApiError):
                ended = why_over(self._api, self._wanted.place)
        self.is_over = bool(ended)
        return ended or str(error)

    def _tell(self, why: str) -> None:
        """Print why a connection failed, once until one succeeds."""
        if why != self._told:
            self._told = why
            terminal.note(f"muster: {why}")


async def _exchange(
    relay: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Move data in both directions until both have ended, or one end has gone."""

    async def send() -> None:
        try:
            while data := await reader.read(session_messages.PIECE_BYTES):
                await relay.send(data)
            await relay.send(session_connection.saying(session_messages.InputEnded()))
        except OSError:
            await relay.close()
        except session_connection.CLOSED:
            return

    sending = asyncio.create_task(send())
    try:
        async for message in relay:
            if isinstance(message, bytes):
                writer.write(message)
                await writer.drain()
            elif isinstance(session_connection.said(message), session_messages.InputEnded):
                writer.write_eof()
    except OSError:  # the program here has gone
        return
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
