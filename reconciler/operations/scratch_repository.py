"""Temporary repositories for reading revisions of another one, which is not changed.

A scratch repository reads the objects of another, and is deleted afterwards.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reconciler.desired.git import git_commands, subprocesses
from reconciler.model.values.text_lines import split_lines

GIT_TIMEOUT_S = 120.0
#: The most files in conflict that are named.
_FILES_MAX = 5


class RevisionError(Exception):
    """Error: a folder or revision can't be read; the message says why."""


def git(
    folder: Path,
    *arguments: str,
    work_tree: Path | None = None,
    good: tuple[int, ...] = (0,),
) -> str:
    """Return git's output, or its exit status if it has none and more than 0 is accepted."""
    environment = {
        **os.environ,
        "GIT_DIR": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "muster",
        "GIT_AUTHOR_EMAIL": "muster@localhost",
        "GIT_COMMITTER_NAME": "muster",
        "GIT_COMMITTER_EMAIL": "muster@localhost",
    }
    for name in ("GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_COMMON_DIR"):
        environment.pop(name, None)
    if work_tree is not None:
        environment["GIT_WORK_TREE"] = str(work_tree)
    try:
        done = subprocesses.run(
            ["git", *arguments],
            environment=environment,
            timeout_s=GIT_TIMEOUT_S,
            folder=work_tree or folder,
        )
    except subprocess.TimeoutExpired:
        raise RevisionError(f"`git {arguments[0]}` took longer than {GIT_TIMEOUT_S} s") from None
    if done.returncode not in good:
        output = _text(done.stderr) or _text(done.stdout)
        raise RevisionError(f"`git {' '.join(arguments)}` failed: {output}")
    return _text(done.stdout) if good == (0,) else str(done.returncode)


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "surrogateescape").strip()  # names of files are bytes


@contextmanager
def repository() -> Iterator[Path]:
    """Yield a bare repository that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        repository = Path(folder) / "scratch.git"
        repository.mkdir()
        git(repository, "init", "--quiet", "--bare", "--initial-branch", "main")
        yield repository


def known_commit(folder: Path, revision: str) -> str | None:
    try:
        return git(
            folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except RevisionError:
        return None


def merge(scratch: Path, base: str, head: str) -> str | None:
    """Return the merge of two commits that have diverged; None if one follows the other."""
    if base == head or is_ancestor(scratch, base, head) or is_ancestor(scratch, head, base):
        return None
    try:
        tree = git(scratch, "merge-tree", "--write-tree", "--name-only", base, head)
    except RevisionError as error:
        found = str(error)
        if "unrelated histories" in found:
            return None
        raise RevisionError(_not_merged(scratch, base, head, found)) from None
    return git(scratch, "commit-tree", tree, "-p", base, "-p", head, "-m", "as merged")


def _not_merged(scratch: Path, base: str, head: str, told: str) -> str:
    """Return why two commits can't be merged, from git's message, and what to do."""
    # the tree that git made as far as it could, the files in conflict, a blank line, and its words
    tree, *files = split_lines(told.partition(" failed: ")[2].partition("\n\n")[0]) or [""]
    if not files or not set(tree) <= set("0123456789abcdef"):
        return f"{head[:12]} and {base[:12]} can't be merged: {told}"
    parted = git(scratch, "merge-base", base, head)[:12]
    names = ", ".join(files[:_FILES_MAX])
    names += f" and {len(files) - _FILES_MAX} more" if len(files) > _FILES_MAX else ""
    return (
        f"{head[:12]} and {base[:12]} can't be merged without a decision: since {parted} both "
        f"change {names}. Rebase or merge the branch first. Where the branch was rewritten (a "
        f"force push) there is nothing to merge, and it is held: `--base {parted}` shows what it "
        "changes since the last commit that both have"
    )


def is_ancestor(folder: Path, commit: str, of: str) -> bool:
    return git(folder, "merge-base", "--is-ancestor", commit, of, good=(0, 1)) == "0"


def share_objects(scratch: Path, folder: Path) -> None:
    """Let a scratch repository read the objects of another."""
    alternates = scratch / "objects" / "info" / "alternates"
    alternates.parent.mkdir(parents=True, exist_ok=True)
    alternates.write_text(f"{folder / 'objects'}\n", encoding="utf-8")


def _inside(folder: Path) -> dict[str, str]:
    """Return git's environment in a folder, with what a hook got for the folder's own repository.

    For another repository, a hook's variables are left out.
    """
    environment = dict(os.environ)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        if name in environment:  # a hook gets them relative to its working folder
            environment[name] = str(Path(environment[name]).absolute())
    if "GIT_DIR" not in environment:
        return environment
    try:
        found = git_commands.run(folder, "rev-parse", "--absolute-git-dir", good=(0, 128)).stdout
    except git_commands.GitError:
        found = b""
    if found and Path(_text(found)).resolve() != Path(environment["GIT_DIR"]).resolve():
        return git_commands.environment()
    environment.setdefault("GIT_WORK_TREE", str(Path.cwd()))
    return environment


def git_in(folder: Path, *arguments: str) -> str:
    """Git in a work tree, with the index that a commit under way is made from."""
    environment = _inside(folder)
    try:
        done = subprocesses.run(
            ["git", "-C", str(folder), *arguments],
            environment=environment,
            timeout_s=GIT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise RevisionError(f"`git {arguments[0]}` took longer than {GIT_TIMEOUT_S} s") from None
    if done.returncode:
        raise RevisionError(f"`git {' '.join(arguments)}` failed: {_text(done.stderr)}")
    return _text(done.stdout)


def git_folder(repository: Path) -> str:
    try:
        found = Path(git_in(repository, "rev-parse", "--absolute-git-dir"))
    except RevisionError as error:
        raise RevisionError(f"{repository} is no git repository: {error}") from None
    return str((found / git(found, "rev-parse", "--git-common-dir")).resolve())
