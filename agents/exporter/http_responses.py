"""HTTP of the agent's own port: parses the head of a request, and formats answers.

One path returns the metrics page, one shows that the agent lives; all else is refused. Without a
token, which is possible on loopback only, a web page in a browser cannot read the metrics either,
because its requests have another Host header.
"""

import hmac
from collections.abc import Mapping

import msgspec

from reconciler.model.values import addresses

#: Size of a request's first line and headers together.
HEAD_BYTES_MAX = 8 * 2**10
END_OF_HEAD = b"\r\n\r\n"
PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 408: "Request Timeout", 431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}  # fmt: skip
#: Headers of a refusal, by status.
_WITH = {
    401: {"WWW-Authenticate": 'Bearer realm="muster"'},
    405: {"Allow": "GET"},
    503: {"Retry-After": "5"},
}


class HttpRefusal(msgspec.Struct, frozen=True):
    """A refused request, with its status and the reason."""

    status: int
    why: str


class HttpRequest(msgspec.Struct, frozen=True):
    """An accepted request.

    Attributes:
        page: True for the metrics page, False for the health check.
        gzip: True if the client accepts gzip.
    """

    page: bool
    packed: bool = False


OVERLONG = HttpRefusal(431, f"a request's line and headers have at most {HEAD_BYTES_MAX} bytes")
SLOW = HttpRefusal(408, "the request was not whole in time")


def read(head: bytes, token: bytes) -> HttpRequest | HttpRefusal:
    """Return what a request asks for.

    The token is checked before anything is revealed about paths.

    Args:
        head: request up to and including the empty line.
        token: required token; empty for none.
    """
    line, *rest = head.removesuffix(END_OF_HEAD).decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return HttpRefusal(400, "the request is not HTTP/1.1")
    headers: dict[str, str] = {}
    for one in rest:
        name, colon, value = one.partition(":")
        if not colon or not name or name != name.strip():
            return HttpRefusal(400, "a header is not NAME: VALUE")
        if headers.setdefault(name.lower(), value.strip()) != value.strip():
            return HttpRefusal(400, f"there are two headers {name[:40]!a}")
    method, path = words[0], words[1].partition("?")[0]
    if path != "/healthz":
        refusal = _refused(headers, token)
        if refusal is not None:
            return refusal
        if path != "/metrics":
            return HttpRefusal(404, "there is /metrics, and /healthz")
    if method != "GET":
        return HttpRefusal(405, "nothing but GET is answered")
    return HttpRequest(path == "/metrics", _takes_gzip(headers.get("accept-encoding", "")))


def _refused(headers: Mapping[str, str], token: bytes) -> HttpRefusal | None:
    if token:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.encode("latin-1"), token):
            return HttpRefusal(401, "send Authorization: Bearer TOKEN, as in --metrics-token-file")
        return None
    host = headers.get("host", "")
    if "origin" in headers or (host and not addresses.is_loopback(addresses.host_of(host))):
        return HttpRefusal(
            403, "without a token only localhost, 127.0.0.1 and [::1] are answered to, and no page "
            "of a browser"
        )  # fmt: skip
    return None


def _takes_gzip(header: str) -> bool:
    for coding in header.split(","):
        name, _, weight = coding.replace(" ", "").partition(";")
        if name.lower() == "gzip":
            return not weight or weight.removeprefix("q=0").strip(".0") != ""
    return False


def answer(status: int, body: bytes, *, kind: str = PAGE_TYPE, packed: bool = False) -> bytes:
    """Return a complete answer, after which the connection is closed."""
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
    if packed:
        headers["Content-Encoding"] = "gzip"
    headers |= _WITH.get(status, {})
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + END_OF_HEAD + body


def refuse(refusal: HttpRefusal) -> bytes:
    """Return the answer to a refused request."""
    return answer(refusal.status, f"{refusal.why}\n".encode(), kind="text/plain; charset=utf-8")
