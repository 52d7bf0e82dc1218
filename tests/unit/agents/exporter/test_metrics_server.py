"""An agent's own port: who may open it, and what callers of every kind get and can't do."""

import contextlib
import gzip
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agents import settings
from agents.exporter import http_responses, listeners, metrics_page, metrics_server
from agents.host import operator_log
from agents.host.token_file import TokenFileError, WatchedToken
from tests.unit.agents.exporter.test_metrics_page import now

PATIENCE_S = 30.0


class Bench:
    """An open port, its two threads, and callers."""

    def __init__(self, token_file: Path | None = None) -> None:
        self.leaving = threading.Event()
        self.may_make = threading.Event()
        self.may_make.set()
        self.page = metrics_page.NodePage(now, self.leaving)
        listen = settings.Listen("127.0.0.1", 0, token_file)
        self.notices: list[str] = []
        tells = operator_log.Console("n1")
        door = metrics_server.MetricsPort(
            listen, self.page, self.leaving, tells, self.notices.append
        )
        assert door.port is not None
        self.port = door.port
        self.threads = [
            threading.Thread(target=self._keep, args=(work,))
            for work in (self.port.serve, self._make)
        ]
        for thread in self.threads:
            thread.start()
        self.callers: list[socket.socket] = []

    def _keep(self, work: Callable[[], None]) -> None:
        while not self.leaving.is_set():
            work()

    def _make(self) -> None:
        if not self.may_make.wait(0.01) or not self.page.make_if_wanted():
            self.leaving.wait(0.01)

    def call(self, sent: bytes) -> socket.socket:
        host, _, port = self.port.address.rpartition(":")
        caller = socket.create_connection((host, int(port)), PATIENCE_S)
        self.callers.append(caller)
        caller.sendall(sent)
        return caller

    def ask(self, line: str = "GET /metrics HTTP/1.1", *headers: str) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        head = "\r\n".join([line, *headers]).encode() + http_responses.END_OF_HEAD
        return answer(self.call(head))

    def close(self) -> None:
        self.leaving.set()
        for caller in self.callers:
            caller.close()
        for thread in self.threads:
            thread.join(PATIENCE_S)
        self.port.close()


def answer(caller: socket.socket) -> tuple[int, bytes]:
    """Read until the port ends the connection."""
    data = b""
    while more := caller.recv(65536):
        data += more
    head, _, body = data.partition(http_responses.END_OF_HEAD)
    return int(head.split(b" ")[1]), body


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that look at the time often."""
    monkeypatch.setattr(metrics_server, "_LOOK_S", 0.02)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path


def test_the_page_plain_and_packed(bench: Bench) -> None:
    status, page = bench.ask()
    assert (status, page) == (200, metrics_page.render(now()))
    status, packed = bench.ask("GET /metrics HTTP/1.1", "Accept-Encoding: gzip")
    assert (status, gzip.decompress(packed)) == (200, page)
    assert bench.ask("GET /healthz HTTP/1.1") == (200, b"ok\n")
    assert bench.ask("GET /other HTTP/1.1")[0] == 404
    assert bench.ask("POST /metrics HTTP/1.1", "Content-Length: 4")[0] == 405


def test_a_token_is_asked_for_where_there_is_one(token_file: Path) -> None:
    bench = Bench(token_file)
    try:
        assert bench.ask()[0] == 401
        assert bench.ask("GET /metrics HTTP/1.1", "Authorization: Bearer secret")[0] == 200
    finally:
        bench.close()


def test_a_request_that_comes_in_pieces_is_one(bench: Bench) -> None:
    caller = bench.call(b"GET /metr")
    caller.sendall(b"ics HTTP/1.1\r\nHost: loc")
    caller.sendall(b"alhost\r\n\r\n")
    assert answer(caller)[0] == 200


def test_headers_without_end_are_refused(bench: Bench) -> None:
    caller = bench.call(
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (http_responses.HEAD_BYTES_MAX + 10)
    )
    assert answer(caller)[0] == 431


def test_callers_that_say_nothing_are_told_so_and_let_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "ASK_S", 0.1)
    silent = [bench.call(b"") for _ in range(3)]
    assert {answer(caller)[0] for caller in silent} == {408}


def test_who_is_silent_longest_makes_room_for_who_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's time to ask is over in this test: without room being made, nobody is answered."""
    monkeypatch.setattr(metrics_server, "ASK_S", 3600.0)
    monkeypatch.setattr(metrics_server, "SPARE_S", 0.01)
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 4)
    silent = [bench.call(b"G") for _ in range(3 * metrics_server.CONNECTIONS_MAX)]
    assert bench.ask()[0] == 200
    for caller in silent[
        : 2 * metrics_server.CONNECTIONS_MAX + 1
    ]:  # in the order in which they came
        assert answer(caller)[0] == 408
    assert len(bench.port._callers) <= metrics_server.CONNECTIONS_MAX


def test_no_more_callers_are_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "ASK_S", 3600.0)
    leaving = threading.Event()
    page = metrics_page.NodePage(now, leaving)
    monkeypatch.setattr(metrics_server, "SPARE_S", 3600.0)
    port = metrics_server.MetricsServer(
        listeners.bind(settings.Listen("127.0.0.1", 0)), str, page, leaving
    )
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 2)  # the kernel's queue is longer
    host, _, number = port.address.rpartition(":")
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        stack.callback(port.close)
        selector.register(port._wake, selectors.EVENT_READ)
        selector.register(port._listener, selectors.EVENT_READ)
        callers = [socket.create_connection((host, int(number)), PATIENCE_S) for _ in range(4)]
        held = []
        for _ in range(8):
            port._turn(selector)
            held.append(len(port._callers))
        assert held[:2] == [1, 2]
        assert max(held) == 2
        callers.pop(0).close()
        for _ in range(3):  # one has gone, and there is room again
            port._turn(selector)
        assert len(port._callers) == 2
        for caller in [*callers, *(one.connection for one in port._callers.values())]:
            caller.close()


def test_who_is_let_go_of_may_ask_at_that_very_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(metrics_server, "SPARE_S", 0.0)
    leaving = threading.Event()
    page = metrics_page.NodePage(now, leaving)
    port = metrics_server.MetricsServer(
        listeners.bind(settings.Listen("127.0.0.1", 0)), str, page, leaving
    )
    host, _, number = port.address.rpartition(":")

    def come() -> socket.socket:
        return socket.create_connection((host, int(number)), PATIENCE_S)

    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        stack.callback(port.close)
        selector.register(port._wake, selectors.EVENT_READ)
        selector.register(port._listener, selectors.EVENT_READ)
        silent = [stack.enter_context(come()) for _ in range(2)]
        while len(port._callers) < 2:
            port._turn(selector)
        held = next(iter(port._callers))
        stack.enter_context(come())
        silent[0].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        with selectors.DefaultSelector() as both:  # both are there before the port looks
            both.register(port._listener, selectors.EVENT_READ)
            both.register(held, selectors.EVENT_READ)
            while len(both.select(PATIENCE_S)) < 2:
                pass
        port._turn(selector)
        assert held not in port._callers
        assert len(port._callers) == 2
        for caller in list(port._callers):
            caller.close()


def test_a_page_that_is_not_made_is_not_waited_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "MAKE_S", 0.2)
    bench.may_make.clear()
    status, why = bench.ask()
    assert (status, why) == (503, b"the page was not rendered in 0 s\n")
    bench.may_make.set()
    monkeypatch.setattr(metrics_server, "MAKE_S", PATIENCE_S)
    assert bench.ask()[0] == 200


def test_who_does_not_take_its_answer_is_let_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "TAKE_S", 0.2)
    monkeypatch.setattr(metrics_page, "render", lambda _: b"x" * 2**25)
    caller = bench.call(b"GET /metrics HTTP/1.1\r\n\r\n")
    ends_at = time.monotonic() + PATIENCE_S
    while bench.port._callers or not bench.page._ready.page:
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    whole = 0
    while more := caller.recv(2**20):
        whole += len(more)
    assert whole < 2**25


def test_a_port_that_is_taken_is_told_with_who_has_it() -> None:
    with listening() as (_, port), pytest.raises(listeners.TakenError) as told:
        listeners.bind(settings.Listen("127.0.0.1", port))
    own = listeners._told_of(psutil.Process())
    text, brief = str(told.value), told.value.brief
    assert text.startswith(f"--metrics-listen 127.0.0.1:{port}: Address already in use: ")
    assert f"process {os.getpid()} of {own.user} has it ({own.command}); end what" in text
    # a command line may have secrets, and this goes far
    assert brief.endswith(f": process {os.getpid()} ({own.name}) of {own.user} has it")
    assert len(own.command) > len(own.name)
    assert told.value.pid == os.getpid()


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, int]]:
    """Some other program's port."""
    with socket.socket() as taken:
        taken.bind((host, 0))
        taken.listen()
        yield taken, taken.getsockname()[1]


def test_who_listens_at_another_address_does_not_have_the_port() -> None:
    with listening("127.0.0.2") as (_, port):
        assert listeners.holder_of("127.0.0.1", port) is None
        found = listeners.holder_of("0.0.0.0", port)
    assert found is not None
    assert found.pid == os.getpid()


def test_a_taken_port_is_served_from_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_server, "AGAIN_S", 0.0)
    leaving, notices = threading.Event(), list[str]()
    page = metrics_page.NodePage(now, leaving)
    with listening() as (taken, port):
        listen = settings.Listen("127.0.0.1", port)
        door = metrics_server.MetricsPort(
            listen, page, leaving, operator_log.Console("n1"), notices.append
        )
        for _ in range(3):
            door.turn()
        assert set(notices) == {notices[0]}
        assert f"the port 127.0.0.1:{port} of its page can't be opened: Address al" in notices[0]
        taken.close()
        door.turn()
    assert door.port is not None
    try:
        assert notices[-1] == ""
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 2, said  # what is in the way, once, and that it is over
        assert "meanwhile the node works without" in said[0]
        assert f"the node's page is at http://127.0.0.1:{port}/metrics" in said[1]
        thread = threading.Thread(target=door.turn)
        thread.start()
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as caller:
            caller.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert answer(caller) == (200, b"ok\n")
        leaving.set()
        thread.join(PATIENCE_S)
    finally:
        leaving.set()
        door.port.close()


def test_a_taken_port_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving, waited = threading.Event(), list[float | None]()

    def wait(time_s: float | None = None) -> bool:
        waited.append(time_s)
        return False

    monkeypatch.setattr(leaving, "wait", wait)
    page = metrics_page.NodePage(now, leaving)
    with listening() as (_, port):
        listen = settings.Listen("127.0.0.1", port)
        door = metrics_server.MetricsPort(
            listen, page, leaving, operator_log.Console("n1"), lambda _: None
        )
        for _ in range(9):
            door.turn()
    assert waited == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_a_name_server_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", away)
    with pytest.raises(listeners.TakenError, match="gpu9 is no address of this machine: Temporary"):
        listeners.bind(settings.Listen("gpu9", 9105, Path("/t")))


def test_what_a_holder_calls_itself_can_t_move_a_terminal() -> None:
    assert listeners._printable("a\x1b[2Jb\n") == "a?[2Jb?"


def test_a_new_token_counts_at_once_and_a_bad_file_changes_nothing(token_file: Path) -> None:
    watched = WatchedToken(token_file)
    assert watched.current() == "secret"
    token_file.write_text("another\n")
    assert watched.current() == "another"
    for spoil in (
        lambda: token_file.write_text("two words"),
        lambda: token_file.chmod(0o644),
        token_file.unlink,
    ):
        spoil()
        assert watched.current() == "another"


def test_an_address_of_another_machine_is_refused(token_file: Path) -> None:
    with pytest.raises(listeners.PortError, match="Cannot assign requested address"):
        listeners.bind(settings.Listen("203.0.113.7", 0, token_file))


def test_a_name_that_leads_nowhere_is_refused(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(listeners.PortError, match="gpu9 is no address of this machine: Name or"):
        listeners.bind(settings.Listen("gpu9", 9105, token_file))


def test_a_name_of_loopback_that_leads_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 9105))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(listeners.PortError, match=r"localhost is 203\.0\.113\.7"):
        listeners.bind(settings.Listen("localhost", 9105))


def test_a_token_that_others_can_read_is_refused(token_file: Path) -> None:
    token_file.chmod(0o644)
    listen = settings.Listen("127.0.0.1", 0, token_file)
    leaving = threading.Event()
    with pytest.raises(TokenFileError, match="chmod 600"):
        metrics_server.MetricsPort(
            listen,
            metrics_page.NodePage(now, leaving),
            leaving,
            operator_log.Console("n1"),
            lambda _: None,
        )


@pytest.mark.parametrize("host", ["203.0.113.7", "0.0.0.0"])
def test_options_that_are_wrong_are_not_tried_again(host: str) -> None:
    leaving = threading.Event()
    page = metrics_page.NodePage(now, leaving)
    with pytest.raises(listeners.PortError) as told:
        metrics_server.MetricsPort(
            settings.Listen(host, 0), page, leaving, operator_log.Console("n1"), lambda _: None
        )
    assert not isinstance(told.value, listeners.TakenError)


FIXED = ["--server", "http://127.0.0.1:1", "--name", "n1", "--root", "/nowhere"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], None),
        (["--metrics-listen", "127.0.0.1:9105"], settings.Listen("127.0.0.1", 9105)),
        (["--metrics-listen", "[::1]:9105"], settings.Listen("::1", 9105)),
        (
            ["--metrics-listen", "0.0.0.0:9105", "--metrics-token-file", "/t"],
            settings.Listen("0.0.0.0", 9105, Path("/t")),
        ),
    ],
)
def test_where_it_is_opened(given: list[str], expected: settings.Listen | None) -> None:
    assert settings.parse([*FIXED, *given]).metrics == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--metrics-listen", "0.0.0.0:9105"], "there is no --metrics-token-file: anybody could"),
        (["--metrics-listen", "gpu001:9105"], "can be reached from elsewhere"),
        (["--metrics-listen", "9105"], "expected HOST:PORT"),
        (["--metrics-listen", "localhost:99999"], "expected HOST:PORT"),
        (["--metrics-token-file", "/t"], "--metrics-token-file needs --metrics-listen"),
    ],
)
def test_what_is_not_safe_or_makes_no_sense_is_wrong_usage(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        settings.parse([*FIXED, *given])
    assert left.value.code == settings.USAGE_ERROR
    assert says in capsys.readouterr().err
