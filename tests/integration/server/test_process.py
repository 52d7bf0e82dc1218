"""The process starts with a clear line or a clear error, and leaves nothing behind."""

import datetime as dt
import os
import pathlib
import selectors
import signal
import socket
import ssl
import subprocess
import sys
from concurrent import futures

import pytest

from reconciler.model.protocol import loop_messages
from reconciler.model.values import addresses
from reconciler.operations import own_ca
from reconciler.server import shutdown
from tests.integration.server import parts


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.server", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=parts.PATIENCE_S,
    )
    return done.returncode, done.stderr


REQUIRED = ("--store", "sqlite:////tmp/none.db", "--link", "/tmp/none.sock", "--state", "/tmp")
TOKENS = ("--token-file", "/tmp/none.tokens")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--listen", "127.0.0.1:0"), "the following arguments are required: --store"),
        ((*REQUIRED, *TOKENS, "--listen", "nonsense"), "expected HOST:PORT"),
        ((*REQUIRED, "--listen", "127.0.0.1:0"), "arguments are required: --token-file"),
    ],
)
def test_wrong_usage_is_64(arguments: tuple[str, ...], told: str) -> None:
    code, text = run(*arguments)
    assert code == 64
    assert told in text
    assert "Traceback" not in text


def test_a_token_file_that_others_may_read_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("t alice user\n")
    path.chmod(0o644)
    code, text = run(*REQUIRED, "--listen", "127.0.0.1:0", "--token-file", str(path))
    assert code == 1
    assert "has mode 0644: others may read it; chmod 600 it" in text
    path.chmod(0o600)
    path.write_text("t alice king\n")
    code, text = run(*REQUIRED, "--listen", "127.0.0.1:0", "--token-file", str(path))
    assert code == 1
    assert f"{path}:1" in text
    assert "t alice" not in text


def test_an_address_in_use_is_told(tmp_path: pathlib.Path) -> None:
    tokens = parts.own_tokens(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, text = run(*REQUIRED, "--listen", address, "--token-file", str(tokens))
    assert code == 1
    assert text.endswith(f"CRITICAL server: can't listen on {address}: Address already in use\n")


def test_without_a_loop_it_serves_health_and_the_store(tmp_path: pathlib.Path) -> None:
    served = parts.Served(tmp_path, loop=False)
    try:
        assert served.client.get("/healthz").status_code == 200
        assert served.client.get("/v1/jobs").json()["items"] == []
        for path in ("/readyz", "/metrics"):
            assert served.client.get(path).status_code == 503
        assert served.sync().status_code == 503
    finally:
        served.close()


def test_it_ends_on_a_signal_without_a_word(tmp_path: pathlib.Path) -> None:
    served = parts.Served(tmp_path)
    try:
        served.ready().end()
        assert parts.stop(served.process) == ""
    finally:
        served.close()


@pytest.mark.parametrize("path", ["/healthz", "/v1/events?after=0&wait_s=30"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_its_end_waits_for_nobody_who_keeps_a_connection_open(
    tmp_path: pathlib.Path, scheme: str, path: str
) -> None:
    """Whoever has nothing to ask reads nothing either, so it answers no goodbye of TLS."""
    folder = tmp_path / "tls"
    own_ca.init(folder, ["localhost"], dt.datetime.now(dt.UTC))
    pair = ("--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"))
    served = parts.Served(tmp_path, *(pair if scheme == "https" else ()))
    try:
        served.loop.wait_connected()
        port = int(served.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=parts.PATIENCE_S) as kept:
            told = kept
            if scheme == "https":
                context = ssl.create_default_context(cafile=folder / "ca.pem")
                told = context.wrap_socket(kept, server_hostname="localhost")
            token = "Authorization: Bearer the-test"
            told.sendall(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n".encode())
            assert told.recv(4096).startswith(b"HTTP/1.1 200")
            if path != "/healthz":
                told.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n".encode())
            served.end()
            assert parts.stop(served.process) == ""
            told.close()
    finally:
        served.close()


def test_who_is_not_answered_when_it_ends_is_told_what_may_have_become_of_it(
    tmp_path: pathlib.Path,
) -> None:
    served = parts.Served(tmp_path)
    try:
        served.ready().loop.answers = None
        override = {"verb": "drain", "names": ["n1"], "reason": "smoke"}
        with futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.client.post, "/v1/overrides", json=override)
            served.loop.wait(
                lambda heard: any(isinstance(m, loop_messages.OverrideAsked) for m in heard)
            )
            served.end()
            answer = asked.result(parts.PATIENCE_S)
        assert answer.status_code == 503, answer.text
        assert "retry-after" not in answer.headers, "nobody knows whether it is done"
        assert answer.json()["error"] == {
            "code": "Unavailable",
            "message": shutdown.BEGUN,
            "problems": [],
        }
        told = parts.stop(served.process)
        assert "ASGI" not in told, told
    finally:
        served.close()


def test_it_dies_with_its_parent(tmp_path: pathlib.Path) -> None:
    script = (
        "import os, subprocess, sys, time\n"
        "command = [*sys.argv[1:], '--parent', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    server = [sys.executable, "-m", "reconciler.server", *REQUIRED, "--listen", "127.0.0.1:0"]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *server], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    watched = os.pidfd_open(child)
    try:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
        ended = selectors.DefaultSelector()
        ended.register(watched, selectors.EVENT_READ)
        assert ended.select(parts.PATIENCE_S)
        ended.close()
    finally:
        os.close(watched)


def test_it_does_not_even_start_when_its_parent_is_dead_already(tmp_path: pathlib.Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(parts.PATIENCE_S)
    server = [
        sys.executable,
        "-m",
        "reconciler.server",
        *REQUIRED,
        *TOKENS,
        "--listen",
        "127.0.0.1:0",
    ]
    done = subprocess.run(
        [*server, "--parent", str(gone.pid)],
        capture_output=True,
        timeout=parts.PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_which_addresses_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert addresses.is_loopback(host) is loopback
