"""Reading desired state that is not in force: a folder being edited, or two revisions to compare.

Both go through the same loader as the controller's: a folder is written into a repository of its
own that nobody sees, revisions are read beside each other through shared objects.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from reconciler.desired import documents, loader, source
from reconciler.model import desired, judgement, nearest
from reconciler.operations import differences

GIT_TIMEOUT_S = 120.0
#: The most names of branches that a wrong one is compared with.
_NAMES_MAX = 1000


class RevisionError(Exception):
    """A folder or revision can't be read; says why."""


class InForce(msgspec.Struct, frozen=True):
    """What a controller has in force, where that is not one revision as a whole.

    Attributes:
        revision: that its jobs are of.
        structure: that its structure is of, where that of ``revision`` is held or refused.
        staying: jobs in force whose documents have left, since their removal is held; by name.
    """

    revision: str
    structure: str | None = None
    staying: Mapping[str, desired.Job] = {}


class Comparison(msgspec.Struct, frozen=True):
    """Two revisions beside each other, the second as it would stand after the first.

    Attributes:
        base_commit, head_commit: full ids; the base is the revision that its structure is of.
        merged: ``head`` does not follow ``base``, so that what is shown is the merge of both.
        changes: objects that differ, removals first.
        paths: files that differ.
        structure_refused: the structure of the second does not apply, and that of the first did
            or the second changes some of it.
        approvals: digests that commits from the first to the second approve, as far as they count.
    """

    base: desired.Desired
    head: desired.Desired
    base_commit: str
    head_commit: str
    changes: tuple[differences.Change, ...]
    merged: bool = False
    paths: frozenset[str] = frozenset()
    structure_refused: bool = False
    approvals: tuple[str, ...] = ()


def _git(
    folder: Path,
    *arguments: str,
    work_tree: Path | None = None,
    good: tuple[int, ...] = (0,),
) -> str:
    """What git prints; its exit status where it says nothing and more than 0 is good."""
    environment = {
        **os.environ,
        "GIT_DIR": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "muster",
        "GIT_AUTHOR_EMAIL": "muster@localhost",
        "GIT_COMMITTER_NAME": "muster",
        "GIT_COMMITTER_EMAIL": "muster@localhost",
    }
    for name in ("GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX"):
        environment.pop(name, None)
    if work_tree is not None:
        environment["GIT_WORK_TREE"] = str(work_tree)
    try:
        done = subprocess.run(
            ["git", *arguments],
            env=environment,
            cwd=work_tree or folder,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RevisionError(f"`git {arguments[0]}` took longer than {GIT_TIMEOUT_S} s") from None
    if done.returncode not in good:
        told = done.stderr.strip() or done.stdout.strip()
        raise RevisionError(f"`git {' '.join(arguments)}` failed: {told}")
    return done.stdout.strip() if good == (0,) else str(done.returncode)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A bare repository that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        repository = Path(folder) / "scratch.git"
        repository.mkdir()
        _git(repository, "init", "--quiet", "--bare", "--initial-branch", "main")
        yield repository


def read_folder(folder: Path) -> desired.Desired:
    """The desired state in a folder as it is now, committed or not.

    Raises:
        RevisionError: the folder can't be read.
    """
    return check_folder(folder)[0]


def check_folder(
    folder: Path, *, staged: bool = False
) -> tuple[desired.Desired, Mapping[str, int]]:
    """As :func:`read_folder`, with how many objects of each kind are written in it.

    Files that git ignores are left out, as they would be from a commit.

    Args:
        folder: where the YAML stands.
        staged: take what is staged for the next commit instead of what is on disk.

    Raises:
        RevisionError: the folder can't be read.
    """
    if not folder.is_dir():
        raise RevisionError(f"{folder} is no folder")
    with _scratch() as repository:
        if staged:
            _share_objects(repository, Path(_git_folder(folder)))
            tree = _git_in(folder, "write-tree")
            below = place_of(folder)
        else:
            _git(repository, "add", "--all", "--", ".", work_tree=folder.resolve())
            tree, below = _git(repository, "write-tree"), ""
        commit = _git(repository, "commit-tree", tree, "-m", "as edited")
        _git(repository, "update-ref", "refs/heads/main", commit)
        reading = loader.Loader(source.Source(str(repository), branch="main", sub_path=below))
        try:
            return reading.load(), reading.counts()
        finally:
            reading.close()


def place_of(folder: Path) -> str:
    """The path of a folder below the top of its repository; empty at the top, or without one."""
    try:
        return _git_in(folder, "rev-parse", "--show-prefix").rstrip("/")
    except RevisionError:
        return ""


def compare(
    repository: Path,
    sub_path: str,
    base: str,
    head: str,
    *,
    before: Sequence[str] = (),
    live: InForce | None = None,
) -> Comparison:
    """What changes from ``base`` to ``head``, or to the merge of both where they have parted.

    For such a merge, which nobody has signed yet, the commits of ``head`` answer.

    Args:
        repository: a clone, or a bare repository.
        sub_path: the folder of it that is read.
        base, head: anything that names a commit.
        before: revisions that were in force before ``base``, the oldest first: where the structure
            of ``base`` was refused, theirs is in force. Those that are not there are left out.
        live: what a controller has in force. Where ``base`` is its newest revision, or follows it,
            what that one left held is held at ``base``: with what is in force is compared. A
            structure whose revision is not there is left out.

    Raises:
        RevisionError: the repository or a revision can't be read, or the two can't be merged.
    """
    folder = Path(_git_folder(repository))
    known = _at(folder, base, live)
    kept = _known_commit(folder, known.structure) if known and known.structure else None
    if kept is not None and kept != _commit_of(folder, base):
        found = _from_in_force(folder, sub_path, kept, base, head)
    else:
        found = _between(folder, sub_path, base, head, before)
    return _with_staying(found, known.staying) if known is not None else found


def _at(folder: Path, base: str, live: InForce | None) -> InForce | None:
    """What is in force, if that is what ``base`` stands on."""
    newest = _known_commit(folder, live.revision) if live is not None else None
    if newest is None:
        return None
    first = _commit_of(folder, base)
    return live if first == newest or _is_ancestor(folder, newest, first) else None


def _with_staying(found: Comparison, staying: Mapping[str, desired.Job]) -> Comparison:
    """The comparison with jobs before it that are in force and written nowhere."""
    if not staying.keys() - found.base.jobs.keys():
        return found
    base = msgspec.structs.replace(found.base, jobs={**staying, **found.base.jobs})
    return msgspec.structs.replace(found, base=base, changes=differences.between(base, found.head))


def _between(
    folder: Path, sub_path: str, base: str, head: str, before: Sequence[str]
) -> Comparison:
    """What changes from ``base`` to ``head``, both as the repository has them."""
    with _scratch() as scratch:
        _share_objects(scratch, folder)
        first, last = (_commit_of(folder, revision) for revision in (base, head))
        merge = _merge(scratch, first, last)
        earlier = [found for one in before if (found := _known_commit(folder, one)) != first]
        copy = source.Source(str(scratch), branch="main", sub_path=sub_path)
        reading = loader.Loader(copy)
        if merge is not None:
            reading.judge_by(merge, last)
        states: list[desired.Desired] = []
        order = [*filter(None, earlier), first, merge or last]
        try:
            for position, commit in enumerate(order):
                _git(scratch, "update-ref", "refs/heads/main", commit)
                if not all(_is_ancestor(scratch, one, commit) for one in order[:position]):
                    reading.accept(commit)  # what follows is judged as the controller would
                states.append(reading.load())
            old, new = states[-2:]
            refused = _is_refused(new, order[-1]) and (
                not _is_refused(old, first) or _touches_structure(copy, first, order[-1])
            )
            listed = _git(scratch, "diff", "--name-only", "--no-renames", "-z", first, order[-1])
        finally:
            reading.close()
    return Comparison(
        base=old,
        head=new,
        base_commit=first,
        head_commit=last,
        changes=differences.between(old, new),
        merged=merge is not None,
        paths=frozenset(listed.split("\0")),
        structure_refused=refused,
        approvals=reading.approved,
    )


def _from_in_force(folder: Path, sub_path: str, kept: str, newest: str, head: str) -> Comparison:
    """What changes to ``head`` from the structure of ``kept`` with the jobs of ``newest``."""
    with _scratch() as scratch:
        _share_objects(scratch, folder)
        first, last = (_commit_of(folder, revision) for revision in (newest, head))
        merge = _merge(scratch, first, last)
        goal = merge or last
        copy = source.Source(str(scratch), branch="main", sub_path=sub_path)
        again = source.Source(str(scratch), branch="main", sub_path=sub_path)
        stays = _StructureStays()
        as_is = loader.Loader(copy, gate=stays)
        free = loader.Loader(again)
        if merge is not None:
            free.judge_by(merge, last)

        def load(reading: loader.Loader, commit: str) -> desired.Desired:
            _git(scratch, "update-ref", "refs/heads/main", commit)
            if commit != kept and not _is_ancestor(scratch, kept, commit):
                reading.accept(commit)
            return reading.load()

        try:
            applied = load(as_is, kept)
            stays.is_wanted = True
            old = load(as_is, first)
            load(free, kept)
            new = load(free, goal)
            refused = _is_refused(new, goal) and (
                goal == first
                or not _is_refused(old, first)
                or bool(old.status.held)
                or _touches_structure(copy, first, goal)
            )
            if goal == first:  # what is wrong with it is news to what is in force
                old = msgspec.structs.replace(old, status=applied.status)
            listed = _git(scratch, "diff", "--name-only", "--no-renames", "-z", kept, goal)
        finally:
            as_is.close()
            free.close()
    return Comparison(
        base=old,
        head=new,
        base_commit=kept,
        head_commit=last,
        changes=differences.between(old, new),
        merged=merge is not None,
        paths=frozenset(listed.split("\0")),
        structure_refused=refused,
        approvals=tuple(dict.fromkeys((*as_is.approved, *free.approved))),
    )


class _StructureStays:
    """Holds whatever a revision changes of the structure, from when that ``is_wanted``."""

    def __init__(self) -> None:
        self.is_wanted = False

    def judge(
        self, before: desired.Desired, after: desired.Desired, approvals: frozenset[str]
    ) -> judgement.Judgement:
        """Hold the structure where it differs, and let everything else apply."""
        del approvals
        if not self.is_wanted or before.structure == after.structure:
            return judgement.Judgement()
        finding = judgement.Finding("structure", "over-limit", "it is not in force")
        return judgement.Judgement((finding,))


def _is_refused(state: desired.Desired, commit: str) -> bool:
    """Whether the structure in force is that of an earlier revision."""
    return state.status.structure_revision != commit


def _touches_structure(copy: source.Source, before: str, after: str) -> bool:
    """Whether files differ that hold, or may hold, other objects than jobs."""
    differing = copy.differences(before, after)
    ids = {blob for _, *both in differing for blob in both if blob is not None}
    files = map(documents.read, copy.blobs(ids))
    return any(file.opaque or any(documents.structural(file)) for file in files)


def _commit_of(folder: Path, revision: str) -> str:
    found = _known_commit(folder, revision)
    if found is None:
        names = _git(folder, "for-each-ref", "--format=%(refname:short)").splitlines()
        known = [name for name in names if name][:_NAMES_MAX]
        raise RevisionError(
            f"there is no revision {revision} in {folder}{nearest.hint(revision, known)}; name a "
            "branch, a tag or a commit that is fetched"
        )
    return found


def _known_commit(folder: Path, revision: str) -> str | None:
    try:
        return _git(
            folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except RevisionError:
        return None


def has_commit(repository: Path, revision: str) -> bool:
    """Whether a repository has a commit."""
    return _known_commit(Path(_git_folder(repository)), revision) is not None


def uncommitted(repository: Path, sub_path: str) -> list[str]:
    """Files of desired state in a clone with changes that no commit has; none of a bare repository.

    Args:
        repository: any folder of the clone.
        sub_path: the folder of it that is read.
    """
    below = f"{sub_path.strip('/')}/" if sub_path.strip("/") else ""
    places = [f":(top,glob){below}**/*.{ending}" for ending in ("yaml", "yml")]
    try:
        told = _git_in(
            repository,
            "status",
            "--porcelain",
            "-z",
            "--no-renames",
            "--untracked-files=all",
            "--",
            *places,
        )
    except RevisionError:
        return []
    # the first character may have been stripped with what surrounds the answer
    paths = [one.lstrip()[2:].lstrip() for one in told.split("\0") if one]
    return [one for one in paths if not any(part.startswith(".") for part in one.split("/"))]


def default_base(repository: Path, head: str) -> str:
    """What a revision is compared with where nobody says: the branch that it is to go into.

    That is the remote's main branch, else ``main`` or ``master``; where that is the revision
    itself, or there is none, its parent.

    Raises:
        RevisionError: there is nothing to compare it with.
    """
    folder = Path(_git_folder(repository))
    tip = _commit_of(folder, head)
    for name in ("refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"):
        found = _known_commit(folder, name)
        if found is not None and found != tip:
            return found
        if found == tip:
            break
    parent = f"{head}~1"
    if _known_commit(folder, parent) is None:
        raise RevisionError(
            f"{head} is the first commit, there is nothing to compare it with; name a revision "
            "with --base"
        )
    return parent


def _merge(scratch: Path, base: str, head: str) -> str | None:
    """The merge of two commits that have parted; None where one follows the other."""
    if base == head or _is_ancestor(scratch, base, head) or _is_ancestor(scratch, head, base):
        return None
    try:
        tree = _git(scratch, "merge-tree", "--write-tree", "--name-only", base, head)
    except RevisionError as error:
        found = str(error)
        if "unrelated histories" in found:
            return None
        raise RevisionError(
            f"{head[:12]} and {base[:12]} can't be merged without a decision; rebase or merge the "
            f"branch first ({found})"
        ) from None
    return _git(scratch, "commit-tree", tree, "-p", base, "-p", head, "-m", "as merged")


def _is_ancestor(folder: Path, commit: str, of: str) -> bool:
    return _git(folder, "merge-base", "--is-ancestor", commit, of, good=(0, 1)) == "0"


def _share_objects(scratch: Path, folder: Path) -> None:
    """Let a scratch repository read the objects of another."""
    alternates = scratch / "objects" / "info" / "alternates"
    alternates.parent.mkdir(parents=True, exist_ok=True)
    alternates.write_text(f"{folder / 'objects'}\n", encoding="utf-8")


def _git_in(folder: Path, *arguments: str) -> str:
    """Git in a work tree, with the index that a commit under way is made from."""
    environment = dict(os.environ)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        if name in environment:  # a hook gets them relative to where it is started
            environment[name] = str(Path(environment[name]).absolute())
    if "GIT_DIR" in environment and "GIT_WORK_TREE" not in environment:
        environment["GIT_WORK_TREE"] = str(Path.cwd())
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=GIT_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RevisionError(f"`git {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _git_folder(repository: Path) -> str:
    try:
        found = Path(_git_in(repository, "rev-parse", "--absolute-git-dir"))
    except RevisionError as error:
        raise RevisionError(f"{repository} is no git repository: {error}") from None
    return str((found / _git(found, "rev-parse", "--git-common-dir")).resolve())
