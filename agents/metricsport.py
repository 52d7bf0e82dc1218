"""A port of the agent's own, where Prometheus reads the node's page; closed unless it is asked for.

One thread holds all connections and waits for none: each has so much time to ask, and so much to
take its answer, there are at most so many at once, and what is handed out is there already
(``nodepage``). Whatever callers do, the agent beside it goes on.
"""

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import psutil

from agents import nodepage, scrapes, tasks
from agents.settings import Listen
from reconciler.model import addresses

#: The most connections at once; further ones wait in the kernel's queue, of the same length.
CONNECTIONS_MAX = 16
#: How long a caller has to ask, how long it waits for a page that is being made, and how long it
#: has to take its answer.
ASK_S, MAKE_S, TAKE_S = 5.0, 10.0, 15.0
_LOOK_S = 1.0
#: How long nobody is taken in where there is no room for one more connection.
_REST_S = 0.2
_READ_BYTES = 4096


class PortError(OSError):
    """The port can't be had; says which, who has it, and what to do."""


def bind(listen: Listen) -> socket.socket:
    """Listen there.

    Raises:
        PortError: that is not possible, or not safe.
    """
    try:
        found = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as problem:
        raise PortError(
            f"--metrics-listen {listen.shown}: {listen.host} is no address of this machine: "
            f"{problem.strerror}"
        ) from None
    family, kind, protocol, _, address = found[0]
    if listen.token_file is None and not addresses.is_loopback(str(address[0])):
        raise PortError(
            f"--metrics-listen {listen.shown}: {listen.host} is {address[0]}, which can be reached "
            "from elsewhere, and there is no --metrics-token-file; give one, or listen on 127.0.0.1"
        )
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(CONNECTIONS_MAX)
        made.setblocking(False)
    except OSError as problem:
        made.close()
        raise PortError(
            f"--metrics-listen {listen.shown}: {problem.strerror}{_held_by(problem, listen.port)}; "
            "end what listens there, or name another port"
        ) from None
    return made


def _held_by(problem: OSError, port: int) -> str:
    """Which process has a port, where that can be told."""
    if problem.errno != errno.EADDRINUSE:
        return ""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
                if not one.pid:
                    break
                return f": process {one.pid} ({psutil.Process(one.pid).name()}) has it"
    return ": a process that can't be told has it"


class _Caller:
    """One connection: it asks, may wait for the page, and takes its answer."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.until = now + ASK_S
        self.heard = b""
        self.asked: scrapes.Asked | None = None
        self.left = memoryview(b"")

    def say(self, answer: bytes, now: float) -> None:
        """Begin to answer."""
        self.left = memoryview(answer)
        self.until = now + TAKE_S


class Port:
    """The open port; all of it but its making is one thread's.

    Args:
        listener: what ``bind`` made.
        token: what callers have to show; empty: nothing.
        page: where pages come from.
        leaving: set when the agent leaves.
    """

    def __init__(
        self, listener: socket.socket, token: str, page: nodepage.Page, leaving: threading.Event
    ) -> None:
        self._listener = listener
        self._token = token.encode()
        self._page = page
        self._leaving = leaving
        page.on_ready = self._page_ready
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callers: dict[socket.socket, _Caller] = {}

    @property
    def address(self) -> str:
        """HOST:PORT at which it listens."""
        host, port = self._listener.getsockname()[:2]
        return Listen(str(host), int(port)).shown

    def _page_ready(self) -> None:
        """Whoever waits for the page may have it."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def serve(self) -> None:
        """Answer until the agent leaves; after a defect it begins anew, its callers let go."""
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
        """Listen no more."""
        self._listener.close()
        os.close(self._wake)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Wait a moment, and go on with whoever is ready; let go of those that took too long."""
        for key, _ in selector.select(_LOOK_S):
            if key.fileobj is self._listener:
                self._accept(selector)
            elif key.fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            else:
                with self._contained(selector, self._callers[key.data]) as caller:
                    self._go_on(selector, caller)
        now = time.monotonic()
        for caller in list(self._callers.values()):
            with self._contained(selector, caller):
                self._look_after(selector, caller, now)
        self._mind_listener(selector)

    @contextlib.contextmanager
    def _contained(self, selector: selectors.BaseSelector, caller: _Caller) -> Iterator[_Caller]:
        """A connection that breaks is nobody else's matter."""
        try:
            yield caller
        except OSError:
            self._let_go(selector, caller)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            self._leaving.wait(_REST_S)  # there are no handles left, or the caller has gone
            return
        connection.setblocking(False)
        self._callers[connection] = _Caller(connection, time.monotonic())
        selector.register(connection, selectors.EVENT_READ, connection)

    def _mind_listener(self, selector: selectors.BaseSelector) -> None:
        """Take no more callers than can be held."""
        full = len(self._callers) >= CONNECTIONS_MAX
        if full == (self._listener.fileno() in selector.get_map()):
            if full:
                selector.unregister(self._listener)
            else:
                selector.register(self._listener, selectors.EVENT_READ)

    def _go_on(self, selector: selectors.BaseSelector, caller: _Caller) -> None:
        """Hear more of a caller's request, or say more of its answer."""
        if caller.left:
            caller.left = caller.left[caller.connection.send(caller.left) :]
            if not caller.left:
                self._let_go(selector, caller)
            return
        data = caller.connection.recv(_READ_BYTES)
        if not data or caller.asked is not None:
            self._let_go(selector, caller)  # it has gone, or says more than it was asked for
            return
        caller.heard += data
        head, end, _ = caller.heard.partition(scrapes.END_OF_HEAD)
        if len(head) > scrapes.HEAD_BYTES_MAX:
            self._say(selector, caller, scrapes.refuse(scrapes.OVERLONG))
        elif end:
            asked = scrapes.read(head + end, self._token)
            if isinstance(asked, scrapes.Refusal):
                self._say(selector, caller, scrapes.refuse(asked))
            elif asked.page:
                caller.asked, caller.until = asked, time.monotonic() + MAKE_S
            else:
                self._say(selector, caller, scrapes.answer(200, b"ok\n"))

    def _look_after(self, selector: selectors.BaseSelector, caller: _Caller, now: float) -> None:
        """Give a caller the page where it is there, and no more time than it has."""
        if caller.asked is not None and not caller.left:
            ready = self._page.ask()
            if ready is not None:
                self._say(selector, caller, self._answer(ready, caller.asked))
            elif now > caller.until:
                late = scrapes.Refusal(503, f"the page was not made in {MAKE_S:.0f} s")
                self._say(selector, caller, scrapes.refuse(late))
        elif now > caller.until:
            if caller.left:
                self._let_go(selector, caller)
            else:
                self._say(selector, caller, scrapes.refuse(scrapes.SLOW))

    @staticmethod
    def _answer(ready: nodepage.Ready, asked: scrapes.Asked) -> bytes:
        if ready.problem:
            return scrapes.refuse(scrapes.Refusal(503, ready.problem))
        if asked.packed:
            return scrapes.answer(200, ready.packed, packed=True)
        return scrapes.answer(200, ready.page)

    def _say(self, selector: selectors.BaseSelector, caller: _Caller, answer: bytes) -> None:
        caller.say(answer, time.monotonic())
        selector.modify(caller.connection, selectors.EVENT_WRITE, caller.connection)

    def _let_go(self, selector: selectors.BaseSelector, caller: _Caller) -> None:
        """End a connection; what it still says is read, or its answer would be lost with it."""
        if self._callers.pop(caller.connection, None) is None:
            return
        selector.unregister(caller.connection)
        with contextlib.suppress(OSError):
            caller.connection.shutdown(socket.SHUT_WR)
            caller.connection.recv(_READ_BYTES)
        caller.connection.close()


def open_port(listen: Listen, page: nodepage.Page, leaving: threading.Event) -> Port:
    """Open the port.

    Raises:
        PortError: it can't be had.
        tasks.UnfitError: the token can't be read, or others can read it.
        OSError: there is no such file of a token.
    """
    token = tasks.read_token(listen.token_file) if listen.token_file is not None else ""
    return Port(bind(listen), token, page, leaving)
