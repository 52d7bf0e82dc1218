"""Check of a folder that is being edited, as if it were committed now.

It uses the controller's own loader, on a temporary repository.
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


class NotAFolderError(scratch_repository.RevisionError):
    """Error: a path names a file or nothing."""


#: Rule of the warning about a folder without any YAML.
NOTHING_WRITTEN = "nothing-written"


def read_folder(folder: Path) -> desired.Desired:
    """Return the desired state in a folder as it is now, committed or not.

    Raises:
        RevisionError: the folder can't be read.
    """
    return check_folder(folder)[0]


def check_folder(
    folder: Path, *, staged: bool = False, since: str | None = None
) -> tuple[desired.Desired, Mapping[str, int]]:
    """Return the same as :func:`read_folder`, with the number of objects of each kind.

    Files that git ignores are left out, as from a commit. Of two objects of one name, the one that
    the last commit does not have is the new one.

    Args:
        folder: with the YAML.
        staged: check what is staged for the next commit instead of what is on disk. Errors of the
            last commit, in documents that do not change, become warnings.
        since: the same for this revision, or for where the last commit diverged from it.

    Raises:
        RevisionError: the folder, or the revision, can't be read.
    """
    if not folder.is_dir():
        raise NotAFolderError(_describe_not_a_folder(folder))
    with scratch_repository.repository() as repository:
        if staged:
            scratch_repository.share_objects(
                repository, Path(scratch_repository.git_folder(folder))
            )
            tree = scratch_repository.git_in(folder, "write-tree")
            below = place_of(folder)
        else:
            _add_all(repository, folder.resolve())
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


def _describe_not_a_folder(path: Path) -> str:
    """Return what is wrong with a path that should be a folder, and what to do."""
    if not path.exists():
        return f"there is no folder {path}"
    here = path.parent if path.parent.parts else Path()
    return (
        f"{path} is a file, and a whole folder is checked, because objects refer to each other: "
        f"`muster validate {here}`; a job is checked alone by `muster submit --dry-run {path}`"
    )


def _add_all(repository: Path, folder: Path) -> None:
    """Add all files of a folder to the index, without repositories inside it that have no commit.

    Git adds no such repository and fails. One with a commit becomes a link that nobody reads.
    """
    try:
        scratch_repository.git(repository, "add", "--all", "--", ".", work_tree=folder)
    except scratch_repository.RevisionError:
        inner = [
            path.parent.relative_to(folder)
            for path in folder.rglob(".git")
            if path.parent != folder and not _has_commit(path.parent)
        ]
        if not inner:
            raise
        left_out = [f":(exclude,literal){path}" for path in inner]
        scratch_repository.git(repository, "add", "--all", "--", ".", *left_out, work_tree=folder)


def _has_commit(repository: Path) -> bool:
    """Return True if the last commit of a work tree can be read."""
    try:
        scratch_repository.git_in(repository, "rev-parse", "--verify", "HEAD")
    except scratch_repository.RevisionError:
        return False
    return True


def _since(
    repository: Path,
    folder: Path,
    written: tuple[str, str],
    found: desired.Desired,
    since: str | None,
    *,
    staged: bool,
) -> desired.Desired:
    """Return the problems of a tree, with those of an earlier revision as warnings.

    Args:
        repository: of ``written``, a tree and the folder of it that is read.
        folder: in the repository of the revision.
        found: the problems.
        since: the revision; None: the last commit, if there is one.
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
    except scratch_repository.RevisionError:
        return found  # all of the folder is new
    before = _load_tree(repository, earlier, below)[0]
    listed = scratch_repository.git(
        repository, "diff-tree", "-r", "--name-only", "--no-renames", "-z", earlier, tree
    )

    def read(of: str, path: str) -> bytes | None:
        try:
            text = scratch_repository.git(repository, "cat-file", "blob", f"{of}:{path}")
        except scratch_repository.RevisionError:
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
    """Return the commit to compare with; None: there is none yet.

    Raises:
        RevisionError: there is no such revision.
    """
    repository = Path(scratch_repository.git_folder(folder))
    head = scratch_repository.known_commit(repository, "HEAD")
    if since is None:
        return head
    start = scratch_repository.known_commit(repository, since)
    if start is None:
        raise scratch_repository.RevisionError(
            f"there is no revision {since} in {folder}: name a branch, a tag or a commit that is "
            "fetched"
        )
    if head is None:
        return start
    try:
        return scratch_repository.git(repository, "merge-base", start, head)
    except scratch_repository.RevisionError:
        return start  # they have no commit in common


def _nothing(found: desired.Desired) -> desired.Desired:
    """Return the result for a folder without any YAML, with a warning."""
    warning = desired.Problem(
        NOTHING_WRITTEN,
        "warning",
        ".",
        "this folder holds no YAML (*.yaml, *.yml), so nothing was checked: name the one that the "
        "controller reads",
    )
    status = msgspec.structs.replace(found.status, problems=(warning,))
    return msgspec.structs.replace(found, status=status)


def _load_tree(
    repository: Path, tree: str, below: str, before: last_good.LastGood = _NOTHING
) -> tuple[desired.Desired, Mapping[str, int], last_good.LastGood]:
    """Return a tree's state, the number of its objects, and the file of each object."""
    commit = scratch_repository.git(repository, "commit-tree", tree, "-m", "as edited")
    scratch_repository.git(repository, "update-ref", "refs/heads/main", commit)
    repo = source.GitSource(str(repository), branch="main", sub_path=below)
    loading = loader.Loader(repo, before)
    try:
        found = loading.load()
        places = {name: job.path for name, job in found.jobs.items()}
        last_good_state = last_good.LastGood(origins=loading.incumbents().origins, preferred=places)
        if any(problem.severity == "error" for problem in found.status.problems):
            found = _with_all_problems(found, repo, commit)
        return found, loading.counts(), last_good_state
    finally:
        loading.close()


def _with_all_problems(
    found: desired.Desired, repo: source.GitSource, commit: str
) -> desired.Desired:
    """Return a commit's state, with problems for references of its jobs to missing objects."""
    present = [one for one in repo.files(commit).files if one.blob is not None]
    blobs = repo.blobs([one.blob or "" for one in present])
    files = {one.path: data for one, data in zip(present, blobs, strict=True)}
    problems = missing_references.complete(files, found.status.problems)
    status = msgspec.structs.replace(found.status, problems=problems)
    return msgspec.structs.replace(found, status=status)


def _before(
    repository: Path, folder: Path, tree: str, below: str, *, staged: bool
) -> last_good.LastGood:
    """Return the file of each object in the last commit that differs from ``tree``."""
    if not staged:
        try:
            scratch_repository.share_objects(
                repository, Path(scratch_repository.git_folder(folder))
            )
        except scratch_repository.RevisionError:
            return _NOTHING  # a folder that is in no repository
    inside = "" if staged else place_of(folder)
    for revision in ("HEAD", "HEAD~1"):
        try:
            earlier = scratch_repository.git_in(
                folder, "rev-parse", "--verify", f"{revision}:{inside}"
            )
        except scratch_repository.RevisionError:
            break
        if earlier != tree:
            return _load_tree(repository, earlier, below)[2]
    return _NOTHING


def place_of(folder: Path) -> str:
    """Return the path of a folder in its repository. It is empty at the top, and for a folder in no
    repository.
    """
    try:
        return scratch_repository.git_in(folder, "rev-parse", "--show-prefix").rstrip("/")
    except scratch_repository.RevisionError:
        return ""


def read(repository: Path, sub_path: str, revision: str) -> ReadFiles:
    """Return the content of a revision's blobs; empty if it can't be read.

    A later comparison reports why.

    Args:
        repository: a clone, or a bare repository.
        sub_path: folder of it with the cluster's YAML.
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
