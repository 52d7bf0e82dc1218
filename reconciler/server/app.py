"""Puts the application together: handlers, access, errors, and the link's life."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator

from litestar import Litestar, concurrency
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin

from reconciler import __version__
from reconciler.server import agent_sync, errors, shutdown
from reconciler.server.api import (
    attempt_list,
    audit,
    entity_tags,
    explanations,
    health,
    identity,
    loop_requests,
    plans,
    queries,
    reports,
    reservations,
)
from reconciler.server.auth import standing_tokens
from reconciler.server.changes import change_routes, overrides
from reconciler.server.code import code_routes
from reconciler.server.composition import Composition
from reconciler.server.interactive import session_routes
from reconciler.server.logs import log_routes
from reconciler.server.personal import notification_routes
from reconciler.store import StoreError

#: The largest body of a request that is no sync.
BODY_BYTES_MAX = 4 * 2**20


@contextlib.asynccontextmanager
async def _in_background(parts: Composition) -> AsyncIterator[None]:
    """Run the background tasks for the life of the application."""
    await parts.open_store()
    tasks = [asyncio.create_task(work) for work in parts.background()]
    try:
        yield
    finally:
        parts.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        parts.close()


def create_app(parts: Composition, *, address: str) -> Litestar:
    """Return the application; ``address`` is where it is reached, as ``HOST:PORT``.

    Handlers name the parts that they use as parameters; middleware and errors get theirs here.
    Those that are no coroutines are called in the threads of ``parts.turns``.
    """
    concurrency.set_asyncio_executor(parts.turns)  # type: ignore[arg-type]
    return Litestar(
        route_handlers=[
            agent_sync.sync,
            *health.HANDLERS,
            *queries.HANDLERS,
            *loop_requests.HANDLERS,
            *explanations.HANDLERS,
            *plans.HANDLERS,
            *change_routes.HANDLERS,
            *code_routes.HANDLERS,
            *audit.HANDLERS,
            *overrides.HANDLERS,
            *reports.HANDLERS,
            *identity.HANDLERS,
            *attempt_list.HANDLERS,
            *reservations.HANDLERS,
            *notification_routes.HANDLERS,
            *log_routes.HANDLERS,
            *session_routes.HANDLERS,
        ],
        dependencies=parts.dependencies(address),
        lifespan=[lambda _app: _in_background(parts)],
        middleware=[
            functools.partial(health.counted, parts.answers),
            functools.partial(shutdown.told, parts.stopping),
            entity_tags.compared,
            functools.partial(standing_tokens.judged_again, parts.gate),
        ],
        guards=[parts.gate.guard],
        response_class=entity_tags.TaggedResponse,
        exception_handlers={
            errors.Failure: functools.partial(errors.on_failure, parts.access_log),
            StoreError: errors.on_store_error,
            HTTPException: errors.on_http_error,
            Exception: errors.on_error,
        },
        openapi_config=OpenAPIConfig(
            title="Muster",
            version=__version__,
            path="/schema",
            render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"]), YamlRenderPlugin()],
        ),
        request_max_body_size=BODY_BYTES_MAX,
        opt={},
        logging_config=None,
        debug=False,
    )
