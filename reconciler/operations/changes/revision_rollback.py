"""Going back to an earlier revision: one commit on top that makes the structure what it was.

History is not rewritten: what was good before is committed again, and reviewed, verified and held
like any other change. Jobs stay as they are unless they are asked for, since a run happens once.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reconciler.changes import push_result
from reconciler.changes.clone import clone_lock, ignored_files
from reconciler.desired.documents import document_reader
from reconciler.desired.git import git_commands
from reconciler.model.values.text_lines import split_lines
from reconciler.operations import scratch_repository
from reconciler.operations.changes import change_requests, held_changes
from reconciler.operations.client import endpoints
from reconciler.operations.plan import diff, revisions
from reconciler.operations.validate import introduced, object_folders

_SUFFIXES = (".yaml", ".yml")


class RollbackError(Exception):
    """Error: a rollback can't be made; the message says why."""


class Rollback(msgspec.Struct, frozen=True):
    """A commit that is in no branch yet, and what it changes.

    Attributes:
        commit: its id.
        head: the commit below it, and ``onto`` the branch that was checked out.
        found: what changes, with all that is pushed with it.
        problems: errors that the commit would have.
        along: commits that are not pushed yet and are pushed with it, with subjects, newest first.
        unread: files that stay as they are, because their earlier version can't be read.
        drains: nodes that were drained since and take work again, each with the reason.
    """

    commit: str
    head: str
    onto: str
    found: revisions.Comparison
    problems: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[diff.DocumentDiff, ...]:
        """Return the objects that differ, removals first."""
        return self.found.changes


def prepare(
    clone: Path,
    sub_path: str,
    revision: str,
    *,
    jobs: bool = False,
    reason: str = "",
    live: revisions.ControllerRevision | None = None,
) -> Rollback | None:
    """Make the commit that goes back to ``revision``; None where nothing differs.

    Args:
        clone: a work tree without changes.
        sub_path: where in the repository desired state begins.
        revision: to which to go back.
        jobs: whether jobs go back too.
        reason: for the commit's message.
        live: what a controller has in force, where that is known.

    Raises:
        RollbackError: it can't be made.
    """
    try:
        if git_commands.run(clone, "status", "--porcelain", "--untracked-files=no").stdout:
            raise RollbackError(f"{clone} has changes that are not committed: commit or undo them")
        head, onto = _commit_of(clone, "HEAD"), _checked_out(clone)
        target = _commit_of(clone, revision)
        paths, unread = _paths(clone, sub_path, head, target, jobs=jobs)
        if not paths:
            return None
        commit = _make(clone, head, target, paths, reason)
        base, along = _not_pushed(clone, head)
    except git_commands.GitError as error:
        raise RollbackError(str(error)) from error
    try:
        found = revisions.compare(clone, sub_path, head, commit, live=live)
        whole = revisions.compare(clone, sub_path, base, commit, live=live) if along else found
    except scratch_repository.RevisionError as error:
        raise RollbackError(str(error)) from error
    before = {introduced.identity(p) for p in found.base.status.problems}
    touched = {f"{one.kind}/{one.name}" for one in found.changes}
    problems = [
        p.text()
        for p in found.head.status.problems
        if p.severity == "error"
        and introduced.identity(p) not in before
        # Jobs in force stay as they are, whatever an older policy would say of them.
        and (not p.object.startswith("Job/") or p.object in touched)
    ]
    drains = tuple(_ended_drains(found))
    return Rollback(commit, head, onto, whole, tuple(problems), along, tuple(unread), drains)


def _ended_drains(found: revisions.Comparison) -> Iterator[str]:
    """Nodes that are drained before and not after, where they are still there."""
    after = found.head.structure.pools
    for name, pool in sorted(found.base.structure.pools.items()):
        other = after.get(name)
        for node, drain in sorted(pool.drains.items()):
            if other is not None and node in other.nodes and node not in other.drains:
                yield f"{node} ({drain.reason})" if drain.reason else node


def _not_pushed(clone: Path, head: str) -> tuple[str, tuple[str, ...]]:
    """Return the last commit that is pushed, and those after it; ``head`` if there is no remote."""
    upstream = ("rev-parse", "--verify", "--quiet", "HEAD@{upstream}")
    pushed = git_commands.run(clone, *upstream, good=(0, 1, 128)).stdout.decode().strip()
    common = git_commands.run(clone, "merge-base", pushed or head, head, good=(0, 1)).stdout
    base = common.decode().strip() or head
    listed = git_commands.run(clone, "log", "--format=%h %s", f"{base}..{head}").stdout
    return base, tuple(split_lines(listed.decode("utf-8", "replace")))


def publish(clone: Path, made: Rollback, branch: str = "") -> bool:
    """Put a prepared commit into the branch that is checked out, or into a new one, and push it.

    Returns:
        Whether it was pushed; False where the branch follows no remote one.

    Raises:
        RollbackError: somebody was faster, or git refuses.
    """
    try:
        with clone_lock.taken(git_commands.git_folder(clone)):
            return _published(clone, made, branch)
    except git_commands.GitError as error:
        raise RollbackError(str(error)) from error


def _published(clone: Path, made: Rollback, branch: str) -> bool:
    if branch:
        git_commands.run(clone, "branch", "--", branch, made.commit)
        remote, name = "origin", branch
    elif _checked_out(clone) != made.onto:
        raise RollbackError(
            f"{made.onto or 'no branch'} was checked out in {clone} when this was prepared; now "
            "another is: nothing was changed; run the command again"
        )
    else:
        in_the_way = ignored_files.added(clone, made.head, made.commit)
        if in_the_way:
            raise RollbackError(
                f"files in {clone} that are not committed would be overwritten: "
                f"{ignored_files.named(in_the_way)}: commit or move them; nothing was changed"
            )
        clone_lock.git(clone, "merge", "--quiet", "--ff-only", "--no-overwrite-ignore", made.commit)
        upstream = git_commands.run(
            clone, "rev-parse", "--abbrev-ref", "HEAD@{upstream}", good=(0, 128)
        )
        remote, _, name = upstream.stdout.decode().strip().partition("/")
    if not remote or not name or not git_commands.run(clone, "remote").stdout.strip():
        return False
    why = push_result.push(clone, remote, made.commit, f"refs/heads/{name}")
    if why:
        raise RollbackError(
            f"committed here but not pushed, because somebody else pushed first: {why}. To fix: "
            "run `git pull --rebase`, check the result, and run `git push`"
        )
    return True


def _checked_out(clone: Path) -> str:
    """Return the branch that is checked out, or an empty string if there is none."""
    said = git_commands.run(clone, "symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1))
    return said.stdout.decode().strip()


def _commit_of(clone: Path, revision: str) -> str:
    found = (
        git_commands.run(
            clone,
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{revision}^{{commit}}",
            good=(0, 1, 128),
        )
        .stdout.decode()
        .strip()
    )
    if not found:
        raise RollbackError(f"there is no revision {revision} in {clone}")
    return found


def _paths(
    clone: Path, sub_path: str, head: str, target: str, *, jobs: bool
) -> tuple[list[str], list[str]]:
    """Return the files to restore, and those that can't be read."""
    arguments = ["diff", "--name-only", "--no-renames", "-z", head, target]
    if sub_path:
        arguments += ["--", f"{sub_path}/"]
    listed = os.fsdecode(git_commands.run(clone, *arguments).stdout).split("\0")
    found, unread = [], []
    for path in listed:
        if not path.endswith(_SUFFIXES):
            continue
        sides = _read(clone, head, path), _read(clone, target, path)
        kinds = {document.kind for side in sides if side for document in side.documents}
        if not jobs and not kinds and any(side and side.opaque for side in sides):
            unread.append(path)  # a new job with a slip in it may be all that it holds
            continue
        if not jobs and "Job" in kinds and len(kinds) > 1:
            raise RollbackError(
                f"{path} has jobs and other objects. To fix: use --jobs, or edit the file by hand"
            )
        if jobs or "Job" not in kinds:
            found.append(path)
    return found, unread


def _read(clone: Path, commit: str, path: str) -> document_reader.File | None:
    """Return the content of a file in a commit; None if it does not exist there."""
    shown = git_commands.run(clone, "show", f"{commit}:{path}", good=(0, 128))
    return None if shown.returncode else document_reader.read(shown.stdout)


def _make(clone: Path, head: str, target: str, paths: list[str], reason: str) -> str:
    """Return a new commit, made beside the index and the work tree."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git_commands.run(clone, "read-tree", head, extra=index)
        for path in paths:
            listed = git_commands.run(clone, "ls-tree", "-z", target, "--", path).stdout
            entry = os.fsdecode(listed).split("\0")[0]
            if entry:
                mode, _, rest = entry.partition(" ")
                blob = rest.partition(" ")[2].partition("\t")[0]
                git_commands.run(
                    clone,
                    "update-index",
                    "--add",
                    "--cacheinfo",
                    f"{mode},{blob},{path}",
                    extra=index,
                )
            else:
                git_commands.run(clone, "update-index", "--force-remove", "--", path, extra=index)
        tree = git_commands.run(clone, "write-tree", extra=index).stdout.decode().strip()
    signed = (
        git_commands.run(
            clone, "config", "--type=bool", "--default=false", "--get", "commit.gpgsign"
        )
        .stdout.decode()
        .strip()
    )
    subject = f"Roll back to {target[:12]}" + (f": {reason}" if reason else "")
    sign = ["-S"] if signed == "true" else []
    commit = git_commands.run(clone, "commit-tree", *sign, "-p", head, "-m", subject, tree)
    return commit.stdout.decode().strip()


def here(folder: Path) -> Path:
    """Return the clone around a folder.

    Raises:
        RollbackError: there is none.
    """
    with contextlib.suppress(git_commands.GitError, OSError):
        found = (
            git_commands.run(folder, "rev-parse", "--show-toplevel").stdout.decode().rstrip("\n")
        )
        if found:
            return Path(found)
    raise RollbackError(
        f"{os.fspath(folder)} is in no clone. To fix: run this in a clone, or name one with --clone"
    )


def standing_of(
    commit: str, server: str | None, token_file: str | None
) -> change_requests.ChangeResult:
    """Return the result of a commit that was pushed elsewhere, with why it does not apply by
    itself.
    """
    standing = None
    with contextlib.suppress(endpoints.EndpointError):
        standing = object_folders.standing(endpoints.find(server, token_file, Path.cwd()))
    why = held_changes.revision(standing, commit)
    refused = bool(why) and standing is not None and standing.get("sync") != "Unknown"
    return change_requests.ChangeResult("", "", commit, withheld=why, refused=refused)
