"""Views that the loop stores for the API: their names, and reading them."""

import functools
from typing import TypeVar

import msgspec

from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.store.errors import DamagedError

_T = TypeVar("_T")

#: Names of the stored views, which the loop writes; their bytes are msgpack.
QUEUES = "queues"
EXPECTED = "expected"
POOLS = "pools"
STRUCTURE = "structure"
SYNC = "sync"
REFUSED = "refused"

_QUEUES = msgspec.msgpack.Decoder(tuple[outcome.QueueUsage, ...])
_EXPECTED = msgspec.msgpack.Decoder(dict[str, outcome.ExpectedStart])
_POOLS = msgspec.msgpack.Decoder(tuple[desired.Pool, ...])
_STRUCTURE: msgspec.msgpack.Decoder[desired.Structure | None] = msgspec.msgpack.Decoder(
    desired.Structure
)
_SYNC = msgspec.msgpack.Decoder(desired.SyncStatus)
_REFUSED = msgspec.msgpack.Decoder(dict[str, str])


def cycle_views(decided: outcome.Outcome) -> dict[str, bytes]:
    """Return the views to store after a cycle, if they may have changed."""
    found = {}
    if decided.queues is not None:
        found[QUEUES] = msgspec.msgpack.encode(decided.queues)
    if decided.expected is not None:
        found[EXPECTED] = msgspec.msgpack.encode(decided.expected)
    return found


def desired_views(wanted: desired.Desired) -> dict[str, bytes]:
    """Return the views to store after a change of desired state."""
    return {
        POOLS: msgspec.msgpack.encode(tuple(wanted.structure.pools.values())),
        STRUCTURE: msgspec.msgpack.encode(wanted.structure),
        SYNC: msgspec.msgpack.encode(wanted.status),
        REFUSED: msgspec.msgpack.encode(dict(wanted.refused)),
    }


def _stored(name: str, body: bytes | None, decoder: msgspec.msgpack.Decoder[_T], empty: _T) -> _T:
    """Return the content of a stored view.

    Raises:
        DamagedError: it can't be read.
    """
    if not body:
        return empty
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise DamagedError(
            f"the stored view {name!r} can't be read ({error}); restart the controller, which "
            "writes it anew, or restore a backup with `muster restore`"
        ) from None


def stored_queues(body: bytes | None) -> tuple[outcome.QueueUsage, ...]:
    """Return the amounts of queues from their stored view."""
    return _stored(QUEUES, body, _QUEUES, ())


def stored_expected(body: bytes | None) -> dict[str, outcome.ExpectedStart]:
    """Return estimated starts of jobs from their stored view."""
    return _stored(EXPECTED, body, _EXPECTED, {})


def stored_pools(body: bytes | None) -> tuple[desired.Pool, ...]:
    """Return the pools in force from their stored view."""
    return _stored(POOLS, body, _POOLS, ())


def stored_structure(body: bytes | None) -> desired.Structure | None:
    """Return the structure in force from its stored view; None if none was stored yet."""
    return _structure(body) if body else None


@functools.lru_cache(maxsize=2)  # every submission needs it, and it seldom changes
def _structure(body: bytes) -> desired.Structure | None:
    return _stored(STRUCTURE, body, _STRUCTURE, None)


def stored_sync(body: bytes | None) -> desired.SyncStatus:
    """Return the sync status from its stored view."""
    return _sync(body) if body else desired.SyncStatus()


@functools.lru_cache(maxsize=2)  # as the structure
def _sync(body: bytes) -> desired.SyncStatus:
    return _stored(SYNC, body, _SYNC, desired.SyncStatus())


def stored_refused(body: bytes | None) -> dict[str, str]:
    """Jobs that are written but have no good version, with the problem."""
    return _stored(REFUSED, body, _REFUSED, {})
