"""Who connects and says nothing, or too little, neither stays nor keeps others out, and no person
takes all places.

Here any token is valid, and the name of its person; ``node`` is a node's.
"""

import contextlib
import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from reconciler.operations import own_ca
from reconciler.operations.tokens import token_file
from reconciler.server.process import connection_limits
from tests.integration.server import parts

STRANGE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
UNTIL_S = 60.0
TELL_KEY = "tell"


def by(token: str, path: str = "/") -> bytes:
    """A request with a token."""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


WHOLE = by("node")


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """Read all of the body, and say how long it was; at ``/wait``, begin an answer at most."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            token = value.split()[1].decode()
            scope["state"][TELL_KEY](None if token == "node" else token)
    if scope["path"] == "/wait":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length, more = length + len(message["body"]), message["more_body"]
    headers = [(b"content-length", b"%d" % len(str(length)))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(length).encode()})


class Door:
    """A server that is asked over sockets, by TLS if it has an authority."""

    def __init__(self, port: int, authority: Path | None = None) -> None:
        self._port = port
        self._opened = contextlib.ExitStack()
        self._tls = None
        if authority is not None:
            self._tls = ssl.create_default_context(cafile=authority)

    def connect(self, *, of: str = "127.0.0.1") -> socket.socket:
        """Connect from an address, without a word of TLS."""
        where = ("127.0.0.1", self._port)
        return self._opened.enter_context(
            socket.create_connection(where, timeout=UNTIL_S, source_address=(of, 0))
        )

    def open(self, said: bytes = b"", *, of: str = "127.0.0.1") -> socket.socket:
        """Connect from an address, and say something."""
        made = self.connect(of=of)
        with contextlib.suppress(OSError):  # it may be closed already
            if self._tls is not None:
                made = self._opened.enter_context(
                    self._tls.wrap_socket(made, server_hostname="localhost")
                )
            made.sendall(said)
        return made

    def close(self) -> None:
        self._opened.close()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes it without a word, awaited."""
    if connection.fileno() == -1:  # it was closed in the handshake
        return True
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


def is_begun(connection: socket.socket) -> bool:
    """Whether an answer begins, awaited."""
    told = b""
    while b"\r\n\r\n" not in told:
        found = connection.recv(1000)
        if not found:
            return False
        told += found
    return told.startswith(b"HTTP/1.1 200")


def is_answered(connection: socket.socket, length: int = 0) -> bool:
    """Whether an answer comes, awaited."""
    told = b""
    while not told.endswith(f"\r\n\r\n{length}".encode()):
        found = connection.recv(1000)
        if not found:
            return False
        told += found
    return told.startswith(b"HTTP/1.1 200")


@contextlib.contextmanager
def served(
    request_s: float = UNTIL_S,
    body_s: float = UNTIL_S,
    *,
    tls: Path | None = None,
    limits: connection_limits.Limits | None = None,
) -> Iterator[Door]:
    """A server; with ``tls``, the folder of its authority, by TLS."""
    limits = limits or connection_limits.Limits(6, 3, request_s, body_s)
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            _answer,
            http=connection_limits.protocol(limits, TELL_KEY, context),
            ws="none",
            lifespan="off",
            log_config=None,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        made = Door(listener.getsockname()[1], None if tls is None else tls / "ca.pem")
        try:
            yield made
        finally:
            made.close()
            server.should_exit = True
            thread.join()


POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
QUIET = {
    "nothing": b"",
    "half a request": WHOLE[:-2],
    "half a body": POST + b"Content-Length: 9\r\n\r\n1234",
    "no last piece": POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n",
}


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    if request.param == "plain":
        return None
    folder = tmp_path / "tls"
    own_ca.init(folder, ["localhost"], dt.datetime.now(dt.UTC))
    return folder


@pytest.mark.parametrize("said", QUIET)
def test_who_does_not_go_on_is_let_go_of(said: str, tls: Path | None) -> None:
    with served(request_s=0.3, body_s=0.3, tls=tls) as door:
        assert is_closed(door.open(QUIET[said]))


def test_who_begins_a_second_request_has_to_go_on_as_well() -> None:
    with served(request_s=3.0) as door:
        one = door.open(WHOLE)
        assert is_answered(one)
        one.sendall(WHOLE[:-2])
        assert is_closed(one)


def test_a_drop_now_and_then_is_not_going_on() -> None:
    with served(body_s=0.3) as door:
        drips = door.open(POST + b"Content-Length: 1000000\r\n\r\n")
        drips.settimeout(0.02)
        ends_at = time.monotonic() + UNTIL_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < ends_at:
                drips.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    assert drips.recv(100) == b""
                    return
            raise AssertionError("it is kept for ever")


def test_who_asked_may_ask_again_later_and_send_what_is_large(tls: Path | None) -> None:
    with served(request_s=3.0, tls=tls) as door:
        one = door.open(WHOLE)
        assert is_answered(one)
        assert is_closed(door.open()), "as much time has passed as a request may take"
        one.sendall(POST + b"Content-Length: 200000\r\n\r\n" + b"a" * 200000)
        assert is_answered(one, 200000)
        one.sendall(WHOLE + WHOLE)
        assert is_answered(one)


def test_no_address_takes_the_places_of_others(
    caplog: pytest.LogCaptureFixture, tls: Path | None
) -> None:
    with served(tls=tls) as door:
        # by TLS a place is free once the client has closed, too, which nobody can wait for here
        for number in range(2 if tls is None else 1):
            inside = [door.open(WHOLE) for _ in range(3)]
            assert all(map(is_answered, inside)), number
            refused = [door.open(WHOLE) for _ in range(2)]
            assert all(map(is_closed, refused)), number
            other = door.open(WHOLE, of="127.0.0.2")
            assert is_answered(other), number
            for one in (*inside, other):
                one.sendall(WHOLE[:-2] + b"Connection: close\r\n\r\n")
                assert is_answered(one)
                assert is_closed(one)
    told = [record.getMessage() for record in caplog.records if record.name == "muster.server"]
    found = "open connections: 127.0.0.1 has 3, as many as it may"
    assert told == [f"a connection of 127.0.0.1 is closed at once: {found}"]


@pytest.mark.parametrize("said", [b"", STRANGE[:-2], STRANGE, POST + b"Content-Length: 9\r\n\r\n1"])
def test_who_shows_no_token_makes_room_and_nobody_else(
    said: bytes, caplog: pytest.LogCaptureFixture, tls: Path | None
) -> None:
    with served(tls=tls) as door:
        known = door.open(WHOLE)
        assert is_answered(known)
        strange = [door.open(said) for _ in range(2)]
        if said == STRANGE:
            assert all(map(is_answered, strange))
        new = door.open(WHOLE)
        assert is_answered(new)
        assert is_closed(strange[0]), "the oldest"
        last = door.open(WHOLE)
        assert is_answered(last)
        assert is_closed(strange[1])
        assert is_closed(door.open(WHOLE)), "nobody who is known makes room"
        for one in (known, new, last):
            one.sendall(WHOLE)
            assert is_answered(one)
    told = [record.getMessage() for record in caplog.records if record.name == "muster.server"]
    found = "open connections: 127.0.0.1 has 3, as many as it may"
    assert told == [f"a connection of 127.0.0.1 makes the oldest without a token close: {found}"]


def test_strangers_of_all_addresses_make_room_where_all_places_are_taken(tls: Path | None) -> None:
    with served(tls=tls) as door:
        known = door.open(WHOLE)
        assert is_answered(known)
        strange = [door.open(of=f"127.0.0.{last}") for last in (1, 1, 2, 2, 2)]
        new = door.open(WHOLE, of="127.0.0.3")
        assert is_answered(new)
        assert is_closed(strange[0])
        known.sendall(WHOLE)
        assert is_answered(known)


def test_no_person_takes_the_places_of_others(
    caplog: pytest.LogCaptureFixture, tls: Path | None
) -> None:
    with served(tls=tls, limits=connection_limits.Limits(8, 4)) as door:
        eve = [door.open(by("eve", "/wait"), of=f"127.0.0.{last}") for last in (2, 3) * 4]
        assert all(map(is_begun, eve))
        ada = door.open(WHOLE[:-2], of="127.0.0.4")
        assert is_closed(eve[0]), "the oldest of who has the most"
        again = door.open(by("eve", "/wait"), of="127.0.0.5")
        assert is_begun(again)
        assert is_closed(eve[1]), "her own, not that of who has not shown a token yet"
        ada.sendall(b"\r\n")
        assert is_answered(ada)
        for last in range(6, 10):
            assert is_answered(door.open(by("bob"), of=f"127.0.0.{last}")), last
        assert all(map(is_closed, eve[2:6]))
    told = [record.getMessage() for record in caplog.records if record.name == "muster.server"]
    found = "open connections: there are 8, which is all there may be"
    assert told == [f"a connection of 127.0.0.4 makes the oldest of eve close: {found}"]


def test_no_person_takes_the_places_of_others_at_an_address(tls: Path | None) -> None:
    with served(tls=tls, limits=connection_limits.Limits(60, 4)) as door:
        node = door.open(WHOLE)
        assert is_answered(node)
        eve = [door.open(by("eve")) for _ in range(3)]
        assert all(map(is_answered, eve))
        ada = door.open(by("ada"))
        assert is_answered(ada)
        assert is_closed(eve[0])
        assert is_answered(door.open(by("ada")))
        assert is_closed(eve[1])
        for one in (node, ada, eve[2]):
            one.sendall(WHOLE)
            assert is_answered(one)


def test_a_person_keeps_a_share_and_what_is_no_more_than_strangers_have() -> None:
    limits = connection_limits.Limits(8, 8)  # a share is 2
    with served(limits=limits) as door:
        inside = [door.open(by(name)) for name in ("eve", "ada", "bob", "cyd") * 2]
        assert all(map(is_answered, inside))
        assert is_closed(door.open(by("dan"))), "nobody has more than a share"
        for one in inside:
            one.sendall(WHOLE)
            assert is_answered(one)
    with served(limits=limits) as door:
        eve = [door.open(by("eve")) for _ in range(4)]
        assert all(map(is_answered, eve))
        strange = [door.open(STRANGE) for _ in range(4)]
        assert all(map(is_answered, strange))
        assert is_answered(door.open(by("ada")))
        assert is_closed(strange[0]), "there are as many strangers"
        eve[0].sendall(by("eve"))
        assert is_answered(eve[0])


def test_a_connection_counts_for_whose_token_it_showed_last() -> None:
    with served(limits=connection_limits.Limits(4, 4)) as door:
        inside = [door.open(by(name)) for name in ("eve", "eve", "ada", "node")]
        assert all(map(is_answered, inside))
        inside[0].sendall(by("bob"))
        assert is_answered(inside[0])
        assert is_closed(door.open(by("cyd"))), "nobody has more than one"
        inside[2].sendall(by("eve"))
        assert is_answered(inside[2])
        assert is_answered(door.open(by("cyd")))
        assert is_closed(inside[1])


def test_one_token_at_two_addresses_leaves_the_server_to_others(tmp_path: Path) -> None:
    tokens = tmp_path / "people"
    people = (("eve", "eve@x.org", "user"), ("the-test", "local", "admin"))
    lines = [token_file.line_of(*one).text() for one in people]
    token_file.write_private(tokens, token_file.joined(lines))
    server = parts.Served(tmp_path, "--token-file", str(tokens), files_max=256)  # 128 connections
    door = Door(urlsplit(server.address).port or 0)
    try:
        server.ready()
        all_but_one = ((2, 3) * 64)[1:]  # the admin has one already
        eve = [door.open(by("eve", "/v1/jobs"), of=f"127.0.0.{last}") for last in all_but_one]
        assert all(map(is_begun, eve))
        for last in range(4, 30):
            assert is_begun(door.open(by("the-test", "/v1/jobs"), of=f"127.0.0.{last}")), last
    finally:
        door.close()
        server.close()


@pytest.mark.parametrize("tls", ["tls"], indirect=True)
def test_a_handshake_left_open_takes_a_place_and_ends(tls: Path) -> None:
    limits = connection_limits.Limits(6, 3, UNTIL_S, UNTIL_S, handshake_s=1.0)
    with served(tls=tls, limits=limits) as door:
        quiet = [door.connect() for _ in range(3)]
        assert all(map(is_closed, quiet)), "the time of a handshake is over"
        assert is_answered(door.open(WHOLE))
        for _ in range(5):
            spoilt = door.connect()
            spoilt.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS at all
            is_closed(spoilt)
        inside = [door.open(WHOLE) for _ in range(2)]
        assert all(map(is_answered, inside)), "each place was given back"
        assert is_closed(door.open(WHOLE)), "once"


@pytest.mark.parametrize("tls", ["tls"], indirect=True)
def test_the_oldest_handshake_makes_room(caplog: pytest.LogCaptureFixture, tls: Path) -> None:
    limits = connection_limits.Limits(
        60, 30, UNTIL_S, UNTIL_S, handshake_s=UNTIL_S, handshakes_max=3, address_handshakes_max=2
    )
    with served(tls=tls, limits=limits) as door:
        known = door.open(WHOLE)
        assert is_answered(known)
        quiet = [door.connect() for _ in range(2)]
        newest = door.open(WHOLE)
        assert is_answered(newest)
        assert is_closed(quiet[0])
        quiet += [door.connect(), door.connect(of="127.0.0.2")]
        assert is_answered(door.open(WHOLE, of="127.0.0.3"))
        assert is_closed(quiet[1]), "the oldest of all"
        for one in (known, newest):
            one.sendall(WHOLE)
            assert is_answered(one)
        for number in range(12):
            assert is_answered(door.open(WHOLE)), number
    told = [record.getMessage() for record in caplog.records if record.name == "muster.server"]
    found = "handshakes of TLS: 127.0.0.1 has 2, as many as it may"
    assert told == [f"a connection of 127.0.0.1 makes the oldest without a token close: {found}"]


def test_there_are_only_so_many_in_all(tls: Path | None) -> None:
    with served(tls=tls) as door:
        inside = [door.open(WHOLE, of=f"127.0.0.{last}") for last in (1, 2) for _ in range(3)]
        assert all(map(is_answered, inside))
        assert is_closed(door.open(WHOLE, of="127.0.0.3"))


def test_more_files_are_asked_for_and_some_are_left_to_others() -> None:
    found = connection_limits.by_files()
    assert 0 < found.address_max < found.connections_max
    assert connection_limits.by_files() == found
