"""The length of a body before any of it is read, for routes that admit a sender by it."""

from typing import Any

from litestar.connection import ASGIConnection

from reconciler.server import errors


def declared(request: ASGIConnection[Any, Any, Any, Any], most: int, what: str) -> int:
    """Return the declared length of a body.

    Args:
        request: whose body is still to be read.
        most: the most bytes it may have.
        what: the body, for messages.

    Raises:
        Failure: 411, no length is declared, or it does not count; 413, it is too large.
    """
    if "transfer-encoding" in request.headers:  # then the body is as long as its chunks say
        raise errors.Failure(411, f"{what}: found a body in chunks, expected a Content-Length")
    try:
        length = int(request.headers["content-length"])
    except (KeyError, ValueError):
        message = f"{what}: found no Content-Length, expected one"
        raise errors.Failure(411, message) from None
    if length > most:
        raise errors.Failure(413, f"{what}: found {length} bytes, expected at most {most}")
    return length
