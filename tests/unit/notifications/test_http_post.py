"""Who gives no answer is told why, as far as people may know it."""

import socket

import httpx
import pytest

from reconciler.notifications import http_post


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (ConnectionRefusedError(111, "10.0.0.7"), "no connection (ConnectionRefusedError). To fix"),
        (socket.gaierror(-2, "secret.internal"), "no connection (gaierror). To fix"),
        (httpx.ConnectError("10.0.0.7"), "no connection (ConnectError). To fix"),
        (httpx.ReadTimeout("10.0.0.7"), "no answer in time (ReadTimeout). To fix"),
        (TimeoutError("10.0.0.7"), "no answer in time (TimeoutError). To fix"),
        (httpx.RemoteProtocolError("10.0.0.7"), "no answer (RemoteProtocolError)"),
    ],
)
def test_a_failure_is_told_in_words_without_addresses(error: Exception, begins: str) -> None:
    told = http_post.why_unanswered(error)
    assert told.startswith(begins)
    assert "10.0.0.7" not in told
    assert "internal" not in told
