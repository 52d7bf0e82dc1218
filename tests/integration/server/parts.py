"""A server process on loopback, with a loop of a few lines at the other end of its socket."""

import contextlib
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

from reconciler import store
from reconciler.model.protocol import agent_messages, loop_messages
from tests.unit.store import samples

PATIENCE_S = 90.0
#: Headers of a caller who may do everything.
ADMIN = {"Authorization": "Bearer the-test"}
_DECODE_NEWS = msgspec.msgpack.Decoder(loop_messages.ToLoop).decode
_DECODE_ANSWER = msgspec.msgpack.Decoder(agent_messages.SyncResponse).decode


class Loop:
    """Listens where the server connects; keeps what it is told, says what a test tells it."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._heard: list[loop_messages.ToLoop] = []
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._connections = 0
        self._told: dict[str, tuple[int, int]] = {}
        self._epoch = 1
        self._stopping = False
        #: What every override is answered; None: nothing at all.
        self.answers: str | None = ""
        #: Whether questions how a node stands are confirmed as they come.
        self.confirms = True
        self._wake, self._woken = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            buffer = loop_messages.FrameBuffer()
            while not self._stopping:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        selector.register(connection, selectors.EVENT_READ)
                        buffer = loop_messages.FrameBuffer()
                        with self._changed:
                            self._connection = connection
                            self._connections += 1
                            self._changed.notify_all()
                    elif key.fileobj is not self._woken:
                        self._receive(selector, key.fileobj, buffer)  # type: ignore[arg-type]

    def _receive(
        self,
        selector: selectors.BaseSelector,
        source: socket.socket,
        buffer: loop_messages.FrameBuffer,
    ) -> None:
        try:
            data = source.recv(2**16)
        except OSError:
            data = b""
        if not data:
            selector.unregister(source)
            source.close()
            return
        with self._changed:
            heard = [_DECODE_NEWS(body) for body in buffer.feed(data)]
            for message in heard:
                if isinstance(message, loop_messages.OverrideAsked) and self.answers is not None:
                    self.send(loop_messages.OverrideAnswered(message.request.id, self.answers))
                if (
                    isinstance(message, loop_messages.Reported)
                    and message.question
                    and self.confirms
                ):
                    self.confirm(message.request.node, message.question)
            self._heard += heard
            self._changed.notify_all()

    def confirm(self, node: str, question: int) -> None:
        """Say that a node whose standing was asked for has what it was last told to have."""
        epoch, version = self._told.get(node, (self._epoch, 0))
        self.send(
            loop_messages.NodeUpdate(node=node, epoch=epoch, version=version, confirms=question)
        )

    def send(self, *messages: loop_messages.ToServer) -> None:
        """Tell the server."""
        assert self._connection is not None
        for message in messages:
            if isinstance(message, loop_messages.NodeUpdate):
                self._told[message.node] = (message.epoch, message.version)
        self._connection.sendall(b"".join(loop_messages.encode(message) for message in messages))

    def publish(
        self, *, ready: bool = True, epoch: int = 1, events: int = 0, poll_s: float = 0.5
    ) -> None:
        """Say that there was a cycle."""
        self._epoch = epoch
        self.send(
            loop_messages.Published(
                epoch=epoch,
                cycle=1,
                at=1000.0,
                ready=ready,
                poll_s=poll_s,
                metrics=b"muster_build_info 1\n",
                revision="abc",
                events=events,
            )
        )

    def wait(self, test: Callable[[list[loop_messages.ToLoop]], Any]) -> Any:
        """Until ``test`` of what was heard is true; returns what it returned."""
        with self._changed:
            assert self._changed.wait_for(lambda: test(self._heard), PATIENCE_S), self._heard
            return test(self._heard)

    def wait_connected(self, count: int = 1) -> None:
        """Until the server has connected so many times."""
        self.wait(lambda _heard: self._connections >= count)

    def reports(self, node: str) -> list[agent_messages.SyncRequest]:
        """What a node said, as far as it was passed on."""
        with self._changed:
            return [
                one.request
                for one in self._heard
                if isinstance(one, loop_messages.Reported) and one.request.node == node
            ]

    def cut(self) -> None:
        """Close the connection."""
        assert self._connection is not None
        self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop."""
        self._stopping = True
        self._wake.send(b"x")
        self._thread.join(PATIENCE_S)
        for one in (self._listener, self._wake, self._woken, self._connection):
            if one is not None:
                one.close()
        self._path.unlink(missing_ok=True)


class Served:
    """A running server, its loop and its store."""

    def __init__(
        self,
        folder: pathlib.Path,
        *options: str,
        loop: bool = True,
        files_max: int | None = None,
    ) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'muster.db'}"
        self.store = store.Store.open(self.url)
        self.epoch = self.store.lead("test", 1.0)
        self.link_path = folder / "link.sock"
        self._loop = Loop(self.link_path) if loop else None
        if "--token-file" not in options:
            options += ("--token-file", str(own_tokens(folder)))
        places = ("--store", self.url, "--link", str(self.link_path), "--state", str(folder))
        self.process = start(*places, *options, files_max=files_max)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), self.process.communicate()
        self.address = line.split()[-1]
        self.client = httpx.Client(base_url=self.address, timeout=PATIENCE_S, headers=ADMIN)
        self._cycle = 0
        self._told_to_end = False

    @property
    def endpoint(self) -> tuple[str, ...]:
        """Options with which commands ask this server."""
        return "--server", self.address, "--token-file", str(self.folder / "own-token")

    @property
    def loop(self) -> Loop:
        """The loop of the test."""
        assert self._loop is not None
        return self._loop

    def ready(self) -> "Served":
        """Until agents are served."""
        self.loop.wait_connected()
        self.loop.publish()
        self.until(lambda: self.client.get("/readyz").status_code == 200)
        return self

    def until(self, test: Callable[[], bool]) -> None:
        """Until something that only polling can tell is so."""
        ends_at = time.monotonic() + PATIENCE_S
        while not test():
            assert time.monotonic() < ends_at
            time.sleep(0.01)

    def commit(self, views: dict[str, bytes] | None = None, **parts: Any) -> None:
        """A cycle with these parts."""
        self._cycle += 1
        self.store.commit(
            self.epoch, self._cycle, samples.cycle(**parts), store.CycleExtras(views=views or {})
        )

    def sync(self, node: str = "n1", **fields: Any) -> httpx.Response:
        """One exchange as an agent."""
        return self.client.post(f"/v1/nodes/{node}/sync", content=request(node, **fields))

    def end(self) -> None:
        """Tell the process to end; it need not have ended when this returns."""
        self._told_to_end = True
        self.process.terminate()

    def close(self) -> None:
        """Stop the process, and the rest; a process that ended without being told is a defect."""
        self.client.close()
        if self._loop is not None:
            self._loop.close()
        ended = self.process.poll()
        logged = stop(self.process)
        self.store.close()
        surprise = ended is not None and not self._told_to_end
        assert not surprise, f"the server had ended by itself with {ended}:\n{logged}"


def own_tokens(folder: pathlib.Path) -> pathlib.Path:
    """A file with the token of ``ADMIN``."""
    (folder / "own-token").touch(0o600)
    (folder / "own-token").write_text("the-test\n")
    path = folder / "own-tokens"
    path.touch(0o600)
    path.write_text("the-test local admin\n")
    return path


def start(*arguments: str, files_max: int | None = None) -> subprocess.Popen[str]:
    """The server's process, which may open no more than so many files."""
    limit = [] if files_max is None else ["sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh"]
    server = [sys.executable, "-m", "reconciler.server", "--listen", "127.0.0.1:0"]
    return subprocess.Popen(
        [*limit, *server, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )


def stop(process: subprocess.Popen[str]) -> str:
    """End it, and return what it logged."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        _, logged = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, logged = process.communicate()
    return logged


def request(node: str = "n1", **fields: Any) -> bytes:
    """A sync as an agent encodes it."""
    known: dict[str, Any] = {"boot_id": "boot-1", "incarnation": "one"} | fields
    return msgspec.msgpack.encode(agent_messages.SyncRequest(node=node, **known))


def answer(of: httpx.Response) -> agent_messages.SyncResponse:
    """What an agent decodes."""
    assert of.status_code == 200, of.text
    return _DECODE_ANSWER(of.content)


@contextlib.contextmanager
def in_background(call: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run ``call`` in a thread; gives a function that waits for what it returned."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE_S)
        assert found, "the call did not end"
        return found[0]

    try:
        yield result
    finally:
        thread.join(PATIENCE_S)


def muster(served: Served, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that asks a server."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "reconciler.cli.entry", *words, *served.endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
