"""The server process is restarted after every error that may pass."""

import os
import sys
import threading
from pathlib import Path

from reconciler.controller import process


def test_a_server_that_could_not_be_started_is_started_when_it_can_be(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    folder = tmp_path / "later"
    script = f"open({str(started)!r}, 'w').write('x'); import time; time.sleep(60)"
    keeping = process.ServerProcess([sys.executable, "-c", script], folder / "server.log")
    keeping.start()
    try:
        making = threading.Timer(0.3, folder.mkdir)
        making.start()
        assert started.read_text() == "x", "it waits here until a server has begun"
    finally:
        making.join()
        keeping.stop()
