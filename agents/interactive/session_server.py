"""Serves sessions of people in tasks: ``python -m agents.interactive.session_server``.

Requests come as JSON lines on standard input, from the agent. Each session is one connection to the
relay and one to the supervisor. When the agent ends, so does this process, and with it all that its
sessions have started.
"""

import argparse
import asyncio
import contextlib
import socket
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from agents.interactive import supervisor_link, task_streams
from reconciler.model.protocol import session_messages
from reconciler.model.values.quantities import counted

#: The longest request; a command line has at most so many bytes.
LINE_BYTES_MAX = 2**20
SESSIONS_MAX = 512
#: Requests beyond those that are being refused at a time; more are left without an answer.
REFUSALS_MAX = 64
#: How long the relay may take to answer.
OPEN_S = 10.0
#: Messages that wait to be taken, of each session.
QUEUE_MAX = 4
_decode = msgspec.json.Decoder(session_messages.SessionRequest).decode


def relay_url(server: str, port: int) -> str:
    """Return where the relay is, which has another port at the host of the controller."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{scheme}://{shown}:{port}{session_messages.PATH}"


class SessionServer:
    """The sessions of one node.

    Args:
        root: the agent's folder.
        server: URL of the controller.
        context: judges the relay's certificate; None: plain connections.
        refusal: why this node serves no sessions; empty: it does.
        sessions_max: the most sessions at a time; a further request is refused with a message.
    """

    def __init__(
        self,
        root: Path,
        server: str,
        context: ssl.SSLContext | None,
        refusal: str,
        *,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self._root = root
        self._server = server
        self._context = context
        self._refusal = refusal
        self._sessions_max = sessions_max
        self._running: set[asyncio.Task[None]] = set()
        self._refused: set[asyncio.Task[None]] = set()

    def begin(self, line: bytes) -> None:
        """Begin the session that a line asks for, or refuse it if there are too many."""
        request = _decode(line)
        count, refusal, tasks = len(self._running), self._refusal, self._running
        if count >= self._sessions_max:
            tasks = self._refused
            refusal = refusal or (
                f"this node has {counted(count, 'session')} already (exec, cp, forward), the most "
                "at a time. To fix: end one, or try again later"
            )
            if len(tasks) >= REFUSALS_MAX:
                sys.stderr.write(f"session {request.id}: not answered: {refusal}\n")
                return
        task = asyncio.create_task(self._serve(request, refusal))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, request: session_messages.SessionRequest, refusal: str) -> None:
        url = relay_url(self._server, request.relay_port)
        try:
            async with connect(
                url,
                additional_headers={"Authorization": f"Bearer {request.ticket}"},
                subprotocols=[websockets.Subprotocol(session_messages.SUBPROTOCOL)],
                compression=None,
                max_size=session_messages.MESSAGE_BYTES_MAX,
                max_queue=QUEUE_MAX,
                open_timeout=OPEN_S,
                ping_timeout=session_messages.PING_TIMEOUT_S,
                close_timeout=session_messages.CLOSE_S,
                proxy=None,
                ssl=self._context,
            ) as relay:
                await self._attend(request, relay, refusal)
        except (OSError, websockets.WebSocketException, TimeoutError) as problem:
            sys.stderr.write(f"session {request.id}: {url}: {problem}\n")

    async def _attend(
        self, request: session_messages.SessionRequest, relay: ClientConnection, refusal: str
    ) -> None:
        """Do what the session asks for, and say how it ended; or say why it is refused."""
        while await relay.recv() != task_streams.CAME:
            pass  # of a newer relay
        if refusal:
            await relay.send(task_streams.said(session_messages.SessionRefused(refusal)))
            return
        try:
            link = supervisor_link.SupervisorLink(self._root)
            try:
                if request.port:
                    await _forward(request, relay, link)
                else:
                    await _execute(request, relay, link)
            finally:
                link.close()
        except supervisor_link.StartRefusedError as problem:
            refused = session_messages.SessionRefused(str(problem), problem.status)
            await relay.send(task_streams.said(refused))


async def _execute(
    request: session_messages.SessionRequest,
    relay: ClientConnection,
    link: supervisor_link.SupervisorLink,
) -> None:
    environment = {"MUSTER_SESSION": request.id}
    if request.term:
        environment["TERM"] = request.term
    handles = await link.ask(
        {
            "op": "exec", "attempt": request.attempt, "session": request.id,
            "argv": list(request.argv), "env": environment,
            "size": [request.rows, request.columns] if request.term else None,
        }
    )  # fmt: skip
    streams = task_streams.TaskStreams(handles, relay, link.signal)
    await relay.send(task_streams.said(session_messages.SessionReady()))
    taking = asyncio.create_task(streams.take_input())
    ending = asyncio.create_task(_end(streams, link))
    try:
        # without somebody at the other end, the session is over
        await asyncio.wait({taking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await relay.send(task_streams.said(ending.result()))
    finally:
        for task in (taking, ending):
            task.cancel()
        await asyncio.gather(taking, ending, return_exceptions=True)
        streams.close()


async def _end(
    streams: task_streams.TaskStreams, link: supervisor_link.SupervisorLink
) -> session_messages.ToPerson:
    """Send all output, and return how the command ended."""
    await streams.send_output()
    ended = await link.end()
    if not ended:
        return session_messages.SessionRefused("the node's supervisor has gone", 255)
    return session_messages.SessionExited(int(ended.get("exit", 0)), int(ended.get("signal", 0)))


async def _forward(
    request: session_messages.SessionRequest,
    relay: ClientConnection,
    link: supervisor_link.SupervisorLink,
) -> None:
    (handle,) = await link.ask(
        {"op": "connect", "attempt": request.attempt, "session": request.id, "port": request.port}
    )
    with socket.socket(fileno=handle) as connection:
        connection.setblocking(False)
        await relay.send(task_streams.said(session_messages.SessionReady()))
        with contextlib.suppress(OSError):
            await task_streams.exchange(connection, relay)


async def serve(server: SessionServer) -> None:
    """Take requests until standard input ends."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    while line := await reader.readline():
        try:
            server.begin(line)
        except msgspec.MsgspecError as problem:
            sys.stderr.write(f"a request for a session was not understood: {problem}\n")


def main(arguments: list[str]) -> int:
    """Serve sessions until the agent ends."""
    parser = argparse.ArgumentParser(prog="agents.interactive.session_server")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--ca", default="")
    parser.add_argument("--refusal", default="")
    options = parser.parse_args(arguments)
    context = None
    if options.server.startswith("https:"):
        context = ssl.create_default_context(cafile=options.ca or None)
    server = SessionServer(options.root, options.server, context, options.refusal)
    asyncio.run(serve(server))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
