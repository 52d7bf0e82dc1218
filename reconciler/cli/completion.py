"""Names for a shell's TAB: of jobs, queues and nodes, as the controller knows them.

A shell asks while somebody waits for a key: the answer comes within about a second, or none does.
Nothing is ever said of what went wrong, since it would stand in the line that is being written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconciler.cli import lazy_import
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")

#: How long a controller may take to be reached, and as long again to answer.
ANSWER_S = 1.0
#: More names than this are no help at a prompt.
NAMES_MAX = 200

#: Parts of what `suspend` and `resume` take.
_CLUSTER, _QUEUE, _JOB = "cluster", "queue/", "job/"


def jobs(ctx: Any, incomplete: str) -> list[str]:
    """Jobs, the newest first, that are not named yet."""
    found = _names(ctx, "/v1/jobs", incomplete, prefix=incomplete, limit=NAMES_MAX)
    return _new(ctx, found)


def queues(ctx: Any, incomplete: str) -> list[str]:
    """Queues."""
    return _names(ctx, "/v1/queues", incomplete)


def nodes(ctx: Any, incomplete: str) -> list[str]:
    """Nodes that are not named yet."""
    return _new(ctx, _names(ctx, "/v1/nodes", incomplete))


def quotas(ctx: Any, incomplete: str) -> list[str]:
    """Quotas that are not named yet."""
    return _new(ctx, _names(ctx, "/v1/quotas", incomplete))


def overridable(ctx: Any, incomplete: str) -> list[str]:
    """What an override may be of."""
    suspended = [one for one in subjects(ctx, incomplete) if not one.startswith(_JOB)]
    return [*jobs(ctx, incomplete), *nodes(ctx, incomplete), *suspended]


def subjects(ctx: Any, incomplete: str) -> list[str]:
    """What may be suspended: ``cluster``, ``queue/NAME`` or ``job/NAME``."""
    for kind, names in ((_QUEUE, queues), (_JOB, jobs)):
        if incomplete.startswith(kind):
            return [kind + name for name in names(ctx, incomplete.removeprefix(kind))]
    return [one for one in (_CLUSTER, _QUEUE, _JOB) if one.startswith(incomplete)]


def _names(ctx: Any, path: str, incomplete: str, **query: str | float | None) -> list[str]:
    """Names that begin so; none where they can't be had."""
    given = ctx.params
    try:
        endpoint = endpoints.find(given.get("server"), given.get("token_file"), Path.cwd())
        with api_client.ApiClient(endpoint, ANSWER_S, answer_s=ANSWER_S) as api:
            names = [str(item["name"]) for item in api.get(path, **query)["items"]]
    except (
        endpoints.EndpointError,
        api_client.ApiError,
        OSError,
        LookupError,
        TypeError,
        ValueError,
    ):
        return []
    return [name for name in names if name.startswith(incomplete)][:NAMES_MAX]


def _new(ctx: Any, names: Sequence[str]) -> list[str]:
    """Names that the line does not hold already."""
    held = {
        one
        for value in ctx.params.values()
        if isinstance(value, (list, tuple))
        for one in value
        if isinstance(one, str)
    }
    return [name for name in names if name not in held]
