"""``/v1/accounting/attempts``: the table of ended attempts, a day at a time, in pages."""

from typing import Annotated, Any

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.params import Parameter

from reconciler.operations.reports import attempt_rows
from reconciler.server import errors
from reconciler.server.api import envelopes, field_choice, queries
from reconciler.server.loop_link import LinkClient
from reconciler.server.server_store import ServerStore

_Day = Annotated[
    str,
    Parameter(pattern=r"^\d{4}-\d{2}-\d{2}$", description="The day, in UTC, on which they ended."),
]
_Rows = Annotated[
    int, Parameter(ge=1, le=attempt_rows.PAGE_ROWS_MAX, description="The most rows of one page.")
]
#: An attempt's id holds a job's name and more.
_After = Annotated[
    str | None,
    Parameter(max_length=600, pattern=r"^[^\x00]*$", description="`next` of the page before."),
]


@get(
    "/v1/accounting/attempts",
    sync_to_thread=True,
    responses=queries.FAILS,
    summary="Attempts at tasks that ended on a day",
)
def attempts(
    *,
    day: _Day,
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    limit: _Rows = attempt_rows.PAGE_ROWS_MAX,
    after: _After = None,
    fields: field_choice.Fields = None,
) -> envelopes.AttemptRows:
    """Return attempts by their end: those that are concluded, with all tasks of their element.

    Measured use of other people's tasks is null without the right `read`.
    """
    rights = queries.rights_of(store.reader, request)
    try:
        found = attempt_rows.page(store.reader, day, after or "", limit)
    except ValueError as error:
        raise errors.Failure(400, f"day or after: {error}") from None
    rows = envelopes.AttemptRows(
        items=[rights.attempt_row(one) for one in found.rows],
        next=found.next or None,
        **envelopes.head(link.published),
    )
    return field_choice.only(rows, fields)


HANDLERS = [attempts]
