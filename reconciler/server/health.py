"""Health, readiness and metrics: for machines, without tokens where a prober has none."""

from typing import Any

import msgspec
from litestar import MediaType, Response, get
from litestar.datastructures import State
from litestar.params import FromPath

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
    """The page as the loop published it after its last cycle."""
    service: services.Services = state.services
    published = service.link.published
    if published is None:
        raise failures.Failure(503, "the controller's loop is not connected", retry_after_s=1.0)
    return Response(published.metrics, media_type=PROMETHEUS)


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
    page = metrics.render_node(
        record, service.reader.attempts_alive(node), service.sessions.gpu_usage(node)
    )
    return Response(page, media_type=PROMETHEUS)


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
