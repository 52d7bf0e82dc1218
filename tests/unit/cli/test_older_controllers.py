"""A field that an answer lacks ends a command in words, also where it is read after the request."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest


class Empty(http.server.BaseHTTPRequestHandler):
    """A controller whose answers have no field."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("words", "field"), [(("explain", "a"), "job"), (("jobs",), "items")])
def test_an_older_controller_is_said_to_be_one(url: str, words: tuple[str], field: str) -> None:
    command = [sys.executable, "-m", "reconciler.cli.main", *words, "--server", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    told = " ".join(done.stderr.split())
    assert "is older than this command" in told
    assert f"its answer has no field '{field}'. To fix: update the controller" in told
    assert "Traceback" not in told
