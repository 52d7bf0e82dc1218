"""Documents of jobs that the controller has refused because nobody with the right signed them.

Whoever may push may write a document with the name of somebody else's job. It is not in force, but
it would stand in the way of every later change of that job. What the controller says of a job and
the files that hold it come in; the files whose documents are to be taken out go out. Taking them
out takes no right, because it leads back to what is in force.
"""

from collections.abc import Callable, Sequence

from reconciler.desired.git import source
from reconciler.desired.git.git_commands import GitError
from reconciler.model import desired

#: Returns what the controller says of a job by its name; None: no document of it is refused so.
RefusedJobs = Callable[[str], desired.RefusedJob | None]


def none_refused(_name: str) -> desired.RefusedJob | None:
    """Return what is known without a controller: nothing."""
    return None


def to_take_out(
    repository: source.GitSource, head: str, paths: Sequence[str], found: desired.RefusedJob
) -> tuple[str, ...]:
    """Return those of the files that hold a job whose documents of it are refused.

    Nothing is taken out if it is not known what is in force, or of what changed since the
    controller judged: it may count by now.

    Args:
        repository: of the revisions.
        head: the revision that is changed.
        paths: files that hold the job there.
        found: what the controller says of it.
    """
    if found.home and found.home not in paths:
        return ()
    others = tuple(dict.fromkeys(path for path in paths if path != found.home))
    if not others:
        return ()
    try:
        since = {one.path for one in repository.changes(found.revision, head).files}
    except GitError:
        return ()
    return tuple(path for path in others if path not in since)
