"""``POST /v1/jobs`` and ``POST /v1/changes``: what people want changed, on its way into git."""

from typing import Any, Literal

import msgspec
from litestar import Request, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from reconciler.model.values import index_ranges
from reconciler.operations.changes import change_requests, remote_changes
from reconciler.operations.views import job_views
from reconciler.server import errors
from reconciler.server.auth import authentication, authorization, csrf
from reconciler.server.changes import change_review
from reconciler.server.changes.change_intake import ChangeIntake, Results

#: The most subjects of one change.
SUBJECTS_MAX = 5000
#: The most bytes of one change, checked before any of it is read.
CHANGE_BYTES_MAX = 2 * 2**20


def require_count(names: list[str], most: int) -> None:
    """Refuse subjects that are too many or none, before anything is done with each.

    Raises:
        Failure: 400, with what was found and expected.
    """
    if not 1 <= len(names) <= most or len(set(names)) < len(names):
        raise errors.Failure(400, f"names: found {len(names)}, expected 1 to {most}, each once")


class ChangeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs (nodes for ``drain`` and ``undrain``, digests for ``approve``, ``cluster`` or
    ``queue/NAME`` for ``suspend`` and ``resume``), and what is asked.

    ``dry_run``: nothing is written; the answer is what it would be, without a commit. ``fresh``:
    jobs that run again do not go on from their earlier checkpoints. ``elements``: of jobs that are
    arrays, by name, those that are meant, such as `1,3-5`; without it the whole job.
    """

    verb: remote_changes.ChangeVerb
    names: list[str]
    reason: str = ""
    dry_run: bool = False
    fresh: bool = False
    elements: dict[str, str] = {}


@post(
    "/v1/jobs",
    status_code=200,
    opt={csrf.OPTION: csrf.YAML},
    responses=errors.responses(400, 401, 403, 409, 413, 415, 501, 503),
    summary="Submit jobs: YAML or JSON text of one or several documents",
)
async def submit(request: Request[Any, Any, Any], intake: NamedDependency[ChangeIntake]) -> Results:
    """Answered when they are pushed, all or none; the same document again is no error."""
    return await _submitted(request, intake, dry_run=False)


@post(
    "/v1/dry-runs",
    status_code=200,
    opt={csrf.OPTION: csrf.YAML},
    responses=errors.responses(400, 401, 403, 409, 413, 415, 501, 503),
    summary="Check jobs as POST /v1/jobs would, and submit none",
)
async def rehearse(
    request: Request[Any, Any, Any], intake: NamedDependency[ChangeIntake]
) -> Results:
    """Return what the answer of `POST /v1/jobs` would be, without a commit."""
    return await _submitted(request, intake, dry_run=True)


async def _submitted(
    request: Request[Any, Any, Any], intake: ChangeIntake, *, dry_run: bool
) -> Results:
    """Return the results of the jobs of a body. A job without an owner belongs to the token's
    person.

    A token without an address stands for no person: the sender may then name the owner.

    Raises:
        Failure: anything is wrong with any job.
    """
    ephemeral = _ephemeral_of(request)
    if ephemeral == "no":
        intake.require_repository()
    caller = authentication.identity_of(request)
    owner = caller.name if "@" in caller.name else request.query_params.get("owner", "")
    try:
        text = (await request.body()).decode()
        results = await intake.push(
            change_review.ChangesUnderReview(
                caller, text=text, owner=owner, dry_run=dry_run, ephemeral=ephemeral
            )
        )
    except UnicodeDecodeError as error:
        raise errors.Failure(400, f"the body is no UTF-8: {error}") from None
    except remote_changes.InvalidError as error:
        problems = [job_views.problem_view(problem) for problem in error.problems]
        raise errors.Failure(400, str(error), problems=problems) from None
    is_settled = dry_run or all(one.ephemeral for one in results.items)
    return results if is_settled else await intake.judged(results, "submit")


def _ephemeral_of(request: Request[Any, Any, Any]) -> Literal["no", "preferred", "required"]:
    """Return whether the jobs of a request begin without a file in git.

    Raises:
        Failure: 400, with what was found and expected.
    """
    said = request.query_params.get("ephemeral", "no")
    if said == "preferred":
        return "preferred"
    if said in ("no", "required"):
        return "required" if said == "required" else "no"
    raise errors.Failure(
        400, f"ephemeral: found {said[:40]!r}, expected one of no, preferred, required"
    )


@post(
    "/v1/changes",
    status_code=200,
    request_max_body_size=CHANGE_BYTES_MAX,
    responses=errors.responses(400, 401, 403, 404, 409, 413, 415, 501, 503),
    summary="Cancel, hold, release or rerun jobs; drain nodes; suspend queues",
)
async def change(
    data: JSONBody[ChangeRequest],
    request: Request[Any, Any, Any],
    intake: NamedDependency[ChangeIntake],
) -> Results:
    """Answered when it is pushed, for all names or none; `prune` for each by itself."""
    intake.require_repository()
    caller = authentication.identity_of(request)
    require_count(data.names, SUBJECTS_MAX)
    names = authorization.canonical_names(data.verb, data.names)
    require_count(names, SUBJECTS_MAX)
    _check_elements(data)
    changes = [
        remote_changes.SubmittedDocument(
            data.verb,
            caller.name,
            name,
            reason=data.reason,
            dry_run=data.dry_run,
            fresh=data.fresh and data.verb == "rerun",
            elements=data.elements.get(name, ""),
        )
        for name in names
    ]
    results = await intake.push(change_review.ChangesUnderReview(caller, changes))
    return results if data.dry_run else await intake.judged(results, data.verb)


def _check_elements(data: ChangeRequest) -> None:
    """Refuse elements that no verb, name or array can have.

    Raises:
        Failure: 400, with what was found and expected.
    """
    if data.elements and data.verb not in change_requests.DONE_TO_ELEMENTS:
        expected = ", ".join(change_requests.DONE_TO_ELEMENTS)
        raise errors.Failure(400, f"elements: found {data.verb}, expected one of {expected}")
    if unknown := sorted(data.elements.keys() - set(data.names)):
        raise errors.Failure(400, f"elements: found {unknown[0]!r}, expected a name of this change")
    for name, text in data.elements.items():
        if not text:
            raise errors.Failure(400, f"elements of {name}: expected {index_ranges.EXPECTED}")
        try:
            index_ranges.parse(text)
        except index_ranges.IndexRangeError as error:
            raise errors.Failure(400, f"elements of {name}: {error}") from None


HANDLERS: list[Any] = [submit, rehearse, change]
