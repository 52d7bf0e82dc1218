"""Why what is committed now does not apply by itself, in words, from what a controller says of git.

A commit is made and pushed whether or not the controller may apply it: whoever asks for a drain has
to hear that the head of the branch is held, or that its structure is refused, since nothing of
what was asked for happens before somebody lets it.
"""

from typing import Any

from reconciler.core.safety import digests
from reconciler.model.rules import review_findings

Json = Any


def revision(sync: Json, commit: str | None = None) -> str:
    """Why no revision that follows the newest one applies; empty where one may.

    Args:
        sync: what ``/v1/sync`` says; None: nothing is known.
        commit: the revision that was just made, which what is said then names.
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
    """Why a job is not in force as it is written now; empty where nothing is said against it."""
    for problem in (sync or {}).get("problems") or ():
        if problem["severity"] == "error" and problem["object"] == f"Job/{name}":
            return f"Job/{name} is refused: {problem['message']}"
    return ""


def is_of(digest: str, other: str) -> bool:
    """Whether two digests name the same change, or one that names two parts the other's as well.

    How much may end stands behind, and makes no difference. What is held as a whole is told part by
    part once another revision has come.
    """
    one, two = (digests.parse_digest(text) or digests.Digest() for text in (digest, other))
    same = one.structure and one.structure == two.structure
    return bool(same or (one.removals and one.removals == two.removals))


def approval(sync: Json, digest: str) -> str:
    """Why an approval that was read lets nothing apply; empty where nothing is said against it."""
    told = sync or {}
    held = [str(one.get("digest") or "") for one in told.get("held") or ()]
    held = [one for one in held if is_of(digest, one)]
    if not held:
        return ""
    for problem in told.get("problems") or ():
        if problem["rule"] == review_findings.UNDECIDED and not problem["object"]:
            return f"{digest} is held on: {problem['message']}"
    if digest in held or not _ends_more(held[0], digest):
        return (
            f"{digest} is held on: who signed the commit may not approve, by the Access in force "
            "(`muster access can EMAIL approve` tells)"
        )
    return (
        f"the change ends more running work than {digest} covers: `muster approve {held[0]}` "
        "covers what it ends now"
    )


def _ends_more(digest: str, than: str) -> bool:
    """Whether the change of one digest ends more running work than another covers."""
    one, other = digests.parse_digest(digest), digests.parse_digest(than)
    if one is None or other is None:
        return False
    return one.jobs_ended > other.jobs_ended or one.gpu_hours_lost > other.gpu_hours_lost


def emptied(sync: Json) -> str:
    """Why what brings nothing back does not apply: the newest revision leaves nothing there was."""
    for problem in (sync or {}).get("problems") or ():
        if problem["rule"] == review_findings.EMPTIED:
            return f"nor does what follows it: {problem['message']}"
    return ""


def elsewhere(sync: Json, branch: str) -> str:
    """Why a commit on a branch does not apply by itself; empty where it is the one that is read.

    Args:
        sync: what ``/v1/sync`` says; None: nothing is known.
        branch: where it went; empty: where the controller itself puts it.
    """
    read = (sync or {}).get("branch")  # older controllers tell none
    if not read or not branch or branch == read:
        return ""
    return (
        f"the controller reads the branch {read}, and this is on {branch}: it applies once it is "
        "merged there"
    )


def structure(sync: Json) -> str:
    """Why no change of structure applies although revisions do; empty where one may."""
    if not sync:
        return ""
    for one in sync.get("held") or ():
        if one["part"] == "structure":
            return (
                "the structure of the newest revision is held, and this change with it: "
                "`muster status` tells why, and what approves it; where nothing does, revert the "
                "commit that is held (`git revert COMMIT`)"
            )
    kept, newest = sync.get("structureRevision"), sync.get("jobsRevision")
    if newest is not None and kept != newest:
        return (
            "the structure of the newest revision is refused, and this change with it: `muster "
            "status` tells what to correct"
        )
    return ""
