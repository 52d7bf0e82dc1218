"""What is answered at an agent's own port, by the bytes that a caller sends."""

import pytest

from agents.exporter import http_responses

TOKEN = b"secret"
BEARER = "Authorization: Bearer secret"
PAGE, PACKED, LIFE = (
    http_responses.HttpRequest(True),
    http_responses.HttpRequest(True, True),
    http_responses.HttpRequest(False),
)


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, *headers]).encode("latin-1") + http_responses.END_OF_HEAD


def kind(
    found: http_responses.HttpRequest | http_responses.HttpRefusal,
) -> http_responses.HttpRequest | int:
    return found.status if isinstance(found, http_responses.HttpRefusal) else found


@pytest.mark.parametrize(
    ("request_line", "headers", "expected"),
    [
        ("GET /metrics HTTP/1.1", ["Host: n1:9105", BEARER], PAGE),
        ("GET /metrics HTTP/1.1", ["authorization:bearer secret"], PAGE),
        ("GET /metrics?x=1 HTTP/1.0", [BEARER], PAGE),
        ("GET /metrics HTTP/1.1", [BEARER, "Accept-Encoding: gzip"], PACKED),
        ("GET /metrics HTTP/1.1", [BEARER, "Accept-Encoding: br, gzip;q=0.5"], PACKED),
        ("GET /metrics HTTP/1.1", [BEARER, "Accept-Encoding: gzip;q=0, br"], PAGE),
        ("GET /metrics HTTP/1.1", [BEARER, "Accept-Encoding: gzip;q=0.000"], PAGE),
        ("GET /healthz HTTP/1.1", [], LIFE),
        ("GET /metrics HTTP/1.1", [], 401),
        ("GET /metrics HTTP/1.1", ["Authorization: Bearer secretly"], 401),
        ("GET /metrics HTTP/1.1", ["Authorization: Bearer "], 401),
        ("GET /metrics HTTP/1.1", ["Authorization: Basic secret"], 401),
        ("GET /metrics HTTP/1.1", ["Authorization: Bearer s\xe9cret"], 401),
        ("GET /../etc/passwd HTTP/1.1", [], 401),  # nothing is said of paths without a token
        ("GET /../etc/passwd HTTP/1.1", [BEARER], 404),
        ("GET /metrics/ HTTP/1.1", [BEARER], 404),
        ("POST /metrics HTTP/1.1", [BEARER], 405),
        ("HEAD /metrics HTTP/1.1", [BEARER], 405),
        ("DELETE /healthz HTTP/1.1", [], 405),
        ("GET /metrics", [], 400),
        ("GET  /metrics HTTP/1.1", [], 400),
        ("GET http://n1/metrics HTTP/1.1", [], 400),
        ("PRI * HTTP/2.0", [], 400),
        ("\x16\x03\x01\x02", [], 400),  # somebody speaks TLS
        ("GET /metrics HTTP/1.1", [BEARER, "no header"], 400),
        ("GET /metrics HTTP/1.1", [BEARER, " folded: line"], 400),
        ("GET /metrics HTTP/1.1", ["Authorization: Bearer x", BEARER], 400),
    ],
)
def test_with_a_token(
    request_line: str, headers: list[str], expected: http_responses.HttpRequest | int
) -> None:
    assert kind(http_responses.read(head(request_line, *headers), TOKEN)) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (["Host: 127.0.0.1:9105"], PAGE),
        (["Host: [::1]:9105"], PAGE),
        (["Host: localhost"], PAGE),
        ([], PAGE),
        (["Host: rebound.example.org:9105"], 403),
        (["Host: 127.0.0.1:9105", "Origin: https://example.org"], 403),
    ],
)
def test_without_a_token_no_web_page_reads_it(
    headers: list[str], expected: http_responses.HttpRequest | int
) -> None:
    assert kind(http_responses.read(head("GET /metrics HTTP/1.1", *headers), b"")) == expected


def test_refusals_say_why_and_what_would_do() -> None:
    refused = http_responses.refuse(http_responses.HttpRefusal(401, "send a token")).decode()
    start, _, body = refused.partition("\r\n\r\n")
    assert start.splitlines()[0] == "HTTP/1.1 401 Unauthorized"
    assert 'WWW-Authenticate: Bearer realm="muster"' in start
    assert body == "send a token\n"
    assert "Allow: GET" in http_responses.refuse(http_responses.HttpRefusal(405, "no")).decode()
