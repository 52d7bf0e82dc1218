"""``POST /v1/jobs`` and ``POST /v1/changes``: what people want changed, on its way into git."""

from typing import Any

import msgspec
from litestar import Request, post
from litestar.datastructures import State
from litestar.params import JSONBody

from reconciler.operations.changes import remote_changes
from reconciler.operations.views import job_views
from reconciler.server import errors, services
from reconciler.server.api import envelopes
from reconciler.server.auth import authentication, authorization, csrf
from reconciler.server.changes import change_review

#: The most subjects of one change.
SUBJECTS_MAX = 5000
#: The most reasons, and names with one reason, in an error.
TOLD_MAX = 20
#: Before why a file of a job that is over does not leave.
STAYS = "its file stays: "


class ResultView(msgspec.Struct, frozen=True):
    """Result of one document or subject; ``warnings`` do not refuse a document."""

    name: str
    status: int
    message: str
    commit: str | None
    warnings: list[str] = msgspec.field(default_factory=list)


class Results(envelopes.Envelope, frozen=True, kw_only=True):
    """One result for each change, in order; all of them are pushed together."""

    items: list[ResultView]


class ChangeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs (nodes for ``drain`` and ``undrain``, digests for ``approve``, ``cluster`` or
    ``queue/NAME`` for ``suspend`` and ``resume``), and what is asked.

    ``dry_run``: nothing is written; the answer is what it would be, without a commit.
    """

    verb: remote_changes.ChangeVerb
    names: list[str]
    reason: str = ""
    dry_run: bool = False


def _results(
    service: services.Services,
    found: list[remote_changes.RemoteChangeResult],
    *,
    together: bool = True,
) -> Results:
    """Return the answer if every change was pushed; if each stands alone, refused ones are left
    out.

    Raises:
        Failure: a change was not pushed; the message has the reason of each, and the others'
            results.
    """
    failed = [one for one in found if one.status >= 400 and (together or one.status != 403)]
    bad = [one for one in failed if one.status != remote_changes.WITHDRAWN]
    if bad:
        pushed = len(found) - len(failed)
        done = f"; {pushed} of {len(found)} were pushed" if pushed else "; nothing was changed"
        raise errors.Failure(
            max(one.status for one in bad),
            _told(bad) + (done if len(found) > 1 else ""),
            problems=[job_views.problem_view(problem) for one in bad for problem in one.problems],
            retry_after_s=1.0 if any(one.status == 503 for one in bad) else None,
        )
    items = [
        ResultView(one.name, one.status, one.message, one.commit, list(one.warnings))
        for one in found
    ]
    return Results(items=items, **envelopes.head(service))


def _told(bad: list[remote_changes.RemoteChangeResult]) -> str:
    """Return why some were refused, each with its name; a common reason once."""
    names: dict[str, list[str]] = {}
    for one in bad:
        names.setdefault(one.message, []).append(one.name)
    listed = [f"{_some(of)}: {message}" for message, of in names.items()]
    more = [f"and {len(listed) - TOLD_MAX} more"] if len(listed) > TOLD_MAX else []
    return "; ".join(listed[:TOLD_MAX] + more)


def _some(names: list[str]) -> str:
    rest = len(names) - TOLD_MAX
    return ", ".join(names[:TOLD_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _submitter(state: State) -> remote_changes.Submitter:
    service: services.Services = state.services
    if service.submitter is None:
        raise errors.Failure(
            501, "this controller was started without a repository to push to; commit there instead"
        )
    return service.submitter


async def _push(state: State, asked: change_review.ChangesUnderReview) -> Results:
    """Have changes pushed that the caller may make, all or none, and the loop look at once.

    Files of jobs that are over leave each by itself: one that stays is no reason for others to.
    """
    service: services.Services = state.services
    changes, refused, wanted = await _weighing(state).weigh(asked)
    together = any(one.verb != "prune" for one in changes)
    if refused and together:
        results = iter([remote_changes.withdrawn(one.name) for one in wanted])
    else:
        results = iter(await _submitter(state).submit(wanted, together=together))
        service.pushed()
    answers = [
        remote_changes.RemoteChangeResult(
            one.name, 403, ("" if together else STAYS) + refused[position]
        )
        if position in refused
        else msgspec.structs.replace(next(results), warnings=one.warnings)
        for position, one in enumerate(changes)
    ]
    for change, result in zip(changes, answers, strict=True):
        if result.status == 403 and not together:  # else the whole answer is a refusal
            what = f"{change.verb} {change.name}"
            service.access_audit.note("Forbidden", asked.caller.name, "", what, result.message)
    return _results(service, answers, together=together)


def _weighing(state: State) -> change_review.ChangeReview:
    found: change_review.ChangeReview = state.weighing
    return found


@post(
    "/v1/jobs",
    status_code=200,
    opt={csrf.OPTION: csrf.YAML},
    responses=errors.responses(400, 401, 403, 409, 413, 415, 501, 503),
    summary="Submit jobs: YAML or JSON text of one or several documents",
)
async def submit(request: Request[Any, Any, State], state: State) -> Results:
    """Answered when they are pushed, all or none; the same document again is no error."""
    return await _submitted(request, state, dry_run=False)


@post(
    "/v1/dry-runs",
    status_code=200,
    opt={csrf.OPTION: csrf.YAML},
    responses=errors.responses(400, 401, 403, 409, 413, 415, 501, 503),
    summary="Check jobs as POST /v1/jobs would, and submit none",
)
async def rehearse(request: Request[Any, Any, State], state: State) -> Results:
    """Return what the answer of `POST /v1/jobs` would be, without a commit."""
    return await _submitted(request, state, dry_run=True)


async def _submitted(request: Request[Any, Any, State], state: State, *, dry_run: bool) -> Results:
    """Return the results of the jobs of a body. A job without an owner belongs to the token's
    person.

    A token without an address stands for no person: the sender may then name the owner.

    Raises:
        Failure: anything is wrong with any job.
    """
    _submitter(state)
    caller = authentication.identity_of(request)
    owner = caller.name if "@" in caller.name else request.query_params.get("owner", "")
    try:
        text = (await request.body()).decode()
        results = await _push(
            state, change_review.ChangesUnderReview(caller, text=text, owner=owner, dry_run=dry_run)
        )
    except UnicodeDecodeError as error:
        raise errors.Failure(400, f"the body is no UTF-8: {error}") from None
    except remote_changes.InvalidError as error:
        problems = [job_views.problem_view(problem) for problem in error.problems]
        raise errors.Failure(400, str(error), problems=problems) from None
    return results if dry_run else await _judged(state, results, "submit")


@post(
    "/v1/changes",
    status_code=200,
    responses=errors.responses(400, 401, 403, 404, 409, 413, 415, 501, 503),
    summary="Cancel, hold, release or rerun jobs; drain nodes; suspend queues",
)
async def change(
    data: JSONBody[ChangeRequest], request: Request[Any, Any, State], state: State
) -> Results:
    """Answered when it is pushed, for all names or none; `prune` for each by itself."""
    _submitter(state)
    caller = authentication.identity_of(request)
    names = authorization.canonical_names(data.verb, data.names)
    if not 1 <= len(set(names)) == len(names) <= SUBJECTS_MAX:
        raise errors.Failure(
            400, f"names: found {len(names)}, expected 1 to {SUBJECTS_MAX}, each once"
        )
    changes = [
        remote_changes.SubmittedDocument(
            data.verb, caller.name, name, reason=data.reason, dry_run=data.dry_run
        )
        for name in names
    ]
    results = await _push(state, change_review.ChangesUnderReview(caller, changes))
    return results if data.dry_run else await _judged(state, results, data.verb)


async def _judged(state: State, results: Results, verb: remote_changes.Verb) -> Results:
    """Return the same results, with a message on those that are committed and do not apply by
    themselves.
    """
    withheld = await _weighing(state).told(verb)
    if withheld:
        pending = [
            msgspec.structs.replace(one, message=withheld) if one.commit else one
            for one in results.items
        ]
        return Results(items=pending, **envelopes.head(state.services))
    return results


HANDLERS: list[Any] = [submit, rehearse, change]
