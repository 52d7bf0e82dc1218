"""What became of each revision, told in the repository itself: ``git log --notes=muster``.

A note on the commit says what was applied of it and when. The notes' reference is also how a
controller with an empty store knows that the repository has been run before.
"""

from reconciler.changes.requests import MUSTER
from reconciler.desired import gitobjects, source

REFERENCE = "refs/notes/muster"
#: How often a push of notes is tried again on top of what others pushed.
ATTEMPTS_MAX = 3

_IDENTITY = {
    "GIT_AUTHOR_NAME": MUSTER.name,
    "GIT_AUTHOR_EMAIL": MUSTER.email,
    "GIT_COMMITTER_NAME": MUSTER.name,
    "GIT_COMMITTER_EMAIL": MUSTER.email,
}


def exist(repository: source.Source) -> bool:
    """Whether any revision of the repository was ever applied.

    Raises:
        GitError: the repository can't be read.
    """
    where = str(repository.folder) if repository.local else repository.address
    found = gitobjects.run(
        repository.folder,
        *("ls-remote", "--quiet", "--", where, REFERENCE),
        timeout_s=gitobjects.REMOTE_TIMEOUT_S,
    )
    return bool(found.stdout.strip())


def write(repository: source.Source, revision: str, text: str) -> None:
    """Put a note on a revision, in place of the one before.

    Raises:
        GitError: it could not be written, or not be pushed.
    """
    if repository.local:
        _add(repository, revision, text)
        return
    for attempt in range(ATTEMPTS_MAX):
        _fetch(repository)
        _add(repository, revision, text)
        try:
            gitobjects.run(
                repository.folder,
                *("push", "--quiet", "--", repository.address, f"{REFERENCE}:{REFERENCE}"),
                timeout_s=gitobjects.REMOTE_TIMEOUT_S,
            )
        except gitobjects.GitError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            return


def _fetch(repository: source.Source) -> None:
    if not exist(repository):
        return
    gitobjects.run(
        repository.folder,
        *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--"),
        *(repository.address, f"+{REFERENCE}:{REFERENCE}"),
        timeout_s=gitobjects.REMOTE_TIMEOUT_S,
    )


def _add(repository: source.Source, revision: str, text: str) -> None:
    gitobjects.run(
        repository.folder,
        *("notes", f"--ref={REFERENCE}", "add", "--force", "--message", text, revision),
        extra=_IDENTITY,
    )
