"""Outcomes of revisions as notes in the repository: ``git log --notes=muster``.

A note on the commit says what was applied of it and when. The notes also tell a controller with an
empty store that the repository has been run before. Each of several clusters in folders of one
repository has a reference of its own. What was written last is kept in another reference, so that
notes that somebody removes or changes are noticed, and written again.
"""

import re
import urllib.parse
from collections.abc import Callable, Collection

from reconciler.changes import repository_writes
from reconciler.desired.git import git_commands, mirror_fetch, source, tree_entries
from reconciler.model.values.text_lines import split_lines

REFERENCE = "refs/notes/muster"
#: How often a push of notes is tried again on top of what others pushed.
ATTEMPTS_MAX = 3
#: How a note says whose jobs were in force: see ``git_watcher.note_text``.
_JOBS = re.compile(r"\bjobs of ([0-9a-f]{12,64}) in force\b")


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
    names = (name, _kept_name(repository))
    here = git_commands.run(repository.folder, "for-each-ref", "--count=1", *names).stdout
    return bool(here.strip()) or (not repository.local and _are_there(repository, name))


def _are_there(repository: source.GitSource, name: str) -> bool:
    """Return True if the remote has notes."""
    return bool(git_commands.reference_there(repository.folder, repository.address, name))


def texts(repository: source.GitSource, before: float | None = None) -> dict[str, str]:
    """Return the notes of a repository on this machine, by revision.

    Args:
        repository: that has them.
        before: seconds since the epoch: as they were then; None: as they are.

    Raises:
        GitError: the repository cannot be read.
    """
    if not exist(repository):
        return {}
    if before is not None:
        return _texts_before(repository, before)
    name = reference(repository)
    listed = git_commands.run(repository.folder, "notes", f"--ref={name}", "list").stdout
    pairs = [line.split() for line in split_lines(listed.decode())]
    bodies = repository.blobs([blob for blob, _ in pairs])
    return {
        revision: body.decode("utf-8", "replace")
        for (_, revision), body in zip(pairs, bodies, strict=True)
    }


def _texts_before(repository: source.GitSource, moment: float) -> dict[str, str]:
    until = f"--before=@{int(moment)} +0000"
    words = ("rev-list", "--max-count=1", until, reference(repository), "--")
    commit = git_commands.run(repository.folder, *words).stdout.decode().strip()
    entries = _entries(repository, commit) if commit else {}
    found = {revision: blob for revision, blob in entries.items() if blob is not None}
    bodies = repository.blobs(found.values())
    return {
        revision: body.decode("utf-8", "replace")
        for revision, body in zip(found, bodies, strict=True)
    }


def jobs_in_force(repository: source.GitSource, revisions: Collection[str]) -> frozenset[str]:
    """Return the revisions whose jobs were in force, as the notes on some revisions say.

    Returns:
        The first characters of their hashes.

    Raises:
        GitError: the repository cannot be read.
    """
    name = reference(repository)
    if not repository.local:
        _fetch(repository, name)
    blobs = {
        blob
        for commit in {_commit(repository, name), _kept(repository)} - {""}
        for revision, blob in _entries(repository, commit).items()
        if revision in revisions and blob is not None
    }
    told = (body.decode("utf-8", "replace") for body in repository.blobs(sorted(blobs)))
    return frozenset(found for text in told for found in _JOBS.findall(text))


def write(repository: source.GitSource, revision: str, text: str) -> bool:
    """Put a note on a revision, replacing the one before.

    Return True if notes had been taken away or changed by others; these are there again.

    Raises:
        GitError: it could not be written or pushed.
    """
    return _publish(repository, lambda: _add(repository, revision, text))


def restore(repository: source.GitSource) -> bool:
    """Write notes again that others have taken away or changed. Return True if there were any.

    Notes that others have added stay.

    Raises:
        GitError: they can't be read, or not be written or pushed.
    """
    return bool(_kept(repository)) and _publish(repository, None)


def _publish(repository: source.GitSource, change: Callable[[], None] | None) -> bool:
    """Put back what is missing, change notes, and push them. Return as ``restore``."""
    name, lost = reference(repository), False
    for attempt in range(ATTEMPTS_MAX):
        if not repository.local:
            _fetch(repository, name)
        lost = _put_back(repository) or lost
        if change is None and not lost:
            break
        if change is not None:
            change()
        try:
            if not repository.local:
                repository_writes.push(repository, f"{name}:{name}")
        except git_commands.GitError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        else:
            repository_writes.run(repository.folder, "update-ref", _kept_name(repository), name)
            break
    return lost


def _kept_name(repository: source.GitSource) -> str:
    """Return the reference of the notes as they were last written, beside those of the remote."""
    return reference(repository).replace("refs/notes/", "refs/muster/notes/", 1)


def _kept(repository: source.GitSource) -> str:
    return _commit(repository, _kept_name(repository))


def _commit(repository: source.GitSource, name: str) -> str:
    """Return the commit of a reference; empty if there is none."""
    found = repository.objects.read(f"{name}^{{commit}}")
    return found[0] if found is not None else ""


def _put_back(repository: source.GitSource) -> bool:
    """Add the notes that were written last to those that are there, if any is missing, or was
    changed by rewriting history.

    A changed note in a commit on top can be that of another controller, which follows another
    branch. Return True if one was put back.
    """
    name, kept = reference(repository), _kept(repository)
    there = _commit(repository, name)
    if not kept or kept == there:
        return False
    if not there:
        repository_writes.run(repository.folder, "update-ref", name, kept)
        return True
    before, now = _entries(repository, kept), _entries(repository, there)
    follows = repository.log.descends(there, kept)
    if not (before.keys() - now.keys() if follows else before.items() - now.items()):
        return False
    # without a history of its own, so that what others removed counts as never there
    alone = repository_writes.run(
        repository.folder, "commit-tree", "-m", "Notes that were missing", f"{kept}^{{tree}}"
    )
    strategy = "ours" if follows else "theirs"
    merge = ("notes", f"--ref={name}", "merge", "--quiet", "-s", strategy, alone)
    repository_writes.run(repository.folder, *merge)
    return True


def _entries(repository: source.GitSource, commit: str) -> dict[str, str | None]:
    """Return the blob of each note by its revision."""
    listed = git_commands.run(repository.folder, "ls-tree", "-r", "-z", commit).stdout
    found = tree_entries.of_tree(listed)
    return {path.decode(errors="replace").replace("/", ""): blob for path, _, blob in found}


def _fetch(repository: source.GitSource, name: str) -> None:
    """Take over the remote's notes. If it has none although some were written, forget those."""
    if not _are_there(repository, name):
        if _kept(repository):
            repository_writes.run(repository.folder, "update-ref", "-d", name)
        return
    remote = (repository.address, name)
    limits = (git_commands.REMOTE_TIMEOUT_S, mirror_fetch.FETCH_BYTES_MAX)
    mirror_fetch.fetch(repository.folder, remote, name, *limits)


def _add(repository: source.GitSource, revision: str, text: str) -> None:
    words = ("add", "--force", "--message", text, revision)
    repository_writes.run(repository.folder, "notes", f"--ref={reference(repository)}", *words)
