"""Reasons, in words, why a commit does not apply by itself, from a controller's sync status.

A commit is pushed even if the controller may not apply it. Whoever requests a drain must learn that
the branch is held or its structure refused, because nothing happens before somebody approves it.
"""

from collections.abc import Mapping
from typing import Any

from reconciler.core.safety import digests
from reconciler.model.rules import review_findings

Json = Any


#: Warning of a submission to a controller that leads nothing.
_NOT_LED = (
    "nothing starts yet, because this controller does not lead: {blocked}. When it does, `muster "
    "adopt` asks whether this job is to start, for another controller may have started it"
)


def not_led(blocked: str) -> str:
    """Return the warning about a job that is submitted while nobody leads, with why."""
    return _NOT_LED.format(blocked=blocked)


def revision(sync: Json, commit: str | None = None) -> str:
    """Return why no revision after the newest one applies; empty if one may.

    Args:
        sync: from ``/v1/sync``; None: unknown.
        commit: the revision that was just made, to be named in the text.
    """
    if not sync:
        return ""
    message = sync.get("message")
    if sync.get("sync") == "Unknown":
        return f"the controller can't read git now: {message}" if message else ""
    for problem in sync.get("problems") or ():
        if problem["rule"] in review_findings.WHOLE:
            told = str(problem["message"])
            newest = sync.get("attemptedRevision")
            if newest and commit:
                told = told.replace(newest, commit).replace(newest[:12], commit[:12])
            return told
    return ""


def job(sync: Json, name: str) -> str:
    """Return why a job is not in force as written, or an empty string if nothing prevents it."""
    for problem in (sync or {}).get("problems") or ():
        if problem["severity"] == "error" and problem["object"] == f"Job/{name}":
            return f"Job/{name} is refused: {problem['message']}"
    return ""


def is_of(digest: str, other: str) -> bool:
    """Return True if two digests name the same change, or one of two parts that the other names.

    The end of a digest, how much may end, makes no difference. A change that is held as a whole is
    shown part by part once another revision has come.
    """
    one, two = (digests.parse_digest(text) or digests.Digest() for text in (digest, other))
    same = one.structure and one.structure == two.structure
    return bool(same or (one.removals and one.removals == two.removals))


def approval(sync: Json, digest: str) -> str:
    """Return why an approval that was read lets nothing apply, or an empty string if nothing
    prevents it.
    """
    status = sync or {}
    held = [str(one.get("digest") or "") for one in status.get("held") or ()]
    held = [one for one in held if is_of(digest, one)]
    if not held:
        return ""
    for problem in status.get("problems") or ():
        if problem["rule"] == review_findings.UNDECIDED and not problem["object"]:
            return f"{digest} is still held: {problem['message']}"
    if digest in held or not _ends_more(held[0], digest):
        return (
            f"{digest} is still held: the signer of the commit may not approve, by the Access in "
            "force (`muster access can EMAIL approve`)"
        )
    return (
        f"the change now ends more running work than {digest} covers. To fix: `muster approve "
        f"{held[0]}`"
    )


def _ends_more(digest: str, than: str) -> bool:
    """Return True if the change of one digest ends more running work than another covers."""
    one, other = digests.parse_digest(digest), digests.parse_digest(than)
    if one is None or other is None:
        return False
    return one.jobs_ended > other.jobs_ended or one.gpu_hours_lost > other.gpu_hours_lost


def emptied(sync: Json) -> str:
    """Return why a change does not apply if the newest revision removes everything."""
    for problem in (sync or {}).get("problems") or ():
        if problem["rule"] == review_findings.EMPTIED:
            return f"nor does what follows it: {problem['message']}"
    return ""


def elsewhere(sync: Json, branch: str) -> str:
    """Return why a commit on a branch does not apply by itself; empty if that branch is read.

    Args:
        sync: from ``/v1/sync``; None: unknown.
        branch: of the commit; empty: the controller's own.
    """
    read = (sync or {}).get("branch")  # older controllers do not send it
    if not read or not branch or branch == read:
        return ""
    return (
        f"the controller reads branch {read}, but the commit is on {branch}: it applies after a "
        "merge"
    )


def structure(sync: Json) -> str:
    """Return why no change of structure applies although revisions do; empty if one may."""
    if not sync:
        return ""
    for one in sync.get("held") or ():
        if one["part"] == "structure":
            return (
                "the structure of the newest revision is held, and this change with it. To fix: "
                "`muster status` shows why and what approves it; if nothing does, `git revert "
                "COMMIT` the held commit"
            )
    structure_revision, newest = sync.get("structureRevision"), sync.get("jobsRevision")
    if newest is not None and structure_revision is None:
        return (
            "the structure of the newest revision is refused, and this change with it: `muster "
            "status` shows what to correct"
        )
    return ""


def held_at(digest: str, told: Mapping[str, Any] | None) -> str:
    """Return the revision with which a change is held, by the controller; empty if it is
    not held.
    """
    told = told or {}
    is_held = any(one.get("digest") == digest for one in told.get("held") or ())
    return str(told.get("attemptedRevision") or "") if is_held else ""
