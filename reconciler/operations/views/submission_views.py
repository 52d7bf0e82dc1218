"""Views of submissions that are not in git: overrides come in, counts and words go out."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from reconciler.desired.documents import document_reader
from reconciler.model.documents import job_spec
from reconciler.model.state import records
from reconciler.operations.views import job_views, json_format, view_types


def submissions_view(in_force: Iterable[records.Override]) -> view_types.SubmissionsView:
    """Return how many submissions wait for git."""
    kept = [one for one in in_force if one.verb == "submit"]
    since = [one.made_at for one in kept if one.waiting is not None]
    first = json_format.time_or_none(min(since, default=None))
    return view_types.SubmissionsView(len(since), first, len(kept) - len(since))


def uncommitted_text(name: str, in_force: Iterable[records.Override]) -> str:
    """Return why a job that was submitted is not there; empty if none of that name is kept."""
    kept = next((one for one in in_force if one.key == ("submit", name)), None)
    if kept is None:
        return ""
    ending = f"muster cancel {name}"
    if isinstance(kept.submission, records.Submission) and kept.submission.refused:
        return (
            f"there is no Job/{name}: it was submitted and not committed: "
            f"{kept.submission.refused}. To fix: submit it again as it may be; {ending} forgets "
            "this one"
        )
    return (
        f"there is no Job/{name} yet: it was submitted, and waits for git to commit it: "
        f"{kept.reason}. To fix: see that git can take commits, then it goes on by itself; "
        f"{ending} withdraws it"
    )


#: The state, in lists of jobs, of one that is submitted and not in git yet.
SUBMITTING = "Submitting"


class _SubmittedJob(NamedTuple):
    """The part that a list shows of a document that waits for git."""

    queue: str = ""
    owner: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    depends_on: tuple[str, ...] = ()


def submitting_jobs(in_force: Iterable[records.Override]) -> list[view_types.JobView]:
    """Return a view of each job that waits for git to commit it, the last submitted first."""
    waiting = [one for one in in_force if one.waiting is not None]
    waiting.sort(key=lambda one: (-one.made_at, one.subject))
    return [_submitting(one) for one in waiting]


def _submitting(kept: records.Override) -> view_types.JobView:
    said = _said(kept.waiting.text) if kept.waiting is not None else _SubmittedJob()
    view = job_views.refused_view(kept.subject, f"waits for git: {kept.reason}", kept.made_at)
    return msgspec.structs.replace(
        view,
        state=SUBMITTING,
        reasons=[],
        queue=said.queue,
        owner=said.owner,
        labels=dict(said.labels),
        depends_on=list(said.depends_on),
    )


@functools.lru_cache(maxsize=records.SUBMISSIONS_MAX)
def _said(text: str) -> _SubmittedJob:
    """Return what a submitted document says; it was checked when it came."""
    for one in document_reader.read(text.encode()).documents:
        if isinstance(one.part, job_spec.JobDocument):
            spec, labels = one.part.spec, one.part.metadata.labels or {}
            depends_on = tuple(each.job for each in spec.depends_on or ())
            return _SubmittedJob(spec.queue, spec.owner or "", tuple(labels.items()), depends_on)
    return _SubmittedJob()
