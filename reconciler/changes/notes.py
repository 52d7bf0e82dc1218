"""Outcomes of revisions as notes in the repository: ``git log --notes=muster``.

A note on the commit says what was applied of it and when. The notes also tell a controller with an
empty store that the repository has been run before. Each of several clusters in folders of one
repository has a reference of its own.
"""

import urllib.parse

from reconciler.changes.requests import MUSTER
from reconciler.desired.git import git_commands, mirror_fetch, source

REFERENCE = "refs/notes/muster"
#: How often a push of notes is tried again on top of what others pushed.
ATTEMPTS_MAX = 3

_IDENTITY = {
    "GIT_AUTHOR_NAME": MUSTER.name,
    "GIT_AUTHOR_EMAIL": MUSTER.email,
    "GIT_COMMITTER_NAME": MUSTER.name,
    "GIT_COMMITTER_EMAIL": MUSTER.email,
}


def reference(repository: source.GitSource) -> str:
    """Return the notes' reference: ``muster``, or ``muster-FOLDER`` for a cluster in a folder."""
    if not repository.sub_path:
        return REFERENCE
    folder = urllib.parse.quote(repository.sub_path, safe="/")
    return f"{REFERENCE}-{folder.replace('.', '%2E').replace('~', '%7E')}"


def exist(repository: source.GitSource) -> bool:
    """Return True if any revision of the repository was ever applied.

    If the remote takes no notes, its mirror on this machine still has them.

    Raises:
        GitError: the repository cannot be read.
    """
    name = reference(repository)
    here = git_commands.run(repository.folder, "for-each-ref", "--count=1", name).stdout
    return bool(here.strip()) or (not repository.local and _are_there(repository, name))


def _are_there(repository: source.GitSource, name: str) -> bool:
    """Return True if the remote has notes."""
    found = git_commands.run(
        repository.folder,
        *("ls-remote", "--quiet", "--", repository.address, name),
        timeout_s=git_commands.REMOTE_TIMEOUT_S,
    )
    return bool(found.stdout.strip())


def texts(repository: source.GitSource) -> dict[str, str]:
    """Return the notes of a repository on this machine, by revision.

    Raises:
        GitError: the repository cannot be read.
    """
    if not exist(repository):
        return {}
    name = reference(repository)
    listed = git_commands.run(repository.folder, "notes", f"--ref={name}", "list").stdout
    pairs = [line.split() for line in listed.decode().splitlines()]
    bodies = repository.blobs([blob for blob, _ in pairs])
    return {
        revision: body.decode("utf-8", "replace")
        for (_, revision), body in zip(pairs, bodies, strict=True)
    }


def write(repository: source.GitSource, revision: str, text: str) -> None:
    """Put a note on a revision, replacing the one before.

    Raises:
        GitError: it could not be written or pushed.
    """
    if repository.local:
        _add(repository, revision, text)
        return
    name = reference(repository)
    for attempt in range(ATTEMPTS_MAX):
        _fetch(repository, name)
        _add(repository, revision, text)
        try:
            git_commands.run(
                repository.folder,
                *("push", "--quiet", "--", repository.address, f"{name}:{name}"),
                timeout_s=git_commands.REMOTE_TIMEOUT_S,
            )
        except git_commands.GitError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return


def _fetch(repository: source.GitSource, name: str) -> None:
    if not _are_there(repository, name):
        return
    remote = (repository.address, name)
    limits = (git_commands.REMOTE_TIMEOUT_S, mirror_fetch.FETCH_BYTES_MAX)
    mirror_fetch.fetch(repository.folder, remote, name, *limits)


def _add(repository: source.GitSource, revision: str, text: str) -> None:
    git_commands.run(
        repository.folder,
        *("notes", f"--ref={reference(repository)}", "add", "--force", "--message", text, revision),
        extra=_IDENTITY,
    )
