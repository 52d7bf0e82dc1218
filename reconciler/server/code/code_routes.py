"""``/v1/code/DIGEST``: packs come from people, and go to nodes for attempts that they were given.

A person learns only what they have sent themselves, and reads nothing. A node names an attempt that
it has, never a pack.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, put
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from reconciler.model.observed import job_code
from reconciler.server import errors
from reconciler.server.api import envelopes
from reconciler.server.auth import authentication, authorization, tokens
from reconciler.server.code import pack_store, pack_upkeep
from reconciler.server.loop_link import LinkClient
from reconciler.server.process import body_lengths
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreReader

#: How long a sender may be silent, and all of a pack may take: less than a connection has.
SILENCE_S, UPLOAD_S = 30.0, 100.0
AGAIN_S = 5.0
#: How much of a pack is written at once.
BLOCK_BYTES = 2**20

_Owner = Annotated[
    str, QueryParameter(name="owner", description="Owner of the job that it is for.")
]


class CodeView(msgspec.Struct, frozen=True):
    """A pack that the caller has sent."""

    digest: str


class CodeEnvelope(envelopes.Envelope, frozen=True, kw_only=True):
    """Envelope of one pack."""

    code: CodeView


@get(
    "/v1/code/{digest:str}",
    sync_to_thread=True,
    responses=errors.responses(400, 401, 403, 404, 503),
    summary="Whether one has sent a pack of code",
)
def look_up_code(
    *,
    digest: FromPath[str],
    request: Request[Any, Any, Any],
    packs: NamedDependency[pack_store.PackStore],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    owner: _Owner = "",
) -> CodeEnvelope:
    """Answer 404 if the caller has not sent it, whoever else has."""
    _require_digest(digest)
    caller = authentication.identity_of(request)
    people = people_of(caller, owner)
    _require_rights(store.reader, caller, people)
    if not packs.is_there(digest, people):
        raise errors.Failure(404, f"you have not sent the code {digest}")
    return CodeEnvelope(code=CodeView(digest), **envelopes.head(link.published))


@put(
    "/v1/code/{digest:str}",
    request_max_body_size=job_code.PACK_BYTES_MAX,
    responses=errors.responses(400, 401, 403, 411, 413, 429, 503),
    summary="Send a pack of code for jobs: a tar file, by its SHA-256",
)
async def send_code(
    *,
    digest: FromPath[str],
    request: Request[Any, Any, Any],
    packs: NamedDependency[pack_store.PackStore],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    owner: _Owner = "",
) -> CodeEnvelope:
    """Take a pack of somebody who may submit jobs; it is kept while a job names it."""
    _require_digest(digest)
    caller = authentication.identity_of(request)
    people = people_of(caller, owner)
    size = body_lengths.declared(request, job_code.PACK_BYTES_MAX, "a pack of code")
    await sync_to_thread(_require_rights, store.reader, caller, people)
    pieces, sent = request.stream(), pack_store.SentPack(digest, caller.name, people, size)
    try:
        try:
            await _receive(packs, sent, pieces)
        except pack_store.PackRoomError:  # before anything was read
            named = await sync_to_thread(pack_upkeep.named_packs, store.reader)
            await sync_to_thread(packs.make_room, people[0], size, named)
            await _receive(packs, sent, pieces)
    except (pack_store.PackRoomError, pack_store.PackTurnError) as problem:
        raise errors.Failure(429, str(problem), retry_after_s=AGAIN_S) from None
    except pack_store.PackError as problem:
        raise errors.Failure(400, str(problem)) from None
    except TimeoutError:
        raise errors.Failure(
            400,
            f"the code did not come in time: found {SILENCE_S:g} s without any of it, or more than "
            f"{UPLOAD_S:g} s in all. To fix: pack less (.musterignore), or send it from nearer",
        ) from None
    except OSError as problem:
        raise errors.Failure(503, f"the code can't be kept: {problem.strerror}") from None
    return CodeEnvelope(code=CodeView(digest), **envelopes.head(link.published))


async def _receive(
    packs: pack_store.PackStore, sent: pack_store.SentPack, pieces: AsyncIterator[bytes]
) -> None:
    """Write what comes, piece by piece."""
    receiving = packs.receive(sent)
    incoming = await sync_to_thread(receiving.__enter__)
    problem: BaseException | None = None
    try:
        async with asyncio.timeout(UPLOAD_S):
            async for block in in_blocks(pieces):
                await sync_to_thread(incoming.add, block)
    except BaseException as error:  # whatever it is, nothing of the pack may stay
        problem = error
        raise
    finally:
        kind = None if problem is None else type(problem)
        await asyncio.shield(sync_to_thread(receiving.__exit__, kind, problem, None))


async def in_blocks(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what comes in larger blocks, so that few turns of a thread are needed.

    Raises:
        TimeoutError: nothing came for too long.
    """
    block = b""
    while True:
        async with asyncio.timeout(SILENCE_S):
            piece = await anext(pieces, None)
        block += piece or b""
        if piece is None or len(block) >= BLOCK_BYTES:
            yield block
            block = b""
        if piece is None:
            return


@get(
    "/v1/nodes/{node:str}/code/{attempt:str}/{offset:int}",
    sync_to_thread=True,
    opt={authentication.OPTION: authentication.NODES},
    include_in_schema=False,
)
def node_code(
    *,
    node: FromPath[str],
    attempt: FromPath[str],
    offset: FromPath[int],
    packs: NamedDependency[pack_store.PackStore],
    store: NamedDependency[ServerStore],
) -> Response[bytes]:
    """Answer with a piece of the pack of an attempt that a node has; it ends with a short one."""
    digest, owner = _code_of(store.reader, node, attempt)
    try:
        piece = packs.piece(digest, owner, max(0, offset))
    except pack_store.PackError as problem:
        raise errors.Failure(404, str(problem)) from None
    except OSError as problem:
        why = f"the code {digest} can't be read on the controller: {problem.strerror}"
        raise errors.Failure(503, why, retry_after_s=AGAIN_S) from None
    return Response(piece, media_type="application/octet-stream")


def _code_of(reader: StoreReader, node: str, attempt: str) -> tuple[str, str]:
    """Return the digest of the pack of an attempt, and the owner of its job.

    Raises:
        Failure: 404, the node has no such attempt, or it has no pack.
        StoreError: the store can't be read.
    """
    alive = {one.id: one for one in reader.attempts_alive(node)}
    found = alive.get(attempt)
    job = None if found is None else reader.run(found.job_key)
    if job is None or not job.spec.code.digest:
        raise errors.Failure(404, f"node {node} has no attempt {attempt[:100]!r} with a pack")
    return job.spec.code.digest, job.spec.owner


def _require_digest(digest: str) -> None:
    if not pack_store.is_digest(digest):
        raise errors.Failure(400, f"found {digest[:80]!r}, expected sha256: and 64 digits in hex")


def people_of(caller: tokens.Caller, owner: str) -> tuple[str, ...]:
    """Return the owners of jobs that a pack may be for: as with jobs that the token submits.

    A token without an address stands for no person: its sender names the owner of the job, as
    far as Access lets it. An admin's jobs may be those of another, by a commit in a clone.
    """
    if "@" not in caller.name:
        return (owner,)
    others = {owner} - {"", caller.name} if caller.role == authorization.ADMIN else ()
    return (caller.name, *others)


def _require_rights(reader: StoreReader, caller: tokens.Caller, people: tuple[str, ...]) -> None:
    """Do nothing if a caller may have jobs, and those of the owners of a pack.

    Raises:
        Failure: 403, with the rule that refuses it.
        StoreError: the store can't be read.
    """
    if caller.role == authorization.ADMIN:
        return
    view = authorization.Once(reader)
    why = authorization.why_no_job(view, caller.name)
    for owner in people:
        why = why or authorization.why_not_owner(view, caller.name, owner)
    if why:
        raise errors.Failure(403, why)


HANDLERS: list[Any] = [look_up_code, send_code, node_code]
