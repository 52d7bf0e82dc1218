"""What commands ask of a controller, against a small real server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reconciler.operations.client import api_client, endpoints

REFUSAL = b'{"error": {"code": "Forbidden", "message": "bob may not", "problems": []}}'
PROBLEM = (
    b'{"error": {"code": "Invalid", "message": "no", "problems": [{"rule": "schema", '
    b'"severity": "error", "path": "jobs/a.yaml", "line": 3, "column": 5, "object": "Job/a", '
    b'"field": "spec.queue", "message": "wrong", "found": "1", "expected": "text"}]}}'
)
DENIED = PROBLEM.replace(b'"rule": "schema"', b'"rule": "policy/max-gpus"')


class Served:
    """A server that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, bytes]] = []
        self.connections: set[tuple[str, int]] = set()
        self.done = threading.Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                token = self.headers.get("Authorization", "")
                served.asked.append((self.command, self.path, token, body))
                served.connections.add(self.client_address)
                self.answer(self.path.partition("?")[0].rpartition("/")[2])

            def do_POST(self) -> None:
                self.do_GET()

            def do_DELETE(self) -> None:
                self.do_GET()

            def answer(self, last: str) -> None:
                if last == "chunks":
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for piece in (b"one\n", b"two\n"):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                if last == "awaited" and not served.done.wait(20):
                    last = "gateway"
                known = (
                    "Authorization" in self.headers and "second" in self.headers["Authorization"]
                )
                status, content = {
                    "anew": (200, b'{"n": 1}') if known else (401, REFUSAL),
                    "refused": (403, REFUSAL),
                    "unknown": (401, REFUSAL),
                    "invalid": (422, PROBLEM),
                    "denied": (400, DENIED),
                    "gateway": (502, b"<html>"),
                    "login": (302, b"<html>"),
                    "text": (200, b"hello"),
                    "list": (200, b'[{"id": 1}]'),
                    "word": (200, b'"ok"'),
                    "none": (200, b"null"),
                    "awaited": (200, b"done"),
                    "identity": (200, b'{"version": "0.0.9"}'),
                    "quotas": (404, REFUSAL.replace(b"bob may not", b"Not Found")),
                    "old-jobs": (200, b'{"items": [{"name": "a"}]}'),
                    "cut": (200, b"{"),
                }.get(last, (200, b'{"items": [1, 2]}'))
                self.send_response(status)
                size = 100 if last == "cut" else len(content)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.write(content)
                if last in {"closing", "cut"}:  # without a word of it before
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def of(url: str, token: str | None = None) -> api_client.ApiClient:
    return api_client.ApiClient(endpoints.Endpoint(url, token))


def test_one_connection_serves_many_requests(served: Served, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with of(f"{served.url}/prefix", str(token)) as api:
        assert api.get("/v1/jobs", queue="a b&c", after=None, limit=2) == {"items": [1, 2]}
        api.post("/v1/jobs", {"a": 1})
        api.post("/v1/jobs", content=b"kind: Job", kind="application/yaml")
        api.post("/v1/hint")
        api.delete("/v1/jobs/ä b?c")
        assert api.data("/v1/text") == b"hello"
    assert [entry[:2] for entry in served.asked] == [
        ("GET", "/prefix/v1/jobs?queue=a%20b%26c&limit=2"),
        ("POST", "/prefix/v1/jobs"),
        ("POST", "/prefix/v1/jobs"),
        ("POST", "/prefix/v1/hint"),
        ("DELETE", "/prefix/v1/jobs/%C3%A4%20b%3Fc"),
        ("GET", "/prefix/v1/text"),
    ]
    assert [entry[3] for entry in served.asked[1:4]] == [b'{"a":1}', b"kind: Job", b""]
    assert {entry[2] for entry in served.asked} == {"Bearer secret"}
    assert len(served.connections) == 1


def test_something_else_is_done_while_an_answer_is_made(served: Served) -> None:
    """The server answers only once that was done, which nobody does who waits for the answer."""
    with of(served.url) as api:
        assert api.data("/v1/awaited", served.done.set) == b"done"


@pytest.mark.parametrize(
    ("last", "status", "refused", "words"),
    [
        ("refused", 403, True, "bob may not"),
        ("unknown", 401, True, "bob may not; --token-file or MUSTER_TOKEN_FILE names the file"),
        ("unknown", 401, True, "`muster up` is another after each start of it: muster login http"),
        ("invalid", 422, False, "no"),
        ("denied", 400, True, "no"),
        ("gateway", 502, False, "/v1/gateway: 502 Bad Gateway"),
        ("login", 302, False, "/v1/login: 302, which sends to elsewhere"),
        ("text", 0, False, "/v1/text: the answer is no JSON; is this a Muster controller?"),
        ("text", 0, False, '/v1/text: the answer is no JSON; is this a Muster controller? Found "'),
        ("list", 0, False, "/v1/list: the answer is no JSON object; is this a Muster controller?"),
        ("list", 0, False, "Found a list of 1, expected a JSON object. To fix: name the"),
        (
            "word",
            0,
            False,
            "/v1/word: the answer is no JSON object; is this a Muster controller? F",
        ),
        ("none", 0, False, "Found null, expected a JSON object"),
        ("cut", 0, False, "can't be reached (it left in the middle"),
    ],
)
def test_what_goes_wrong_is_told(
    served: Served, last: str, status: int, refused: bool, words: str
) -> None:
    with of(served.url) as api:
        with pytest.raises(api_client.ApiError) as told:
            api.get(f"/v1/{last}")
        assert api.get("/v1/jobs"), "the next request has a connection that works"
    assert (told.value.status, told.value.refused) == (status, refused)
    assert words in str(told.value)
    if last == "invalid":
        (problem,) = told.value.problems
        assert problem.startswith("jobs/a.yaml:3:5")


def test_a_token_that_was_made_anew_is_read_again(served: Served, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    token.chmod(0o600)
    with of(served.url, str(token)) as api, of(served.url, str(token)) as other:
        with pytest.raises(api_client.ApiError, match="names the file"):
            api.post("/v1/anew")
        assert len(served.asked) == 1, "the same token is not sent twice"
        token.write_text("second\n")
        assert api.post("/v1/anew", {"a": 1}) == {"n": 1}
        assert b"".join(other.stream("/v1/anew", {})) == b'{"n": 1}'
        token.unlink()
        assert api.get("/v1/anew") == {"n": 1}
    assert [entry[3] for entry in served.asked[1:3]] == [b'{"a":1}'] * 2
    assert len(served.asked) == 6


def test_a_connection_that_was_closed_meanwhile_is_made_anew(served: Served) -> None:
    with of(served.url) as api:
        api.get("/v1/closing")
        for one in threading.enumerate():
            if "process_request" in one.name:
                one.join(30)  # it closes the connection
        api.post("/v1/jobs", {})
    assert len(served.connections) == 2


def test_a_stream_comes_in_pieces_beside_other_requests(served: Served) -> None:
    with of(served.url) as api:
        stream = api.stream("/v1/chunks", {"follow": "true"})
        first = next(stream)
        assert api.get("/v1/jobs")
        assert first + b"".join(stream) == b"one\ntwo\n"
        with pytest.raises(api_client.ApiError, match="bob may not"):
            next(api.stream("/v1/refused", {}))


def test_every_thread_has_a_connection_of_its_own(served: Served) -> None:
    with of(served.url) as api:
        threads = [threading.Thread(target=api.get, args=("/v1/jobs",)) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert len(served.asked) == 8


@pytest.mark.parametrize("url", ["127.0.0.1:7420", "ftp://host", "http://", "http://h:port"])
def test_a_url_that_is_none_is_said(url: str) -> None:
    with pytest.raises(api_client.ApiError, match="the controller's URL"):
        of(url)


def test_nobody_listens() -> None:
    with of("http://127.0.0.1:9") as api:
        with pytest.raises(
            api_client.ApiError, match=r"can't be reached \(.*refused.*\); is it run"
        ):
            api.get("/v1/jobs")
        with pytest.raises(api_client.ApiError, match="can't be reached"):
            next(api.stream("/v1/jobs", {}))


def test_a_token_that_fits_no_header_is_not_shown(served: Served, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("line\nSECRET")
    token.chmod(0o600)
    with of(served.url, str(token)) as api, pytest.raises(api_client.ApiError) as told:
        api.get("/v1/jobs")
    assert "SECRET" not in repr(told.value)
    assert "the token holds what no HTTP header can" in str(told.value)


def test_a_controller_that_lacks_a_field_is_said_to_be_older(served: Served) -> None:
    told = rf"controller at {served.url} \(version 0\.0\.9\) is older than .* no field 'phase'"
    with pytest.raises(api_client.ApiError, match=told), of(served.url) as api:
        assert api.get("/v1/old-jobs")["items"][0]["phase"]
    told = rf"controller at {served.url} is older than .*: it has no /v1/quotas\. To fix: "
    with pytest.raises(api_client.ApiError, match=told) as missing, of(served.url) as api:
        api.get("/v1/quotas", limit=1)
    assert missing.value.status == 404
