"""A server that is no controller is answered with a message, not with a traceback."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli import main, terminal

Handler = http.server.BaseHTTPRequestHandler
COMMANDS = (
    *("jobs", "status", "nodes", "queues", "quotas", "drift", "events", "overrides", "top --once"),
    *("job a", "explain a", "logs a", "wait a", "attach a", "run -- true", "cancel a --yes"),
    *("hold a", "drain n1 --reason r", "submit --wait -- true", "report usage", "plot a", "audit"),
)


@pytest.fixture(params=["[]", '"ok"', "null", "7"])
def stranger(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return the address of something that answers everything with JSON that is no object."""
    body = request.param.encode()

    class Answering(Handler):
        def do_GET(self) -> None:  # noqa: N802 - its base's name
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_TOKEN_FILE", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_controller_is_said_to_be_none(
    command: str, stranger: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_SERVER", stranger)
    monkeypatch.setattr("sys.argv", ["muster", *command.split()])
    with pytest.raises(SystemExit) as left:
        main.main()
    told = " ".join(capsys.readouterr().err.split())
    assert left.value.code in {terminal.ERROR, terminal.MUSTER_FAILED}, told
    assert f"muster: {stranger}/v1/" in told, told
    assert "the answer is no JSON object; is this a Muster controller?" in told
