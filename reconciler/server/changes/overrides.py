"""``/v1/overrides``: what is cancelled, drained and suspended while git can't take it.

A request is first tried as a commit. Only what git does not take becomes an override, which the
loop journals and stores; the answer comes when it is durable.
"""

import asyncio
import secrets
import time
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, Parameter

from reconciler.model.state import records
from reconciler.operations.audit import access_audit
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import job_views, view_types
from reconciler.server import errors
from reconciler.server.api import envelopes, field_choice, queries
from reconciler.server.auth import authentication, authorization, tokens
from reconciler.server.changes import change_routes, submission_withdrawal
from reconciler.server.changes.override_commits import OverrideCommits
from reconciler.server.loop_link import LinkClient
from reconciler.server.override_requests import OverrideRequests
from reconciler.server.server_store import ServerStore

#: Default and longest duration of an override.
FOR_S_DEFAULT = 4 * 3600
FOR_S_MAX = records.OVERRIDE_S_MAX
REASON_CHARACTERS_MAX = 1000
#: The kind of override of each verb, and the verb of the permission to end it.
_UNDOING: dict[str, tuple[records.StoredVerb, remote_changes.Verb]] = {
    "cancel": ("cancel", "cancel"),
    "drain": ("drain", "undrain"),
    "suspend": ("suspend", "resume"),
    "submit": ("submit", "submit"),
}


class OverrideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for overrides, and how long they last unless git agrees before.

    ``names`` are jobs to cancel, nodes to drain, or ``cluster`` and ``queue/NAME`` to suspend.
    """

    verb: records.OverrideVerb
    names: list[str]
    reason: str
    for_s: int = FOR_S_DEFAULT


class OverrideResult(msgspec.Struct, frozen=True):
    """Result of one subject: the ``commit`` if git took it, else the ``override``.

    Both, if git took a drain or a suspension and the structure there is held or refused: the
    override applies until it does.
    """

    name: str
    commit: str | None
    override: view_types.OverrideView | None


class OverrideResults(envelopes.Envelope, frozen=True, kw_only=True):
    """One result for each subject, in order; all of them are durable."""

    items: list[OverrideResult]


@get("/v1/overrides", sync_to_thread=True, responses=queries.FAILS, summary="Overrides in force")
def overrides(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> envelopes.Overrides:
    """Return overrides that are not committed, oldest first."""
    signed = authorization.are_signed(store.reader)
    found = [job_views.override_view(one, signed=signed) for one in store.reader.overrides()]
    return field_choice.listed(envelopes.Overrides, found, link.published, fields)


@post(
    "/v1/overrides",
    status_code=200,
    request_max_body_size=change_routes.CHANGE_BYTES_MAX,
    responses=errors.responses(400, 401, 403, 404, 409, 413, 415, 503),
    summary="Cancel jobs, drain nodes or suspend queues though git can't take it",
)
async def put_overrides(
    *,
    data: JSONBody[OverrideRequest],
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    access_log: NamedDependency[access_audit.AccessAudit],
    override_requests: NamedDependency[OverrideRequests],
    override_commits: NamedDependency[OverrideCommits],
) -> OverrideResults:
    """Committed where git can be reached after all, else an override that expires."""
    caller = authentication.identity_of(request)
    owner = caller.name
    change_routes.require_count(data.names, records.OVERRIDES_MAX)
    data = msgspec.structs.replace(data, names=authorization.canonical_names(data.verb, data.names))
    _check(data)
    asked_for = [remote_changes.SubmittedDocument(data.verb, owner, name) for name in data.names]
    denied = await sync_to_thread(authorization.refusals, store.reader, caller, asked_for)
    if denied:
        message = "; ".join(f"{data.names[at]}: {why}" for at, why in list(denied.items())[:20])
        raise errors.Failure(403, f"{message}; nothing was done")
    what = f"{data.verb} {', '.join(data.names[:20])}: {data.reason}"
    authentication.note(access_log, "OverrideChanged", request, what)
    in_vain = await sync_to_thread(override_commits.is_in_vain, asked_for)
    # what no commit of the controller's could do is an override until a person commits it
    commits = (
        {} if in_vain else await override_commits.commit(data.verb, data.names, data.reason, caller)
    )
    # all but a cancel is structure: committed, it waits with all of that until it is mended
    pending = data.verb != "cancel" and await sync_to_thread(
        queries.is_structure_refused, store.reader
    )
    now = time.time()
    requested = {
        name: records.Override(
            *(data.verb, name, data.reason, owner, now, now + data.for_s),
            commit=commits.get(name) or "",
        )
        for name in data.names
        if pending or name not in commits
    }
    answers = await asyncio.gather(
        *(
            override_requests.ask(records.PutOverride(secrets.token_hex(8), one))
            for one in requested.values()
        )
    )
    refused = [f"{name}: {why}" for name, why in zip(requested, answers, strict=True) if why]
    if refused:
        done = len(data.names) - len(refused)
        raise errors.Failure(409, "; ".join(refused[:20]) + f"; {done} of {len(data.names)} done")
    signed = await sync_to_thread(authorization.are_signed, store.reader)
    results = [
        OverrideResult(
            name,
            commits.get(name),
            job_views.override_view(requested[name], signed=signed) if name in requested else None,
        )
        for name in data.names
    ]
    return OverrideResults(items=results, **envelopes.head(link.published))


@delete(
    "/v1/overrides/{verb:str}/{name:path}",
    status_code=200,
    responses=errors.responses(400, 401, 403, 404, 503),
    summary="End an override before its time",
)
async def clear_override(
    *,
    verb: Annotated[str, Parameter(pattern="^(cancel|drain|suspend|submit)$")],
    name: FromPath[str],
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    access_log: NamedDependency[access_audit.AccessAudit],
    override_requests: NamedDependency[OverrideRequests],
) -> OverrideResults:
    """End an override. A node or queue may work again; a cancelled run stays so: a run happens
    once.
    """
    caller = authentication.identity_of(request)
    owner = caller.name
    kind, undoing = _UNDOING[verb]
    (name,) = authorization.canonical_names(undoing, [name.removeprefix("/")])
    if kind == "submit":
        await sync_to_thread(_require_withdrawable, store, caller, name)
    else:
        document = remote_changes.SubmittedDocument(undoing, owner, name)
        denied = await sync_to_thread(authorization.refusals, store.reader, caller, [document])
        if denied:
            raise errors.Failure(403, f"{name}: {denied[0]}; nothing was done")
    told = f"ends {kind} {name}"
    authentication.note(access_log, "OverrideChanged", request, told)
    why = await override_requests.ask(
        records.ClearOverride(secrets.token_hex(8), kind, name, owner)
    )
    if why:
        raise errors.Failure(404, f"{why}; `muster overrides` lists those in force")
    return OverrideResults(
        items=[OverrideResult(name, None, None)], **envelopes.head(link.published)
    )


def _require_withdrawable(store: ServerStore, caller: tokens.Caller, name: str) -> None:
    """Refuse to withdraw a submission of somebody else, whose job the caller may not cancel.

    Raises:
        Failure: 403, with whose it is.
    """
    reader = store.reader
    for one in reader.overrides():
        if one.key == ("submit", name):
            why = submission_withdrawal.why_not(reader, caller, one)
            if why:
                raise errors.Failure(403, f"{name}: {why}; nothing was done")


def _check(data: OverrideRequest) -> None:
    """Refuse what can't become an override.

    Raises:
        Failure: what is wrong, and what was expected.
    """
    change_routes.require_count(data.names, records.OVERRIDES_MAX)
    if not data.reason.strip() or len(data.reason) > REASON_CHARACTERS_MAX:
        raise errors.Failure(
            400,
            f"reason: found {len(data.reason)} characters, expected 1 to {REASON_CHARACTERS_MAX}: "
            "an override needs a reason",
        )
    if not 1 <= data.for_s <= FOR_S_MAX:
        raise errors.Failure(
            400,
            f"for_s: found {data.for_s} s, expected 1 to {FOR_S_MAX} s (7 days): what lasts "
            "longer belongs in git",
        )


HANDLERS: list[Any] = [overrides, put_overrides, clear_override]
