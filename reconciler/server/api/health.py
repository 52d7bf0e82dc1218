"""Health, readiness and metrics: for machines, without tokens where a prober has none."""

import gzip
import re
import time
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.enums import ScopeType
from litestar.params import FromPath
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from reconciler import metrics
from reconciler.metrics import plain_text
from reconciler.server import errors
from reconciler.server.api import content_negotiation
from reconciler.server.auth import authentication
from reconciler.server.loop_link import LinkClient
from reconciler.server.nodes import node_metrics_pages
from reconciler.server.nodes.sessions import Sessions
from reconciler.server.server_store import ServerStore

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = f"{plain_text.MEDIA_TYPE}; version=1.0.0; charset=utf-8"
#: A host with or without its port.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_OPEN: dict[str, Any] = {authentication.OPTION: None}
_SCRAPED: dict[str, Any] = {authentication.OPTION: authentication.SCRAPERS}


class Health(msgspec.Struct, frozen=True):
    """``ok``, or why not."""

    status: str


@get("/healthz", opt=_OPEN, summary="Whether this process answers")
async def healthz() -> Health:
    """Return success: the server runs."""
    return Health("ok")


@get(
    "/readyz",
    opt=_OPEN,
    responses=errors.responses(503),
    summary="Whether agents and users can be served",
)
async def readyz(link: NamedDependency[LinkClient]) -> Health:
    """Ready while the loop is connected and has a revision."""
    if not link.ready:
        what = "is not ready" if link.connected else "is not connected"
        raise errors.Failure(503, f"the controller's loop {what}", retry_after_s=1.0)
    return Health("ok")


@get(
    "/metrics",
    opt=_SCRAPED,
    media_type=MediaType.TEXT,
    responses=errors.responses(401, 403, 503),
    summary="The cluster's series, for Prometheus",
)
async def cluster_metrics(
    request: Request[Any, Any, Any],
    link: NamedDependency[LinkClient],
    sessions: NamedDependency[Sessions],
    answers: NamedDependency[metrics.Answers],
    converted: NamedDependency[plain_text.Converted],
) -> Response[bytes]:
    """Return the page that the loop published after its last cycle, and the server's own series.

    In OpenMetrics, if requested, each bucket of waiting times has a job as its exemplar; otherwise
    the format is Prometheus' text.
    """
    published = link.published
    if published is None:
        raise errors.Failure(503, "the controller's loop is not connected", retry_after_s=1.0)
    sessions_open, others = sessions.counts()
    own = answers.render(open_sessions=sessions_open, other_sessions=others)
    page = published.metrics or b""
    headers = {"Vary": "Accept"}
    takes = request.headers.get("accept", "")
    if content_negotiation.weight(takes, plain_text.MEDIA_TYPE) <= content_negotiation.weight(
        takes, "text/plain"
    ):
        page = converted.of(page) + plain_text.of(own)
        return Response(page, media_type=TEXT, headers=headers)
    return Response(page + own + plain_text.END, media_type=OPENMETRICS, headers=headers)


@get(
    "/metrics/nodes/{node:str}",
    opt=_SCRAPED,
    media_type=MediaType.TEXT,
    responses=errors.responses(400, 401, 403, 404, 503),
    summary="One node's series, for Prometheus",
)
async def node_metrics(
    node: FromPath[str],
    request: Request[Any, Any, Any],
    node_pages: NamedDependency[node_metrics_pages.NodePages],
) -> Response[bytes]:
    """Return the page of one node, as of its last report."""
    try:
        page = await node_pages.page(node)
    except node_metrics_pages.BusyError as error:
        raise errors.Failure(503, str(error), retry_after_s=5.0) from None
    if page is None:
        raise errors.Failure(404, f"there is no Node/{node}")
    headers = {"Vary": "Accept-Encoding"}
    if content_negotiation.weight(request.headers.get("accept-encoding", ""), "gzip"):
        headers["Content-Encoding"] = "gzip"
    else:
        page = gzip.decompress(page)
    return Response(page, media_type=TEXT, headers=headers)


def counted(answers: metrics.Answers, app: ASGIApp) -> ASGIApp:
    """Count each answer of ``app`` by the pattern of its path, in ``answers``."""

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
            pattern, took_s = scope.get("path_template", ""), time.perf_counter() - began
            answers.count(pattern or "/", scope["method"], status, took_s)

    return answer


class ScrapeTarget(msgspec.Struct, frozen=True):
    """A target for Prometheus (its ``http_sd`` format)."""

    targets: list[str]
    labels: dict[str, str]


@get(
    "/v1/prometheus/targets",
    opt=_SCRAPED,
    responses=errors.responses(401, 403, 503),
    summary="What to scrape, in the format of Prometheus' http_sd",
)
async def targets(
    request: Request[Any, Any, Any],
    listening_address: NamedDependency[str],
    store: NamedDependency[ServerStore],
    node_pages: NamedDependency[node_metrics_pages.NodePages],
) -> list[ScrapeTarget]:
    """Return the cluster page and one page per node, which are kept up to date from then on.

    Their address is the one of this request: the listening address, such as 0.0.0.0 or one behind a
    proxy, is of no use to others.
    """
    host = request.headers.get("host", "")
    address = host if _HOST.fullmatch(host) else listening_address
    nodes = await sync_to_thread(store.reader.nodes)
    node_pages.listed(node.name for node in nodes)
    found = [ScrapeTarget([address], {"__metrics_path__": "/metrics", "job": "muster"})]
    found += [
        ScrapeTarget(
            [address],
            {
                "__metrics_path__": f"/metrics/nodes/{node.name}",
                "job": "muster-nodes",
                "node": node.name,
                "pool": node.pool,
            },
        )
        for node in nodes
    ]
    return found


HANDLERS = [healthz, readyz, cluster_metrics, node_metrics, targets]
