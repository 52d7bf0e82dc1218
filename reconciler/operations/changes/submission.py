"""Jobs submitted in a clone: a commit for each, or one for the file in which they stand there."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reconciler.changes import requests, yaml_edit
from reconciler.changes.clone import files, working_clone
from reconciler.desired.checks import submission_checks
from reconciler.desired.documents import document_reader
from reconciler.operations.changes import change_requests, job_document, remote_changes, targets

Json = Any

#: Tells why a document of a job would start nothing; empty: it would.
SpentRuns = Callable[[Mapping[str, Any]], str]
#: The most jobs that the subject of a commit names.
NAMES_MAX = 3


def submit(
    change: change_requests.Submit,
    clone: working_clone.Clone,
    spent: SpentRuns = lambda _: "",
    *,
    dry_run: bool,
    standing: Mapping[str, Any] | None = None,
) -> list[change_requests.ChangeResult]:
    """Commit each job of a text that is not in the clone as written.

    A file of the clone that holds the text, and is not committed so, is committed itself.
    ``standing`` is the controller's sync status. ``spent`` tells why a document that is new would
    start nothing; empty: it would.

    Raises:
        ChangeError, CloneError, InvalidError: it can't be done.
    """
    structure, unchecked = targets.structure_of(clone, standing)
    judge = None if structure is None else submission_checks.SubmissionValidator(structure)

    def known(names: Sequence[str]) -> list[str]:
        return [name for name in names if clone.files.find("Job", name) is not None]

    basis = "; ".join(unchecked)
    jobs = remote_changes.read(owned(change), "", judge, time.time(), known=known, basis=basis)
    told = "would be submitted" if dry_run else "submitted"
    written = {one["metadata"]["name"]: one for one in yaml_edit.documents(change.text) if one}
    in_hand = clone.files.in_hand(Path(change.place)) if change.place else None
    if in_hand is not None:
        _require_unspent(clone.files.committed(in_hand), written, spent)
        is_new = clone.files.committed(in_hand) is None
        whole = _submit_file(change, in_hand, jobs, clone, dry_run=dry_run)
        return [
            _said(one, whole, told, (*ownerless(one, change, written, is_new=is_new), *unchecked))
            for one in jobs
        ]

    def put(one: remote_changes.SubmittedDocument) -> list[change_requests.ChangeResult]:
        try:
            path = _stands(one, written[one.name], clone)
            earlier = clone.history.not_pushed(path) if path and not dry_run else None
            if path and earlier is None:
                return [
                    change_requests.ChangeResult(one.name, requests.IS_THERE, warnings=one.warnings)
                ]
            if earlier is None and (why := spent(written[one.name])):
                raise change_requests.ChangeError(why)
            message = f"Submit Job/{one.name}"
            outcome = (
                clone.add_job(one.text, one.name, message=message, dry_run=dry_run)
                if earlier is None
                else clone.push_again(earlier, path)
            )
        except files.CloneError as error:
            raise change_requests.of_clone(error) from error
        return [_said(one, outcome, told, (*ownerless(one, change, written), *unchecked))]

    return change_requests.each(jobs, put)


def _require_unspent(before: bytes | None, written: Mapping[str, Json], spent: SpentRuns) -> None:
    """Refuse a file with documents that are new or changed, and would start nothing.

    Raises:
        ChangeError: one would not.
    """
    there: list[Json] = []
    with contextlib.suppress(yaml_edit.EditError):  # what stood there may be what is mended
        there = list(yaml_edit.documents((before or b"").decode(errors="replace")))
    for document in written.values():
        if document not in there and (why := spent(document)):
            raise change_requests.ChangeError(why)


def _said(
    job: remote_changes.SubmittedDocument,
    outcome: working_clone.CloneOutcome,
    told: str,
    more: tuple[str, ...],
) -> change_requests.ChangeResult:
    already = requests.IS_THERE
    done = change_requests.said(job.name, outcome, told, already)
    return msgspec.structs.replace(done, warnings=(*job.warnings, *more))


def _submit_file(
    change: change_requests.Submit,
    path: str,
    jobs: list[remote_changes.SubmittedDocument],
    clone: working_clone.Clone,
    *,
    dry_run: bool,
) -> working_clone.CloneOutcome:
    """Commit a file of the clone as it is."""
    for one in jobs:
        present = clone.files.find("Job", one.name)
        if present not in (None, path):
            raise change_requests.ChangeError(requests.name_is_taken(one.name, str(present)))
    before = clone.files.committed(path)
    submitted = {f"Job/{one.name}" for one in jobs}
    lost = [
        one.label
        for one in document_reader.read(before or b"").documents
        if one.label not in submitted
    ]
    if lost:
        raise change_requests.ChangeError(
            f"{path} in git also holds {lost[0]}, which a submission never removes. To fix: put it "
            "back, or commit the file by hand"
        )
    names = [f"Job/{one.name}" for one in jobs]
    shown = ", ".join(names[:NAMES_MAX]) + (" and more" if len(names) > NAMES_MAX else "")
    text = owned(change) if before is None else change.text
    return clone.commit_file(path, text, f"Submit {shown}", read=change.text, dry_run=dry_run)


def ownerless(
    job: remote_changes.SubmittedDocument,
    change: change_requests.Submit,
    written: Mapping[str, Json],
    *,
    is_new: bool = True,
) -> tuple[str, ...]:
    """Return a warning if a job is committed without an owner.

    Args:
        job: as checked, with the owner that is known.
        change: the submission.
        written: the job's document as written, by name.
        is_new: its file is new, so that the owner is written into it.
    """
    told = f"{job.name} has no owner, so quotas of users do not count it. To fix: "
    if not job.owner:
        return (f"{told}git config user.email YOU@HOST",)
    if not is_new and change.owner and not (written[job.name].get("spec") or {}).get("owner"):
        return (f"{told}write `owner: {change.owner}` below its spec",)
    return ()


def owned(change: change_requests.Submit) -> str:
    """Return the text to commit: with an owner, if one is known."""
    return job_document.owned(change.text, change.owner) if change.owner else change.text


def _stands(
    job: remote_changes.SubmittedDocument, written: Json, clone: working_clone.Clone
) -> str:
    """Return the file in which a job is committed in the clone, as written or with its owner.

    Return an empty string if there is none.
    """
    path = clone.files.find("Job", job.name)
    if path is None:
        return ""
    there = yaml_edit.documents(clone.files.text(path) or "")
    if written not in there and yaml_edit.documents(job.text)[0] not in there:
        return ""
    clone.files.require_committed(path)
    return path


def placed(change: change_requests.Submit, read: str, problems: Sequence[str]) -> tuple[str, ...]:
    """Return problems of a text with the lines of the file in which it was written."""
    return tuple(job_document.placed(one, change.text, read, change.place) for one in problems)
