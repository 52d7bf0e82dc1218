"""Runs one command in a task, with the input and output of this command. Returns its exit code."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from reconciler.cli import lazy_import, terminal
from reconciler.cli.interactive import local_terminal
from reconciler.model.protocol import session_messages

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from reconciler.operations.client import api_client, endpoints, session_connection
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    session_connection = lazy_import.module("reconciler.operations.client.session_connection")

#: Exit code of a session that broke off, as of ssh.
LOST = 255
#: Exit code if Muster failed before anything was started.
FAILED = terminal.MUSTER_FAILED
_MARKS = {
    session_messages.STDOUT[0]: local_terminal.STDOUT,
    session_messages.STDERR[0]: local_terminal.STDERR,
}


class RemoteCommand(NamedTuple):
    """A command in a task, and whether it gets a terminal."""

    place: session_connection.SessionPlace
    argv: tuple[str, ...]
    has_terminal: bool = False
    kind: session_messages.SessionKind = "exec"


class CommandStreams(NamedTuple):
    """Input of a command, and who takes its output.

    Attributes:
        typed: yields its input. show: takes output of a stream, 1 or 2.
    """

    typed: Callable[[], AsyncIterator[bytes]] = local_terminal.typed
    show: Callable[[int, bytes], Awaitable[None]] = local_terminal.show


HERE = CommandStreams()


def run(
    api: api_client.ApiClient,
    endpoint: endpoints.Endpoint,
    command: RemoteCommand,
    streams: CommandStreams = HERE,
) -> int:
    """Run a command to its end. Return its exit code: 128 + N if signal N ended it.

    Raises:
        ApiError: the controller refused.
    """
    try:
        return attend(api, endpoint, command, streams)
    except session_connection.StartRefusal as refusal:
        terminal.note(f"muster: {refusal}")
        return refusal.status


def attend(
    api: api_client.ApiClient,
    endpoint: endpoints.Endpoint,
    command: RemoteCommand,
    streams: CommandStreams = HERE,
) -> int:
    """Run a command as :func:`run` does.

    Raises:
        ApiError: the controller refused.
        StartRefusal: it was not started.
    """
    what: dict[str, Any] = {"kind": command.kind, "argv": list(command.argv)}
    if command.has_terminal:
        rows, columns = local_terminal.size()
        term = os.environ.get("TERM") or "xterm-256color"
        what |= {"term": term, "rows": rows, "columns": columns}
    granted = session_connection.ticket(api, command.place, **what)
    try:
        return asyncio.run(_attend(endpoint, granted, command, streams))
    except session_connection.SessionLostError as error:
        terminal.note(f"muster: {error}")
        return LOST
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def _attend(
    endpoint: endpoints.Endpoint,
    granted: dict[str, Any],
    command: RemoteCommand,
    streams: CommandStreams,
) -> int:
    context = session_connection.context_of(endpoint)
    async with session_connection.dialled(endpoint, granted, context) as relay:
        conversation = _Conversation(relay, streams, has_terminal=command.has_terminal)
        with local_terminal.raw(wanted=command.has_terminal):
            return await conversation.hold()


class _Conversation:
    """The exchange with one command that runs."""

    def __init__(
        self, relay: ClientConnection, streams: CommandStreams, *, has_terminal: bool
    ) -> None:
        self._relay = relay
        self._streams = streams
        self._has_terminal = has_terminal
        #: A raw terminal has no end of input but that of the terminal itself.
        self._is_typed = has_terminal and local_terminal.is_one()
        self._words: asyncio.Queue[session_messages.ToNode] = asyncio.Queue()
        self._left = 0
        self._over = asyncio.Event()

    async def hold(self) -> int:
        """Pass everything on until the command has ended. Return its exit code."""
        taking = asyncio.create_task(self._take_output())
        others = [
            asyncio.create_task(self._send_input()),
            asyncio.create_task(self._send_words()),
            asyncio.create_task(self._over.wait()),
        ]
        try:
            with local_terminal.heard(self._handlers()):
                await asyncio.wait({taking, others[2]}, return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() else 128 + self._left
        finally:
            for task in (taking, *others):
                task.cancel()
            await asyncio.gather(taking, *others, return_exceptions=True)

    def _handlers(self) -> dict[signal.Signals, Callable[[], None]]:
        found: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: lambda: self._leave(signal.SIGTERM),
            signal.SIGHUP: lambda: self._leave(signal.SIGHUP),
            signal.SIGINT: self._interrupted,
        }
        if self._has_terminal:
            found[signal.SIGWINCH] = lambda: self._words.put_nowait(
                session_messages.TerminalSize(*local_terminal.size())
            )
        return found

    def _interrupted(self) -> None:
        """Pass Ctrl-C on; a second one leaves."""
        if self._left:
            self._over.set()
        self._left = int(signal.SIGINT)
        self._words.put_nowait(session_messages.SignalSent(int(signal.SIGINT)))

    def _leave(self, number: int) -> None:
        self._left = int(number)
        self._over.set()

    async def _send_input(self) -> None:
        try:
            async for data in self._streams.typed():
                await self._relay.send(data)
            if self._is_typed:
                self._leave(signal.SIGHUP)
            self._words.put_nowait(session_messages.InputEnded())
        except session_connection.CLOSED:
            return  # whoever takes the output says why

    async def _send_words(self) -> None:
        while True:
            word = await self._words.get()
            try:
                await self._relay.send(session_connection.saying(word))
            except session_connection.CLOSED:
                return

    async def _show(self, handle: int, data: bytes) -> None:
        try:
            await self._streams.show(handle, data)
        except OSError as error:
            if not self._is_typed or error.errno != errno.EIO:
                raise
            self._leave(signal.SIGHUP)  # the terminal is gone, and its signal is on the way or lost

    async def _take_output(self) -> int:
        while True:
            message = await self._relay.recv()
            if isinstance(message, bytes):
                handle = _MARKS.get(message[0]) if message else None
                if handle is not None:
                    await self._show(handle, message[1:])
                continue
            match session_connection.said(message):
                case session_messages.SessionExited(status, number):
                    return 128 + number if number else status
                case session_messages.SessionRefused(why, status):
                    raise session_connection.StartRefusal(why, status)
