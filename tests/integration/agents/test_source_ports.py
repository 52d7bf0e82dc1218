"""An agent reaches its controller while tasks have taken all ports that connections begin at."""

import os
import subprocess
import sys

import pytest

SPACE = ("unshare", "--net", "sh", "-c")
#: Eight ports, so that a test can take them all.
PREPARE = """\
ip link set lo up
echo 32768 32775 > /proc/sys/net/ipv4/ip_local_port_range
exec "$@"
"""
PROGRAM = """\
import errno, os, socket, sys, threading
from agents.link import source_ports, http_client

ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok"

def serve(listener):
    while True:
        link, came_from = listener.accept()
        print("from", "its own" if came_from[1] < 1024 else "any", flush=True)
        link.recv(2**16)
        link.sendall(ANSWER)

host, act = sys.argv[1:]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
listener = socket.create_server((host, 40000), family=family)
threading.Thread(target=serve, args=(listener,), daemon=True).start()

def ask():
    shown = f"[{host}]" if ":" in host else host
    link = http_client.Connection(http_client.ControllerTarget(f"http://{shown}:40000"))
    try:
        print(*link.post("/v1/x", b"", 20.0))
    except http_client.LinkError as error:
        print("LinkError", error.__cause__.errno == errno.EADDRNOTAVAIL)
    finally:
        link.close()

def take(ports):
    for port in ports:
        taken = socket.socket(family)
        taken.bind((host, port))
        held.append(taken)

held = []
if act == "a port is left":
    ask()
    sys.exit()
take(range(32768, 32776))
try:
    socket.create_connection((host, 40000), 20)
except OSError as error:
    assert error.errno == errno.EADDRNOTAVAIL, error
else:
    raise AssertionError("a port is left")
if act == "all taken":
    take(source_ports.ROOTS_PORTS)
elif act == "not root":
    os.setuid(65534)
ask()
"""


def _problem() -> str:
    """Why there can be no network of its own here; empty where there can."""
    if os.geteuid() != 0:
        return "only root has ports of its own"
    try:
        probe = subprocess.run([*SPACE, PREPARE, "-", "true"], capture_output=True, check=False)
    except FileNotFoundError as error:
        return f"there is no {error.filename}"
    return "" if probe.returncode == 0 else "no networks of their own here"


pytestmark = pytest.mark.skipif(bool(_problem()), reason=_problem() or "-")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("a port is left", ["from any", "200 b'ok'"]),
        ("nothing else", ["from its own", "200 b'ok'"]),
        ("all taken", ["LinkError True"]),
        ("not root", ["LinkError True"]),
    ],
)
def test_roots_ports_are_used_where_no_other_is_left(host: str, act: str, said: list[str]) -> None:
    done = subprocess.run(
        [*SPACE, PREPARE, "-", sys.executable, "-P", "-c", PROGRAM, host, act],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said
