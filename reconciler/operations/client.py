"""The users' API as functions: what the command line knows of a running controller.

Answers come back as plain values in the shapes of INTERFACES; a refusal comes back as an
``ApiError`` with the controller's own words.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import httpx

from reconciler.model import desired
from reconciler.operations import endpoints

Json = Any


class ApiError(Exception):
    """The controller said no, or could not be asked.

    Attributes:
        status: HTTP status, 0 where there was no answer.
        problems: what is wrong with what was sent, one text each.
    """

    def __init__(self, message: str, status: int = 0, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.problems = problems

    @property
    def refused(self) -> bool:
        """Whether safety, policy or access said no (exit code 3)."""
        return self.status in (401, 403)


class Client:
    """A connection to one controller."""

    def __init__(self, endpoint: endpoints.Endpoint, timeout_s: float = 30.0) -> None:
        token = endpoint.token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = endpoint.url
        self._http = httpx.Client(
            base_url=endpoint.url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, read=max(90.0, timeout_s)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, **query: str | float | None) -> Json:
        """The JSON of a GET.

        Raises:
            ApiError: anything but success.
        """
        parameters = {key: str(value) for key, value in query.items() if value is not None}
        return self._json(self._send("GET", path, params=parameters))

    def data(self, path: str, **query: str) -> bytes:
        """The body of a GET as it is.

        Raises:
            ApiError: anything but success.
        """
        return self._send("GET", path, params=query).content

    def post(
        self, path: str, body: Json = None, *, content: bytes | None = None, kind: str = ""
    ) -> Json:
        """The JSON of a POST of JSON, or of ``content`` of the media type ``kind``.

        Raises:
            ApiError: anything but success.
        """
        if content is not None:
            headers = {"Content-Type": kind}
            return self._json(self._send("POST", path, content=content, headers=headers))
        return self._json(self._send("POST", path, json=body))

    def delete(self, path: str) -> Json:
        """The JSON of a DELETE.

        Raises:
            ApiError: anything but success.
        """
        return self._json(self._send("DELETE", path))

    def stream(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """The body of a GET, piece by piece as it arrives.

        Raises:
            ApiError: anything but success.
        """
        try:
            timeout = httpx.Timeout(30.0, read=None)
            with self._http.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _error(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def items(self, path: str, **query: str | float | None) -> list[Json]:
        """All items of a list, however many pages it has."""
        found: list[Json] = []
        after: str | None = None
        for _ in range(10_000):
            page = self.get(path, after=after, **query)
            found.extend(page["items"])
            after = page.get("next")
            if not after:
                break
        return found

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer

    def _unreachable(self, error: httpx.HTTPError) -> ApiError:
        return ApiError(f"the controller at {self.url} can't be reached ({error}); is it running?")

    @staticmethod
    def _json(answer: httpx.Response) -> Json:
        try:
            return answer.json()
        except ValueError as error:
            raise ApiError(
                f"{answer.url}: the answer is no JSON; is this a Muster controller?"
            ) from error


def _error(answer: httpx.Response) -> ApiError:
    try:
        told = answer.json()["error"]
        problems = tuple(desired.Problem(**problem).text() for problem in told.get("problems", ()))
        message = str(told["message"])
        if answer.status_code == 401:
            message += "; --token-file or MUSTER_TOKEN_FILE names the file that holds yours"
        return ApiError(message, answer.status_code, problems)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(
            f"{answer.url}: {answer.status_code} {answer.reason_phrase}", answer.status_code
        )
