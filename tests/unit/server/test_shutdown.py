"""What is cut off by the end of the server may be asked for again only where that does no harm."""

import asyncio
import json
from typing import Any

import pytest

from reconciler.server import shutdown, waits


async def answered(method: str, path: str) -> tuple[dict[bytes, bytes], Any]:
    """The headers and the message of the answer to a request that is cancelled."""
    sent: list[Any] = []

    async def app(*_: Any) -> None:
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        sent.append(message)

    stopping = waits.Stopping()
    stopping.begin()
    scope: Any = {"type": "http", "method": method, "path": path}
    receive: Any = None
    await shutdown.told(stopping, app)(scope, receive, send)
    assert sent[0]["status"] == 503
    return dict(sent[0]["headers"]), json.loads(sent[1]["body"])["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "is_safe"),
    [
        ("GET", "/v1/jobs", True),
        ("HEAD", "/v1/jobs", True),
        ("POST", "/v1/nodes/n1/sync", True),
        ("POST", "/v1/jobs/a/rerun", False),
        ("POST", "/v1/jobs/sync", False),
        ("POST", "/v1/nodes/n1/drain", False),
        ("DELETE", "/v1/overrides", False),
    ],
)
def test_only_who_may_come_again_is_told_to(method: str, path: str, is_safe: bool) -> None:
    headers, message = asyncio.run(answered(method, path))
    assert (b"retry-after" in headers) == is_safe
    assert message == (shutdown.AGAIN if is_safe else shutdown.BEGUN)
