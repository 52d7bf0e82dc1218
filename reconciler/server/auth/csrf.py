"""Protects people's browsers from pages that send requests to this server.

A hostile page can have a browser post to this machine; by DNS rebinding (its name resolves to
127.0.0.1) it can read the answers as well. Such a page has no token, and the content type of a body
must be one that no HTML form can send.
"""

from reconciler.server.errors import Failure

JSON = frozenset({"application/json"})
MSGPACK = frozenset({"application/msgpack", "application/vnd.msgpack", "application/x-msgpack"})
#: JSON is YAML.
YAML = JSON | {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}
#: A handler's option: the media types of its body. Default: JSON.
OPTION = "media_types"
#: The most characters of a caller's text to quote.
_SHOWN_MAX = 100


def refuse_type(header: str | None, types: frozenset[str]) -> None:
    """Accept a body of one of the ``types``, or of no declared type.

    Raises:
        Failure: 415, the body has another type.
    """
    if header is None:
        return
    kind = header.partition(";")[0].strip().lower()
    if kind not in types:
        raise Failure(
            415,
            f"Content-Type: found {header[:_SHOWN_MAX]!r}, expected " + " or ".join(sorted(types)),
        )
