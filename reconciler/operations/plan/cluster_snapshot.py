"""Everything that a live controller knows, as bytes: what a plan is made against.

The controller's store goes in, and a file comes out that ``muster plan --against`` takes, on any
machine that has the repository: in a pipeline without a way to the controller, or next week.
``python -m reconciler.operations.plan.cluster_snapshot`` writes one to stdout, in a process of its
own, so that agents are answered as quickly while it is made.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from reconciler import __version__
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.values import times
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.client import api_client

Asked = TypeVar("Asked")

#: What a file begins with: the form, and its version.
MAGIC = b"muster-snapshot 1\n"
#: A larger one is refused, packed or unpacked.
BYTES_MAX = 256 * 2**20
UNPACKED_BYTES_MAX = 2 * 2**30
_LEVEL = 1


class SnapshotError(Exception):
    """Error: a snapshot can't be read; the message says why."""


class NotAllowedError(SnapshotError):
    """Error: the controller does not give its snapshot to this caller; the message says why."""


class Live(msgspec.Struct, frozen=True):
    """A controller's state at one moment.

    Attributes:
        muster: the version that wrote it.
        at: seconds since the epoch.
        revision: the commit of the jobs in force.
        structure_revision: the commit of the structure in force.
        observed: every record.
        pools: those in force, with what the controller's own options add to them.
        held: jobs in force whose files were deleted, because their removal is held; by name, with
            the
            digest of that removal.
    """

    muster: str
    at: float
    revision: str | None
    structure_revision: str | None
    observed: records.Observed
    pools: tuple[desired.Pool, ...] = ()
    held: dict[str, str] = {}


_DECODE_LIVE = msgspec.msgpack.Decoder(Live).decode


class DigestedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot with the digest of its bytes."""

    live: Live
    digest: str


def pack(live: Live) -> bytes:
    """Return a snapshot as bytes."""
    return MAGIC + zlib.compress(msgspec.msgpack.encode(live), _LEVEL)


def unpack(data: bytes, where: str) -> DigestedSnapshot:
    """Return a snapshot from bytes; errors name ``where`` they come from.

    Raises:
        SnapshotError: it is not a snapshot, too large, or of another version of Muster.
    """
    if not data.startswith(MAGIC):
        raise SnapshotError(
            f"{where} is no snapshot of a controller; `muster snapshot FILE` writes one"
        )
    try:
        unpacker = zlib.decompressobj()
        packed = memoryview(data)[len(MAGIC) :]
        body = unpacker.decompress(packed, UNPACKED_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise SnapshotError(f"{where} unpacks to more than {UNPACKED_BYTES_MAX} bytes")
        live = _DECODE_LIVE(body)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise SnapshotError(
            f"{where} can't be read by this version of Muster, {__version__} ({error})"
        ) from None
    return DigestedSnapshot(live, hashlib.sha256(data).hexdigest())


def read(path: Path) -> DigestedSnapshot:
    """Return a snapshot from a file.

    Raises:
        SnapshotError: it can't be read.
    """
    try:
        if path.stat().st_size > BYTES_MAX:
            raise SnapshotError(f"{path} has more than {BYTES_MAX} bytes")
        return unpack(path.read_bytes(), str(path))
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror or error}") from None


def fetch(api: api_client.ApiClient, meanwhile: Callable[[], object] | None = None) -> bytes:
    """Return a snapshot of a running controller.

    Args:
        api: the controller.
        meanwhile: called while it makes one.

    Raises:
        ApiError: there is no answer, or a refusal.
    """
    return api.data("/v1/snapshot/records", meanwhile)


def find(
    against: str | None,
    endpoint: Callable[[str | None], endpoints.Endpoint],
    meanwhile: Callable[[], object] | None = None,
) -> DigestedSnapshot:
    """Return the snapshot of a file, of the controller at a URL, or of the configured one.

    Args:
        against: a URL, a file, or None.
        endpoint: returns the controller of a URL, or the configured one.
        meanwhile: called while a controller makes it.

    Raises:
        NotAllowedError: the controller does not give it to this caller.
        SnapshotError: it can't be fetched or read.
    """
    if against is not None and "://" not in against:
        return read(Path(against))

    def asked(api: api_client.ApiClient) -> DigestedSnapshot:
        return unpack(fetch(api, meanwhile), api.url)

    return _ask(against, endpoint, asked)


def standing(
    against: str | None, endpoint: Callable[[str | None], endpoints.Endpoint]
) -> tuple[str | None, str | None]:
    """Return the revisions of jobs and structure in force, for which no snapshot is needed.

    Args:
        against: a URL, or None.
        endpoint: as for :func:`find`.

    Raises:
        SnapshotError: the controller can't be reached.
    """

    def asked(api: api_client.ApiClient) -> tuple[str | None, str | None]:
        sync = api.get("/v1/sync")["sync"]
        return sync["jobsRevision"], sync["structureRevision"]

    return _ask(against, endpoint, asked)


def _ask(
    against: str | None,
    endpoint: Callable[[str | None], endpoints.Endpoint],
    ask: Callable[[api_client.ApiClient], Asked],
) -> Asked:
    try:
        where = endpoint(against)
    except endpoints.EndpointError as error:
        raise SnapshotError(str(error)) from None
    from reconciler.operations.client import api_client  # noqa: PLC0415 - without a controller none is needed

    try:
        with api_client.ApiClient(where) as api:
            return ask(api)
    except api_client.ApiError as error:
        kind = NotAllowedError if error.refused else SnapshotError
        raise kind(str(error)) from None
    except endpoints.EndpointError as error:
        raise SnapshotError(str(error)) from None


def age_s(live: Live, now: float) -> float:
    """Return the age of a snapshot in seconds."""
    return max(0.0, now - live.at)


def shown(live: Live) -> str:
    """Return when a snapshot was taken, for a message."""
    return times.format_time(live.at)
