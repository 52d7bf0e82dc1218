"""Status of the cluster and its objects on two axes that are never mixed: sync and health.

Lists of the API come in; each pool and queue comes out with both, and the cluster with the worst of
each. A queue can be in sync and suspended; a pool can be out of sync and healthy.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from reconciler.model.state import records
from reconciler.model.values import quantities, times

Sync = Literal["Synced", "OutOfSync", "Unknown"]
Health = Literal["Healthy", "Drained", "Suspended", "Progressing", "Missing", "Degraded", "Unknown"]

#: From the best to the worst.
SYNCS: tuple[Sync, ...] = ("Synced", "OutOfSync", "Unknown")
HEALTHS: tuple[Health, ...] = (
    "Healthy",
    "Drained",
    "Suspended",
    "Progressing",
    "Missing",
    "Degraded",
    "Unknown",
)
#: What a node's state says of its pool.
_OF_NODE: dict[str, Health] = {
    "Ready": "Healthy",
    "Drained": "Drained",
    "Draining": "Progressing",
    "Missing": "Missing",
    "Unhealthy": "Degraded",
    "Gone": "Degraded",
    "Unknown": "Degraded",
}

#: Of a commit's name in git.
COMMIT_DIGITS = 40

Json = Mapping[str, Any]
_Word = TypeVar("_Word")


class ObjectStatus(msgspec.Struct, frozen=True):
    """An object on both axes; ``why`` is empty if all is well."""

    object: str
    sync: Sync
    health: Health
    why: str = ""

    @property
    def is_well(self) -> bool:
        """True if the object is in sync and healthy."""
        return (self.sync, self.health) == ("Synced", "Healthy")


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster by its worst object on each axis, and all objects."""

    sync: Sync
    health: Health
    objects: tuple[ObjectStatus, ...]


#: From the least to the most severe; of equal ones the first is shown.
_SEVERITIES = ("info", "warning", "critical")


def roll_up(
    sync: Json,
    pools: Sequence[Json],
    queues: Iterable[Json],
    nodes: Iterable[Json],
    drift: Iterable[Json],
    *,
    now: float,
) -> ClusterStatus:
    """Return everything on both axes: pools, queues, and nodes of no pool that tasks wait for.

    Args:
        sync: ``/v1/sync``.
        pools, queues, nodes, drift: items of those lists.
        now: seconds since the epoch, for how long something is suspended.
    """
    rows = [row for row in drift if row["action"] != "ignore"]
    readable = sync.get("sync") != "Unknown"
    suspended: Json = sync.get("suspended") or {}
    found = [_pool(one, rows, readable=readable) for one in pools]
    found += [_queue(one["name"], suspended, rows, now, readable=readable) for one in queues]
    declared = {one["name"] for one in pools}
    strays = [one for one in nodes if one["pool"] not in declared and one["attempts"]]
    found += [_stray(one, rows, readable=readable) for one in strays if one["state"] != "Ready"]
    whole: list[Health] = ["Suspended"] if "Cluster" in suspended else []
    return ClusterStatus(
        _worst(SYNCS, [sync.get("sync", "Unknown"), *(one.sync for one in found)]),
        _worst(HEALTHS, [*whole, *(one.health for one in found)]),
        tuple(found),
    )


def drift_line(drift: Iterable[Json]) -> str:
    """Return the number of differences, the worst of them, and the command for more. It is empty if
    there are none.
    """
    rows = [row for row in drift if row["action"] != "ignore"]
    if not rows:
        return ""
    worst = max(rows, key=lambda row: _SEVERITIES.index(row["severity"]))
    count = "1 difference" if len(rows) == 1 else f"{len(rows)} differences, the worst"
    subject = short_subject(worst["subject"])
    return f"{count}: {worst['severity']} {worst['kind']} {subject} (`muster drift`)"


def submissions_line(sync: Json, format_clock: Callable[[str], str]) -> str:
    """Return how many submissions are not in git, by ``/v1/sync``; empty if all are."""
    found: Json = sync.get("submissions") or {}  # older controllers do not send it
    parts = []
    if waiting := found.get("waiting"):
        verb = "waits" if waiting == 1 else "wait"
        since = format_clock(found["since"])
        parts.append(f"{quantities.counted(waiting, 'submission')} {verb} for git since {since}")
    if refused := found.get("refused"):
        was = "was" if refused == 1 else "were"
        parts.append(f"{quantities.counted(refused, 'submission')} {was} refused")
    return f"{'; '.join(parts)} (`muster overrides`)" if parts else ""


def short_subject(text: str) -> str:
    """Return the subject of a difference for a table. A commit is named by its first digits."""
    whole = len(text) == COMMIT_DIGITS and not set(text) - set(string.hexdigits)
    return text[:12] if whole else text


def with_overrides(sync: Json, overrides: Iterable[Json]) -> Json:
    """``/v1/sync`` with what is suspended by items of ``/v1/overrides`` as well."""
    behind = {
        records.suspended_label(one["subject"]): one["made"]
        for one in overrides
        if one["verb"] == "suspend"
    }
    return {**sync, "suspended": {**behind, **(sync.get("suspended") or {})}} if behind else sync


def _worst(order: Sequence[_Word], found: Iterable[_Word]) -> _Word:
    return max(found, key=order.index, default=order[0])


def _pool(one: Json, drift: Sequence[Json], *, readable: bool) -> ObjectStatus:
    states: Json = one["states"]
    counts = {state: count for state, count in states.items() if count}
    health = _worst(HEALTHS, [_OF_NODE.get(state, "Unknown") for state in counts])
    if counts and set(counts) == {"Unknown"}:
        health = "Unknown"
    mine = [row for row in drift if row.get("pool") == one["name"]]
    parts = [
        f"{count} of {quantities.counted(one['nodes'], 'node')} {state}"
        for state, count in sorted(counts.items())
        if state != "Ready"
    ]
    return ObjectStatus(f"NodePool/{one['name']}", _sync(mine, readable), health, _why(parts, mine))


def _queue(
    name: str, suspended: Json, drift: Sequence[Json], now: float, *, readable: bool
) -> ObjectStatus:
    since = suspended.get(f"Queue/{name}")
    mine = [r for r in drift if r["kind"] == "queue-over-limit" and r["subject"] == name]
    parts = [f"suspended for {age(since, now)}"] if since else []
    health: Health = "Suspended" if since else "Healthy"
    return ObjectStatus(f"Queue/{name}", _sync(mine, readable), health, _why(parts, mine))


def _stray(one: Json, drift: Sequence[Json], *, readable: bool) -> ObjectStatus:
    """Return the status of a node that is in no pool and that has tasks."""
    mine = [row for row in drift if row.get("node") == one["name"]]
    waiting = quantities.counted(one["attempts"], "task")
    parts = [f"{one['state']}, in no pool, with {waiting}"]
    health = _OF_NODE.get(one["state"], "Unknown")
    return ObjectStatus(f"Node/{one['name']}", _sync(mine, readable), health, _why(parts, mine))


def _sync(mine: Sequence[Json], readable: bool) -> Sync:  # noqa: FBT001 - private, two callers
    if not readable:
        return "Unknown"
    return "OutOfSync" if mine else "Synced"


def _why(parts: Sequence[str], mine: Sequence[Json]) -> str:
    kinds = sorted({row["kind"] for row in mine})
    return "; ".join([*parts, *([f"drift: {', '.join(kinds)}"] if kinds else [])])


def age(since: str, now: float) -> str:
    """Return how long ago a moment was, in the two largest units."""
    left = max(0, int(now - times.parse_time(since)))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def shown(found: ClusterStatus) -> dict[str, Any]:
    """Return the status for scripts."""
    made: dict[str, Any] = msgspec.to_builtins(found)
    return made
