"""Reading a folder that is being edited, as it would stand if it were committed now.

It goes through the same loader as the controller's, in a repository of its own that nobody sees.
"""

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec

from reconciler.desired.apply import file_index, last_good, loader, parallel_reader
from reconciler.desired.checks import missing_references
from reconciler.desired.documents import document_reader
from reconciler.desired.git import git_commands, source
from reconciler.model import desired
from reconciler.operations import scratch_repository
from reconciler.operations.validate import introduced

#: Files that were read already, by blob.
ReadFiles = parallel_reader.Read

_NOTHING = last_good.LastGood()

#: A folder or revision can't be read; says why.
RevisionError = scratch_repository.RevisionError
#: The rule by which a folder without any YAML is told.
NOTHING_WRITTEN = "nothing-written"


def read_folder(folder: Path) -> desired.Desired:
    """The desired state in a folder as it is now, committed or not.

    Raises:
        RevisionError: the folder can't be read.
    """
    return check_folder(folder)[0]


def check_folder(
    folder: Path, *, staged: bool = False, since: str | None = None
) -> tuple[desired.Desired, Mapping[str, int]]:
    """As :func:`read_folder`, with how many objects of each kind are written in it.

    Files that git ignores are left out, as they would be from a commit. Of two objects of one name
    that one is new which the last commit does not have.

    Args:
        folder: where the YAML stands.
        staged: take what is staged for the next commit instead of what is on disk. Errors that
            stood in the last commit, in documents that it leaves, are warnings then.
        since: the same of this revision, or of where the last commit has parted from it.

    Raises:
        RevisionError: the folder, or the revision, can't be read.
    """
    if not folder.is_dir():
        raise RevisionError(f"{folder} is no folder")
    with scratch_repository.repository() as repository:
        if staged:
            scratch_repository.share_objects(
                repository, Path(scratch_repository.git_folder(folder))
            )
            tree = scratch_repository.git_in(folder, "write-tree")
            below = place_of(folder)
        else:
            scratch_repository.git(
                repository, "add", "--all", "--", ".", work_tree=folder.resolve()
            )
            tree, below = scratch_repository.git(repository, "write-tree"), ""
        found, counts, _ = _load_tree(repository, tree, below)
        if any(problem.rule == "duplicate-name" for problem in found.status.problems):
            before = _before(repository, folder, tree, below, staged=staged)
            found, counts, _ = _load_tree(repository, tree, below, before)
        if staged or since is not None:
            found = _since(repository, folder, (tree, below), found, since, staged=staged)
        if not counts and not found.status.problems:
            found = _nothing(found)
        return found, counts


def _since(
    repository: Path,
    folder: Path,
    written: tuple[str, str],
    found: desired.Desired,
    since: str | None,
    *,
    staged: bool,
) -> desired.Desired:
    """What was found in a tree, as far as a revision before it does not have it too.

    Args:
        repository: where ``written``, a tree and the folder of it that is read, is.
        folder: in the repository of the revision.
        found: what was found there.
        since: the revision; None: the last commit, where there is one.
        staged: ``written`` is of the whole repository.
    """
    start = _start(folder, since)
    if start is None or all(one.severity != "error" for one in found.status.problems):
        return found
    tree, below = written
    if not staged:
        scratch_repository.share_objects(repository, Path(scratch_repository.git_folder(folder)))
    try:
        inside = "" if staged else place_of(folder)
        earlier = scratch_repository.git_in(folder, "rev-parse", "--verify", f"{start}:{inside}")
    except RevisionError:
        return found  # all of the folder is new
    before = _load_tree(repository, earlier, below)[0]
    listed = scratch_repository.git(
        repository, "diff-tree", "-r", "--name-only", "--no-renames", "-z", earlier, tree
    )

    def read(of: str, path: str) -> bytes | None:
        try:
            text = scratch_repository.git(repository, "cat-file", "blob", f"{of}:{path}")
        except RevisionError:
            return None
        return text.encode("utf-8", "surrogateescape")

    problems = introduced.weakened(
        found.status.problems,
        before.status.problems,
        frozenset(listed.split("\0")),
        functools.partial(read, earlier),
        functools.partial(read, tree),
    )
    status = msgspec.structs.replace(found.status, problems=problems)
    return msgspec.structs.replace(found, status=status)


def _start(folder: Path, since: str | None) -> str | None:
    """The commit that what is written is compared with; None: there is none yet.

    Raises:
        RevisionError: there is no such revision.
    """
    repository = Path(scratch_repository.git_folder(folder))
    head = scratch_repository.known_commit(repository, "HEAD")
    if since is None:
        return head
    start = scratch_repository.known_commit(repository, since)
    if start is None:
        raise RevisionError(
            f"there is no revision {since} in {folder}: name a branch, a tag or a commit that is "
            "fetched"
        )
    if head is None:
        return start
    try:
        return scratch_repository.git(repository, "merge-base", start, head)
    except RevisionError:
        return start  # they have no commit in common


def _nothing(found: desired.Desired) -> desired.Desired:
    """What was found where there is no YAML at all, with a warning that says so."""
    told = desired.Problem(
        NOTHING_WRITTEN,
        "warning",
        ".",
        "this folder holds no YAML (*.yaml, *.yml), so nothing was checked: name the one that the "
        "controller reads",
    )
    status = msgspec.structs.replace(found.status, problems=(told,))
    return msgspec.structs.replace(found, status=status)


def _load_tree(
    repository: Path, tree: str, below: str, before: last_good.LastGood = _NOTHING
) -> tuple[desired.Desired, Mapping[str, int], last_good.LastGood]:
    """What a loader makes of a tree, how much is written in it, and which object is whose."""
    commit = scratch_repository.git(repository, "commit-tree", tree, "-m", "as edited")
    scratch_repository.git(repository, "update-ref", "refs/heads/main", commit)
    repo = source.GitSource(str(repository), branch="main", sub_path=below)
    loading = loader.Loader(repo, before)
    try:
        found = loading.load()
        places = {name: job.path for name, job in found.jobs.items()}
        kept = last_good.LastGood(origins=loading.incumbents().origins, preferred=places)
        if any(problem.severity == "error" for problem in found.status.problems):
            found = _with_all_problems(found, repo, commit)
        return found, loading.counts(), kept
    finally:
        loading.close()


def _with_all_problems(
    found: desired.Desired, repo: source.GitSource, commit: str
) -> desired.Desired:
    """What was found in a commit, with all that its jobs name and is written nowhere."""
    present = [one for one in repo.files(commit).files if one.blob is not None]
    blobs = repo.blobs([one.blob or "" for one in present])
    files = {one.path: data for one, data in zip(present, blobs, strict=True)}
    problems = missing_references.complete(files, found.status.problems)
    status = msgspec.structs.replace(found.status, problems=problems)
    return msgspec.structs.replace(found, status=status)


def _before(
    repository: Path, folder: Path, tree: str, below: str, *, staged: bool
) -> last_good.LastGood:
    """Which object of a name stood where in the last commit that is other than ``tree``."""
    if not staged:
        try:
            scratch_repository.share_objects(
                repository, Path(scratch_repository.git_folder(folder))
            )
        except RevisionError:
            return _NOTHING  # a folder that is in no repository
    inside = "" if staged else place_of(folder)
    for revision in ("HEAD", "HEAD~1"):
        try:
            earlier = scratch_repository.git_in(
                folder, "rev-parse", "--verify", f"{revision}:{inside}"
            )
        except RevisionError:
            break
        if earlier != tree:
            return _load_tree(repository, earlier, below)[2]
    return _NOTHING


def place_of(folder: Path) -> str:
    """The path of a folder below the top of its repository; empty at the top, or without one."""
    try:
        return scratch_repository.git_in(folder, "rev-parse", "--show-prefix").rstrip("/")
    except RevisionError:
        return ""


def read(repository: Path, sub_path: str, revision: str) -> ReadFiles:
    """What the blobs of a revision hold; none of them where it can't be read.

    Whoever compares it finds out why, and says so.

    Args:
        repository: a clone, or a bare repository.
        sub_path: the folder of it that is read.
        revision: anything that names a commit.
    """
    found: dict[str, document_reader.File] = {}
    with contextlib.suppress(
        scratch_repository.RevisionError, git_commands.GitError, OSError, ValueError
    ):
        folder = Path(scratch_repository.git_folder(repository))
        commit = scratch_repository.known_commit(folder, revision)
        if commit is not None:
            with contextlib.closing(source.GitSource(str(folder), sub_path=sub_path)) as copy:
                present = [one for one in copy.files(commit).files if one.blob is not None]
                blobs = [one.blob or "" for one in present]
                changes = [
                    file_index.FileChange(one.path, blob, data)
                    for one, blob, data in zip(present, blobs, copy.blobs(blobs), strict=True)
                ]
                parallel_reader.changed(changes, found)
    return found
