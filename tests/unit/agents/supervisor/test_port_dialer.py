"""Which sockets listen on a port of loopback, by the kernel's tables."""

import os
import socket

import pytest

from agents.supervisor.interactive import port_dialer, session_orders

HEAD = "  sl  local_address rem_address   st\n"
LINE = "   0: {address}:{port:04X} 00000000:0000 {state} 0:0 0:0 0  0 0 {inode} 1\n"


@pytest.mark.parametrize(
    ("family", "address", "state", "port", "found"),
    [
        (socket.AF_INET, "0100007F", "0A", 80, [(7, "127.0.0.1")]),
        (socket.AF_INET, "00000000", "0A", 80, [(7, "127.0.0.1")]),
        (socket.AF_INET, "0100007F", "01", 80, []),
        (socket.AF_INET, "0100007F", "0A", 81, []),
        (socket.AF_INET, "0501A8C0", "0A", 80, []),
        (socket.AF_INET6, "0" * 32, "0A", 80, [(7, "::1")]),
        (socket.AF_INET6, "0" * 24 + "01000000", "0A", 80, [(7, "::1")]),
    ],
)
def test_listeners_of_a_port(
    family: socket.AddressFamily,
    address: str,
    state: str,
    port: int,
    found: list[tuple[int, str]],
) -> None:
    table = HEAD + LINE.format(address=address, state=state, port=port, inode=7)
    assert port_dialer.listeners(80, table, family) == found


def test_a_port_is_a_process_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with port_dialer.dial(port, os.getpid(), "", None) as link:
            assert link.getpeername()[1] == port
        with pytest.raises(port_dialer.NoListenerError, match=f"listens on port {port}"):
            port_dialer.dial(port, 2**22 + 1, "", None)


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[]", b"{}", b'{"op":"fly"}', b'{"op":"exec","attempt":"a","session":"s"}',
        b'{"op":"exec","attempt":"a","session":"s","argv":[]}',
        b'{"op":"exec","attempt":"a","session":"../s","argv":["x"]}',
        b'{"op":"exec","attempt":"a","session":"s","argv":["a\\u0000b"]}',
        b'{"op":"connect","attempt":"a","session":"s"}',
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        session_orders.decode(line)


def test_sizes_are_within_bounds() -> None:
    line = b'{"op":"exec","attempt":"a","session":"s","argv":["x"],"size":[0,99999]}'
    order = session_orders.decode(line)
    assert isinstance(order, session_orders.ExecOrder)
    assert order.size == (1, session_orders.CELLS_MAX)
