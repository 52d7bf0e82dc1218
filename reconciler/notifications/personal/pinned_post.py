"""One request to a host that a person chose: to a public address alone, which is looked up once.

The connection goes to the address that was judged, whatever the name means a moment later. The
whole exchange has a limit in time, so that nobody keeps a thread by answering slowly.
"""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from reconciler.model.values import addresses
from reconciler.notifications import http_post, messages, post_answers

#: How long one exchange may take, from the first packet to the end of the answer's head.
EXCHANGE_S_MAX = 20.0
#: The addresses of a host and a port.
Resolve = Callable[[str, int], list[str]]


class UnreachableError(Exception):
    """A receiver can't be reached; the message says why, without its URL."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host.

    Raises:
        OSError: there are none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


def public_address(host: str, port: int, look_up: Resolve = resolve) -> str:
    """Return the address of a host, all of whose addresses are public.

    Raises:
        UnreachableError: it has none, or one that is not public.
    """
    try:
        found = look_up(host, port)
    except (OSError, UnicodeError):
        raise UnreachableError("its host has no address") from None
    if not found or not all(addresses.is_public(one) for one in found):
        raise UnreachableError(
            "its host is at an address that is not of the internet; who runs the controller "
            "allows such hosts with --notify-hosts"
        )
    return found[0]


def post(request: messages.HttpPost, look_up: Resolve = resolve) -> post_answers.PostAnswer:
    """Send a request to a public address; redirections are not followed.

    Raises:
        UnreachableError: there was no answer.
    """
    parts = urlsplit(request.url)
    host, port = parts.hostname or "", parts.port or 443
    connection = _PinnedConnection(host, port, public_address(host, port, look_up))
    guard = threading.Timer(EXCHANGE_S_MAX, connection.cut)
    guard.daemon = True
    guard.start()
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, request.body, dict(request.headers))
        answer = connection.getresponse()
        retry_after_s = http_post.seconds_of(answer.headers.get("retry-after", ""))
        return post_answers.PostAnswer(answer.status, "", retry_after_s)
    except ssl.SSLCertVerificationError:
        raise UnreachableError("its certificate is not valid") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if connection.is_cut:
            raise UnreachableError("no answer: it took too long") from None
        raise UnreachableError(http_post.why_unanswered(error)) from None
    finally:
        guard.cancel()
        connection.close()


class _PinnedConnection(http.client.HTTPSConnection):
    """A connection to one address of a host, with TLS for the host's name."""

    def __init__(self, host: str, port: int, address: str) -> None:
        context = http_post.tls_context()
        super().__init__(host, port, timeout=post_answers.TIMEOUT_S, context=context)
        self._address, self._tls = address, context
        self.is_cut = False

    def connect(self) -> None:
        """Connect to the address, and begin TLS."""
        plain = socket.create_connection((self._address, self.port), post_answers.TIMEOUT_S)
        self.sock = self._tls.wrap_socket(
            plain, server_hostname=self.host, do_handshake_on_connect=False
        )
        self.sock.do_handshake()

    def cut(self) -> None:
        """End the exchange, in whatever state it is; another thread waits in it."""
        self.is_cut = True
        opened = self.sock
        if opened is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(opened, socket.SHUT_RDWR)
