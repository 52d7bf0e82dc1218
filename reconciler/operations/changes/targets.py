"""Targets of changes: the clone that is named or around the current folder, or the controller."""

import contextlib
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from reconciler.changes.clone import working_clone
from reconciler.desired.apply import validate
from reconciler.desired.git import git_commands
from reconciler.model import desired
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.validate import object_folders


class ChangeTarget:
    """Target of changes: a clone, or a controller.

    With a clone, ``endpoint`` is only asked for the state of jobs and the repository that is read;
    ``standing`` is its answer from ``/v1/sync``. ``ephemeral``: whether jobs that are submitted
    need no file in git.
    """

    #: ``preferred``: none if the controller allows that; ``required``: none, or no job.
    ephemeral: Literal["no", "preferred", "required"] = "no"

    def __init__(
        self,
        *,
        clone: working_clone.Clone | None = None,
        endpoint: endpoints.Endpoint | None = None,
        standing: dict[str, Any] | None = None,
    ) -> None:
        self.clone = clone
        self.endpoint = endpoint
        self.standing = standing

    @property
    def needs_no_commit(self) -> bool:
        """True if jobs are sent to the controller, which begins them without a file in git, or
        decides that itself.
        """
        if self.ephemeral == "no" or self.endpoint is None:
            return False
        is_allowed = self.standing is not None and self.standing.get("ephemeral") is True
        return self.clone is None or self.ephemeral == "required" or is_allowed

    def submitting(self, names: Iterable[str]) -> set[str]:
        """Return those of some names whose submission the controller keeps, and no clone has."""
        kept = (self.standing or {}).get("submissions") or {}  # older controllers do not send it
        wanted = set(names)
        if not wanted or self.endpoint is None or not (kept.get("waiting") or kept.get("refused")):
            return set()
        with contextlib.suppress(api_client.ApiError, endpoints.EndpointError):
            with api_client.ApiClient(self.endpoint) as api:
                items = api.get("/v1/overrides")["items"]
            return wanted & {one["subject"] for one in items if one["verb"] == "submit"}
        return set()

    def describe(self) -> str:
        """Return the place in words: the folder, or the controller."""
        if self.clone is not None:
            return f"clone {self.clone.root}"
        return f"controller {self.endpoint.url}" if self.endpoint else "nowhere"

    @property
    def way(self) -> str:
        """The way in which a change was made, to be shown after its commit."""
        return "by the controller" if self.clone is None else f"in {self.clone.root.name}/"


def find(
    *, clone: Path | None, server: str | None, token_file: str | None, here: Path
) -> ChangeTarget:
    """Return the named clone, the clone around ``here``, or the controller.

    If a ``server`` is named, or the login's counts, the clone around ``here`` is used only if that
    controller reads its repository: otherwise it may be another cluster's.

    Raises:
        CloneError: the named clone does not exist, or has several clusters.
        EndpointError: there is no controller either, or the named one does not tell what it reads.
    """
    server = server or None  # of an empty variable
    if clone is not None or _is_desired_clone(here):
        endpoint = None
        with contextlib.suppress(endpoints.EndpointError):
            endpoint = endpoints.find(server, token_file, here)
        if clone is not None or endpoint is None or _has_identity(here):
            if clone is None and endpoint is not None and _is_named(server, here):
                standing: dict[str, Any] | None = _told(endpoint, here)
                if not object_folders.is_read(here, standing or {}):
                    return ChangeTarget(endpoint=endpoint)
            else:
                standing = object_folders.standing(endpoint)
            found = object_folders.clone_of(clone or here, endpoint, standing)
            return ChangeTarget(clone=found, endpoint=endpoint, standing=standing)
        return ChangeTarget(
            endpoint=endpoint
        )  # without an identity in git the controller's is used
    return ChangeTarget(endpoint=endpoints.find(server, token_file, here))


def _is_named(server: str | None, here: Path) -> bool:
    """Return True if a controller is named, or that of the login counts, wherever this is."""
    return server is not None or endpoints.file_for(here) == endpoints.login_file()


def _told(endpoint: endpoints.Endpoint, here: Path) -> dict[str, Any]:
    """Return the sync status of a named controller.

    Raises:
        EndpointError: it does not answer, so it is unknown if the clone around ``here`` is of its
            repository.
    """
    try:
        return object_folders.asked(endpoint)
    except (api_client.ApiError, endpoints.EndpointError) as error:
        raise endpoints.EndpointError(
            f"nothing was changed: the controller at {endpoint.url} does not tell which repository "
            f"it reads ({error}). To fix: if it is that of this clone, use --clone "
            f"{shlex.quote(str(here))}, otherwise try again later"
        ) from error


def structure_of(
    clone: working_clone.Clone, standing: Mapping[str, Any] | None = None
) -> tuple[desired.Structure | None, tuple[str, ...]]:
    """Return the committed structure of a clone, and a warning if that has errors.

    With errors it is the structure in force instead, if ``standing`` has the revision and the clone
    contains it; else None.
    """
    found = validate.check(clone.files.structural_files())
    wrong = [one for one in found.status.problems if one.severity == "error"]
    if not wrong:
        return found.structure, ()
    structure_revision = (standing or {}).get("structureRevision")
    if structure_revision:
        files = clone.files.structural_files_at(structure_revision)
        earlier = validate.check(files)
        if files and not any(one.severity == "error" for one in earlier.status.problems):
            revision = structure_revision[:12]
            message = f"it was checked against revision {revision}, in force: {wrong[0].text()}"
            return earlier.structure, (message,)
    message = f"the objects that it names could not be checked: {wrong[0].text()}"
    return None, (message,)


def _is_desired_clone(here: Path) -> bool:
    """Return True if ``here`` is in a work tree whose committed files are desired state."""
    try:
        top = git_commands.run(here, "rev-parse", "--show-toplevel").stdout.decode().rstrip("\n")
        found = git_commands.run(
            Path(top), "grep", "--quiet", "--fixed-strings", "apiVersion: muster/v1", "HEAD"
        )
    except (git_commands.GitError, OSError):
        return False
    return found.returncode == 0


def _has_identity(here: Path) -> bool:
    """Return True if git has an identity for commits."""
    try:
        git_commands.run(here, "var", "GIT_AUTHOR_IDENT")
    except (git_commands.GitError, OSError):
        return False
    return True
