"""Work trees in which the written branch is checked out, and how their files follow it.

A branch moves first and the files after it, so that no file has uncommitted contents. Before that,
a note in the git folder says from where to where; a later run that finds one finishes the move.
Without it the old files would look like somebody's own changes, and committing them would undo
others' work.
"""

import logging
import os
from pathlib import Path

import msgspec

from reconciler.changes.clone import ignored_files
from reconciler.desired.git import git_commands, source
from reconciler.desired.git.git_commands import GitError
from reconciler.model.values.text_lines import split_lines

_LOG = logging.getLogger(__name__)

#: The note's name, in the git folder that all work trees of a repository share.
NOTE = "muster-moving.json"
#: How far back it is looked for a commit whose files a work tree still has.
_BEHIND_MAX = 200
#: The most files that a message names.
_NAMES_MAX = 5


class _Move(msgspec.Struct, frozen=True):
    """A move of a branch from one commit to another."""

    reference: str
    before: str
    after: str


_decode_move = msgspec.json.Decoder(_Move).decode


def of(repository: source.GitSource, reference: str) -> list[Path]:
    """Return the work trees of a local repository in which a branch is checked out.

    Raises:
        GitError: git fails.
    """
    listed = git_commands.run(repository.folder, "worktree", "list", "--porcelain", "-z").stdout
    known: set[Path] = set()
    found: list[Path] = []
    for entry in os.fsdecode(listed).split("\0\0"):
        fields = entry.strip("\0").split("\0")
        tree = Path(fields[0].removeprefix("worktree "))
        if not fields[0] or not (tree / ".git").exists():
            continue  # bare, or its folder is not there
        known.add(tree.resolve())
        if f"branch {reference}" in fields:
            found.append(tree)
    own = Path(repository.address)
    if own.resolve() not in known and (own / ".git").exists():
        # its git folder stands elsewhere, which `worktree list` does not know
        current = git_commands.run(own, "symbolic-ref", "-q", "HEAD", good=(0, 1)).stdout
        if current.decode().strip() == reference:
            found.append(own)
    return found


def prepare(repository: source.GitSource, reference: str, before: str, after: str) -> list[Path]:
    """Check that the files of a branch can follow it; return the work trees to update.

    Raises:
        GitError: somebody changed something there; with what to do.
        OSError: the note cannot be written.
    """
    trees = of(repository, reference)
    for tree in trees:
        _require_clean(tree)
        _require_room(tree, before, after)
        git_commands.run(tree, "read-tree", "-n", "-u", "-m", before, after)
    if trees:
        _write_note(_note(repository), _Move(reference, before, after))
    return trees


def follow(repository: source.GitSource, trees: list[Path], before: str, after: str) -> None:
    """Update the files of work trees whose branch has moved.

    Errors of git are not raised: the branch is written, and :func:`finish` tries again.
    """
    if not trees:
        return
    try:
        for tree in trees:
            _require_room(tree, before, after)  # somebody may have put something there meanwhile
            git_commands.run(tree, "read-tree", "-u", "-m", before, after)
        _note(repository).unlink(missing_ok=True)
    except (GitError, OSError) as error:
        _LOG.warning("files of %s are not brought up to their branch yet: %s", tree, error)


def withdraw(repository: source.GitSource, trees: list[Path]) -> None:
    """Delete the notes of a move that did not happen."""
    if trees:
        _note(repository).unlink(missing_ok=True)


def finish(repository: source.GitSource) -> None:
    """Update the files of work trees that an interruption has left behind their branch.

    Raises:
        GitError: somebody changed the same files meanwhile.
        OSError: the note cannot be read or deleted.
    """
    note = _note(repository)
    try:
        move = _decode_move(note.read_bytes())
    except FileNotFoundError:
        return
    except msgspec.DecodeError as error:
        _LOG.warning("%s can't be read, and is taken away: %s", note, error)
        note.unlink(missing_ok=True)
        return
    for tree in of(repository, move.reference):
        moved = git_commands.run(
            tree, "merge-base", "--is-ancestor", move.after, "HEAD", good=(0, 1, 128)
        )
        if moved.returncode == 0:
            _bring_up(tree, move.before)
    note.unlink(missing_ok=True)


def _bring_up(tree: Path, before: str) -> None:
    """Update files that are still as in ``before`` to HEAD; changes of others stay."""
    git_commands.run(tree, "update-index", "-q", "--refresh", good=(0, 1))
    _take_up_written(tree, before)
    try:
        _require_room(tree, before, "HEAD")
        git_commands.run(tree, "read-tree", "-u", "-m", before, "HEAD")
    except GitError as error:
        raise GitError(
            f"the branch is checked out in {tree}, whose files Muster was bringing up to it when "
            f"it was interrupted, and can't now: {error}. Undo the changes of these files, and "
            "commit nothing there before: it would take back what was committed since "
            f"{before[:12]}"
        ) from error


def _take_up_written(tree: Path, before: str) -> None:
    """Stage files that are as in HEAD already: git had come that far before the interruption."""
    listed = git_commands.run(tree, "diff-tree", "-r", "-z", "--no-renames", before, "HEAD").stdout
    parts = listed.split(b"\0")
    wanted = [
        (*head.split()[1:4:2], path)
        for head, path in zip(parts[:-1:2], parts[1::2], strict=True)
        if b"\n" not in path
    ]
    there = [one for one in wanted if (tree / os.fsdecode(one[2])).is_file()]
    hashes = git_commands.run(
        tree, "hash-object", "--stdin-paths", data=b"".join(path + b"\n" for _, _, path in there)
    ).stdout.split()
    staged = b"".join(
        b"%s %s\t%s\0" % (mode, blob, path)
        for (mode, blob, path), found in zip(there, hashes, strict=True)
        if found == blob
    )
    git_commands.run(tree, "update-index", "-z", "--index-info", data=staged)
    git_commands.run(tree, "update-index", "-q", "--refresh", good=(0, 1))


def _require_clean(tree: Path) -> None:
    """Raise GitError if files or the index of a work tree differ from its HEAD."""
    git_commands.run(tree, "update-index", "-q", "--refresh", good=(0, 1))
    changed = _names(tree, "diff-files")
    staged = _names(tree, "diff-index", "--cached", "HEAD")
    if not changed and not staged:
        return
    place = f"the branch is checked out in {tree}, and"
    behind = "" if changed else _behind(tree)
    if behind:
        raise GitError(
            f"{place} files there are not committed: they are those of {behind[:12]}, before what "
            f"the branch says now. `git -C {tree} reset --hard` brings them up to it; commit them "
            "only if you mean to take back everything since"
        )
    names = [*dict.fromkeys([*changed, *staged])]
    shown = ", ".join(names[:_NAMES_MAX])
    shown += f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    raise GitError(
        f"{place} files there are changed and not committed: {shown}; commit or undo them, or "
        "check out another branch"
    )


def _require_room(tree: Path, before: str, after: str) -> None:
    """Raise GitError if git would overwrite something untracked."""
    names = ignored_files.added(tree, before, after)
    if names:
        raise GitError(
            f"the branch is checked out in {tree}, where something that is not committed stands in "
            f"place of {ignored_files.named(names)}: commit it or move it away"
        )


def _names(tree: Path, *command: str) -> list[str]:
    said = git_commands.run(tree, *command, "--name-only", "-z").stdout
    return [name.decode("utf-8", "replace") for name in said.split(b"\0") if name]


def _behind(tree: Path) -> str:
    """Return the commit before HEAD that the index equals exactly; empty if there is none."""
    written = git_commands.run(tree, "write-tree", good=(0, 128)).stdout.decode().strip()
    said = git_commands.run(tree, "log", f"--max-count={_BEHIND_MAX}", "--format=%H %T", "HEAD")
    for line in split_lines(said.stdout.decode()):
        commit, _, of_commit = line.partition(" ")
        if of_commit == written:
            return commit
    return ""


def _note(repository: source.GitSource) -> Path:
    return git_commands.common_folder(repository.folder) / NOTE


def _write_note(note: Path, move: _Move) -> None:
    """Write a note durably, before the move that it describes."""
    fresh = note.with_name(f"{NOTE}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(move))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(note)
