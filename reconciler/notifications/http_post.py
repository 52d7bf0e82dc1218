"""One request of a notification over HTTP, within limits of time and size.

Its library takes a quarter of the start of a controller. So this module is imported with the first
request, and at the top of ``pinned_post`` alone, of which the same holds.
"""

import contextlib
import email.utils
import socket
import ssl
import time

import httpx

from reconciler.model import desired
from reconciler.notifications import messages, post_answers

#: Why there was no answer.
ERRORS = (httpx.HTTPError, httpx.InvalidURL)
#: How much of an answer is read.
ANSWER_BYTES_MAX = 2048


def why_unanswered(error: Exception) -> str:
    """Return why there was no answer, in words that tell nothing of the controller's network."""
    name = type(error).__name__
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        return f"no answer in time ({name}). To fix: try again; its host is slow, or drops requests"
    if isinstance(error, (ConnectionError, socket.gaierror, httpx.ConnectError)):
        return (
            f"no connection ({name}). To fix: check the host and port of its address, and ask who "
            "runs the controller if it may go there"
        )
    return f"no answer ({name})"


def tls_context() -> ssl.SSLContext:
    """Return whom all notifications trust: ``SSL_CERT_FILE``, or else the usual authorities."""
    return httpx.create_ssl_context()


def host_of(url: str) -> str:
    """Return host and port of a URL, as it names them.

    Raises:
        httpx.InvalidURL: it is none.
    """
    return httpx.URL(url).netloc.decode("ascii", "replace")


def post(request: messages.HttpPost) -> post_answers.PostAnswer:
    """Send a request and return the answer.

    Redirections are not followed: they would take the secret elsewhere.

    Raises:
        httpx.HTTPError: there was no answer.
    """
    host = httpx.URL(request.url).host
    local = host in desired.LOOPBACK
    with (
        httpx.Client(
            timeout=post_answers.TIMEOUT_S,
            follow_redirects=False,
            trust_env=not local,
            verify=tls_context(),  # also on this machine
        ) as client,
        client.stream("POST", request.url, headers=request.headers, content=request.body) as answer,
    ):
        body, ends_at = b"", time.monotonic() + post_answers.TIMEOUT_S
        for piece in answer.iter_bytes():
            body += piece
            if len(body) >= ANSWER_BYTES_MAX or time.monotonic() > ends_at:
                break
        text = messages.shortened(body[:ANSWER_BYTES_MAX].decode("utf-8", "replace"), 200)
        retry_after_s = seconds_of(answer.headers.get("retry-after", ""))
        return post_answers.PostAnswer(answer.status_code, text, retry_after_s)


def seconds_of(retry_after: str) -> float | None:
    """Return the seconds that a header ``Retry-After`` asks for; None if it is no such header."""
    if retry_after.isdigit():
        return float(retry_after)
    with contextlib.suppress(ValueError, TypeError):
        moment = email.utils.parsedate_to_datetime(retry_after)
        return max(0.0, (moment - type(moment).now(moment.tzinfo)).total_seconds())
    return None
