"""Puts the application together: handlers, access, errors, and the link's life."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin

from reconciler import __version__
from reconciler.operations.audit import audit_log
from reconciler.server import agent_sync, errors, services, shutdown
from reconciler.server.api import audit, explanations, health, plans, queries, reports
from reconciler.server.background import audit_watch, prune_timer
from reconciler.server.changes import change_review, change_routes, overrides
from reconciler.server.logs import log_routes
from reconciler.store import StoreError

#: The largest body of a request that is no sync.
BODY_BYTES_MAX = 4 * 2**20


@contextlib.asynccontextmanager
async def _linked(service: services.Services) -> AsyncIterator[None]:
    """Run the background tasks for the life of the application."""
    tasks = [
        asyncio.create_task(service.link.run()),
        asyncio.create_task(service.node_pages.run()),
        asyncio.create_task(prune_timer.Housekeeping(service).run()),
        asyncio.create_task(audit_watch.AuditWatch(service).run()),
        asyncio.create_task(service.access_audit.run()),
    ]
    if service.submitter is not None:
        tasks.append(asyncio.create_task(service.submitter.run()))
    try:
        yield
    finally:
        service.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        service.close()


def create_app(service: services.Services, *, address: str) -> Litestar:
    """Return the application; ``address`` is where it is reached, as ``HOST:PORT``."""
    return Litestar(
        route_handlers=[
            agent_sync.sync,
            *health.HANDLERS,
            *queries.HANDLERS,
            *explanations.HANDLERS,
            *plans.HANDLERS,
            *change_routes.HANDLERS,
            *audit.HANDLERS,
            *overrides.HANDLERS,
            *reports.HANDLERS,
            *log_routes.HANDLERS,
        ],
        lifespan=[lambda _app: _linked(service)],
        middleware=[health.counted, shutdown.told],
        guards=[service.gate.guard],
        state=State(
            {
                "services": service,
                "address": address,
                "replays": explanations.Replays(service.store_url),
                "plans": plans.Plans(service.store_url),
                "verifications": audit.Verifications(audit_log.Log(service.audit_path)),
                "weighing": change_review.ChangeReview(service),
            }
        ),
        exception_handlers={
            errors.Failure: errors.on_failure,
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
