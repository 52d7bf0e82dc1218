"""Parameters that choose jobs of a list, or a run and elements of one job, as text and values."""

import fnmatch
from typing import Annotated, NamedTuple

from litestar.params import Parameter, QueryParameter

from reconciler.model.state import records, states
from reconciler.model.values import index_ranges, times
from reconciler.operations.views import array_views, submission_views, view_types
from reconciler.server import errors
from reconciler.server.auth import read_rights, tokens
from reconciler.store import StoreReader, statements

#: States of jobs that have ended, as the store has them.
_ENDED = frozenset(one.value for one in states.FINISHED_JOB_STATES)
#: The most patterns of names in one request.
PATTERNS_MAX = 64
#: The most elements of an array in one request.
ELEMENTS_MAX = 1000
#: The most elements of an array whose newest tries are asked for without naming them.
LEADING_MAX = 100

Labels = Annotated[
    list[str] | None, Parameter(max_items=16, description="KEY=VALUE; all must be there.")
]
Names = Annotated[
    list[str] | None,
    QueryParameter(
        name="name",
        max_items=PATTERNS_MAX,
        description="Names; `*` and `?` are wildcards. Jobs that have any of them.",
    ),
]
EndedSince = Annotated[
    str | None,
    QueryParameter(
        name="endedSince",
        max_length=64,
        description="Only jobs that have not ended, or not before this time.",
    ),
]
Key = Annotated[str | None, Parameter(max_length=300, description="Only the run of this `key`.")]
Elements = Annotated[
    str | None, Parameter(max_length=2000, description="Only attempts at these, as `0-3,7`.")
]
Element = Annotated[
    int | None, Parameter(ge=0, le=2**31, description="Only attempts at this element.")
]
Leading = Annotated[
    int | None,
    Parameter(
        ge=1,
        le=LEADING_MAX,
        description="Of an array only the newest try at so many elements, failed ones first.",
    ),
]
Mine = Annotated[bool, Parameter(description="Only jobs of the caller.")]


def parse_labels(labels: list[str] | None) -> dict[str, str]:
    """Return labels by key, from ``KEY=VALUE`` each.

    Raises:
        Failure: one is something else.
    """
    parsed = {}
    for label in labels or []:
        key, equals, value = label.partition("=")
        if not equals or not key or "\n" in label or "\0" in label:
            raise errors.Failure(400, f"label: found {label!r}, expected KEY=VALUE")
        parsed[key] = value
    return parsed


def parse_ended_since(written: str | None) -> float | None:
    """Return a time in seconds since the epoch.

    Raises:
        Failure: it is none.
    """
    if written is None:
        return None
    try:
        return times.parse_time(written)
    except ValueError:
        raise errors.Failure(
            400, f"endedSince: found {written!r}, expected a time such as {times.EXAMPLE}"
        ) from None


def has_name(name: str, patterns: list[str] | None) -> bool:
    """Return True if a name is asked for, as the store's readers judge it."""
    return not patterns or any(
        fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns
    )


def submitting(
    reader: StoreReader, choice: statements.JobChoice, rights: read_rights.ReadRights
) -> list[view_types.JobView]:
    """Return the jobs of a choice that wait for git, as far as the caller may read them.

    One whose name has a job that has not ended, which has no file in git, is left out: that job is
    its row.

    Raises:
        StoreError: the store can't be read.
    """
    if choice.states:  # theirs is none of a record
        return []
    found = submission_views.submitting_jobs(reader.overrides())
    if not found:
        return []
    known = reader.newest_states([one.name for one in found])
    alive = {name for name, (_, state) in known.items() if state not in _ENDED}
    return [
        rights.job(one)
        for one in found
        if one.name not in alive
        and choice.queue in (None, one.queue)
        and choice.owner in (None, one.owner)
        and one.name.startswith(choice.name_prefix or "")
        and has_name(one.name, list(choice.patterns))
        and choice.labels.items() <= one.labels.items()
    ]


def owner_of(caller: tokens.Caller, owner: str | None, *, mine: bool) -> str | None:
    """Return the owner whose jobs are asked for; None: those of all.

    Raises:
        Failure: the caller's are asked for, and the token stands for no person.
    """
    if not mine:
        return owner
    if "@" not in caller.name:
        raise errors.Failure(
            400,
            f"mine: the token of {caller.name} stands for no person with an address. "
            "To fix: name the owner",
        )
    return caller.name


def parse_elements(written: str) -> tuple[int, ...]:
    """Return the elements of an array that are asked for.

    Raises:
        Failure: 400, the text is not a set of indexes.
    """
    try:
        return index_ranges.parse(written)[:ELEMENTS_MAX]
    except index_ranges.IndexRangeError as error:
        raise errors.Failure(400, f"elements: {error}") from None


class TryChoice(NamedTuple):
    """A choice of attempts at the tasks of a run.

    Attributes:
        element: only these of an array.
        elements: those, as text.
        leading: the newest tries at so many elements of an array, failed ones first.
        limit: the most attempts.
    """

    element: int | None
    elements: str | None
    leading: int | None
    limit: int


def find_tries(
    reader: StoreReader, record: records.JobRecord, choice: TryChoice
) -> tuple[list[records.AttemptRecord], int]:
    """Return attempts at a run, and the number of elements whose tries were not asked for.

    Raises:
        Failure: 400, the elements are no set of indexes.
    """
    is_some = choice.element is not None or choice.elements is not None
    if choice.leading is not None and record.spec.array_count is not None and not is_some:
        chosen = array_views.leading_elements(record, choice.leading)
        found = array_views.leading_tries(reader, record, chosen, choice.limit)
        return found, len(record.spec.run_elements) - len(chosen)
    found = reader.attempts(
        record.key,
        element=choice.element if choice.elements is None else parse_elements(choice.elements),
        limit=choice.limit,
        alive_first=True,
    )
    return found, 0


def find_run(
    reader: StoreReader,
    name: str,
    run: int | None,
    key: str | None,
    rights: read_rights.ReadRights,
) -> records.JobRecord | None:
    """Return the run of a job with a key, else with a number, else the newest; None: none.

    Raises:
        Failure: there never was one with the key, or the caller may not know (404); or its record
            is gone (410).
    """
    if key is None:
        return reader.job(name, run)
    found = reader.run(key, noted=True)
    if found is not None and found.name == name:
        return found
    is_of_name = key.rsplit(".", 2)[0] == name
    if is_of_name and rights.may_know_forgotten(name) and reader.has_begun(key):
        raise errors.Failure(410, f"run {key} has ended, and its record is gone")
    raise errors.Failure(404, f"there is no run {key} of Job/{name}")
