"""Health, readiness and metrics: for machines, without tokens where a prober has none."""

import time
from typing import Any

import msgspec
from litestar import MediaType, Response, get
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.params import FromPath
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from reconciler import metrics
from reconciler.server import access, failures, services

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_OPEN: dict[str, Any] = {access.OPTION: None}


class Health(msgspec.Struct, frozen=True):
    """``ok``, or why not."""

    status: str


@get("/healthz", opt=_OPEN, summary="Whether this process answers")
async def healthz() -> Health:
    """It does."""
    return Health("ok")


@get(
    "/readyz",
    opt=_OPEN,
    responses=failures.responses(503),
    summary="Whether agents and users can be served",
)
async def readyz(state: State) -> Health:
    """Ready while the loop is connected and has a revision."""
    service: services.Services = state.services
    if not service.link.ready:
        what = "is not ready" if service.link.connected else "is not connected"
        raise failures.Failure(503, f"the controller's loop {what}", retry_after_s=1.0)
    return Health("ok")


@get(
    "/metrics",
    media_type=MediaType.TEXT,
    responses=failures.responses(401, 403, 503),
    summary="The cluster's series, for Prometheus",
)
async def cluster_metrics(state: State) -> Response[bytes]:
    """The page as the loop published it after its last cycle, and what the server counted."""
    service: services.Services = state.services
    published = service.link.published
    if published is None:
        raise failures.Failure(503, "the controller's loop is not connected", retry_after_s=1.0)
    sessions_open, others = service.sessions.counts()
    own = service.answers.render(open_sessions=sessions_open, other_sessions=others)
    return Response((published.metrics or b"") + own, media_type=PROMETHEUS)


@get(
    "/metrics/nodes/{node:str}",
    media_type=MediaType.TEXT,
    sync_to_thread=True,
    responses=failures.responses(400, 401, 403, 404, 503),
    summary="One node's series, for Prometheus",
)
def node_metrics(node: FromPath[str], state: State) -> Response[bytes]:
    """The page of one node."""
    service: services.Services = state.services
    record = service.reader.node(node)
    if record is None:
        raise failures.Failure(404, f"node {node} is not known")
    alive = service.reader.attempts_alive(node)
    session = service.sessions.get(node)
    page = metrics.render_node(
        record,
        alive,
        service.sessions.gpu_usage(node),
        words=dict(session.task_metrics) if session is not None else {},
    )
    return Response(page, media_type=PROMETHEUS)


def counted(app: ASGIApp) -> ASGIApp:
    """Count each answer of ``app`` by the pattern of its path."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.WEBSOCKET:
            await app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, sent)
        finally:
            service: services.Services = scope["litestar_app"].state.services
            pattern, took_s = scope.get("path_template", ""), time.perf_counter() - began
            service.answers.count(pattern or "/", scope["method"], status, took_s)

    return answer


class Target(msgspec.Struct, frozen=True):
    """What Prometheus is to scrape (its ``http_sd`` format)."""

    targets: list[str]
    labels: dict[str, str]


@get(
    "/v1/prometheus/targets",
    sync_to_thread=True,
    responses=failures.responses(401, 403, 503),
    summary="What to scrape, in the format of Prometheus' http_sd",
)
def targets(state: State) -> list[Target]:
    """The cluster page and one page a node."""
    service: services.Services = state.services
    found = [Target([state.address], {"__metrics_path__": "/metrics", "job": "muster"})]
    found += [
        Target(
            [state.address],
            {
                "__metrics_path__": f"/metrics/nodes/{node.name}",
                "job": "muster-nodes",
                "node": node.name,
                "pool": node.pool,
            },
        )
        for node in service.reader.nodes()
    ]
    return found


HANDLERS = [healthz, readyz, cluster_metrics, node_metrics, targets]
