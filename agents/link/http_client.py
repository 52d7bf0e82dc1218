"""A small HTTP/1.1 client for requests to the controller over a kept connection.

The standard client would cost six megabytes on every node, mostly for features that are not needed
here. Every answer is read as a whole, up to a limit. A connection that was closed while idle is
opened again once.
"""

import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from agents.host import token_file
from agents.link import source_ports
from reconciler.model.protocol.agent_messages import SyncRequest, SyncResponse

BODY_BYTES_MAX = 64 * 2**20
HEAD_BYTES_MAX = 64 * 2**10
CONNECT_TIMEOUT_S = 10.0

_DECODE_ANSWER = msgspec.msgpack.Decoder(SyncResponse).decode


class RejectedError(Exception):
    """The controller answered, but not with what was requested."""


class LinkError(Exception):
    """The controller could not be reached, or its answer is not HTTP."""


class ControllerTarget(msgspec.Struct, frozen=True):
    """The controller's URL and the file of the agent's token.

    ``ca_file``: PEM with the CAs of the controller's certificate; empty: those of this machine.
    """

    url: str
    token_file: Path | None = None
    ca_file: str = ""

    def check(self) -> None:
        """Raise an error if calls could never work.

        Raises:
            LinkError: the URL is none.
            TokenFileError: the token file must not be used.
            OSError: the token file cannot be read.
        """
        self.parts()
        if self.token_file is not None:
            token_file.read_token(self.token_file)

    def parts(self) -> tuple[bool, str, int, str]:
        """Return (is TLS, host, port, path before the API)."""
        split = urlsplit(self.url)
        if split.scheme not in {"http", "https"} or not split.hostname:
            raise LinkError(f"server {self.url!r} is not a URL like http://host:port")
        secure = split.scheme == "https"
        return secure, split.hostname, split.port or (443 if secure else 80), split.path.rstrip("/")


def packed(request: SyncRequest) -> bytes:
    """Return the encoded request. Text that is not valid UTF-8 is replaced, so that it does not
    prevent the rest from being reported.
    """
    try:
        return msgspec.msgpack.encode(request)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_writable(msgspec.to_builtins(request)))


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(one) for one in value]
    return value


class Connection:
    """A kept connection, for one thread.

    It reads the token each time it opens. After an answer 401 it opens anew for the next request,
    so a new token is used without a restart of the agent.
    """

    def __init__(self, target: ControllerTarget) -> None:
        self.target = target
        self._secure, self._host, self._port, self._prefix = target.parts()
        self._socket: Any = None
        self._token = ""
        self._buffer = b""
        #: ``Date`` of the newest answer; empty if it has none.
        self.date = ""

    def post(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a body. Return status and answer. ``timeout_s`` limits each wait for the
        controller.
        """
        return self._request("POST", path, body, timeout_s)

    def get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Ask for something that is no message. Return status and answer, as ``post`` does."""
        return self._request("GET", path, b"", timeout_s)

    def _request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        was_open = self._socket is not None
        try:
            return self._exchange(method, path, body, timeout_s)
        except TimeoutError as problem:
            self.close()
            raise LinkError(f"{self.target.url} did not answer in {timeout_s:g} s") from problem
        except (OSError, ValueError, LinkError) as problem:
            self.close()
            if not was_open:
                raise LinkError(f"{self.target.url}: {problem}") from problem
        try:
            return self._exchange(method, path, body, timeout_s)
        except (OSError, ValueError, LinkError) as problem:
            self.close()
            raise LinkError(f"{self.target.url}: {problem}") from problem

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def _open(self) -> None:
        if self.target.token_file is not None:
            try:
                self._token = token_file.read_token(self.target.token_file)
            except token_file.TokenFileError as problem:
                raise LinkError(str(problem)) from None
        plain = source_ports.dial(self._host, self._port, CONNECT_TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = plain
        if self._secure:
            import ssl  # noqa: PLC0415 - megabytes that a plain link does without

            context = ssl.create_default_context(cafile=self.target.ca_file or None)
            self._socket = context.wrap_socket(plain, server_hostname=self._host)

    def _exchange(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        if self._socket is None:
            self._open()
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [
            f"{method} {self._prefix}{quote(path)} HTTP/1.1",
            f"Host: {host}:{self._port}",
        ]
        if method == "POST":
            lines += [
                "Content-Type: application/msgpack",
                "Accept: application/msgpack",
                f"Content-Length: {len(body)}",
            ]
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        self._socket.settimeout(timeout_s)
        self._socket.sendall("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body)
        return self._answer()

    def _answer(self) -> tuple[int, bytes]:
        while True:
            head = self._until(b"\r\n\r\n", HEAD_BYTES_MAX).decode("latin-1").split("\r\n")
            version, _, rest = head[0].partition(" ")
            if not version.startswith("HTTP/1."):
                raise LinkError(f"answered {head[0][:80]!r}, which is not HTTP")
            status = int(rest[:3])
            if status >= 200:
                break
        headers = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self.date = headers.get("date", "")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = self._chunks()
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        elif status in {204, 304}:
            body = b""
        else:
            raise LinkError("answered without the length of its answer")
        closes = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
        if closes or status == 401:
            self.close()
        return status, body

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            size = int(self._until(b"\r\n", 1024).split(b";")[0], 16)
            if size == 0:
                while self._until(b"\r\n", HEAD_BYTES_MAX):
                    pass
                return b"".join(parts)
            total += size
            if total > BODY_BYTES_MAX:
                raise LinkError(f"answered more than {BODY_BYTES_MAX} bytes")
            parts.append(self._exactly(size))
            self._exactly(2)

    def _more(self) -> None:
        data = self._socket.recv(2**18)
        if not data:
            raise LinkError("closed the connection before its answer was whole")
        self._buffer += data

    def _until(self, mark: bytes, limit: int) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > limit:
                raise LinkError(f"answered a header of more than {limit} bytes")
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes:
        if count > BODY_BYTES_MAX:
            raise LinkError(f"answered more than {BODY_BYTES_MAX} bytes")
        parts = [self._buffer[:count]]
        missing = count - len(parts[0])
        self._buffer = self._buffer[count:]
        while missing:
            data = self._socket.recv(min(missing, 2**18))
            if not data:
                raise LinkError("closed the connection before its answer was whole")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)


def message_of(answer: bytes) -> str:
    """Return the message in an error answer, or its text."""
    try:
        message = msgspec.json.decode(answer)["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = answer[:300].decode("utf-8", "replace")
    return str(message)[:300]


def explain(url: str, node: str, status: int, answer: bytes) -> str:
    """Explain to the operator the status of an answer to a sync other than 200."""
    said = message_of(answer)
    if status == 409:
        return (
            f"another agent holds the session of node {node} at {url}, or this one did, with a "
            "state folder that is gone. Stop that one, or give this one another --name; if there "
            f"is no other, wait ({said})"
        )
    if status in {401, 403}:
        return (
            f"{url} does not accept the token of node {node} ({status} {said}); check --token-file"
        )
    if status == 413:
        return f"{url} finds the report of node {node} too large ({said})"
    return f"{url} answered {status} to the sync of node {node}: {said}"


def understand(url: str, node: str, status: int, answer: bytes) -> SyncResponse:
    """Return the decoded answer to a sync.

    Raises:
        RejectedError: it is not one.
    """
    if status != 200:
        raise RejectedError(explain(url, node, status, answer))
    try:
        return _DECODE_ANSWER(answer)
    except msgspec.MsgspecError as problem:
        raise RejectedError(
            f"{url} answered something that this version can't read: {problem}"
        ) from None
