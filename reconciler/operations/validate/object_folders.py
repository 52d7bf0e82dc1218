"""The folder of a clone in which a cluster's desired state begins; a repository may hold several.

The folder that the controller reads comes first: a job elsewhere is never seen. Without a
controller it is the named or current folder with a ``Cluster``, else the whole repository if that
holds at most one cluster.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from reconciler.changes.clone import files, working_clone
from reconciler.desired.documents import document_reader
from reconciler.desired.git import git_commands
from reconciler.operations.client import api_client, endpoints

#: How long to wait for a controller's sync status before a clone continues without it.
LOOK_S = 3.0
#: How long a command waits to learn what becomes of what it pushed, and how often it asks.
LEARN_S, LEARN_EVERY_S = 3.0, 0.1
#: How long a clone's remote may take to say what is pushed.
FETCH_S = 20.0
#: A line that begins a Cluster, as git's regular expressions have it.
_CLUSTER = r"""^ *['"]?kind['"]?: *['"]?Cluster['"]? *$"""


def standing(endpoint: endpoints.Endpoint | None) -> dict[str, Any] | None:
    """Return the controller's sync status (``/v1/sync``); None if it can't be asked."""
    if endpoint is None:
        return None
    try:
        return asked(endpoint)
    except (api_client.ApiError, endpoints.EndpointError):
        return None


def asked(endpoint: endpoints.Endpoint) -> dict[str, Any]:
    """Return the controller's sync status (``/v1/sync``).

    Raises:
        ApiError: it can't be asked, or does not answer this token.
        EndpointError: the token can't be used.
    """
    with api_client.ApiClient(endpoint, timeout_s=LOOK_S, answer_s=LOOK_S) as api:
        found: dict[str, Any] = api.get("/v1/sync")["sync"]
    return found


def is_read(folder: Path, told: Mapping[str, Any]) -> bool:
    """Return True if the clone around a folder is of the repository that a controller reads.

    It is, if it has the commit that the controller has read. A clone that is behind is updated
    (``git fetch``) before the answer is False.

    Args:
        folder: in the clone.
        told: the controller's sync status. If it has read nothing yet, nothing can be compared, and
            the answer is True.

    Raises:
        CloneError: nothing can be committed in the clone.
    """
    parts = ("attemptedRevision", "structureRevision", "jobsRevision")
    read = [one for part in parts if (one := told.get(part))]
    if not read:
        return True
    clone = working_clone.Clone(folder)
    if any(map(clone.history.has, read)):
        return True
    with contextlib.suppress(git_commands.GitError):
        git_commands.run(clone.root, "fetch", "--quiet", timeout_s=FETCH_S)
    return any(map(clone.history.has, read))


def learned(
    endpoint: endpoints.Endpoint | None,
    clone: working_clone.Clone | None,
    commit: str,
    before: dict[str, Any],
) -> dict[str, Any]:
    """Return the sync status once the controller has read a commit; ``before`` if it has not in
    time.

    It is asked to read its repository, and given ``LEARN_S``. There is no wait if it can't read git
    now, reads a commit unknown to the clone, or has reached a commit that does not lead to this
    one. The same holds for a commit that it made itself (``clone``: None): it may have read past
    it, or be before it. Problems of before are then left out, because this commit may correct them.
    """
    read = before.get("attemptedRevision")
    if endpoint is None or not read or before.get("sync") == "Unknown":
        return before
    if read == commit or (clone is not None and not clone.history.has(read)):
        return before
    ends_at = time.monotonic() + LEARN_S
    with (
        contextlib.suppress(api_client.ApiError, endpoints.EndpointError),
        api_client.ApiClient(endpoint, timeout_s=LOOK_S, answer_s=LOOK_S) as api,
    ):
        with contextlib.suppress(api_client.ApiError):  # a hint: it may be looking already
            api.post("/v1/hooks/git")
        while time.monotonic() < ends_at:
            told: dict[str, Any] = api.get("/v1/sync")["sync"]
            now = told.get("attemptedRevision")
            if now == commit or _has_passed(clone, now, commit):
                return told
            if now != read and not _is_on_the_way(clone, now, commit):
                return before if clone is not None else _without_known(told, before)
            time.sleep(LEARN_EVERY_S)
    return before


def _has_passed(clone: working_clone.Clone | None, revision: str | None, commit: str) -> bool:
    """Return True if a controller has read a commit that contains another one.

    Such is a merge with what others pushed meanwhile, or their next commit.
    """
    if clone is None or not revision:
        return False
    if not clone.history.has(revision):
        with contextlib.suppress(git_commands.GitError):
            git_commands.run(clone.root, "fetch", "--quiet", timeout_s=FETCH_S)
    return clone.history.leads_to(commit, revision)


def _is_on_the_way(clone: working_clone.Clone | None, revision: str | None, commit: str) -> bool:
    """Return True if a controller has reached a commit before the expected one.

    This happens if it reads this very clone, in which several commits are made one after another.
    """
    return clone is not None and bool(revision) and clone.history.leads_to(str(revision), commit)


def _without_known(told: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sync status without problems that were known before."""

    def what(problem: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(problem.get(part) for part in ("rule", "object", "message"))

    known = {what(one) for one in before.get("problems") or ()}
    problems = [one for one in told.get("problems") or () if what(one) not in known]
    return {**told, "problems": problems}


def clone_of(
    folder: Path, endpoint: endpoints.Endpoint | None, told: dict[str, Any] | None
) -> working_clone.Clone:
    """Return the clone around a folder, from where its desired state begins.

    Args:
        folder: the current or the named one.
        endpoint: of the controller.
        told: the controller's sync status.

    Raises:
        CloneError: there is none, or it has several clusters.
    """
    found = working_clone.Clone(folder)
    own = _own(folder.resolve(), found.root.resolve())
    read = None if told is None else told.get("folder")  # older controllers do not send it
    if isinstance(read, str) and (found.root / read).is_dir():
        if own is not None and not _is_within(own, read) and not _is_within(read, own):
            url = endpoint.url if endpoint is not None else "there"
            raise files.CloneError(
                f"the controller at {url} reads {read}/ of its repository, and {folder} belongs to "
                f"the cluster in {own}/: nothing was changed; stand in {read}/ or name it with "
                "--clone, or name the other cluster's controller with MUSTER_SERVER"
            )
        return working_clone.Clone(folder, sub_path=read)
    if own is None and len(several := _clusters(found.root)) > 1:
        raise files.CloneError(
            f"{found.root} holds several clusters ({', '.join(one + '/' for one in several[:5])}), "
            "and no controller tells which one it reads: stand in its folder, or name it, as in "
            f"--clone {found.root / several[0]}"
        )
    return working_clone.Clone(folder, sub_path=own or "")


def _own(folder: Path, root: Path) -> str | None:
    """Return the nearest folder at or above one, below the root, that has a Cluster."""
    for one in (folder, *folder.parents):
        if not one.is_relative_to(root):
            return None
        for path in sorted([*one.glob("*.yaml"), *one.glob("*.yml")]):
            if path.is_symlink() or b"Cluster" not in (data := path.read_bytes()):
                continue
            if any(document.kind == "Cluster" for document in document_reader.read(data).documents):
                return "" if one == root else one.relative_to(root).as_posix()
    return None


def _is_within(inner: str, outer: str) -> bool:
    return not outer or PurePosixPath(inner).is_relative_to(outer)


def _clusters(root: Path) -> list[str]:
    """Return the folders of a work tree that have a Cluster, committed or staged."""
    try:
        found = git_commands.run(root, "grep", "-E", "-l", "-z", "-e", _CLUSTER, good=(0, 1)).stdout
    except git_commands.GitError:
        return []
    paths = [PurePosixPath(one) for one in found.decode(errors="replace").split("\0") if one]
    seen = [one for one in paths if one.suffix in {".yaml", ".yml"}]
    return sorted({"" if str(one.parent) == "." else str(one.parent) for one in seen})
