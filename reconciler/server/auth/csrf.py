"""Keeps a person's browser from being made to give orders by a page that they look at.

A page of anybody's may have its browser post to this machine, and one whose name its owner has
resolve to 127.0.0.1 (rebinding) may read the answers as well. Where tokens are asked for no page
has one. Where they are not, a call from a page is refused, and so is one by a name that is not
loopback's. Of a body it is looked at what it says to be, with tokens and without: the types that a
form can send are not among those that are read here.
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
            f"a web page asks (Origin: {origin[:_SHOWN_MAX]}), which none may where there are no "
            "tokens: call from a program, or start the controller with --token-file",
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
            f"the body is said to be {header[:_SHOWN_MAX]!r}; send Content-Type: "
            + " or ".join(sorted(types)),
        )
