"""Serves the node's metrics page to Prometheus on a port of the agent's own, if requested.

One thread handles all connections and waits for none. Time to send a request, time to take the
answer, and the number of connections are limited, so clients cannot affect the agent.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

from agents.exporter import http_responses, listeners, metrics_page
from agents.host import operator_log, token_file
from agents.settings import Listen

#: Connections at the same time; others wait in the kernel's queue.
CONNECTIONS_MAX = 64
#: Time to send a request, to wait for a page that is being rendered, and to take the answer.
ASK_S, MAKE_S, TAKE_S = 2.0, 10.0, 15.0
#: A connection that has sent nothing for this long may be replaced by a new one.
SPARE_S = 0.2
#: A port in use is retried after this time, then after twice that, up to the maximum.
AGAIN_S, AGAIN_S_MAX = 1.0, 60.0
_LOOK_S = 1.0
#: How long no connection is accepted after the limit was reached.
_REST_S = 0.2
_READ_BYTES = 4096


class _Caller:
    """A connection that sends a request, may wait for the page, and takes its answer."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.came_at = now
        self.until = now + ASK_S
        self.heard = b""
        self.asked: http_responses.HttpRequest | None = None
        self.left = memoryview(b"")

    def say(self, answer: bytes, now: float) -> None:
        """Start to answer."""
        self.left = memoryview(answer)
        self.until = now + TAKE_S


class MetricsServer:
    """The open port. One thread uses it, except for its creation.

    Args:
        listener: socket returned by ``bind``.
        token: returns the token that clients must send; empty for none.
        page: source of pages.
        leaving: set when the agent stops.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: Callable[[], str],
        page: metrics_page.NodePage,
        leaving: threading.Event,
    ) -> None:
        self._listener = listener
        self._token = token
        self._page = page
        self._leaving = leaving
        page.on_ready = self._page_ready
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callers: dict[socket.socket, _Caller] = {}

    @property
    def address(self) -> str:
        """``HOST:PORT`` on which it listens."""
        host, port = self._listener.getsockname()[:2]
        return Listen(str(host), int(port)).shown

    def _page_ready(self) -> None:
        """Wake the thread for connections that wait for the page."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def serve(self) -> None:
        """Answer until the agent stops. After an internal error all connections are closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while not self._leaving.is_set():
                    self._turn(selector)
            finally:
                for caller in list(self._callers.values()):
                    self._let_go(selector, caller)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        os.close(self._wake)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Wait a moment, serve connections that are ready, and close those that took too long."""
        full = len(self._callers) >= CONNECTIONS_MAX
        for key, _ in selector.select(min(_LOOK_S, SPARE_S) if full else _LOOK_S):
            if key.fileobj is self._listener:
                self._accept(selector)
            elif key.fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif (caller := self._callers.get(key.data)) is not None:  # not closed just now
                with self._contained(selector, caller):
                    self._go_on(selector, caller)
        now = time.monotonic()
        for caller in list(self._callers.values()):
            with self._contained(selector, caller):
                self._look_after(selector, caller, now)
        self._mind_listener(selector)

    @contextlib.contextmanager
    def _contained(self, selector: selectors.BaseSelector, caller: _Caller) -> Iterator[None]:
        """Close a connection that fails, without affecting others."""
        try:
            yield
        except OSError:
            self._let_go(selector, caller)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Accept a connection, if necessary in place of one that has long sent nothing."""
        if len(self._callers) >= CONNECTIONS_MAX:
            silent = self._silent(time.monotonic())
            if silent is None:
                return
            with contextlib.suppress(OSError):
                silent.connection.send(http_responses.refuse(http_responses.SLOW))
            self._let_go(selector, silent)
        try:
            connection, _ = self._listener.accept()
        except OSError:
            self._leaving.wait(_REST_S)  # no handles are left, or the client has gone
            return
        connection.setblocking(False)
        self._callers[connection] = _Caller(connection, time.monotonic())
        selector.register(connection, selectors.EVENT_READ, connection)

    def _silent(self, now: float) -> _Caller | None:
        """Return the oldest connection without a complete request; None if all are new.

        Age counts from the connection's start: single bytes now and then are no request.
        """
        asking = (
            caller for caller in self._callers.values() if caller.asked is None and not caller.left
        )
        first = next(asking, None)
        return first if first is not None and now - first.came_at >= SPARE_S else None

    def _mind_listener(self, selector: selectors.BaseSelector) -> None:
        """Stop accepting while there are too many connections."""
        full = len(self._callers) >= CONNECTIONS_MAX and self._silent(time.monotonic()) is None
        if full == (self._listener.fileno() in selector.get_map()):
            if full:
                selector.unregister(self._listener)
            else:
                selector.register(self._listener, selectors.EVENT_READ)

    def _go_on(self, selector: selectors.BaseSelector, caller: _Caller) -> None:
        """Read more of a request, or write more of an answer."""
        if caller.left:
            caller.left = caller.left[caller.connection.send(caller.left) :]
            if not caller.left:
                self._let_go(selector, caller)
            return
        data = caller.connection.recv(_READ_BYTES)
        if not data or caller.asked is not None:
            self._let_go(selector, caller)  # it has gone, or sends more than expected
            return
        caller.heard += data
        head, end, _ = caller.heard.partition(http_responses.END_OF_HEAD)
        if len(head) > http_responses.HEAD_BYTES_MAX:
            self._say(selector, caller, http_responses.refuse(http_responses.OVERLONG))
        elif end:
            request = http_responses.read(head + end, self._token().encode())
            if isinstance(request, http_responses.HttpRefusal):
                self._say(selector, caller, http_responses.refuse(request))
            elif request.page:
                caller.asked, caller.until = request, time.monotonic() + MAKE_S
            else:
                self._say(selector, caller, http_responses.answer(200, b"ok\n"))

    def _look_after(self, selector: selectors.BaseSelector, caller: _Caller, now: float) -> None:
        """Give a connection the page if it is ready, and close it if its time is over."""
        if caller.asked is not None and not caller.left:
            ready = self._page.ask()
            if ready is not None:
                self._say(selector, caller, self._answer(ready, caller.asked))
            elif now > caller.until:
                late = http_responses.HttpRefusal(
                    503, f"the page was not rendered in {MAKE_S:.0f} s"
                )
                self._say(selector, caller, http_responses.refuse(late))
        elif now > caller.until:
            if caller.left:
                self._let_go(selector, caller)
            else:
                self._say(selector, caller, http_responses.refuse(http_responses.SLOW))

    @staticmethod
    def _answer(ready: metrics_page.Ready, asked: http_responses.HttpRequest) -> bytes:
        if ready.problem:
            return http_responses.refuse(http_responses.HttpRefusal(503, ready.problem))
        if asked.packed:
            return http_responses.answer(200, ready.packed, packed=True)
        return http_responses.answer(200, ready.page)

    def _say(self, selector: selectors.BaseSelector, caller: _Caller, answer: bytes) -> None:
        caller.say(answer, time.monotonic())
        selector.modify(caller.connection, selectors.EVENT_WRITE, caller.connection)

    def _let_go(self, selector: selectors.BaseSelector, caller: _Caller) -> None:
        """Close a connection after reading the rest of its request, or its answer could be lost."""
        if self._callers.pop(caller.connection, None) is None:
            return
        selector.unregister(caller.connection)
        with contextlib.suppress(OSError):
            caller.connection.shutdown(socket.SHUT_WR)
            caller.connection.recv(_READ_BYTES)
        caller.connection.close()


class MetricsPort:
    """The metrics port, retried beside the agent's work until it can be opened.

    Args:
        listen: address to listen on.
        page: source of pages.
        leaving: set when the agent stops.
        tells: log for a port that is in use, and for its opening.
        notice: called with the problem that the node reports; empty for none.

    Raises:
        PortError: the port cannot be opened with these options.
        TokenFileError: the token file must not be used.
        OSError: the token file cannot be read.
    """

    def __init__(
        self,
        listen: Listen,
        page: metrics_page.NodePage,
        leaving: threading.Event,
        tells: operator_log.Console,
        notice: Callable[[str], None],
    ) -> None:
        self._listen = listen
        self._token = (
            token_file.WatchedToken(listen.token_file).current
            if listen.token_file is not None
            else str
        )
        self._page = page
        self._leaving = leaving
        self._tells = tells
        self._notice = notice
        self._again_s = AGAIN_S
        self._problem = ""
        self._brief = ""
        self.port: MetricsServer | None = None
        with contextlib.suppress(listeners.TakenError):
            self._open()

    def turn(self) -> None:
        """Serve until the agent stops, or try to open the port once more."""
        if self.port is not None:
            self.port.serve()
            return
        self._notice(self._brief)
        self._leaving.wait(self._again_s)
        self._again_s = min(2 * self._again_s, AGAIN_S_MAX)
        if self._leaving.is_set():
            return
        with contextlib.suppress(listeners.PortError):
            self._open()
            self._notice("")

    def _open(self) -> None:
        """Try to open the port. Log a problem once, and again if it changes."""
        try:
            self.port = MetricsServer(
                listeners.bind(self._listen), self._token, self._page, self._leaving
            )
        except listeners.PortError as problem:
            brief = problem.brief if isinstance(problem, listeners.TakenError) else str(problem)
            self._brief = brief
            if str(problem) != self._problem:
                self._problem = str(problem)
                self._tells.tell(
                    f"{problem}; meanwhile the node works without, and it is tried again every "
                    f"{AGAIN_S_MAX:.0f} s at the latest",
                    level="WARNING",
                )
            raise
        self._tells.tell(f"the node's page is at http://{self.port.address}/metrics")
