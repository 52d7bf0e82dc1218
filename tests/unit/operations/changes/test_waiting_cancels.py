"""Cancels in a clone of jobs that only the controller has: all are made, or none."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.operations.changes import change_requests, local_changes
from reconciler.operations.client import endpoints
from tests.unit.desired.repositories import git


@pytest.fixture
def refusing() -> Iterator[str]:
    """Where a controller keeps a submission that nobody here may withdraw."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            items = [{"verb": "submit", "subject": "other"}]
            self._answer(200 if self.path == "/v1/overrides" else 404, {"items": items})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = "other: bob has submitted it"
            self._answer(403, {"error": {"message": message, "problems": []}})

        def _answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_may_not_be_withdrawn_keeps_the_others_in_git(work: Path, refusing: str) -> None:
    target = local_changes.find_target(clone=None, server=None, token_file=None, here=work)
    target.endpoint = endpoints.Endpoint(refusing)
    target.standing = {"sync": "Synced", "branch": "main", "submissions": {"refused": 1}}
    before = git(work, "rev-parse", "HEAD", "origin/main")
    acts: list[change_requests.Change] = [
        change_requests.Act("cancel", name) for name in ("train", "other")
    ]
    with pytest.raises(change_requests.ChangeError, match="bob has submitted it"):
        local_changes.carry_out(acts, target)
    assert git(work, "rev-parse", "HEAD", "origin/main") == before
