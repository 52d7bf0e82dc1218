"""Requests that go on to the loop: to look at the repository, and to adopt jobs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import JSONBody

from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state, records
from reconciler.model.state.states import AttemptState
from reconciler.model.values import suggestions, times
from reconciler.server import errors
from reconciler.server.auth import authentication, hook_signatures
from reconciler.server.loop_link import LinkClient, LinkDownError
from reconciler.server.repository_hints import RepositoryHints
from reconciler.server.server_store import ServerStore

#: A job that runs, of which other tasks may have run.
IN_PART = "runs in part"


class Hooked(msgspec.Struct, frozen=True):
    """Result of a hint: True if the loop gets it at once; otherwise it got one just now."""

    told: bool


@post(
    "/v1/hooks/git",
    opt={authentication.OPTION: None},
    status_code=202,
    request_max_body_size=None,
    responses=errors.responses(401, 403, 413, 503),
    summary="The repository may have changed: from a forge with its signature, or with a token",
)
async def git_hook(
    request: Request[Any, Any, Any],
    hints: NamedDependency[RepositoryHints],
    gate: NamedDependency[authentication.Authenticator],
    verifier: NamedDependency[hook_signatures.HookVerifier],
) -> Hooked:
    """Tell the loop to read the repository. What the body says is not read: it is a hint."""
    if verifier.is_signed(request.headers) and "authorization" not in request.headers:
        if not await verifier.is_valid(request.headers, request.stream()):
            await gate.refuse_signature(request)
    else:
        await gate.admit(request, authentication.USERS)
    try:
        return Hooked(told=hints.hint())
    except LinkDownError as error:
        raise errors.Failure(503, str(error), retry_after_s=1.0) from None


class AdoptRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to run after the store was lost; ``everything`` means all.

    ``trust`` says which nodes are believed without a proof: ``all``, ``none``, or a list of nodes.
    """

    names: list[str] = []
    everything: bool = False
    trust: str = ""


def require_written(names: Sequence[str], written: Sequence[str]) -> None:
    """Refuse to adopt jobs that are not in the repository: by a slip in a name all the others
    would count as done, and nothing takes that back."""
    known = set(written)
    unknown = [name for name in names if name not in known]
    if unknown:
        hints = suggestions.hint(unknown[0], written)
        raise errors.Failure(
            400,
            f"nothing was adopted: found the names {', '.join(unknown)}, expected those of jobs "
            f"that wait for it (`muster jobs` lists them){hints}",
        )


@post(
    "/v1/adopt",
    opt={authentication.OPTION: frozenset()},
    status_code=202,
    responses=errors.responses(400, 401, 403, 409, 415, 503),
    summary="After the store was lost: which jobs are new; the others count as done",
)
async def adopt(
    data: JSONBody[AdoptRequest],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
) -> Hooked:
    """Only while the loop waits to be told."""
    state = adoption_state.decode(await sync_to_thread(store.reader.view, adoption_state.VIEW))
    if why := adoption_state.why_not(state, time.time()):
        raise errors.Failure(409, why)
    require_written(data.names, list(state.awaiting))
    try:
        adoption_state.trusted_nodes(state, data.trust)
    except adoption_state.DistrustError as error:
        raise errors.Failure(409, str(error)) from None
    try:
        link.adopt(loop_messages.Adopt(tuple(data.names), data.everything, data.trust))
    except LinkDownError as error:
        raise errors.Failure(503, str(error), retry_after_s=1.0) from None
    return Hooked(told=True)


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that runs or waits to be adopted, as far as the store knows it.

    ``submitted`` is RFC 3339, by this store: after the loss of one, when this one saw it first.
    ``why`` is what is known of it: ``runs``, or why it waits.
    """

    name: str
    queue: str
    owner: str
    submitted: str | None
    why: str


class AdoptionView(msgspec.Struct, frozen=True):
    """List of what waits to be adopted.

    Attributes:
        pending: True until somebody has chosen.
        why: why the store may not know all that was run.
        blocked: why nobody may choose yet; empty: somebody may.
        awaiting: what is known of each job that waits, by name.
        alive: jobs that run on nodes and were taken over.
        unheard: nodes that were not heard since the controller began.
        unproven: tasks that nothing proves to be assigned to the node that reports them.
        jobs: those that run and those that wait, with what is known of them.
        ran: runs without a file in git that the store did not know; none of them starts again.
        leads: False while another controller leads, as ``blocked`` says, or may do so.
    """

    pending: bool
    why: str
    blocked: str
    awaiting: dict[str, str]
    alive: list[str]
    unheard: list[str]
    unproven: list[adoption_state.ShownUnproven] = []
    jobs: list[WaitingJob] = []
    ran: list[WaitingJob] = []
    leads: bool = True


@get(
    "/v1/adopt",
    opt={authentication.OPTION: authentication.USERS},
    responses=errors.responses(401, 403, 503),
    summary="After a restore or the loss of the store: what runs, and which jobs may have run",
)
async def adoption(store: NamedDependency[ServerStore]) -> AdoptionView:
    """Return what ``muster adopt`` lists."""
    return await sync_to_thread(_adoption, store)


def _adoption(store: ServerStore) -> AdoptionView:
    state = adoption_state.decode(store.reader.view(adoption_state.VIEW))
    return AdoptionView(
        pending=state.pending,
        why=state.why,
        blocked=adoption_state.why_not(state, time.time()) if state.pending else "",
        awaiting=state.awaiting,
        alive=list(state.alive),
        unheard=list(state.unheard),
        unproven=list(state.unproven),
        jobs=list(_waiting(store, dict.fromkeys(state.alive, "runs") | state.awaiting)),
        ran=[_ran(one) for one in state.ephemeral if one.job is None],
        leads=not (state.pending and state.blocked),
    )


def _ran(one: adoption_state.EphemeralRun) -> WaitingJob:
    """Return what a note in git says of a run without a file there."""
    known = f"{one.state}, not in git" if one.state else "may have run, not in git"
    known += f": {one.doubt}" if one.doubt else ""
    return WaitingJob(one.name, one.queue, one.owner, times.format_time(one.submitted_at), known)


def _waiting(store: ServerStore, whys: Mapping[str, str]) -> Iterator[WaitingJob]:
    """Yield what the store knows of jobs, those of one queue and owner together."""
    known = store.reader.newest_states(whys)
    found = {name: store.reader.run(known[name][0]) for name in whys if name in known}
    alive = store.reader.attempts_alive() if whys else []
    runs = {one.job_key for one in alive if one.state is not AttemptState.UNKNOWN}
    for name in sorted(whys, key=lambda one: _place(one, found.get(one))):
        record = found.get(name)
        why = whys[name]
        if record is not None and why == adoption_state.MAY_HAVE_RUN and record.key in runs:
            why = IN_PART
        yield WaitingJob(
            name=name,
            queue=record.spec.queue if record else "",
            owner=record.spec.owner if record else "",
            submitted=times.format_time(record.submitted_at) if record else None,
            why=why,
        )


def _place(name: str, record: records.JobRecord | None) -> tuple[str, str, str]:
    return (record.spec.queue, record.spec.owner, name) if record else ("", "", name)


HANDLERS = [git_hook, adopt, adoption]
