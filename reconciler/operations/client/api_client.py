"""Client of the controller's API.

Answers are plain values; a refusal is an ``ApiError`` with the controller's message. It uses
``http.client``: most commands send one or two requests, and a larger client takes longer to import.
Proxies of the environment are not used.
"""

import http.client
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.operations.client import answers, endpoints

Json = Any

#: The least time that an answer may take, unless a caller has less: news are waited for up to a
#: minute.
ANSWER_S_MIN = 90.0
#: How long a stream may take to begin.
BEGIN_S = 30.0
#: The most bytes of a stream handed on at once.
PIECE_BYTES = 2**16
#: The most items that a controller gives at once.
PAGE_ITEMS_MAX = 1000
#: A larger answer is none of a controller's.
ANSWER_BYTES_MAX = 2**30
#: What a controller says of a path that it has nothing for.
NO_ROUTE = "Not Found"
#: What may stand in a path as it is; whatever else a name holds is escaped.
_SAFE = "/:@!$&'()*+,;=~%"


class ApiError(Exception):
    """Error: the controller refused, or could not be reached.

    Attributes:
        status: HTTP status, 0 if there was no answer.
        problems: what is wrong with the request, one text each.
        rules: the rule of each problem.
        unreachable: True if there was no controller, or its answer broke off.
    """

    def __init__(
        self,
        message: str,
        status: int = 0,
        problems: tuple[str, ...] = (),
        *,
        rules: tuple[str, ...] = (),
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problems = problems
        self.rules = rules
        self.unreachable = unreachable

    @property
    def refused(self) -> bool:
        """True if safety, policy or access refused (exit code 3)."""
        return self.status in (401, 403) or review_findings.by_policy(self.rules)


class ApiClient:
    """A connection to one controller; use one for each thread."""

    def __init__(
        self,
        endpoint: endpoints.Endpoint,
        timeout_s: float = 30.0,
        *,
        answer_s: float = ANSWER_S_MIN,
    ) -> None:
        self._endpoint = endpoint
        self._headers = _bearer(endpoint.token())
        self.url = endpoint.url
        self._connect_s, self._answer_s = timeout_s, max(answer_s, timeout_s)
        self._kept = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._context: ssl.SSLContext | None = None
        if wrong := endpoints.wrong_with_url(endpoint.url):
            raise ApiError(wrong)
        self._parts = urlsplit(endpoint.url)
        self._port = self._parts.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        try:
            if isinstance(error, answers.MissingFieldError):
                raise ApiError(error.told(self.url, _version(self))) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close every connection."""
        for one in self._all:
            one.close()
        self._all.clear()

    def get(self, path: str, **query: str | float | list[str] | None) -> Json:
        """Return the JSON of a GET; of a list each value is a parameter.

        Raises:
            ApiError: anything but success.
        """
        parameters = {
            key: value if isinstance(value, list) else str(value)
            for key, value in query.items()
            if value is not None
        }
        return self._json(path, self._send("GET", _target(path, parameters)))

    def data(self, path: str, meanwhile: Callable[[], object] | None = None) -> bytes:
        """Return the body of a GET as it is.

        Args:
            path: of the request.
            meanwhile: called while the controller works; must not raise ``OSError``, which would be
                taken
                for an error of the connection.

        Raises:
            ApiError: anything but success.
        """
        return self._send("GET", path, meanwhile=meanwhile)

    def post(
        self,
        path: str,
        body: Json = None,
        *,
        content: bytes | None = None,
        kind: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Return the JSON of a POST of JSON, or of ``content`` of the media type ``kind``.

        Raises:
            ApiError: anything but success.
        """
        if content is None:
            content = b"" if body is None else msgspec.json.encode(body)
            kind = "" if body is None else "application/json"
        headers = {"Content-Type": kind} if kind else {}
        return self._json(path, self._send("POST", _target(path, query or {}), content, headers))

    def delete(self, path: str) -> Json:
        """Return the JSON of a DELETE.

        Raises:
            ApiError: anything but success.
        """
        return self._json(path, self._send("DELETE", _target(path, {})))

    def stream(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the body of a GET piece by piece as it arrives, over another connection.

        Raises:
            ApiError: anything but success.
        """
        connection = self._connection(BEGIN_S)
        try:
            answer = self._ask(connection, "GET", _target(path, query), None, {})
            if answer.status == 401 and self._has_another_token():
                connection.close()
                answer = self._ask(connection, "GET", _target(path, query), None, {})
            if not _is_success(answer):
                raise self._error(path, answer, self._content(answer))
            if connection.sock is not None:
                connection.sock.settimeout(None)
            while piece := answer.read1(PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def items(
        self, path: str, *, most: int | None = None, **query: str | float | list[str] | None
    ) -> list[Json]:
        """Return the items of a list, from its pages; ``most``: about so many are enough."""
        if most is not None:
            query["limit"] = min(most, PAGE_ITEMS_MAX)
        found: list[Json] = []
        after: str | None = None
        for _ in range(10_000):
            page = self.get(path, after=after, **query)
            found.extend(page["items"])
            after = page.get("next")
            if not after or (most is not None and len(found) >= most):
                break
        return found

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, self._port, timeout=timeout_s, context=self._tls_context()
            )
        return http.client.HTTPConnection(host, self._port, timeout=timeout_s)

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context that judges the controller's certificate, made once.

        Raises:
            ApiError: the file of CAs can't be used.
        """
        if self._context is None:
            path = self._endpoint.ca_file
            try:
                self._context = ssl.create_default_context(cafile=path)
            except ssl.SSLError:
                raise ApiError(f"--ca {path}: found no certificate in PEM") from None
            except OSError as error:
                raise ApiError(f"--ca {path}: {error.strerror}") from None
        return self._context

    def _ready(self) -> http.client.HTTPConnection:
        """This thread's connection, another one where the controller has closed it meanwhile."""
        kept: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if kept is None:
            kept = self._kept.connection = self._connection(self._connect_s)
            self._all.append(kept)
        if kept.sock is not None and _is_readable(kept.sock):
            kept.close()
        if kept.sock is None:
            kept.timeout = self._connect_s
            kept.connect()
        opened: socket.socket = kept.sock
        opened.settimeout(self._answer_s)
        return kept

    def _begin_anew(self) -> None:
        kept: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if kept is not None:
            kept.close()

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request and read the head of its answer."""
        try:
            prefix = self._parts.path.rstrip("/")
            connection.request(method, prefix + target, body, {**self._headers, **headers})
        except (ValueError, UnicodeError):  # the message would show what is in the file
            raise ApiError("the token holds what no HTTP header can; is the file right?") from None
        if meanwhile is not None:
            meanwhile()
        return connection.getresponse()

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> bytes:
        try:
            connection = self._ready()
            answer = self._ask(connection, method, target, body, headers or {}, meanwhile=meanwhile)
            content = self._content(answer)
            if answer.status == 401 and self._has_another_token():
                answer = self._ask(self._ready(), method, target, body, headers or {})
                content = self._content(answer)
        except BaseException as error:
            self._begin_anew()  # an exchange that was cut off leaves its connection of no use
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise self._unreachable(error) from error
            raise
        if not _is_success(answer):
            raise self._error(target, answer, content)
        return content

    def _has_another_token(self) -> bool:
        """Return True if the file holds another token now: `muster up` makes one at each start."""
        try:
            found = _bearer(self._endpoint.token())
        except endpoints.EndpointError:
            return False
        self._headers, before = found, self._headers
        return found != before

    def _content(self, answer: http.client.HTTPResponse) -> bytes:
        # With a known length, only a read of the whole body detects a cut end.
        announced = answer.length
        if announced is None or announced > ANSWER_BYTES_MAX:
            content = answer.read(ANSWER_BYTES_MAX + 1)
            if len(content) > ANSWER_BYTES_MAX:
                raise ApiError(f"{self.url}: an answer of more than {ANSWER_BYTES_MAX} bytes")
            return content
        return answer.read()

    def _unreachable(self, error: Exception) -> ApiError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ApiError(
                f"the certificate of {self.url} is not accepted: {error.verify_message}. "
                f"--ca or {endpoints.CA_VARIABLE} names the CA that signed it",
                unreachable=True,
            )
        if isinstance(error, ssl.SSLError):
            why = (
                "it speaks no TLS; try http://" if "VERSION" in (error.reason or "") else str(error)
            )
        elif isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected):
            why = "it left in the middle of its answer"
            if self._parts.scheme == "http":
                why += "; if it speaks TLS, its address begins with https://"
        else:
            plain = error.strerror if isinstance(error, OSError) else None  # without its number
            why = plain or str(error) or type(error).__name__
        return ApiError(
            f"the controller at {self.url} can't be reached ({why}); is it running?",
            unreachable=True,
        )

    def _json(self, path: str, content: bytes) -> Json:
        try:
            return answers.json_object(content, f"{self.url}{path}")
        except ValueError as error:
            raise ApiError(str(error)) from error

    def _error(self, path: str, answer: http.client.HTTPResponse, content: bytes) -> ApiError:
        if answer.status < 400:
            where = answer.headers.get("Location", "elsewhere")
            return ApiError(
                f"{self.url}{path}: {answer.status}, which sends to {where}: that is no answer of "
                "a controller; is a proxy between that asks for a login?",
                answer.status,
            )
        try:
            error_body = msgspec.json.decode(content)["error"]
            problems = tuple(desired.Problem(**one) for one in error_body.get("problems", ()))
            message = str(error_body["message"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ApiError(f"{self.url}{path}: {answer.status} {answer.reason}", answer.status)
        if answer.status == 404 and message == NO_ROUTE:
            message = answers.no_route(self.url, path.partition("?")[0])
        if answer.status == 401:
            message += (
                "; --token-file or MUSTER_TOKEN_FILE names the file that holds yours. The token of "
                f"`muster up` is another after each start of it: muster login {self.url}"
            )
        return ApiError(
            message,
            answer.status,
            tuple(problem.text() for problem in problems),
            rules=tuple(problem.rule for problem in problems),
        )


def _version(api: ApiClient) -> str:
    """Return the version of a controller; empty if it does not say."""
    try:
        return str(api.get("/v1/identity").get("version", ""))
    except (ApiError, AttributeError):
        return ""


def _target(path: str, query: Mapping[str, str | list[str]]) -> str:
    """Path and query as they stand in a request."""
    escaped = quote(path, safe=_SAFE)
    return f"{escaped}?{urlencode(query, doseq=True, quote_via=quote)}" if query else escaped


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_success(answer: http.client.HTTPResponse) -> bool:
    """Return True if a request succeeded; a redirection, which is not followed, is not a
    success.
    """
    return 200 <= answer.status < 300


def _is_readable(of: socket.socket) -> bool:
    """Return True if an idle connection has something to read: its end."""
    poller = select.poll()
    poller.register(of, select.POLLIN)
    return bool(poller.poll(0))
