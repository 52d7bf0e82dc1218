"""Reading desired state that is not in force: a folder being edited, or two revisions to compare.

Both go through the same loader as the controller's: a folder is written into a repository of its
own that nobody sees, revisions are read beside each other through shared objects.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from reconciler.desired import loader, source
from reconciler.model import desired

GIT_TIMEOUT_S = 120.0


class RevisionError(Exception):
    """A folder or revision can't be read; says why."""


class Change(msgspec.Struct, frozen=True):
    """One object that differs between two revisions.

    ``fields`` maps dotted paths to (before, after) as JSON texts; empty for added and removed.
    """

    operation: str
    kind: str
    name: str
    fields: dict[str, tuple[str, str]] = {}


class Comparison(msgspec.Struct, frozen=True):
    """Two revisions beside each other, the second as it would stand after the first."""

    base: desired.Desired
    head: desired.Desired
    changes: tuple[Change, ...]


def _git(folder: Path, *arguments: str, work_tree: Path | None = None) -> str:
    environment = {
        **os.environ,
        "GIT_DIR": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "muster",
        "GIT_AUTHOR_EMAIL": "muster@localhost",
        "GIT_COMMITTER_NAME": "muster",
        "GIT_COMMITTER_EMAIL": "muster@localhost",
    }
    environment.pop("GIT_INDEX_FILE", None)
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
    if done.returncode:
        raise RevisionError(f"`git {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


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

    Files that git ignores are left out, as they would be from a commit.

    Raises:
        RevisionError: the folder can't be read.
    """
    if not folder.is_dir():
        raise RevisionError(f"{folder} is no folder")
    with _scratch() as repository:
        _git(repository, "add", "--all", "--", ".", work_tree=folder.resolve())
        tree = _git(repository, "write-tree")
        commit = _git(repository, "commit-tree", tree, "-m", "as edited")
        _git(repository, "update-ref", "refs/heads/main", commit)
        repository_source = source.Source(str(repository), branch="main")
        reading = loader.Loader(repository_source)
        try:
            return reading.load()
        finally:
            reading.close()


def compare(repository: Path, sub_path: str, base: str, head: str) -> Comparison:
    """What changes from ``base`` to ``head``.

    Raises:
        RevisionError: the repository or a revision can't be read.
    """
    folder = Path(_git_folder(repository))
    with _scratch() as scratch:
        alternates = scratch / "objects" / "info" / "alternates"
        alternates.parent.mkdir(parents=True, exist_ok=True)
        alternates.write_text(f"{folder / 'objects'}\n", encoding="utf-8")
        commits = [
            _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
            for revision in (base, head)
        ]
        reading = loader.Loader(source.Source(str(scratch), branch="main", sub_path=sub_path))
        try:
            states = []
            for commit in commits:
                _git(scratch, "update-ref", "refs/heads/main", commit)
                reading.accept(commit)
                states.append(reading.load())
        finally:
            reading.close()
    before, after = states
    return Comparison(base=before, head=after, changes=tuple(_differences(before, after)))


def _git_folder(repository: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--absolute-git-dir"],
        capture_output=True,
        text=True,
        timeout=GIT_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RevisionError(f"{repository} is no git repository: {done.stderr.strip()}")
    common = _git(Path(done.stdout.strip()), "rev-parse", "--git-common-dir")
    return str((Path(done.stdout.strip()) / common).resolve())


def _objects(state: desired.Desired) -> dict[tuple[str, str], object]:
    structure = state.structure
    found: dict[tuple[str, str], object] = {("Cluster", "settings"): structure.settings}
    found.update({("NodePool", name): pool for name, pool in structure.pools.items()})
    found.update({("Queue", name): queue for name, queue in structure.queues.items()})
    found.update({("PriorityClass", n): value for n, value in structure.priority_classes.items()})
    found.update({("Identity", email): user for email, user in structure.unix_users.items()})
    found.update({("Quota", name): quota for name, quota in structure.quotas.items()})
    found.update({("Reservation", name): kept for name, kept in structure.reservations.items()})
    found.update({("Volume", name): volume for name, volume in structure.volumes.items()})
    people = structure.access
    found.update({("Person", email): one for email, one in people.identities.items()})
    found.update({("Role", role.name): role for role in people.roles})
    found.update({("Removal", label): how for label, how in structure.prune.items()})
    found.update({("Job", name): job for name, job in state.jobs.items()})
    return found


def _differences(before: desired.Desired, after: desired.Desired) -> Iterator[Change]:
    """Removals first, then changes, then additions; each by kind and name."""
    old, new = _objects(before), _objects(after)
    for kind, name in sorted(old.keys() - new.keys()):
        yield Change("remove", kind, name)
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key]:
            fields = dict(_fields("", msgspec.to_builtins(old[key]), msgspec.to_builtins(new[key])))
            fields.pop("path", None)
            if fields:
                yield Change("change", *key, fields)
    for kind, name in sorted(new.keys() - old.keys()):
        yield Change("add", kind, name)


def _fields(path: str, old: object, new: object) -> Iterator[tuple[str, tuple[str, str]]]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else str(key)
            yield from _fields(inner, old.get(key), new.get(key))
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for position, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _fields(f"{path}[{position}]", left, right)
        return
    yield path or "value", (_text(old), _text(new))


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
