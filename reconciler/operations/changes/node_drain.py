"""Overrides of node pools that take nodes out of service, as they are written in a clone.

Names of nodes and files of the clone come in; the new overrides of each pool go out.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from reconciler.changes import requests
from reconciler.changes.clone import working_clone
from reconciler.desired.apply import validate
from reconciler.model.values import hostlists, suggestions
from reconciler.operations.changes import pusher

Verb = Literal["drain", "undrain"]


class Drained(msgspec.Struct, frozen=True):
    """A pool, the named nodes in it, and all of its overrides afterwards."""

    pool: str
    nodes: list[str]
    overrides: list[dict[str, Any]]


def subject(verb: Verb, nodes: Sequence[str]) -> str:
    """Return the beginning of the commit's message."""
    return f"{verb.capitalize()} {hostlists.fold(nodes)}"


def overrides(
    verb: Verb, nodes: Sequence[str], reason: str, clone: working_clone.Clone
) -> list[Drained]:
    """Return the new overrides of the pools that declare the nodes.

    Raises:
        ConflictError: a node is in no pool or not drained, or a drain has no reason.
        CloneError, EditError: the clone can't be read.
    """
    if verb == "drain" and not reason:
        what = hostlists.fold(nodes)
        raise requests.ConflictError(f"draining {what} needs a --reason")
    by_pool: dict[str, list[str]] = {}
    for node, pool in _pools_of(nodes, clone).items():
        by_pool.setdefault(pool, []).append(node)
    return [
        Drained(pool, of, _of_pool(verb, pool, of, reason, clone)) for pool, of in by_pool.items()
    ]


def _pools_of(nodes: Sequence[str], clone: working_clone.Clone) -> dict[str, str]:
    """Return the pool of each node, in order; raise if a node is in none.

    An error in a file refuses all structure; it does not matter for pools in other files.
    """
    files = clone.files.structural_files()  # as they are committed
    found = validate.check(files)
    pools = found.structure.pool_of_node()
    errors = [problem for problem in found.status.problems if problem.severity == "error"]
    if not pools and errors:
        wrong = {problem.path for problem in errors}
        whole = {path: data for path, data in files.items() if path not in wrong}
        pools = validate.check(whole).structure.pool_of_node()
    if not pools and errors:
        raise requests.ConflictError(
            f"no pool in {clone.state} can be read, so nothing is known of "
            f"{hostlists.fold(nodes)}. To fix: correct this first: {errors[0].text()}"
        )
    for node in nodes:
        if node not in pools:
            hint = suggestions.hint(node, pools)
            raise requests.ConflictError(
                f"there is no Node/{node} in any pool of {clone.state}{hint}"
            )
    return {node: pools[node] for node in nodes}


def _of_pool(
    verb: Verb, pool: str, nodes: Sequence[str], reason: str, clone: working_clone.Clone
) -> list[dict[str, Any]]:
    """Return the overrides of a pool with the nodes drained, or no longer drained."""
    before = [dict(entry) for entry in pusher.overrides_of(clone.files.document("NodePool", pool))]
    if verb == "drain":
        added = {"hosts": hostlists.fold(nodes), "reason": reason}
        is_so = any(pusher.drains_alike(entry, added) for entry in before)
        return before if is_so else [*before, added]
    try:
        after = [left for entry in before if (left := _without(entry, nodes))]
        drained = {one for entry in before for one in hostlists.expand(str(entry.get("hosts", "")))}
    except hostlists.HostListError as error:
        raise requests.ConflictError(f"an override of pool {pool}: {error}") from None
    idle = [node for node in nodes if node not in drained]
    if idle and clone.history.left_behind(subject("undrain", nodes)):
        return before  # it is done, and not pushed
    if idle:
        raise requests.ConflictError(f"no override of pool {pool} drains {hostlists.fold(idle)}")
    return after


def _without(entry: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any] | None:
    """Return an override without some nodes; None if no node is left."""
    hosts = hostlists.expand(str(entry.get("hosts", "")))
    left = [host for host in hosts if host not in nodes]
    if left == hosts:
        return entry
    return {**entry, "hosts": hostlists.fold(left)} if left else None
