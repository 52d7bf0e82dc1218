"""Errors as clients see them: ``{"error": {"code", "message", "problems"}}``, never a trace."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi import ResponseSpec
from litestar.status_codes import (
    HTTP_413_REQUEST_ENTITY_TOO_LARGE,
    HTTP_500_INTERNAL_SERVER_ERROR,
)
from litestar.types import Send

from reconciler.model import desired
from reconciler.operations.audit import access_audit
from reconciler.operations.views import job_views, view_types
from reconciler.store import StoreError

_LOG = logging.getLogger(__name__)

_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    411: "LengthRequired",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    422: "Unprocessable",
    429: "TooMany",
    500: "Internal",
    501: "NotBuilt",
    503: "Unavailable",
}


class ErrorBody(msgspec.Struct, frozen=True):
    """An error: a word for programs, a sentence for people, and details."""

    code: str
    message: str
    problems: list[view_types.ProblemView] = []


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


class Failure(Exception):  # noqa: N818 - an answer, raised to leave a handler
    """Error that becomes an answer with its status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        problems: list[view_types.ProblemView] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.problems = problems or []
        self.retry_after_s = retry_after_s


def responses(*statuses: int) -> dict[int, ResponseSpec]:
    """Return the errors of an operation for the API's schema."""
    return {
        status: ResponseSpec(ErrorAnswer, generate_examples=False, description=_CODES[status])
        for status in statuses
    }


def answer(
    status: int,
    message: str,
    problems: list[view_types.ProblemView] | None = None,
    headers: dict[str, str] | None = None,
) -> Response[ErrorAnswer]:
    """Return an error as it is sent."""
    body = ErrorAnswer(ErrorBody(_CODES.get(status, "Error"), message, problems or []))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def body(status: int, message: str) -> bytes:
    """Return the body of an error that is sent without the framework."""
    return msgspec.json.encode(ErrorAnswer(ErrorBody(_CODES.get(status, "Error"), message)))


async def send_bare(
    send: Send, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send an error without the framework."""
    text = body(status, message)
    told = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": status, "headers": [*told, *headers]})
    await send({"type": "http.response.body", "body": text, "more_body": False})


def on_failure(
    audit: access_audit.AccessAudit, request: Request[Any, Any, Any], failure: Failure
) -> Response[ErrorAnswer]:
    """Return the answer of a `Failure`. One that forbids something is noted in ``audit``."""
    headers = None
    caller = request.scope.get("state", {}).get("identity")
    if failure.status == 403 and caller is not None:
        address = "unknown" if request.client is None else request.client.host
        what = f"{request.method} {request.url.path}"
        audit.note("Forbidden", caller.name, address, what, failure.message)
    if failure.retry_after_s is not None:
        headers = {"Retry-After": str(max(1, round(failure.retry_after_s)))}
    return answer(failure.status, failure.message, failure.problems, headers)


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[ErrorAnswer]:
    """Return the answer to an error of the framework: wrong paths, methods, parameters, bodies."""
    if error.status_code >= HTTP_500_INTERNAL_SERVER_ERROR:
        _LOG.error("unexpected: %s", error, exc_info=error)
        return answer(error.status_code, "an unexpected error; the controller's log has it")
    problems: list[view_types.ProblemView] = []
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        problems += [_parameter_problem(found) for found in error.extra if isinstance(found, dict)]
    headers = dict(error.headers) if error.headers else None
    told = error.detail or "refused"
    if error.status_code == HTTP_413_REQUEST_ENTITY_TOO_LARGE:
        most = request.route_handler.resolve_request_max_body_size()
        told = f"the body is too large: expected at most {most} bytes"
    return answer(error.status_code, told, problems, headers)


def _parameter_problem(found: dict[Any, Any]) -> view_types.ProblemView:
    """Return what the framework found wrong with one parameter."""
    source = found.get("source", "")
    problem = desired.Problem(
        rule="parameter",
        severity="error",
        path=str(getattr(source, "value", source)),
        message=str(found.get("message", "")),
        field=str(found.get("key", "")),
    )
    return job_views.problem_view(problem)


def on_store_error(_request: Request[Any, Any, Any], error: StoreError) -> Response[ErrorAnswer]:
    """Return the answer while the store can't be read."""
    _LOG.error("%s", error)
    return answer(503, str(error), headers={"Retry-After": "5"})


def on_error(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorAnswer]:
    """Return the answer to an internal error; its trace goes to the log only.

    A body that is nested too deeply is the client's error; the library has no error type for it.
    """
    if isinstance(error, RecursionError):
        return answer(400, "the body is nested too deep")
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(500, "an unexpected error; the controller's log has it")
