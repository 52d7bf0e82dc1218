"""Protects people's browsers from pages that send requests to this server.

A hostile page can have a browser post to this machine; by DNS rebinding (its name resolves to
127.0.0.1) it can read the answers as well. With tokens, such a page has none. Without tokens,
requests from pages are refused, and so are requests by a name that is not loopback's. In both cases
the content type of a body must be one that no HTML form can send.
"""

from collections.abc import Iterable

from reconciler.model.values import addresses
from reconciler.server.errors import Failure

JSON = frozenset({"application/json"})
MSGPACK = frozenset({"application/msgpack", "application/vnd.msgpack", "application/x-msgpack"})
#: JSON is YAML.
YAML = JSON | {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}
#: A handler's option: the media types of its body. Default: JSON.
OPTION = "media_types"
#: The most characters of a caller's text to quote.
_SHOWN_MAX = 100


def refuse_pages(origins: Iterable[str], hosts: Iterable[str]) -> None:
    """Let programs of this machine call; both are all headers of the name.

    The port does not matter: whoever comes through a tunnel has another one.

    Raises:
        Failure: 403, a page asks, or somebody by another name.
    """
    for origin in origins:
        raise Failure(
            403,
            f"requests from web pages (Origin: {origin[:_SHOWN_MAX]}) are refused, because this "
            "controller has no tokens. To fix: start it with --token-file, or call from a program",
        )
    for header in hosts:
        if not addresses.is_loopback(addresses.host_of(header.strip())):
            raise Failure(
                403,
                f"asked for by the name {header[:_SHOWN_MAX]} (Host), and without tokens only "
                "localhost, 127.0.0.1 and [::1] are answered to: use one of them, or start the "
                "controller with --token-file",
            )


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
