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
from reconciler.operations.audit import audit_log as auditlog
from reconciler.server import agent_sync as sync
from reconciler.server import errors as failures
from reconciler.server import services
from reconciler.server import shutdown as stopping
from reconciler.server.api import audit as audits
from reconciler.server.api import explanations, health, plans
from reconciler.server.api import queries as api
from reconciler.server.api import reports as reporting
from reconciler.server.background import audit_watch as auditwatch
from reconciler.server.background import prune_timer as housekeeping
from reconciler.server.changes import change_review as weighing
from reconciler.server.changes import change_routes as changes
from reconciler.server.changes import overrides
from reconciler.server.logs import log_routes as logs
from reconciler.store import StoreError

#: The largest body of a request that is no sync.
BODY_BYTES_MAX = 4 * 2**20


@contextlib.asynccontextmanager
async def _linked(service: services.Services) -> AsyncIterator[None]:
    """What runs beside the handlers, for as long as there is the application."""
    tasks = [
        asyncio.create_task(service.link.run()),
        asyncio.create_task(service.node_pages.run()),
        asyncio.create_task(housekeeping.Housekeeping(service).run()),
        asyncio.create_task(auditwatch.Watch(service).run()),
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
    """The application; ``address`` is how it is reached, as ``HOST:PORT``."""
    return Litestar(
        route_handlers=[
            sync.sync,
            *health.HANDLERS,
            *api.HANDLERS,
            *explanations.HANDLERS,
            *plans.HANDLERS,
            *changes.HANDLERS,
            *audits.HANDLERS,
            *overrides.HANDLERS,
            *reporting.HANDLERS,
            *logs.HANDLERS,
        ],
        lifespan=[lambda _app: _linked(service)],
        middleware=[health.counted, stopping.told],
        guards=[service.gate.guard],
        state=State(
            {
                "services": service,
                "address": address,
                "replays": explanations.Replays(service.store_url),
                "plans": plans.Plans(service.store_url),
                "verifications": audits.Verifications(auditlog.Log(service.audit_path)),
                "weighing": weighing.Weighing(service),
            }
        ),
        exception_handlers={
            failures.Failure: failures.on_failure,
            StoreError: failures.on_store_error,
            HTTPException: failures.on_http_error,
            Exception: failures.on_error,
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
