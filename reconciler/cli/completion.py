"""Shell completion of names of jobs, queues, nodes and quotas, asked of the controller.

A completion answers within about a second or returns nothing. Errors are never printed, because
they would appear in the line that is being typed.
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

#: Time limit of the connection to the controller, and again of its answer.
ANSWER_S = 1.0
#: The most names to offer at a prompt.
NAMES_MAX = 200

#: Beginnings of subjects of `suspend` and `resume`.
_CLUSTER, _QUEUE, _JOB = "cluster", "queue/", "job/"


def jobs(ctx: Any, incomplete: str) -> list[str]:
    """Return jobs that are not named yet, newest first."""
    found = _names(ctx, "/v1/jobs", incomplete, prefix=incomplete, limit=NAMES_MAX)
    return _new(ctx, found)


def queues(ctx: Any, incomplete: str) -> list[str]:
    """Return queues."""
    return _names(ctx, "/v1/queues", incomplete)


def nodes(ctx: Any, incomplete: str) -> list[str]:
    """Return nodes that are not named yet."""
    return _new(ctx, _names(ctx, "/v1/nodes", incomplete))


def quotas(ctx: Any, incomplete: str) -> list[str]:
    """Return quotas that are not named yet."""
    return _new(ctx, _names(ctx, "/v1/quotas", incomplete))


def overridable(ctx: Any, incomplete: str) -> list[str]:
    """Return the subjects that an override can have."""
    suspended = [one for one in subjects(ctx, incomplete) if not one.startswith(_JOB)]
    return [*jobs(ctx, incomplete), *nodes(ctx, incomplete), *suspended]


def subjects(ctx: Any, incomplete: str) -> list[str]:
    """Return the subjects that can be suspended: `cluster`, `queue/NAME` or `job/NAME`."""
    for kind, names in ((_QUEUE, queues), (_JOB, jobs)):
        if incomplete.startswith(kind):
            return [kind + name for name in names(ctx, incomplete.removeprefix(kind))]
    return [one for one in (_CLUSTER, _QUEUE, _JOB) if one.startswith(incomplete)]


def _names(ctx: Any, path: str, incomplete: str, **query: str | float | None) -> list[str]:
    """Return names with this beginning; none if the controller does not answer."""
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
    """Return the names that the line does not contain yet."""
    held = {
        one
        for value in ctx.params.values()
        if isinstance(value, (list, tuple))
        for one in value
        if isinstance(one, str)
    }
    return [name for name in names if name not in held]
